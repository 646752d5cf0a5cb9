"""The options of the agent's commands, with the help of each: a command line has every setting of
one table.

Commands import this module only; the classes of the settings (`settings`) need pydantic.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from site_agent.data.sources import NA_VALUES

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="COREG_CONFIG",
        readable=False,
        help="This site's settings [./agent.toml].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]

TABLE_HELP = {
    "data": "The table: CSV, Parquet, sqlite:PATH or postgresql://USER@HOST/DATABASE.",
    "query": "The rows of a database: 'SELECT …'.",
    "target": "The column to predict [as the study says; else y, target or label].",
    "positive": (
        "Of a yes/no target: the value that is read as 1, for example yes. The other one is 0."
    ),
    "id": (
        "The column that names the instances; several as NAME+NAME [as the study says; else id, or"
        " the only one in _id]."
    ),
    "unlabelled": "A table of the shared unlabelled set [the rows of --data with an empty target].",
    "separator": "What separates the columns of a CSV file: ',', ';', '|' or tab [found].",
    "decimal": "The decimal mark: . or , [found].",
    "dates": (
        "The format of the dates of a column: COLUMN=FORMAT, such as 'admitted=%d/%m/%Y'; of"
        " years with two digits 'born=%d.%m.%y,latest=DATE', the latest that can occur;"
        " repeatable [found]."
    ),
    "na_values": (
        "A cell text that means a missing value; repeatable. It replaces the default list: "
        f"{', '.join(NA_VALUES)}. An empty cell is always missing."
    ),
    "categorical": "A column to one-hot encode even if it holds numbers; repeatable.",
    "drop": "A column to leave out; repeatable.",
    "scale": "Use features as they are, not standardised.",
    "labels": (
        "This site has no labelled rows: every row of --data is shared (additive objective only)."
    ),
}
OWN_HELP = {
    "coordinator": "HOST:PORT.",
    "identity": "Folder of key, certificate and ledger [identity].",
    "models": (
        "Folder of the models, by study and run [models]. They hold labelled rows: keep it private."
    ),
    "policy": "policy.toml: what this site agrees to.",
    "ledger": "What left this machine [IDENTITY/ledger.jsonl].",
    "connect_timeout": "How long to try to connect, in seconds [600; `serve`: unlimited].",
    "words": "The eight words that all operators have compared.",
    "yes": "Take part without a question.",
    "accept_words": "Take the eight words unseen, for demonstrations. The end of the run tells it.",
}
TABLE = {
    key: "table" if key == "data" else key for key in TABLE_HELP
}  # the option's key of each key of `Inputs`
OWN = tuple(OWN_HELP)
WITH_ENVIRONMENT = frozenset(
    {
        "data",
        "query",
        "target",
        "id",
        "unlabelled",
        "coordinator",
        "identity",
        "models",
        "policy",
        "ledger",
        "words",
    }
)
PATHS = frozenset({"identity", "models", "policy", "ledger"})
_LISTS = frozenset({"na_values", "categorical", "dates", "drop"})
_SWITCHES = frozenset({"scale", "labels", "yes", "accept_words"})
_OFF = {"scale": "no_scale", "labels": "no_labels"}  # an option that switches off

F = TypeVar("F", bound=Callable[..., None])


def with_settings(*, without: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """A command that takes every setting as an option: ``command(..., given, config)`` receives the
    options.
    """

    def decorated(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        names = {_OFF.get(key, key): key for key in (*TABLE, *OWN) if key not in without}
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **_option(key))
            for name, key in names.items()
        ]
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
            if name != "given"
        ]
        own = [*options, *own]
        own.sort(key=lambda parameter: parameter.annotation is not typer.Context)  # it comes first

        @functools.wraps(command)
        def called(**values: Any) -> None:
            given = {key: values.pop(parameter) for parameter, key in names.items()}
            for key in _SWITCHES & given.keys():
                given[key] = (key not in _OFF) if given[key] else None
            command(**values, given=given)

        called.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
        return called  # type: ignore[return-value]

    return decorated


def _option(key: str) -> dict[str, Any]:
    kind: Any = str | None
    if key in _SWITCHES:
        kind = bool
    elif key in PATHS:
        kind = Path | None
    elif key in _LISTS:
        kind = list[str] | None
    flag = f"--{_OFF.get(key, key)}".replace("_", "-")
    environment = f"COREG_{key.upper()}" if key in WITH_ENVIRONMENT else None
    info = typer.Option(flag, envvar=environment, help=TABLE_HELP.get(key) or OWN_HELP[key])
    return {"annotation": Annotated[kind, info], "default": False if kind is bool else None}
