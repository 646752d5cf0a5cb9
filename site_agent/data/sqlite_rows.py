"""Read the rows of a query to an SQLite database, opened read-only. A cell becomes the text of a CSV file."""

import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing

import polars as pl

from site_agent.data.csv_text import check_names
from site_agent.data.errors import BadTable, Fault, Faults
from site_agent.data.sources import Query

SECONDS = 600.0  # timeout of a query
BUSY_SECONDS = 10.0  # timeout for a lock of another program


def ask(query: Query) -> pl.DataFrame:
    """The rows of a query, every cell as text.

    Raises
    ------
    BadTable
        the file is missing or no database, the statement fails or returns no rows, or a cell holds bytes.
    """
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
            names = [str(column[0]).strip() for column in cursor.description]
            rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise BadTable(Fault(source, f"the query failed ({error}).", "Try it with sqlite3.", kind="query")) from None
    check_names(names, source)
    found = Faults()
    columns = []
    for name, cells in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        if holds := tuple(line for line, cell in enumerate(cells, 2) if isinstance(cell, bytes)):
            what, todo = "holds bytes, not numbers or text.", "Leave the column out of the query."
            found.add(Fault(source, what, todo, "bytes", name, holds))
        columns.append(pl.Series(name, _texts(cells), dtype=pl.String))
    found.raise_any()
    return pl.DataFrame(columns)


def _only_table(connection: sqlite3.Connection, source: str) -> str:
    tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    names = [str(name) for (name,) in connection.execute(tables)]
    if len(names) != 1:
        there = ", ".join(names) or "none"
        todo = f"Name the rows: {source}?SELECT …"
        raise BadTable(Fault(source, f"has {len(names)} tables ({there}).", todo, kind="query"))
    quoted = names[0].replace('"', '""')
    return f'SELECT * FROM "{quoted}"'  # noqa: S608 - the name is from the database, and quoted


def _texts(cells: Iterable[object]) -> list[str | None]:
    """repr is the shortest text that reads back to the same number. 1.0 becomes 1, as an id in a CSV file."""
    return [
        None if cell is None else repr(cell).removesuffix(".0") if isinstance(cell, float) else str(cell)
        for cell in cells
    ]
