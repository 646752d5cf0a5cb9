"""The rows of a query to a database, by polars over a connection that writes nothing.

A column has one type in each database, so that a value has the text that it has in a CSV file:

| in the database                 | here                                              |
|---------------------------------|---------------------------------------------------|
| integers, doubles, dates, times | the same                                          |
| PostgreSQL numeric              | a decimal number of up to 38 digits; NaN: missing |
| PostgreSQL uuid, inet, cidr     | text                                              |
| SQLite, declared BOOLEAN        | true and false                                    |
| SQLite, written as float32      | float32: 0.1 and not 0.10000000149011612          |
| SQLite, numbers among texts     | texts                                             |

libpq reads the password of PostgreSQL from PGPASSWORD or ~/.pgpass. It never passes through here.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from coreg_wire.terminal.command_line import need_extra
from site_agent.data.sources import BadTable, DatabaseQuery, TableFault

SECONDS = 600.0  # timeout of a query
BUSY_SECONDS = 10.0  # timeout for a lock of another program
CONNECT_SECONDS = 10  # timeout of a connection to a server
# A server that stops answering is noticed after a minute.
ALIVE: dict[str, Any] = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
_LONG = 12  # significant digits that no decimal number of float32 needs
_WHOLE = 2.0**24  # float32 shows each whole number below it
_answers: ContextVar[dict[DatabaseQuery, pl.DataFrame] | None] = ContextVar(
    "_answers", default=None
)


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Inside it a query is asked once, so all steps that read a table see the same rows."""
    if _answers.get() is not None:
        yield
        return
    token = _answers.set({})
    try:
        yield
    finally:
        _answers.reset(token)


def ask(query: DatabaseQuery) -> pl.DataFrame:
    """The rows of a query.

    Raises
    ------
    BadTable
        there is no such database, it refuses, or it does not answer in time.
    """
    answers = _answers.get()
    if answers is not None and query in answers:
        return answers[query]
    frame = _of_file(query) if isinstance(query.database, Path) else _of_server(query)
    if answers is not None:
        answers[query] = frame
    return frame


def digest(query: DatabaseQuery) -> str:
    """SHA-256 (hex) of the rows, in the order of the answer."""
    return hashlib.sha256(repr(ask(query).rows()).encode()).hexdigest()


def _rows(query: DatabaseQuery, connection: object) -> pl.DataFrame:
    try:
        # All rows decide on a column's type: the first hundred can be empty.
        return pl.read_database(query.sql, connection, infer_schema_length=None)
    except TypeError:  # polars looks for the columns of the answer
        what = "the statement returns no rows."
        raise BadTable(TableFault(str(query), what, "Use a SELECT.", kind="query")) from None
    except RuntimeError as error:
        raise _failed(query, error, "Cast long numbers to double precision.") from None


def _failed(query: DatabaseQuery, error: Exception, todo: str) -> BadTable:
    reason, *_ = str(error).splitlines() or [type(error).__name__]
    return BadTable(TableFault(str(query), f"the query failed ({reason}).", todo, kind="query"))


# --- SQLite ---------------------------------------------------------------------------------------


def _of_file(query: DatabaseQuery) -> pl.DataFrame:
    database = Path(query.database)
    if not database.is_file():
        raise BadTable(TableFault(str(query), "no such file.", kind="file"))
    address = f"{database.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
            last = time.monotonic() + SECONDS
            connection.set_progress_handler(lambda: int(time.monotonic() > last), 100_000)
            return _as_written(connection, query, _rows(query, connection))
    except (sqlite3.Error, sqlite3.Warning) as error:
        todo = "Try it with sqlite3."
        if "unable to open" in str(error):
            todo = (
                "A database in WAL mode needs a folder that this user can write. Copy it with its"
                " -wal file into such a folder."
            )
        raise _failed(query, error, todo) from None


def _as_written(
    connection: sqlite3.Connection, query: DatabaseQuery, frame: pl.DataFrame
) -> pl.DataFrame:
    """Truth and float32, which SQLite stores as integers and as float64."""
    declared = []
    with suppress(sqlite3.Error):  # not every statement can be a view
        connection.execute(f"CREATE TEMP VIEW coreg_rows AS {query.sql}")
        columns = connection.execute("PRAGMA table_info(coreg_rows)")
        declared = [str(column[2]).upper() for column in columns]
    truths = []
    for column, kind in zip(frame, declared, strict=False):
        if kind.startswith("BOOL") and column.is_in([0, 1]).all():
            truths.append(column.name)
    narrow = [column.name for column in frame if _was_float32(column)]
    return frame.with_columns(pl.col(truths).cast(pl.Boolean), pl.col(narrow).cast(pl.Float32))


def _was_float32(column: pl.Series) -> bool:
    """Whether all numbers are those of float32, and one has digits that only float32 explains."""
    if column.dtype != pl.Float64:
        return False
    values = column.drop_nulls()
    same = values.cast(pl.Float32).cast(pl.Float64) == values
    if not (same & (values.abs() < _WHOLE)).all():
        return False
    return any(len(f"{value:.17g}".strip("-0.")) > _LONG for value in values)


# --- PostgreSQL -----------------------------------------------------------------------------------


def _of_server(query: DatabaseQuery) -> pl.DataFrame:
    need_extra("postgresql", "psycopg")
    import psycopg
    from psycopg.adapt import Loader
    from psycopg.types.string import TextLoader

    class Number(Loader):
        """Decimals; NaN, which polars' decimals lack, is a missing value."""

        def load(self, data: bytes | bytearray | memoryview) -> Decimal | None:
            number = Decimal(bytes(data).decode())
            if number.is_infinite():
                raise psycopg.DataError("a numeric column holds Infinity")
            if number.is_nan():
                return None
            return number

    loaders: dict[str, Any] = {"numeric": Number}
    loaders |= dict.fromkeys(("uuid", "inet", "cidr"), TextLoader)
    try:
        address = str(query.database)
        with psycopg.connect(address, connect_timeout=CONNECT_SECONDS, **ALIVE) as connection:
            connection.read_only = True
            for kind, loader in loaders.items():
                connection.adapters.register_loader(kind, loader)
            connection.execute(f"SET statement_timeout = {int(1000 * SECONDS)}")
            return _rows(query, connection)
    except psycopg.Error as error:
        todo = "Try it with psql."
        if isinstance(error, psycopg.OperationalError) and "password" in str(error):
            todo = (
                "Set PGPASSWORD, or write a line HOST:PORT:DATABASE:USER:PASSWORD into ~/.pgpass"
                " (mode 0600)."
            )
        raise _failed(query, error, todo) from None
