"""The source of a table, and its faults: a sentence for a person, fields for a program, and an
error that lists all of them.

A source is a file, or a query to an SQLite database (`sqlite:clinic.db?SELECT …`), opened
read-only. The text of a fault can show a cell, because only the site's own operator reads it. Its
fields name the kind of the cell and never its content.
"""

import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from coreg_core.errors import BadData, UsageError

SHOWN = 5  # lines or names in one sentence
COLUMNS = 20  # names of columns in one sentence
FRAME = "the frame"  # the file of faults of a data frame
MOST = 20  # sentences of one error; `coreg-agent check` shows them all


@dataclass(frozen=True)
class Fault:
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
        column = "" if self.column is None else f", column {self.column!r}"
        places, todo = _places("line", self.lines), self.todo
        if self.file == FRAME:  # in Python: rows from 0, and keywords
            places = _places("row", [line - 1 for line in self.lines]) + " (from 0)" * bool(
                self.lines
            )
            todo = (
                todo.replace("--no-labels", "labels=False")
                .replace("--na-values", "na_values")
                .replace("--", "")
            )
        return f"{self.file}{places}{column}: {self.what}{' ' if todo else ''}{todo}"

    def fields(self) -> dict[str, Any]:
        """Fields for a program, without the content of a cell."""
        return {
            "file": self.file,
            "row": self.lines[0] if self.lines else None,
            "rows": len(self.lines),
            "column": self.column if self.about is None else self.about,
            "kind": self.kind,
            "do": self.todo,
        }


def _places(what: str, lines: Sequence[int]) -> str:
    if len(lines) < 2:
        return "".join(f", {what} {line}" for line in lines)
    shown, last = (
        (lines[:-1], lines[-1])
        if len(lines) <= SHOWN
        else (lines[:SHOWN], f"{len(lines) - SHOWN} more")
    )
    return f", {what}s {', '.join(map(str, shown))} and {last}"


class BadTable(BadData):
    """A table that cannot be used, with all its faults.

    Their advice is for a site that has an agent.toml.
    """

    def __init__(self, *faults: Fault):
        self.faults = faults
        super().__init__(self._told())

    def advised(self, advice: Callable[[str], str]) -> "BadTable":
        """The same faults with other advice, for a command that reads no agent.toml."""
        return BadTable(*(replace(fault, todo=advice(fault.todo)) for fault in self.faults))

    def _told(self) -> str:
        if len(self.faults) == 1:
            return self.faults[0].text
        more = [f"{len(self.faults) - MOST} more; `coreg-agent check` lists them all"] * (
            len(self.faults) > MOST
        )
        return "\n  ".join(
            [
                f"{len(self.faults)} faults in the table:",
                *(f.text for f in self.faults[:MOST]),
                *more,
            ]
        )


class Faults:
    """Collects faults, each once, so that reading can continue. `raise_any` raises them
    together.
    """

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}

    def add(self, *faults: Fault) -> None:
        self._found |= dict.fromkeys(faults)

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except BadTable as error:
            self.add(*error.faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """Raise the collected faults, by file in reading order, then by line."""
        if self._found:
            files = list(dict.fromkeys(fault.file for fault in self._found))  # as they were read
            raise BadTable(
                *sorted(self._found, key=lambda fault: (files.index(fault.file), fault.lines))
            )


def some(names: Iterable[object], most: int = SHOWN) -> str:
    """The first ``most`` names, quoted, and the number of the others."""
    return shortened([repr(name) for name in names], most)


def shortened(texts: Sequence[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


# --- sources --------------------------------------------------------------------------------------

SQLITE = "sqlite:"
# Texts that mean a missing value, unless the operator gives a list. An empty cell is always
# missing.
NA_VALUES = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
SECONDS = 600.0  # timeout of a query
BUSY_SECONDS = 10.0  # timeout for a lock of another program


@dataclass(frozen=True)
class Query:
    """One SELECT to one database. Without a SELECT, the database's only table."""

    database: Path
    sql: str = ""

    def __str__(self) -> str:
        return f"{SQLITE}{self.database}"


Source: TypeAlias = Path | Query


def source_of(text: str) -> Source:
    """Parse --data: a path, or sqlite:PATH?SELECT …."""
    if not text.startswith(SQLITE):
        return Path(text)
    path, _, sql = text.removeprefix(SQLITE).partition("?")
    if not path:
        raise UsageError(f"{text}: names no database. Write {SQLITE}PATH?SELECT …")
    return Query(Path(path), sql.strip())


def at(source: Source, base: Path) -> Source:
    if not isinstance(source, Path | Query):  # a data frame
        return source
    return (
        base / source
        if isinstance(source, Path)
        else replace(source, database=base / source.database)
    )


def files_of(source: Source) -> tuple[Path, ...]:
    """The files that hold the table; a database also has its write-ahead log or its journal.

    A data frame has none.
    """
    if isinstance(source, Path):
        return (source,)
    if not isinstance(source, Query):
        return ()
    beside = [source.database.with_name(source.database.name + end) for end in ("-wal", "-journal")]
    return (source.database, *(path for path in beside if path.exists() and path.stat().st_size))


def ask(query: Query) -> tuple[list[str], Sequence[Sequence[Any]]]:
    source = str(query)
    if not query.database.is_file():
        raise BadTable(Fault(source, "no such file.", kind="file"))
    try:
        uri = f"{query.database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            last = time.monotonic() + SECONDS
            connection.set_progress_handler(lambda: int(time.monotonic() > last), 100_000)
            cursor = connection.execute(query.sql or _only_table(connection, source))
            if cursor.description is None:
                raise BadTable(
                    Fault(source, "the statement returns no rows.", "Use a SELECT.", kind="query")
                )
            names = [str(column[0]) for column in cursor.description]
            rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        todo = "Try it with sqlite3."
        if isinstance(error, sqlite3.OperationalError) and _in_wal_mode(query.database):
            todo = (
                "The database is in WAL mode, which needs a folder that this user can write. Copy"
                " it with its -wal file into such a folder; or type, as its owner, sqlite3"
                f" {shlex.quote(str(query.database))} 'PRAGMA journal_mode = DELETE'."
            )
        raise BadTable(Fault(source, f"the query failed ({error}).", todo, kind="query")) from None
    return names, list(zip(*rows, strict=True)) if rows else [()] * len(names)


def _in_wal_mode(database: Path) -> bool:
    """Whether the database has a write-ahead log that this user cannot open beside it.

    Bytes 18 and 19 of the file are its format's versions: 2 with a write-ahead log
    (https://www.sqlite.org/fileformat2.html).
    """
    try:
        with database.open("rb") as file:
            versions = file.read(20)[18:]
    except OSError:
        return False
    return versions == b"\2\2" and not os.access(database.parent, os.W_OK)


def _only_table(connection: sqlite3.Connection, source: str) -> str:
    tables = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE"
        " 'sqlite!_%' ESCAPE '!'"
    )
    names = [str(name) for (name,) in connection.execute(tables)]
    if len(names) != 1:
        there = ", ".join(names) or "none"
        todo = f"Name the rows: {source}?SELECT …"
        raise BadTable(Fault(source, f"has {len(names)} tables ({there}).", todo, kind="query"))
    quoted = names[0].replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - the name is from the database, and quoted
