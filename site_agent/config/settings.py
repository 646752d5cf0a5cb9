"""The settings of an agent: agent.toml, the environment (COREG_*) and the command line are made
from two classes.

`AgentSettings` holds the agent's own settings and `Inputs` those of one table. A command line goes
before the environment, that before agent.toml, that before the defaults. One table may be given
flat (`data = "local.csv"` beside `target` and `id`, or `--data`); several have a section
[data.NAME] each. Paths in the file are relative to it. `start` writes the first files.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coreg_core.errors import StorageError, UsageError
from coreg_core.names import check_name
from coreg_wire.files.toml_file import file_faults, read_toml
from coreg_wire.identity.invitation import words_in
from site_agent.config.options import PATHS, TABLE
from site_agent.consent.policy import template
from site_agent.data.inputs import Inputs, Text

PathField = Annotated[Path, Field(strict=False)]
CONNECT_TIMEOUT = 600.0  # of an agent that takes part in one run
ONLY = ""  # the name of a table that was given flat


class AgentSettings(BaseModel):
    """See the module's docstring.

    ``approval`` "ask" waits for `coreg-agent approve` before each run; of a standing scoring study
    before the first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    coordinator: Text | None = None
    identity: PathField = Path("identity")
    models: PathField = Path("models")
    policy: PathField | None = None
    ledger: PathField | None = None
    connect_timeout: Annotated[float, Field(ge=1, strict=False)] | None = None
    words: Text | None = None
    yes: bool = False
    accept_words: bool = False
    approval: Literal["policy", "ask"] = "policy"
    listen: Text | None = None
    data: dict[str, Inputs] = Field(default_factory=dict)

    @field_validator("data")
    @classmethod
    def _names(cls, data: dict[str, Inputs]) -> dict[str, Inputs]:
        for name in data:
            if name != ONLY:
                check_name(name, "data set")
        return data

    @field_validator("words")
    @classmethod
    def _eight(cls, words: str | None) -> str | None:
        count = 0 if words is None else len(words_in(words))
        if words is not None and count != 8:
            raise ValueError(
                f"the eight words of the study are needed, and this text has {count}. Copy all of"
                " them, as the agents show them"
            )
        return words

    @property
    def ledger_path(self) -> Path:
        return self.ledger or self.identity / "ledger.jsonl"

    @property
    def state_path(self) -> Path:
        return self.identity / "service"


# To try things out on a command line, never in a file that stays.
NOT_IN_FILE = frozenset({"yes", "accept_words"})
DEFAULT_FILE = Path("agent.toml")
NEEDED = ("data", "coordinator")  # to take part in runs


def read_settings(
    config: Path | None, given: dict[str, Any], needed: tuple[str, ...] = ()
) -> AgentSettings:
    """Command line and environment, then agent.toml (None: that of this folder, if there is one),
    then defaults.
    """
    if config is None and DEFAULT_FILE.is_file():
        config = DEFAULT_FILE
    empty = (type(None), list)  # a frame is never compared
    options = {key: value for key, value in given.items() if not isinstance(value, empty) or value}
    file = {} if config is None else _read_file(config, options)
    keys = {**file, **options}
    own = {key: keys[key] for key in keys.keys() - TABLE.keys()}
    in_sections = TABLE.keys() if isinstance(file.get("data"), dict) else set[str]()
    missing = [key for key in needed if key not in {*keys, *in_sections}]
    if missing:
        _validated(config, own)  # a misspelt key is named first
        raise _lacking(missing, config)
    settings = _validated(config, {**own, **_tables(keys)})
    return _relative_to(config, settings, options)


def _tables(keys: dict[str, Any]) -> dict[str, Any]:
    """The sections of several tables, or the one that is given flat."""
    if isinstance(keys.get("data"), dict):
        return {"data": keys["data"]}
    table = {TABLE[key]: keys[key] for key in TABLE if key in keys}
    if "table" in table:
        return {"data": {ONLY: table}}
    return {}


def _read_file(config: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The keys of the file. UsageError: one has no effect where it is."""
    file = read_toml(config)
    divided = isinstance(file.get("data"), dict)
    if "data" in options and not divided:
        file.pop("query", None)  # of another table
    _require_places(config, file, options, divided=divided)
    return file


def _require_places(
    config: Path, file: dict[str, Any], options: dict[str, Any], *, divided: bool
) -> None:
    """UsageError: a setting has no effect where it is. ``divided``: the file has sections."""
    if wrong := sorted(NOT_IN_FILE & file.keys()):
        raise UsageError(f"{config}: {', '.join(wrong)}: only for a command line, as --{wrong[0]}.")
    if divided and (wrong := sorted(file.keys() & TABLE.keys() - {"data"})):
        raise UsageError(
            f"{config}: {', '.join(wrong)}: keys of a table have no effect above its section. Move"
            " them below."
        )
    if divided and (wrong := sorted(options.keys() & TABLE.keys())):
        raise UsageError(
            f"--{', --'.join(wrong)}: {config} has sections [data.NAME] with these settings. Leave"
            " the options out. For another table, such as of a scoring, add a section. The key"
            " data of a study selects it."
        )


def _lacking(missing: list[str], config: Path | None) -> UsageError:
    text = (
        f"missing: --{', --'.join(missing)}. Give an option, a key of agent.toml (for `serve` a"
        " section [data.NAME]), or the environment variable"
        f" COREG_{', COREG_'.join(missing).upper()}."
    )
    if config is None:
        text += (
            " This folder has no agent.toml: go to the folder where you typed `coreg-agent"
            " join`, or give --config."
        )
    return UsageError(text)


def inputs_of(options: dict[str, Any]) -> Inputs:
    """The table of a command line that has no agent.toml."""
    table = {TABLE[key]: value for key, value in options.items() if value is not None}
    return _validated(None, {"data": {ONLY: table}}).data[ONLY]


def _validated(config: Path | None, values: dict[str, Any]) -> AgentSettings:
    try:
        return AgentSettings.model_validate(values)
    except ValidationError as error:
        sections = [name for name in values.get("data", {}) if name != ONLY]
        of_table = [f"data.{name}.{key}" for name in sections for key in Inputs.model_fields]
        keys = [*AgentSettings.model_fields, *(of_table or (*TABLE, *TABLE.values()))]
        fault = file_faults(config or Path("the command line"), error, keys)
        raise UsageError(str(fault).replace(f"data.{ONLY}.", "")) from None


def _relative_to(
    config: Path | None, settings: AgentSettings, options: dict[str, Any]
) -> AgentSettings:
    """Paths of the file are relative to it; those of the command line are not."""
    if config is None:
        return settings
    base = config.parent
    moved = dict[str, Any]()
    for name in PATHS - options.keys():
        path = getattr(settings, name)
        moved[name] = None if path is None else base / path
    given = [TABLE[name] for name in ("data", "unlabelled") if name in options]
    moved["data"] = {
        name: inputs.at(base).model_copy(update={key: getattr(inputs, key) for key in given})
        for name, inputs in settings.data.items()
    }
    return settings.model_copy(update=moved)


# --- the files that `coreg-agent join` writes -----------------------------------------------------

AGENT = """\
# The configuration of a site's agent. Paths are relative to this file. The command line and COREG_*
# override it.

coordinator = "COORDINATOR"  # HOST:PORT
identity = "identity"  # folder of key, certificate and ledger
policy = "policy.toml"
# words = "WORD WORD WORD WORD WORD WORD WORD WORD"  # that all operators have compared
# connect_timeout = 600  # seconds
# models = "models"  # folder of the models; they hold labelled rows

# This site's table: CSV, Parquet, or a database (sqlite:PATH, postgresql://USER@HOST/DATABASE) with
# the key `query`. Rows with an empty target are the shared unlabelled instances.
# data = "local.csv"
# target = "y"  # the column to predict; else that of the study
# id = "id"  # the column that identifies an instance; the same ids at every site
# unlabelled = "shared.csv"  # a separate table of the shared instances
# categorical = ["ward"]  # columns to one-hot encode although they look numeric
# positive = "yes"  # of a yes/no target: the value that means 1
# separator = ";"  # found, unless you say it; so are decimal and dates
# All keys: docs/reference/agent-toml.md

# Only for `coreg-agent serve`: instead of `data` and the keys below it, a section for each data
# set. A study names it, as in its key data = "patients".
# listen = "127.0.0.1:7610"  # answers POST /score to programs on this machine
# approval = "ask"  # each run waits for `coreg-agent approve`; else the policy alone decides
# [data.patients]
# table = "local.csv"
# dates = {admitted = "%d/%m/%Y"}  # any key of a table
"""


def start(folder: Path, coordinator: str) -> dict[Path, bool]:
    """Write agent.toml and policy.toml, with mode 0600; whether each was written.

    Existing files stay.
    """
    files = {
        folder / "agent.toml": AGENT.replace("COORDINATOR", coordinator),
        folder / "policy.toml": template(),
    }
    return {path: _created(path, text) for path, text in files.items()}


def _created(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from None
    return True
