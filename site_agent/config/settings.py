"""The settings of an agent: agent.toml, the environment (COREG_*) and the command line are made from two classes.

`AgentSettings` holds the agent's own settings and `Inputs` those of one table. A command line goes before the environment, that
before agent.toml, that before the defaults. One table may be given flat (`data = "local.csv"` beside `target` and `id`,
or `--data`); several have a section [data.NAME] each. Paths in the file are relative to it.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import file_faults, read_toml
from coreg_wire.identity.names import check_site_name, check_study_name
from site_agent.config.options import TABLE
from site_agent.data.inputs import Inputs, Text

PathField = Annotated[Path, Field(strict=False)]
CONNECT_TIMEOUT = 600.0  # of an agent that takes part in one run
ONLY = ""  # the name of a table that was given flat


class AgentSettings(BaseModel):
    """See the module's docstring. ``approval`` "ask" waits for `coreg-agent approve` before each run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    coordinator: Text | None = None
    identity: PathField = Path("identity")
    output: PathField = Path("model.coreg")
    local_model: PathField | None = None
    policy: PathField | None = None
    ledger: PathField | None = None
    connect_timeout: Literal["unlimited"] | Annotated[float, Field(ge=1, strict=False)] | None = None
    insecure: bool = False
    name: Text | None = None
    words: Text | None = None
    yes: bool = False
    accept_words: bool = False
    # Of an agent that serves; they have no option.
    models: PathField = Path("models")
    state: PathField | None = None
    approval: Literal["policy", "ask"] = "policy"
    keep_models: Annotated[int, Field(ge=1)] | None = None
    data: dict[str, Inputs] = Field(default_factory=dict)

    @field_validator("data")
    @classmethod
    def _names(cls, data: dict[str, Inputs]) -> dict[str, Inputs]:
        for name in data:
            if name != ONLY:
                check_study_name(name, "data set")
        return data

    @property
    def ledger_path(self) -> Path:
        return self.ledger or self.identity / "ledger.jsonl"

    @property
    def state_path(self) -> Path:
        """Where the agent and its operator's commands exchange files."""
        return self.state or self.identity / "service"

    @property
    def own_name(self) -> str | None:
        """The name that was given, checked."""
        return None if self.name is None else check_site_name(self.name)

    def timeout(self, default: float) -> float:
        """`connect_timeout` in seconds."""
        if self.connect_timeout is None:
            return default
        return math.inf if self.connect_timeout == "unlimited" else float(self.connect_timeout)


NOT_IN_FILE = frozenset(
    {"insecure", "name", "yes", "accept_words"}
)  # to try things out on a command line, never in a file that stays


DEFAULT_FILE = Path("agent.toml")


def read_settings(config: Path | None, given: dict[str, Any], needed: tuple[str, ...] = ()) -> AgentSettings:
    """Command line and environment, then agent.toml, then defaults.

    Parameters
    ----------
    config
        agent.toml; None: that of this folder, if there is one.
    given
        the options, by the names of their settings; None, empty lists and empty tuples were not given.
    needed
        options that have to be given somewhere; of a table, unless the file has sections.

    Raises
    ------
    UsageError
        an unknown key, a value that does not fit, or a setting that is needed and missing.
    """
    options = {
        key: value
        for key, value in given.items()
        if value is not None and not (isinstance(value, list | tuple) and not value)
    }
    config = DEFAULT_FILE if config is None and DEFAULT_FILE.is_file() else config
    file = {} if config is None else read_toml(config)
    sections = file.get("data") if isinstance(file.get("data"), dict) else None
    if config is not None and (wrong := sorted(NOT_IN_FILE & file.keys())):
        raise UsageError(f"{config}: {', '.join(wrong)}: only for a command line, as --{wrong[0]}.")
    if config is not None:
        _check_places(config, file)
    if sections is not None and (wrong := sorted(options.keys() & TABLE.keys())):
        raise UsageError(f"--{', --'.join(wrong)}: {config} has sections [data.NAME], which say it.")
    table = {TABLE[key]: value for key, value in {**file, **options}.items() if key in TABLE and sections is None}
    plain = {key: value for key, value in {**file, **options}.items() if key not in TABLE}
    missing = [name for name in needed if name not in {**file, **options} and not (sections and name in TABLE)]
    if missing:
        _validated(config, plain)  # a misspelt key is named first
        unread = ""
        if config is None:
            unread = (
                " This folder has no agent.toml: go to the folder where you typed `coreg-agent join`, or give --config."
            )
        raise UsageError(
            f"missing: {', '.join('--' + name for name in missing)}. Give an option, a key of agent.toml, or the "
            f"environment variable {', '.join('COREG_' + name.upper() for name in missing)}.{unread}"
        )
    data = sections if sections is not None else {ONLY: table} if "table" in table else {}
    settings = _validated(config, {**plain, "data": data})
    return settings if config is None else _relative_to(config.parent, settings, options)


def _check_places(config: Path, file: dict[str, Any]) -> None:
    """Check where the keys of a file stand: a key of a table above its section would have no effect."""
    if stray := [name for name, value in file.items() if isinstance(value, dict) and name not in ("data", "dates")]:
        name = next(
            (key for key, value in file[stray[0]].items() if isinstance(value, dict)), stray[0]
        )  # [dat.patients]
        written = stray[0] if name == stray[0] else f"{stray[0]}.{name}"
        raise UsageError(f"{config}: unknown section [{written}]. The section of a data set is [data.{name}].")
    sections = file.get("data")
    if not isinstance(sections, dict):
        return
    if not all(isinstance(each, dict) for each in sections.values()):
        raise UsageError(
            f"{config}: the section [data] lacks the name of the data set: write [data.patients], for example."
        )
    for name, section in sections.items():
        if "data" in section:
            raise UsageError(f"{config}: [data.{name}] data: in a section the table's key is `table`. Rename it.")
        if above := sorted(file.keys() & TABLE.keys() - {"data"}):
            raise UsageError(
                f"{config}: {', '.join(above)}: keys of a table have no effect above its section. Move them below [data.{name}]."
            )


def _validated(config: Path | None, values: dict[str, Any]) -> AgentSettings:
    try:
        return AgentSettings.model_validate(values)
    except ValidationError as error:
        sections = [name for name in values.get("data", {}) if name != ONLY]
        of_table = [f"data.{name}.{key}" for name in sections for key in Inputs.model_fields]
        known = [*AgentSettings.model_fields, *(of_table or (*TABLE, *TABLE.values()))]
        raise file_faults(config or Path("the command line"), error, known) from None


def _relative_to(base: Path, settings: AgentSettings, options: dict[str, Any]) -> AgentSettings:
    """Paths of the file are relative to it; those of the command line are not."""
    paths = ("identity", "output", "local_model", "policy", "ledger", "models", "state")
    found = {name: getattr(settings, name) for name in paths if name not in options}
    moved: dict[str, Any] = {name: base / path for name, path in found.items() if path is not None}
    given = [TABLE[name] for name in ("data", "unlabelled") if name in options]
    moved["data"] = {
        name: inputs.at(base).model_copy(update={key: getattr(inputs, key) for key in given})
        for name, inputs in settings.data.items()
    }
    return settings.model_copy(update=moved)
