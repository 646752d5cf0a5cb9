"""The source of a table: a file, or a query to an SQLite database (`sqlite:clinic.db?SELECT …`), opened read-only."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from coreg_core.errors import UsageError
from site_agent.data.errors import BadTable, Fault

SQLITE = "sqlite:"
# Texts that mean a missing value, unless the operator gives a list. An empty cell is always missing.
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
    return base / source if isinstance(source, Path) else replace(source, database=base / source.database)


def files_of(source: Source) -> tuple[Path, ...]:
    """The files that hold the table; a database also has its write-ahead log or its journal. A data frame has none."""
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
                raise BadTable(Fault(source, "the statement returns no rows.", "Use a SELECT.", kind="query"))
            names = [str(column[0]) for column in cursor.description]
            rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise BadTable(Fault(source, f"the query failed ({error}).", "Try it with sqlite3.", kind="query")) from None
    return names, list(zip(*rows, strict=True)) if rows else [()] * len(names)


def _only_table(connection: sqlite3.Connection, source: str) -> str:
    tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    names = [str(name) for (name,) in connection.execute(tables)]
    if len(names) != 1:
        there = ", ".join(names) or "none"
        todo = f"Name the rows: {source}?SELECT …"
        raise BadTable(Fault(source, f"has {len(names)} tables ({there}).", todo, kind="query"))
    quoted = names[0].replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - the name is from the database, and quoted
