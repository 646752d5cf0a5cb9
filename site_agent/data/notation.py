"""The notation of a table: separator, decimal mark, and what a cell is that is no number.

The operator names separator and decimal mark, or one look at all cells finds them. A notation that
the cells leave open is refused with the option to type: `1,234` alone is a thousand or a little
more than one. A mark between thousands is refused in any notation.
"""

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

from site_agent.data.sources import BadTable, TableFault

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
Mark: TypeAlias = Literal[".", ",", "?"]

_POWER = r"([eE][+-]?\d+)?"
INTEGER = rf"^[+-]?\d+{_POWER}$"
DECIMAL = rf"^[+-]?(\d+[.,]\d*|[.,]\d+){_POWER}$"
GROUPED = r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$"  # one group of thousands, or three decimals
THOUSANDS = (
    r"^[+-]?\d{1,3}((\.\d{3})+(,\d*)?|(,\d{3})+(\.\d*)?|([ '\u00a0\u202f]\d{3})+([.,]\d*)?)$"
)
DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([T ].*)?$"
LIMIT = r"^[<>≤≥]=?\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)$"  # of detection: <0.5
UNIT = r"^[+-]?\d+([.,]\d*)?\s*[^\d\s.,:/-][^\d]{0,9}$"
_CODES = "AUD|CAD|CHF|CNY|CZK|DKK|EUR|GBP|INR|JPY|NOK|PLN|SEK|USD"
CURRENCY = rf"^[+-]?([A-Z]{{0,2}}[$€£¥₹₩₽₺₪฿]|{_CODES})\s*[+-]?\d[\d.,' ]*$"  # €28.31, EUR 3
NUMBER = re.compile(f"{INTEGER}|{DECIMAL}|{THOUSANDS}|{LIMIT}")
HEADER = 1 << 16  # bytes that hold the header
HEAD = 1000  # rows that decide on the decimal mark if they have decimals
SLIPS = 5  # at most one decimal in so many may have the other mark, to count as a mistake


@dataclass(frozen=True)
class Notation:
    """What an operator says about a file. None: the file shows it."""

    separator: str | None = None
    decimal: Literal[".", ","] | None = None


def flag(key: str, value: str) -> str:
    """The option as it is typed; agent.toml has a key of the same name."""
    between = "=" if value.startswith("-") else " "  # else it would be an option
    return f"--{key}{between}{shlex.quote(value)}"


# --- separators -----------------------------------------------------------------------------------


def separator_of(body: bytes, source: str) -> str:
    """The separator with which every line of the table has as many cells as its header."""
    head = body[:HEADER].decode(errors="replace")
    widths = {separator: _width(head, separator) for separator in SEPARATORS}
    candidates = [separator for separator, width in widths.items() if width > 1]
    if len(candidates) < 2:
        return "".join(candidates) or ","
    text = body.decode()
    fitting = [separator for separator in candidates if _fits(text, separator, widths[separator])]
    if len(fitting) > 1:
        either = " or ".join(SEPARATORS[separator] for separator in fitting)
        what = (
            f"can be read with {either} between columns. Every line has as many cells as the header"
            " either way."
        )
        todo = f"Give {flag('separator', fitting[0])}; or the other one."
        raise BadTable(TableFault(source, what, todo, kind="separator", lines=(1,)))
    if fitting:
        return fitting[0]
    return max(candidates, key=widths.__getitem__)


def _width(text: str, separator: str) -> int:
    try:
        return len(next(csv.reader(io.StringIO(text, newline=""), delimiter=separator)))
    except (csv.Error, StopIteration):
        return 0


def _fits(text: str, separator: str, width: int) -> bool:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for row in rows:
            if len(row) != width and any(map(str.strip, row)):
                return False
    except csv.Error:
        return False
    return True


# --- decimals -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decimals:
    """The decimal mark ("?": the cells leave it open)."""

    mark: Mark = "."
    why: str = ""  # the reason, for a fault of a cell with the other mark
    note: str = ""  # what the operator should know of the mark that was found


def find_decimals(
    decimal: Literal[".", ","] | None,
    names: Sequence[str],
    head: pl.DataFrame,
    texts: Callable[[], dict[str, pl.Series]],
    separator: str,
) -> Decimals:
    """The operator's decimal mark, or that of a CSV file. Its first rows decide if they have
    decimals.

    A later cell with the other mark is refused in any case, so no number can be read wrongly.
    """
    if decimal is not None:
        return Decimals(decimal)
    decimals = _decimals_of(names, head, separator)
    if separator == "," or decimals.why or head.height < HEAD:
        return decimals
    return _decimals_of(names, pl.DataFrame(texts()), separator)


def _decimals_of(names: Sequence[str], texts: pl.DataFrame, separator: str) -> Decimals:
    """A mark shows what it is where it cannot separate thousands, as in 1,5 and 0,125."""
    cell = pl.col("value").str.strip_chars()
    marked = texts.unpivot().filter(pl.col("value").str.contains("[.,]"))
    decimals = marked.with_columns(cell).filter(cell.str.contains(DECIMAL))
    comma = cell.str.contains(",", literal=True)
    if separator == ",":
        commas = decimals.filter(comma).height
        return _beside_commas(commas, decimals.height - commas)
    sure = decimals.filter(~cell.str.contains(GROUPED))
    of_points = _examples(names, sure.filter(~comma))
    of_commas = _examples(names, sure.filter(comma))
    commas = sure.filter(comma).height
    points = sure.height - commas
    if min(points, commas) * SLIPS > max(points, commas):
        why = f"the table has decimal commas ({of_commas[0]}) and decimal points ({of_points[0]})"
        return Decimals("?", why)
    if commas > points:
        note = f"numbers with decimal commas, such as {' and '.join(of_commas)}"
        return Decimals(",", f"this table's decimals have commas ({of_commas[0]})", note)
    if points:
        return Decimals(".", f"this table's decimals have points ({of_points[0]})")
    for example in _examples(names, decimals)[:1]:
        mark = "points"
        if "," in decimals["value"][0]:
            mark = "commas"
        why = f"no cell of the table shows whether its {mark} ({example}) separate decimals or"
        return Decimals("?", f"{why} thousands")
    return Decimals()


def _beside_commas(commas: int, points: int) -> Decimals:
    """The decimal mark of a table whose columns are separated by commas."""
    if not commas:
        return Decimals()
    why = (
        "commas separate this table's columns too, so a comma in a cell can be a decimal comma, a"
        " thousand or a mistake"
    )
    if commas < SLIPS or SLIPS * commas <= points:
        return Decimals(".", why)
    return Decimals("?", why)


def _examples(names: Sequence[str], decimals: pl.DataFrame) -> list[str]:
    """The first cell of the first two columns."""
    first = decimals.unique("variable", keep="first", maintain_order=True).head(2)
    return [f"{cell!r} in {names[int(place)]!r}" for place, cell in first.rows()]


def as_numbers(mark: Mark) -> pl.Expr:
    """All columns of texts as float64; null: missing, or not a number in this notation."""
    text = pl.all()
    if mark != ".":
        other = "[.,]" if mark == "?" else r"\."
        point = text.str.replace(",", ".", literal=True)
        text = pl.when(text.str.contains(other)).then(None).otherwise(point).name.keep()
    return text.cast(pl.Float64, strict=False)


def most(texts: Iterable[str], fits: Callable[[str], object]) -> bool:
    """Whether at least half of the texts fit, and there is one."""
    counts = Counter(texts)
    fitting = sum(count for text, count in counts.items() if fits(text))
    return 2 * fitting >= counts.total() > 0


# --- cells that do not fit ------------------------------------------------------------------------

OPEN_MARK = "decimal mark"
_KINDS = (
    ("thousands separators", THOUSANDS),
    ("date", DATE),
    ("detection limit", LIMIT),
    ("number with a unit", UNIT),
    ("number with a unit", CURRENCY),
    ("not finite", rf"(?i)^[+-]?(inf(inity)?|nan)$|{INTEGER}|{DECIMAL}"),
)
_ADVICE = {
    OPEN_MARK: "Give --decimal ,; or a point.",
    "decimal comma": "Write it with a point, without a mark for thousands.",
    "decimal point": "Write this column with decimal commas, without a mark for thousands.",
    "thousands separators": "Write numbers without a mark for thousands.",
    "date": "Name the dates, such as {dates}, or leave the column out: {drop}.",
    "detection limit": (
        "Replace it by a number, for example half the limit, or declare it as missing"
        " (--na-values)."
    ),
    "number with a unit": "Write the number only, and the unit into the column's name.",
}
OTHERWISE = (
    "Correct the cell, or declare it as missing (--na-values). If the column holds texts:"
    " {categorical}."
)
OF_TARGET = (
    "A target is a number or empty. Of a yes/no target name the value that means 1 (--positive)."
)


def kind_of(cell: str, mark: Mark) -> str:
    """The kind of a cell that is not a number, in a word or two and without its content."""
    if re.search(DECIMAL, cell) and mark not in cell:
        if mark == "?":
            return OPEN_MARK
        if mark == ".":
            return "decimal comma"
        return "decimal point"
    return next((kind for kind, pattern in _KINDS if re.search(pattern, cell)), "text")


def advice(kind: str, column: str, *, target: bool = False) -> str:
    otherwise = OF_TARGET if target else OTHERWISE
    return _ADVICE.get(kind, otherwise).format(
        dates=flag("dates", f"{column}=%d.%m.%Y"),
        drop=flag("drop", column),
        categorical=flag("categorical", column),
    )
