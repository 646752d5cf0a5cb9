"""The settings of an agent: agent.toml, the environment (COREG_*) and the command line are made from two classes.

`AgentSettings` holds the agent's own settings and `Inputs` those of one table. A command line goes before the environment, that
before agent.toml, that before the defaults. One table may be given flat (`data = "local.csv"` beside `target` and `id`,
or `--data`); several have a section [data.NAME] each. Paths in the file are relative to it.
"""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import file_faults, read_toml
from coreg_wire.identity.names import check_site_name, check_study_name
from site_agent.data.inputs import Inputs, Text

PathField = Annotated[Path, Field(strict=False)]
CONNECT_TIMEOUT = 600.0  # of an agent that takes part in one run
ONLY = ""  # the name of a table that was given flat


class AgentSettings(BaseModel):
    """See the module's docstring. ``approval`` "ask" waits for `coreg-agent approve` before each run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    coordinator: Text | None = Field(None, description="HOST:PORT.")
    identity: PathField = Field(Path("identity"), description="Folder of key, certificate and ledger [identity].")
    output: PathField = Field(
        Path("model.coreg"), description="The model file [model.coreg]. It holds labelled rows: keep it private."
    )
    local_model: PathField | None = Field(
        None, description="Where the model goes that this site trains alone [beside --output, with -local in its name]."
    )
    policy: PathField | None = Field(None, description="policy.toml: what this site agrees to.")
    ledger: PathField | None = Field(None, description="What left this machine [IDENTITY/ledger.jsonl].")
    connect_timeout: Literal["unlimited"] | Annotated[float, Field(ge=1, strict=False)] | None = Field(
        None, description="How long to try to connect, in seconds [600; `serve`: unlimited]."
    )
    insecure: bool = Field(False, description="No TLS; on a loopback address only.")
    name: Text | None = Field(None, description="The site's name, with --insecure.")
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


TABLE = {"data": "table", **{name: name for name in Inputs.model_fields if name != "table"}}
NOT_IN_FILE = frozenset({"insecure", "name"})  # to try things out on a command line, never in a file that stays
OWN = (
    "coordinator", "identity", "output", "local_model", "policy", "ledger", "connect_timeout", "insecure", "name",
)  # fmt: skip
WITH_ENVIRONMENT = frozenset(
    {"data", "target", "id", "unlabelled", "shared", "coordinator", "identity", "output", "policy", "ledger"}
)


def read_settings(config: Path | None, given: dict[str, Any], needed: tuple[str, ...] = ()) -> AgentSettings:
    """Command line and environment, then agent.toml, then defaults.

    Parameters
    ----------
    config
        agent.toml.
    given
        the options, by the names of their settings; None, empty lists and empty tuples were not given.
    needed
        options that have to be given somewhere; of a table, unless the file has sections.

    Raises
    ------
    UsageError
        an unknown key, a value that does not fit, or a setting that is needed and missing.
    """
    options = {key: value for key, value in given.items() if value not in (None, [], ())}
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
            beside = Path("agent.toml").is_file()
            unread = (
                " To use the agent.toml of this folder, give --config agent.toml."
                if beside
                else " This folder has no agent.toml: go to the folder that has it, or give --config FILE."
            )
        raise UsageError(
            f"missing: {', '.join('--' + name for name in missing)}. Give an option, a key of agent.toml, or the "
            f"environment variable {', '.join('COREG_' + name.upper() for name in missing)}.{unread}"
        )
    data = sections if sections is not None else {ONLY: table} if "table" in table else {}
    settings = _validated(config, {**plain, "data": data})
    if config is not None:
        settings = _relative_to(config.parent, settings, options)
    base = Path() if config is None or "shared" in options else config.parent
    data = {name: inputs.aligned(settings.models, base) for name, inputs in settings.data.items()}
    return settings.model_copy(update={"data": data})


def _check_places(config: Path, file: dict[str, Any]) -> None:
    """Check where the keys of a file stand: a key of a table above its section would have no effect."""
    if stray := [name for name, value in file.items() if isinstance(value, dict) and name != "data"]:
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


# --- the command line ---------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., None])
_OFF = {"scale": "no_scale", "labels": "no_labels"}  # an option that switches off


def with_settings(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """A command that takes every setting as an option: ``command(..., given, config)`` receives the options."""

    def decorated(command: F) -> F:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        names = {_OFF.get(key, key): key for key in (*TABLE, *OWN) if key not in without}
        options = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY, **_option(key)) for p, key in names.items()]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        first = [p for p in own if p.annotation is typer.Context]
        parameters = [*first, *options, *(p for p in own if p.annotation is not typer.Context)]

        def called(**values: Any) -> None:
            given = {key: values.pop(parameter) for parameter, key in names.items()}
            for key in _OFF:
                given[key] = False if given.get(key) else None
            given["insecure"] = given.get("insecure") or None
            command(**values, given=given)

        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called  # type: ignore[return-value]

    return decorated


def _option(key: str) -> dict[str, Any]:
    field = Inputs.model_fields[TABLE[key]] if key in TABLE else AgentSettings.model_fields[key]
    shape = str(field.annotation)
    kind: Any = str | None
    if key in _OFF or field.annotation is bool:
        kind = bool
    elif "Query" not in shape and "Path" in shape:
        kind = Path | None
    elif "tuple" in shape:
        kind = list[str] | None
    flag = f"--{_OFF.get(key, key)}".replace("_", "-")
    environment = f"COREG_{key.upper()}" if key in WITH_ENVIRONMENT else None
    info = typer.Option(flag, envvar=environment, help=field.description)
    return {"annotation": Annotated[kind, info], "default": False if kind is bool else None}
