"""How a table of text is written: what stands between its columns, and what before its decimals. Found, said, or
refused.

Spreadsheets of half of Europe write ; between columns and a comma before decimals. Which it is shows in the file
itself, or it does not, and then nothing is guessed: 1,234 alone may be a thousand or one.
"""

import csv
import io
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

from site_agent.data.errors import BadTable, Fault

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
Mark: TypeAlias = Literal[".", ",", "?"]

_POWER = r"([eE][+-]?\d+)?"
INTEGER = rf"^[+-]?\d+{_POWER}$"
POINT = rf"^[+-]?(\d+\.\d*|\.\d+){_POWER}$"
COMMA = rf"^[+-]?(\d+,\d*|,\d+){_POWER}$"
GROUPED_BY_COMMAS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"
GROUPED_BY_POINTS = r"^[+-]?[1-9]\d{0,2}(\.\d{3})+$"
THOUSANDS = r"^[+-]?\d{1,3}((\.\d{3})+(,\d*)?|(,\d{3})+(\.\d*)?|([ '\u00a0\u202f]\d{3})+([.,]\d*)?)$"
DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([T ].*)?$"
LIMIT = r"^[<>≤≥]=?\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)$"  # of detection: <0.5
UNIT = r"^[+-]?\d+([.,]\d*)?\s*[^\d\s.,:/-][^\d]{0,9}$"


@dataclass(frozen=True)
class Dialect:
    """What stands between columns and before decimals; "?" where it is not clear. ``why`` tells of decimals of another kind."""

    separator: str = ","
    decimal: Mark = "."
    why: str = ""

    @property
    def said(self) -> str | None:
        """In words, where it is not commas and points."""
        between = {";": ";", "\t": "tabs"}.get(self.separator)
        parts = [f"{between} between columns"] if between else []
        parts += ["decimal commas"] if self.decimal == "," else []
        return f"read with {' and '.join(parts)}" if parts else None


def separator_of(text: str, source: str) -> str:
    """Which of , ; and tab parts the columns: the one in the header under which every line has as many cells as it.

    Parameters
    ----------
    text
        the table, its header first.

    Raises
    ------
    BadTable
        every line fits with two of them.
    """
    wide = {s: width for s in SEPARATORS if (width := _width(text, s)) > 1}
    if len(wide) < 2:
        return next(iter(wide), ",")
    fitting = [s for s in wide if _fits(text, s, wide[s])]
    if len(fitting) > 1:
        either = " or ".join(SEPARATORS[s] for s in fitting)
        raise BadTable(
            Fault(
                source,
                f"may be read with {either} between columns: every line has as many cells as the header either way.",
                "Quote the cells of the header that hold a separator, or rename them.",
                kind="separator",
                lines=(1,),
            )
        )
    return fitting[0] if fitting else max(wide, key=lambda s: wide[s])


def _width(text: str, separator: str) -> int:
    try:
        return len(next(csv.reader(io.StringIO(text, newline=""), delimiter=separator)))
    except (csv.Error, StopIteration):
        return 0


def _fits(text: str, separator: str, width: int) -> bool:
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return all(len(row) == width or not any(cell.strip() for cell in row) for row in rows)
    except csv.Error:
        return False


def dialect_of(frame: pl.DataFrame, separator: str) -> Dialect:
    """What stands before decimals, told from the columns that look like numbers.

    A comma shows itself as a decimal comma by what it cannot be otherwise: 1,5 and 0,125 are no thousands. Where commas part
    the columns too, a comma in a cell is never taken for a decimal one. Where nearly all decimals are of one kind, the few others
    are slips: they are no numbers, and named each for itself.
    """
    commas, points, grouped = _Seen(), _Seen(), _Seen()
    for name in frame.columns:
        cells = frame[name].drop_nulls()
        if not looks_numeric(cells):
            continue
        comma = cells.filter(cells.str.contains(COMMA))
        sure = comma.filter(~comma.str.contains(GROUPED_BY_COMMAS))
        point = cells.filter(cells.str.contains(POINT) & ~cells.str.contains(GROUPED_BY_POINTS))
        commas.add(name, sure)
        grouped.add(name, comma)
        points.add(name, point)
    if grouped.count and separator == ",":
        why = "commas stand between this table's columns too, so this may be a decimal comma, a thousand or a slip"
        return Dialect(separator, "." if grouped.slips_beside(points) else "?", why)
    if commas.count and points.count:
        if commas.slips_beside(points):
            return Dialect(separator, ".", f"this table's decimals have points ({points.first})")
        if points.slips_beside(commas):
            return Dialect(separator, ",", f"this table's decimals have commas ({commas.first})")
        why = f"the table has decimal commas ({commas.first}) and decimal points ({points.first})"
        return Dialect(separator, "?", why)
    if grouped.count and not commas.count and not points.count:
        why = f"nothing in the table tells whether its commas ({grouped.first}) are decimal commas or thousands"
        return Dialect(separator, "?", why)
    return Dialect(separator, "," if commas.count else ".")


SLIPS = 5  # one decimal of the other kind among so many is a slip; with more the table is in two minds


@dataclass
class _Seen:
    """How many cells were written in some way, and the first of them in words."""

    count: int = 0
    first: str = ""

    def add(self, name: str, cells: pl.Series) -> None:
        if len(cells) and not self.count:
            self.first = f"{cells[0]!r} in column {name!r}"
        self.count += len(cells)

    def slips_beside(self, other: "_Seen") -> bool:
        return SLIPS * self.count <= other.count


def looks_numeric(cells: pl.Series) -> bool:
    """Whether half of these texts are numbers, whatever stands before their decimals."""
    return len(cells) > 0 and 2 * int(
        cells.str.contains(f"{INTEGER}|{POINT}|{COMMA}|{THOUSANDS}|{LIMIT}").sum()
    ) >= len(cells)


def numbers(cells: pl.Series, dialect: Dialect) -> pl.Series:
    """The texts as Float64, null where one is no number as this table writes them; "?" leaves whole numbers alone."""
    match dialect.decimal:
        case ".":
            return cells.cast(pl.Float64, strict=False)
        case ",":
            own = pl.when(cells.str.contains(COMMA)).then(cells.str.replace(",", ".", literal=True))
            text = pl.select(own.when(cells.str.contains(r"\.")).then(None).otherwise(cells)).to_series()
            return text.cast(pl.Float64, strict=False)
        case "?":
            told = pl.when(cells.str.contains(r"[.,]")).then(None).otherwise(cells)
            return pl.select(told).to_series().cast(pl.Float64, strict=False)


def kind_of(cell: str, dialect: Dialect) -> str:
    """In a word or two, what a cell is that is no number: for a person to know what to mend, and nothing of what it holds."""
    if (re.search(COMMA, cell) and dialect.decimal != ",") or (re.search(POINT, cell) and dialect.decimal != "."):
        if dialect.decimal == "," and re.search(GROUPED_BY_POINTS, cell):
            return "thousands or decimals"
        return "decimal comma" if re.search(COMMA, cell) else "decimal point"
    for kind, pattern in (
        ("thousands separators", THOUSANDS),
        ("date", DATE),
        ("detection limit", LIMIT),
        ("number with a unit", UNIT),
    ):
        if re.search(pattern, cell):
            return kind
    return "not finite" if re.search(rf"(?i)^[+-]?(inf(inity)?|nan)$|{INTEGER}|{POINT}|{COMMA}", cell) else "text"


def advice(kind: str, column: str, dialect: Dialect) -> str:
    """What to do about a cell of that kind."""
    match kind:
        case "decimal comma" | "decimal point" if dialect.decimal == "?":
            return (
                "Write decimals with a point; or put ; between the table's columns, decimal commas before decimals, and nothing "
                f"between thousands. If these are texts: --categorical {column}."
            )
        case "decimal comma":
            return f"Write it with a point, and no thousands. If these are texts: --categorical {column}."
        case "decimal point" | "thousands or decimals":
            return "Decimals have commas in this table. Write this column so too, and no thousands."
        case "thousands separators":
            return "Write numbers without anything between thousands."
        case "date":
            return f"Dates become features with --dates {column}; or leave the column out with --drop {column}."
        case "detection limit":
            return (
                "Replace it by a number, for example half the limit, or declare it as missing (--na-values, or na_values in "
                "agent.toml)."
            )
        case "number with a unit":
            return "Write the number alone, and its unit into the column's name."
        case _:
            return f"Correct the cell, or declare it as missing (--na-values). If the column holds texts: --categorical {column}."
