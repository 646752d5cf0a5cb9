"""Where a table is: a file, or a query to an SQLite database (`sqlite:clinic.db?SELECT …`)."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coreg_core.errors import UsageError

SQLITE = "sqlite:"


@dataclass(frozen=True)
class Query:
    """One SELECT to one database; without one, its only table."""

    database: Path
    sql: str = ""

    def __str__(self) -> str:
        return f"{SQLITE}{self.database}"


Source: TypeAlias = Path | Query


def source_of(text: str, base: Path | None = None) -> Source:
    """What --data says: a path, or sqlite:PATH?SELECT …; paths are relative to ``base``.

    Raises
    ------
    UsageError
        another database, or none named.
    """
    if text.startswith("duckdb:"):
        raise UsageError(
            f"{text.partition('?')[0]}: DuckDB is not read here. Write the rows with it: "
            "COPY (SELECT …) TO 'table.parquet', and name that file."
        )
    if not text.startswith(SQLITE):
        return at(Path(text), base)
    path, _, sql = text.removeprefix(SQLITE).partition("?")
    if not path:
        raise UsageError(f"{text}: names no database; it is {SQLITE}PATH?SELECT …")
    return at(Query(Path(path), sql.strip()), base)


def at(source: Source, base: Path | None) -> Source:
    """The same, its path taken from ``base``."""
    if base is None:
        return source
    return base / source if isinstance(source, Path) else replace(source, database=base / source.database)


def files_of(source: Source) -> tuple[Path, ...]:
    """The files whose change changes the table: of a database, what it has not yet taken into itself too."""
    if isinstance(source, Path):
        return (source,)
    beside = [source.database.with_name(source.database.name + end) for end in ("-wal", "-journal")]
    return (source.database, *(path for path in beside if path.exists() and path.stat().st_size))
