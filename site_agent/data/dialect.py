"""Find the notation of a table of text: the separator between columns and the decimal mark.

Spreadsheets in many countries write ; between columns and a decimal comma. The file usually shows its notation. Otherwise the
table is refused and not guessed: 1,234 alone is a thousand or a little more than one.
"""

import csv
import io
import re
import shlex
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
    """Separator and decimal mark ("?": not clear). ``why`` explains a cell with another decimal mark."""

    separator: str = ","
    decimal: Mark = "."
    why: str = ""

    @property
    def said(self) -> str | None:
        """A phrase for the notation, if it is not commas and decimal points."""
        between = {";": ";", "\t": "tabs"}.get(self.separator)
        parts = [f"{between} between columns"] if between else []
        parts += ["decimal commas"] if self.decimal == "," else []
        return f"read with {' and '.join(parts)}" if parts else None


def separator_of(text: str, source: str) -> str:
    """The separator of the columns (, ; or tab): every line has as many cells as the header.

    Parameters
    ----------
    text
        the table, which begins with its header.

    Raises
    ------
    BadTable
        every line fits with two separators.
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
                f"can be read with {either} between columns. Every line has as many cells as the header either way.",
                "Quote the names in the header that hold a separator, or rename the columns.",
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
    """The decimal mark, from the columns that look like numbers.

    A comma is a decimal comma if it cannot separate thousands, as in 1,5 and 0,125. If commas separate the columns too, a comma
    in a cell is never a decimal comma. If nearly all decimals have one mark, the few others are mistakes, and each is a fault.
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
        why = "commas separate this table's columns too, so this can be a decimal comma, a thousand or a mistake"
        return Dialect(separator, "." if grouped.slips_beside(points) else "?", why)
    if commas.count and points.count:
        if commas.slips_beside(points):
            return Dialect(separator, ".", f"this table's decimals have points ({points.first})")
        if points.slips_beside(commas):
            return Dialect(separator, ",", f"this table's decimals have commas ({commas.first})")
        why = f"the table has decimal commas ({commas.first}) and decimal points ({points.first})"
        return Dialect(separator, "?", why)
    if grouped.count and not commas.count and not points.count:
        why = f"no cell of the table shows whether its commas ({grouped.first}) are decimal commas or thousands"
        return Dialect(separator, "?", why)
    return Dialect(separator, "," if commas.count else ".")


SLIPS = 5  # at most one decimal in so many may have the other mark, to count as a mistake


@dataclass
class _Seen:
    """The number of cells with one notation, and the first of them, as a phrase."""

    count: int = 0
    first: str = ""

    def add(self, name: str, cells: pl.Series) -> None:
        if len(cells) and not self.count:
            self.first = f"{cells[0]!r} in column {name!r}"
        self.count += len(cells)

    def slips_beside(self, other: "_Seen") -> bool:
        return SLIPS * self.count <= other.count


def looks_numeric(cells: pl.Series) -> bool:
    """Whether at least half of these texts are numbers in any notation, or detection limits."""
    return len(cells) > 0 and 2 * int(
        cells.str.contains(f"{INTEGER}|{POINT}|{COMMA}|{THOUSANDS}|{LIMIT}").sum()
    ) >= len(cells)


def numbers(cells: pl.Series, dialect: Dialect) -> pl.Series:
    """The texts as Float64; null if a text is not a number in this notation. With "?" only whole numbers are read."""
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
    """The kind of a cell that is not a number, in a word or two and without its content."""
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


def setting(name: str, column: str) -> str:
    """How a site's operator lists a column in one of its settings."""
    return f'{name} = ["{column}"] in agent.toml, or --{name} {shlex.quote(column)}'


def advice(kind: str, column: str, dialect: Dialect, *, target: bool = False) -> str:
    """Advice for a cell of that kind."""
    texts = f"If the column holds texts: {setting('categorical', column)}."
    if target:
        means_1 = "name the one that means 1 (positive in agent.toml, or --positive)."
        texts = f"A target is a number or empty. If it has two texts, {means_1}"
    match kind:
        case "decimal comma" | "decimal point" if dialect.decimal == "?":
            return (
                "Write decimals with a point. Or separate columns by ; and write decimal commas, without a mark for "
                f"thousands. {texts}"
            )
        case "decimal comma":
            return f"Write it with a point, without a mark for thousands. {texts}"
        case "decimal point" | "thousands or decimals":
            return "Write this column with decimal commas, without a mark for thousands."
        case "thousands separators":
            return "Write numbers without a mark for thousands."
        case "date":
            return (
                f"Make features of its dates: {setting('dates', column)}. Or leave it out: {setting('drop', column)}."
            )
        case "detection limit":
            return (
                "Replace it by a number, for example half the limit, or declare it as missing (na_values in agent.toml, or "
                "--na-values)."
            )
        case "number with a unit":
            return "Write the number only, and the unit into the column's name."
        case _:
            return f"Correct the cell, or declare it as missing (--na-values, or na_values in agent.toml). {texts}"
