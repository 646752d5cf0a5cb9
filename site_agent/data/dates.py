"""Make features of date columns on request: days since 1970-01-01, the year, the month, the day of the week.

YYYY-MM-DD and D.M.YYYY are always read. For dates like 3/4/2024 other rows must show which number is the day. The model
keeps that order. A time of day is not used.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import polars as pl

from coreg_core.errors import UsageError
from site_agent.data.dialect import DATE
from site_agent.data.errors import COLUMNS, BadTable, Fault, Faults, some
from site_agent.data.tables import Table

Part: TypeAlias = Literal["days", "year", "month", "weekday"]
PARTS: tuple[Part, ...] = get_args(Part)
Order: TypeAlias = Literal["", "dmy", "mdy"]
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?$"
_SLASHES = re.compile(rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}){_TIME}")
_FORMATS: tuple[
    tuple[Order | None, str, str], ...
] = (  # (order of the column, or None for any; pattern; format of polars)
    (None, r"^\d{4}-\d{1,2}-\d{1,2}", "%Y-%m-%d"),
    (None, r"^\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    ("dmy", r"^\d{1,2}/\d{1,2}/\d{4}", "%d/%m/%Y"),
    ("mdy", r"^\d{1,2}/\d{1,2}/\d{4}", "%m/%d/%Y"),
)


@dataclass(frozen=True)
class DateColumn:
    """A column of dates, the features to make, and the order of day and month in dates like 3/4/2024."""

    name: str
    parts: tuple[Part, ...] = ("days",)
    order: Order = ""

    def called(self, part: Part) -> str:
        """The name of the new column."""
        return f"{self.name} ({part})"


def asked(texts: Sequence[str], columns: Sequence[str]) -> tuple[DateColumn, ...]:
    """Parse --dates: NAME, or NAME:PART+PART.

    Raises
    ------
    UsageError
        no such column, or no such part.
    """
    found = []
    for text in texts:
        name, colon, said = text.rpartition(":")
        if text in columns or not colon:
            name, said = text, "days"
        parts = tuple(said.split("+"))
        if name not in columns:
            raise UsageError(f"dates: {text}: no such feature column. The columns are {some(columns, COLUMNS)}.")
        known = tuple(part for part in PARTS if part in parts)
        if len(known) != len(parts):
            raise UsageError(f"dates: {text}: unknown part. The parts are days, year, month or weekday, joined by +.")
        found.append(DateColumn(name, known))
    if len({column.name for column in found}) < len(found):
        raise UsageError("dates names a column twice. Join the parts by +, for example admitted:year+month.")
    return tuple(found)


def settle(column: DateColumn, tables: Sequence[Table]) -> DateColumn:
    """The column with the order of day and month in its cells.

    Raises
    ------
    BadTable
        cells like 3/4/2024 show both orders, or neither.
    """
    told: dict[Order, list[tuple[Table, int]]] = {"dmy": [], "mdy": [], "": []}
    for table in tables:
        for row, cell in enumerate(table.frame[column.name].to_list()):
            if cell is not None and (slashed := _SLASHES.fullmatch(cell)):
                first, second = int(slashed[1]), int(slashed[2])
                order: Order = "dmy" if first > 12 >= second else "mdy" if second > 12 >= first else ""
                told[order].append((table, row))
    if not any(told.values()):
        return column
    if bool(told["dmy"]) != bool(told["mdy"]):
        return replace(column, order="dmy" if told["dmy"] else "mdy")
    if told["dmy"]:
        places = [told["dmy"][0], told["mdy"][0]]
        what = "has the day first, and another cell has the month first"
    else:
        places, what = told[""][:1], "can have the day or the month first, and no cell of the column shows which"
    table, row = places[0]
    raise BadTable(
        Fault(
            table.source,
            f"{table.frame[column.name][row]!r} {what}.",
            "Write dates as YYYY-MM-DD.",
            "date of two readings",
            column.name,
            tuple(int(t.lines[r]) for t, r in places if t is table),
        )
    )


def expanded(table: Table, columns: Sequence[DateColumn]) -> Table:
    """The table with the features of each date column in its place.

    Raises
    ------
    BadTable
        a cell is not a date, or a column already has the name of a new one.
    """
    found, made = Faults(), dict[str, list[pl.Series]]()
    for column in columns:
        with found.caught():
            made[column.name] = _made(column, table)
    found.raise_any()
    series = [new for name in table.columns for new in made.get(name, [table.frame[name]])]
    return replace(table, frame=pl.DataFrame(series))


def _made(column: DateColumn, table: Table) -> list[pl.Series]:
    if clash := [column.called(part) for part in column.parts if column.called(part) in table.columns]:
        what = f"exists already, and --dates {column.name!r} makes a column of this name."
        raise BadTable(Fault(table.source, what, "Rename one of the two.", "header", clash[0]))
    cells = table.frame[column.name]
    days = _dates(cells, column.order)
    if bad := (days.is_null() & cells.is_not_null()).arg_true().to_list():
        raise BadTable(_no_date(column, table, bad))
    return [_part(days, part).alias(column.called(part)) for part in column.parts]


def _no_date(column: DateColumn, table: Table, bad: Sequence[int]) -> Fault:
    first = table.frame[column.name][bad[0]]
    slashes = _SLASHES.fullmatch(first) and not column.order
    order = " in the order of day and month that the model was trained with" if slashes else ""
    return Fault(
        table.source,
        f"{first!r} is not a date{order}.",
        "Write dates as YYYY-MM-DD, without a time zone. Leave a cell empty if the date is missing.",
        "date" if re.search(DATE, first) else "text",
        column.name,
        tuple(int(table.lines[row]) for row in bad),
    )


def _dates(cells: pl.Series, order: Order) -> pl.Series:
    """The day of each cell; null for a cell that is not a date, such as the 30th of February."""
    found = pl.Series([None] * len(cells), dtype=pl.Date)
    for of, pattern, layout in _FORMATS:
        if of in (None, order):
            fits = cells.str.contains(pattern + _TIME).fill_null(False)
            day = cells.str.replace(r"[T ].*$", "").set(~fits, None).str.to_date(layout, strict=False)
            found = found.set(fits, None).zip_with(~fits, day)
    return found


def _part(days: pl.Series, part: Part) -> pl.Series:
    """A part of dates, as text. Months and days of the week are words, so each becomes a 0/1 column."""
    match part:
        case "days":
            return days.dt.epoch("d").cast(pl.String)
        case "year":
            return days.dt.year().cast(pl.String)
        case "month":
            return days.dt.strftime("%b").str.to_lowercase()
        case "weekday":
            return days.dt.strftime("%a").str.to_lowercase()


def holds_dates(cells: pl.Series) -> bool:
    """Whether at least half of these texts look like dates, so that the operator perhaps forgot --dates."""
    return len(cells) > 0 and 2 * int(cells.str.contains(DATE).sum()) >= len(cells)
