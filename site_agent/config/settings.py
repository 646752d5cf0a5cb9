"""What an operator says, as one value: every option once, with its type, its limits, its default and its help.

The command line's options, the environment's names (COREG_*) and the keys of agent.toml are all made from `Settings`;
they go before one another in that order.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError

from coreg_core.errors import UsageError
from coreg_wire.files import toml_file
from coreg_wire.identity.names import check_site_name
from coreg_wire.transport.service import LEAST_BANDWIDTH
from site_agent.data.sources import Query, Source, source_of

Words = tuple[Annotated[str, Field(min_length=1)], ...]
Text = Annotated[str, Field(min_length=1)]
NOT_IN_FILE = frozenset({"insecure", "name"})  # for trying things out on a command line, never by a file that stays
WITHOUT_ENVIRONMENT = frozenset(
    {"alone", "categorical", "dates", "drop", "labels", "scale", "patience", "least_bandwidth", "insecure", "name"}
)


def a_source(value: object) -> Source | None:
    """A file or a query, from its text where it is not one already."""
    if value is None or isinstance(value, Path | Query):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("a path or a query, in quotes")
    return source_of(value)


class Settings(BaseModel):
    """See the module's docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    data: Annotated[Path | Query | None, PlainValidator(a_source)] = Field(
        None,
        description="The site's table: CSV, Parquet, or 'sqlite:PATH?SELECT …'. Rows whose target is empty are the shared "
        "unlabelled set, unless --unlabelled names it.",
    )
    target: Text | None = Field(None, description="The column to predict.")
    id: Text | None = Field(None, description="The column that names the instances.")
    unlabelled: Annotated[Path | Query | None, PlainValidator(a_source)] = Field(
        None, description="A table of the shared unlabelled set."
    )
    coordinator: Text | None = Field(None, description="HOST:PORT.")
    identity: Annotated[Path, Field(strict=False)] = Field(
        Path("identity"), description="Folder of key, certificate and ledger [identity]."
    )
    output: Annotated[Path, Field(strict=False)] = Field(
        Path("model.coreg"),
        description="The model file [model.coreg]. It holds labelled rows: keep it private.",
    )
    alone: Annotated[Path | None, Field(strict=False)] = Field(
        None, description="Where the model goes that this site trains alone [beside --output, with -alone in its name]."
    )
    categorical: Annotated[Words, Field(strict=False)] = Field(
        (), description="A column to one-hot encode although it looks numeric; repeatable."
    )
    dates: Annotated[Words, Field(strict=False)] = Field(
        (),
        description="A column of dates: NAME for days since 1970-01-01, or NAME:PART+PART of days, year, month, weekday; "
        "repeatable.",
    )
    drop: Annotated[Words, Field(strict=False)] = Field((), description="A column to leave out; repeatable.")
    scale: bool = Field(True, description="Features as they are, not standardised.")
    labels: bool = Field(
        True, description="This site has no labelled rows: every row of --data is shared (additive objective only)."
    )
    policy: Annotated[Path | None, Field(strict=False)] = Field(
        None, description="policy.toml: what this site agrees to."
    )
    ledger: Annotated[Path | None, Field(strict=False)] = Field(
        None, description="What left this machine [IDENTITY/ledger.jsonl]."
    )
    patience: Annotated[float, Field(ge=1)] = Field(600.0, description="Seconds to go on dialling [600].")
    least_bandwidth: Annotated[float, Field(ge=1000)] = Field(
        LEAST_BANDWIDTH, description="Bytes a second that the link to the coordinator carries at least [10000]."
    )
    insecure: bool = Field(False, description="No TLS; on a loopback address only.")
    name: Text | None = Field(None, description="The site's name, with --insecure.")

    @property
    def ledger_path(self) -> Path:
        return self.ledger or self.identity / "ledger.jsonl"

    @property
    def own_name(self) -> str | None:
        """The name that was given, checked."""
        return None if self.name is None else check_site_name(self.name)


_WITHOUT: dict[str, Any] = {"scale": "no_scale", "labels": "no_labels"}  # an option that switches off


def read_settings(config: Path | None, given: dict[str, Any], needed: tuple[str, ...]) -> Settings:
    """Command line and environment first, then agent.toml, then defaults; paths in the file are relative to it.

    Raises
    ------
    UsageError
        an unknown key, a value that does not fit, or one that is needed and nowhere said.
    """
    said = {key: value for key, value in given.items() if value not in (None, [], ())}
    settings = Settings(**{**_from_file(config), **said})
    if missing := [name for name in needed if getattr(settings, name) is None]:
        raise UsageError(
            f"needs {', '.join('--' + name for name in missing)} (or in agent.toml, or COREG_{missing[0].upper()})."
        )
    return settings


def _from_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    found: dict[str, Any] = {}
    for key, value in toml_file.read_toml(config).items():
        field = Settings.model_fields.get(key)
        if field is None or key in NOT_IN_FILE:
            keys = sorted(Settings.model_fields.keys() - NOT_IN_FILE)
            raise UsageError(f"{config}: {key!r} is no setting; choose from {', '.join(keys)}.")
        if _is_path(key):
            if not isinstance(value, str) or not value:
                raise UsageError(f"{config}: {key} = {value!r} is not a path in quotes.")
            found[key] = source_of(value, config.parent) if _is_source(key) else config.parent / value
            continue
        kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        try:
            found[key] = TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            told = "; ".join(dict.fromkeys(e["msg"] for e in error.errors()))
            raise UsageError(f"{config}: {key} = {value!r}: {told}.") from None
    return found


def _is_path(key: str) -> bool:
    return "Path" in str(Settings.model_fields[key].annotation)


def _is_source(key: str) -> bool:
    return "Query" in str(Settings.model_fields[key].annotation)


# --- the command line ---------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., None])


def with_settings(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """A command that takes every setting as an option: ``command(..., given, config)`` gets what was said of them."""

    def decorated(command: F) -> F:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        names = {_WITHOUT.get(key, key): key for key in Settings.model_fields if key not in without}
        options = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY, **_option(key)) for p, key in names.items()]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        first = [p for p in own if p.annotation is typer.Context]
        rest = [p for p in own if p.annotation is not typer.Context]
        parameters = [*first, *options, *rest]

        def called(**values: Any) -> None:
            given = {key: values.pop(parameter) for parameter, key in names.items()}
            for key in _WITHOUT:
                given[key] = False if given.get(key) else None
            command(**values, given=given)

        called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called  # type: ignore[return-value]

    return decorated


def _option(key: str) -> dict[str, Any]:
    field = Settings.model_fields[key]
    switches_off = key in _WITHOUT
    kind: Any
    if switches_off or field.annotation is bool:
        kind = bool
    elif _is_source(key):
        kind = str | None
    elif _is_path(key):
        kind = Path | None
    elif "tuple" in str(field.annotation):
        kind = list[str] | None
    elif field.annotation is float:
        kind = float | None
    else:
        kind = str | None
    flag = f"--{_WITHOUT.get(key, key)}".replace("_", "-")
    environment = None if key in WITHOUT_ENVIRONMENT else f"COREG_{key.upper()}"
    least = next((limit.ge for limit in field.metadata if hasattr(limit, "ge")), None)
    info = typer.Option(flag, envvar=environment, help=field.description, min=least)
    return {"annotation": Annotated[kind, info], "default": False if kind is bool else None}
