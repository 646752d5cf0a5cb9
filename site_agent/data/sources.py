"""The source of a table, and its faults: a sentence for a person, fields for a program, and an
error that lists all of them.

A source is a file, or a query to a database (`site_agent.data.databases`). The text of a fault can
show a cell, because only the site's own operator reads it. Its fields name the kind of the cell and
never its content.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from coreg_core.errors import BadData, UsageError

SHOWN = 5  # lines or names in one sentence
COLUMNS = 20  # names of columns in one sentence
FRAME = "the frame"  # the file of faults of a data frame
MOST = 20  # sentences of one error; `coreg-agent check` shows them all


@dataclass(frozen=True)
class TableFault:
    """One fault of a table.

    ``kind``: the problem in a word or two, for a program; ``about``: a column that the file lacks.
    """

    file: str
    what: str
    todo: str = ""
    kind: str = "table"
    column: str | None = None
    lines: tuple[int, ...] = ()
    about: str | None = None

    @property
    def text(self) -> str:
        column = ""
        if self.column is not None:
            column = f", column {self.column!r}"
        places = _places("line", self.lines)
        todo = f" {self.todo}" if self.todo else ""
        if self.file == FRAME:  # in Python: rows from 0, and keywords
            places = _places("row", [line - 1 for line in self.lines])
            if places:
                places += " (from 0)"
            todo = todo.replace("--no-labels", "labels=False").replace("--na-values", "na_values")
            todo = todo.replace("--", "")
        return f"{self.file}{places}{column}: {self.what}{todo}"

    def fields(self) -> dict[str, Any]:
        """Fields for a program, without the content of a cell."""
        column = self.column
        if self.about is not None:
            column = self.about
        return {
            "file": self.file,
            "row": next(iter(self.lines), None),
            "rows": len(self.lines),
            "column": column,
            "kind": self.kind,
            "do": self.todo,
        }


def _places(what: str, lines: Sequence[int]) -> str:
    places = list(map(str, lines[:SHOWN]))
    if len(lines) > SHOWN:
        places.append(f"{len(lines) - SHOWN} more")
    if not places:
        return ""
    *others, last = places
    if not others:
        return f", {what} {last}"
    return f", {what}s {', '.join(others)} and {last}"


class BadTable(BadData):
    """A table that cannot be used, with all its faults.

    Their advice is for a site that has an agent.toml.
    """

    def __init__(self, *faults: TableFault):
        self.faults = faults
        super().__init__(self._text())

    def advised(self, advice: Callable[[str], str]) -> "BadTable":
        """The same faults with other advice, for a command that reads no agent.toml."""
        return BadTable(*(replace(fault, todo=advice(fault.todo)) for fault in self.faults))

    def _text(self) -> str:
        if len(self.faults) == 1:
            return self.faults[0].text
        texts = [f"{len(self.faults)} faults in the table:"]
        texts += [fault.text for fault in self.faults[:MOST]]
        if len(self.faults) > MOST:
            texts.append(f"{len(self.faults) - MOST} more; `coreg-agent check` lists them all")
        return "\n  ".join(texts)


class Faults:
    """Collects faults, each once, so that reading can continue. `raise_any` raises them
    together.
    """

    def __init__(self) -> None:
        self._faults: dict[TableFault, None] = {}

    def add(self, *faults: TableFault) -> None:
        self._faults |= dict.fromkeys(faults)

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except BadTable as error:
            self.add(*error.faults)

    def __iter__(self) -> Iterator[TableFault]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def raise_any(self) -> None:
        """Raise the collected faults, by file in reading order, then by line."""
        if self._faults:
            files = list(dict.fromkeys(fault.file for fault in self._faults))  # as they were read
            raise BadTable(
                *sorted(self._faults, key=lambda fault: (files.index(fault.file), fault.lines))
            )


def some(names: Iterable[object], most: int = SHOWN) -> str:
    """The first ``most`` names, quoted, and the number of the others."""
    return shortened([repr(name) for name in names], most)


def shortened(texts: Sequence[str], most: int) -> str:
    more = ""
    if len(texts) > most:
        more = f" and {len(texts) - most} more"
    return ", ".join(texts[:most]) + more


# --- sources --------------------------------------------------------------------------------------

SQLITE = "sqlite:"
POSTGRESQL = ("postgresql://", "postgres://")
# Texts that mean a missing value, unless the operator gives a list. An empty cell is always
# missing.
NA_VALUES = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]+):/")


@dataclass(frozen=True)
class DatabaseQuery:
    """A SELECT to a database: a file of SQLite, or the address of a PostgreSQL server."""

    database: Path | str
    sql: str

    def __str__(self) -> str:
        if isinstance(self.database, Path):
            return f"{SQLITE}{self.database}"
        return self.database


Source: TypeAlias = Path | DatabaseQuery


def source_of(text: str, sql: str = "") -> Source:
    """Parse --data and --query.

    Raises
    ------
    UsageError
        the address of a database has a password or is of another kind; there is no query, or one
        to a file.
    """
    database: Path | str = text
    if has_password(text):  # the text is not repeated
        raise UsageError(
            "the address of the database holds a password. Leave it out: set PGPASSWORD, or write a"
            " line HOST:PORT:DATABASE:USER:PASSWORD into ~/.pgpass (mode 0600)."
        )
    if text.startswith(SQLITE):
        path, _, inside = text.removeprefix(SQLITE).partition("?")
        if not path:
            raise UsageError(f"{text}: names no database. Write {SQLITE}PATH.")
        database = Path(path)
        sql = sql or inside
    elif not text.startswith(POSTGRESQL):
        scheme = _ADDRESS.match(text)
        if scheme:
            raise UsageError(
                f"{scheme[1]}: is neither {SQLITE}PATH nor postgresql://USER@HOST/DATABASE. From"
                " other databases, export the rows to Parquet."
            )
        if sql:
            raise UsageError(f"{text}: a file, and a query needs a database. Leave the query out.")
        return Path(text)
    if not sql.strip():
        raise UsageError(f"{text}: which rows? Name them, as --query 'SELECT …'.")
    return DatabaseQuery(database, sql.strip())


def has_password(text: str) -> bool:
    """Whether the address of a server has a password, before its host or as a parameter."""
    address = re.split(":/+", text, maxsplit=1)[-1]
    before_host, _, _ = address.rpartition("@")
    parameters = unquote(text).lower().replace(" ", "")
    return ":" in before_host or "password=" in parameters


def at(source: Source | Any, base: Path) -> Source | Any:
    """The source, its file in that folder. A server and a data frame have no file."""
    if isinstance(source, Path):
        return base / source
    if isinstance(source, DatabaseQuery) and isinstance(source.database, Path):
        return replace(source, database=base / source.database)
    return source


def files_of(source: Source) -> tuple[Path, ...]:
    """The file that holds the table; a server and a data frame have none."""
    file = source.database if isinstance(source, DatabaseQuery) else source
    if isinstance(file, Path):
        return (file,)
    return ()
