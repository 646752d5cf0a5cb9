"""The source of a table: a file, or a query to an SQLite database (`sqlite:clinic.db?SELECT …`)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coreg_core.errors import UsageError

SQLITE = "sqlite:"
# Texts that mean a missing value, unless the operator gives a list. An empty cell is always missing.
NA_VALUES = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")


@dataclass(frozen=True)
class Query:
    """One SELECT to one database. Without a SELECT, the database's only table."""

    database: Path
    sql: str = ""

    def __str__(self) -> str:
        return f"{SQLITE}{self.database}"


Source: TypeAlias = Path | Query


def source_of(text: str, base: Path | None = None) -> Source:
    """Parse --data: a path, or sqlite:PATH?SELECT …. Paths are relative to ``base``.

    Raises
    ------
    UsageError
        the text names another kind of database, or no database.
    """
    if text.startswith("duckdb:"):
        raise UsageError(
            f"{text.partition('?')[0]}: coreg does not read DuckDB. Export the rows in DuckDB, and name that file:\n"
            "  COPY (SELECT …) TO 'table.parquet'"
        )
    if not text.startswith(SQLITE):
        return at(Path(text), base)
    path, _, sql = text.removeprefix(SQLITE).partition("?")
    if not path:
        raise UsageError(f"{text}: names no database. Write {SQLITE}PATH?SELECT …")
    return at(Query(Path(path), sql.strip()), base)


def at(source: Source, base: Path | None) -> Source:
    """The same source, with its path relative to ``base``."""
    if base is None:
        return source
    return base / source if isinstance(source, Path) else replace(source, database=base / source.database)


def files_of(source: Source) -> tuple[Path, ...]:
    """The files that hold the table; a database also has its write-ahead log or its journal."""
    if isinstance(source, Path):
        return (source,)
    beside = [source.database.with_name(source.database.name + end) for end in ("-wal", "-journal")]
    return (source.database, *(path for path in beside if path.exists() and path.stat().st_size))
