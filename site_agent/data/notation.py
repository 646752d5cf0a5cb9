"""The notation of a table: separator, decimal mark and dates.

The operator names it, or the cells show it.

A notation that the cells leave open is refused and not guessed: `1,234` alone is a thousand or a
little more than one.
"""

import csv
import io
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl

from site_agent.data.sources import BadTable, Fault

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
Mark: TypeAlias = Literal[".", ",", "?"]

_POWER = r"([eE][+-]?\d+)?"
INTEGER = rf"^[+-]?\d+{_POWER}$"
POINT = rf"^[+-]?(\d+\.\d*|\.\d+){_POWER}$"
COMMA = rf"^[+-]?(\d+,\d*|,\d+){_POWER}$"
GROUPED = {
    ".": r"^[+-]?[1-9]\d{0,2}\.\d{3}$",
    ",": r"^[+-]?[1-9]\d{0,2},\d{3}$",
}  # thousands, or decimals
# Thousands that show that the other mark is for decimals.
BOTH = {
    ".": r"^[+-]?\d{1,3}((,\d{3})+\.\d*|(,\d{3}){2,})$",
    ",": r"^[+-]?\d{1,3}((\.\d{3})+,\d*|(\.\d{3}){2,})$",
}
THOUSANDS = (
    r"^[+-]?\d{1,3}((\.\d{3})+(,\d*)?|(,\d{3})+(\.\d*)?|([ '\u00a0\u202f]\d{3})+([.,]\d*)?)$"
)
DATE = r"^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})([T ].*)?$"
LIMIT = r"^[<>≤≥]=?\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)$"  # of detection: <0.5
UNIT = r"^[+-]?\d+([.,]\d*)?\s*[^\d\s.,:/-][^\d]{0,9}$"
_CODES = "AUD|CAD|CHF|CNY|CZK|DKK|EUR|GBP|INR|JPY|NOK|PLN|SEK|USD"
CURRENCY = rf"^[+-]?([A-Z]{{0,2}}[$€£¥₹₩₽₺₪฿]|{_CODES})\s*[+-]?\d[\d.,' ]*$"  # €28.31, EUR 3
NUMBER = re.compile(f"{INTEGER}|{POINT}|{COMMA}|{THOUSANDS}|{LIMIT}")
ROUNDED = re.compile(r"\d[.,]\d+[eE]\+?[1-9]\d|\d[eE]\+[1-9]\d")  # 1.10105E+17; 2E15 is a code
HEADER = 1 << 16  # bytes that hold the header
HEAD = 1000  # cells of a column in which one decimal shows that all its points are decimal points
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_RUNS = re.compile(r"'*[=+\-@\t\r]")
SLIPS = 5  # at most one decimal in so many may have the other mark, to count as a mistake


@dataclass(frozen=True)
class Notation:
    """What an operator says about a file. None: the file shows it."""

    separator: str | None = None
    decimal: Literal[".", ","] | None = None


def flag(key: str, value: str) -> str:
    """The option as it is typed; agent.toml has a key of the same name."""
    return f"--{key} {shlex.quote(value)}"


# --- separators -----------------------------------------------------------------------------------


def separator_of(body: bytes, source: str) -> str:
    """The separator with which every line of the table has as many cells as its header."""
    head = body[:HEADER].decode(errors="replace")
    wide = {s: width for s in SEPARATORS if (width := _width(head, s)) > 1}
    if len(wide) < 2:
        return next(iter(wide), ",")
    text = body.decode()
    fitting = [s for s in wide if _fits(text, s, wide[s])]
    if len(fitting) > 1:
        either = " or ".join(SEPARATORS[s] for s in fitting)
        what = (
            f"can be read with {either} between columns. Every line has as many cells as the header"
            " either way."
        )
        todo = f"Give {flag('separator', fitting[0])}; or the other one."
        raise BadTable(Fault(source, what, todo, kind="separator", lines=(1,)))
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


# --- decimals -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decimals:
    """The decimal mark ("?": open); ``thousands``: the other one groups; ``why``: of a bad cell;
    ``note``: found.
    """

    mark: Mark = "."
    thousands: bool = False
    why: str = ""
    note: str = ""


@dataclass
class Column:
    """A column of a CSV file: its first cells, all of them, and the numbers if all are numbers
    under one mark.
    """

    name: str
    head: pl.Series
    texts: Callable[[], pl.Series]
    mark: Mark | None = None
    floats: pl.Series | None = None

    def look(self, marks: Iterable[Mark]) -> None:
        """Find the mark under which all cells are numbers."""
        for mark in marks:
            if self.floats is None and numbers_under(
                frame := pl.DataFrame({"": self.texts()}), mark
            ):
                self.mark, self.floats = mark, read_numbers(frame, Decimals(mark))[""]


def numbers_under(texts: pl.DataFrame, mark: Mark) -> list[str]:
    """The columns in which every cell is a number under this decimal mark, or empty."""
    numbers = read_numbers(texts, Decimals(mark))
    return [
        name for name in texts.columns if numbers[name].null_count() == texts[name].null_count()
    ]


def find_decimals(columns: Sequence[Column], separator: str) -> Decimals:
    """The decimal mark of a CSV file: a mark shows it where it cannot separate thousands, as in 1,5
    and 0,125.
    """
    for column in columns:
        column.look((".",) if separator == "," else (".", ","))
    if separator == "," and not any(
        column.texts().str.contains(",", literal=True).any()
        for column in columns
        if not column.mark
    ):
        return Decimals()
    counts, examples = Counter[tuple[str, str]](), defaultdict[tuple[str, str], list[str]](list)

    def see(kind: str, mark: str, name: str, cells: pl.Series, count: int | None = None) -> None:
        if len(cells):
            counts[kind, mark] += len(cells) if count is None else count
            examples[kind, mark].append(f"{cells[0]!r} in {name!r}")

    for column in columns:
        name, under, head = column.name, column.mark, column.head.drop_nulls()
        if (
            under and column.floats is not None
        ):  # without a look at every cell, if the first ones are enough
            marked = head.filter(head.str.contains(under, literal=True))
            if len(found := marked.filter(~marked.str.contains(GROUPED[under]))):
                count = len(column.floats) - column.floats.null_count()
                see("sure", under, name, found, len(marked) * count // len(head))
                continue
        cells = column.texts().drop_nulls()
        if not under:
            cells = cells.str.strip_chars()
            if 2 * int(cells.str.contains(NUMBER.pattern).sum()) < len(cells):
                continue
        for mark, pattern in ((".", POINT), (",", COMMA)):
            if under not in (None, mark):
                continue
            if not under:
                with_both = cells.filter(cells.str.contains(BOTH[mark]))
                see("both", mark, name, with_both)
                see("sure", mark, name, with_both)
            marked = cells.filter(cells.str.contains(mark, literal=True))
            grouping = marked.str.contains(GROUPED[mark])
            see("grouped", mark, name, marked.filter(grouping))
            see("sure", mark, name, marked.filter(~grouping & marked.str.contains(pattern)))
    points, commas = counts["sure", "."], counts["sure", ","]
    if separator == ",":
        every = commas + counts["grouped", ","]
        if not every or (counts["both", "."] and not commas):
            return Decimals(".", bool(counts["both", "."]))
        why = (
            "commas separate this table's columns too, so a comma in a cell can be a decimal comma,"
            " a thousand or a mistake"
        )
        return Decimals("." if every < SLIPS or SLIPS * every <= points else "?", why=why)
    sure = {mark: examples["sure", mark] for mark in ".,"}
    if commas and points and SLIPS * min(commas, points) > max(commas, points):
        why = f"the table has decimal commas ({sure[','][0]}) and decimal points ({sure['.'][0]})"
        return Decimals("?", why=why)
    if commas > points:
        told = " and ".join(sure[","][:2])
        note = (
            f"numbers with {'decimal commas' if ',' in told else 'points between thousands'}, such"
            f" as {told}"
        )
        why = f"this table's decimals have commas ({sure[','][0]})"
        return Decimals(",", bool(counts["both", ","]), why, note)
    if points:
        return Decimals(
            ".", bool(counts["both", "."]), f"this table's decimals have points ({sure['.'][0]})"
        )
    for mark, marks in ((".", "points"), (",", "commas")):
        if first := examples["grouped", mark]:
            why = (
                f"no cell of the table shows whether its {marks} ({first[0]}) separate decimals or"
                " thousands"
            )
            return Decimals("?", why=why)
    return Decimals()


def grouped_note(columns: Sequence[Column], mark: Mark) -> str:
    """With the operator's decimal mark: a cell whose other mark then separates thousands, and its
    number; "" without one.
    """
    other = "." if mark == "," else ","
    for column in columns:
        if column.mark == mark:  # the other mark is in no cell
            continue
        texts = column.texts().drop_nulls()
        if len(found := texts.filter(texts.str.contains(GROUPED[other]))):
            number = found[0].replace(other, "")
            return (
                f"numbers with {flag('decimal', mark)}: {found[0]!r} in {column.name!r} is read as"
                f" {number}"
            )
    return ""


def read_numbers(cells: pl.DataFrame, decimals: Decimals) -> pl.DataFrame:
    """The texts as float64; null: missing, or not a number in this notation."""
    text, mark = pl.all(), decimals.mark
    if mark == "?":
        text = pl.when(text.str.contains("[.,]")).then(None).otherwise(text)
    elif mark == ",":
        plain = pl.when(text.str.contains(".", literal=True)).then(None).otherwise(text)
        if decimals.thousands:
            grouped = text.str.contains(f"{BOTH[',']}|{GROUPED['.']}")
            plain = (
                pl.when(grouped).then(text.str.replace_all(".", "", literal=True)).otherwise(plain)
            )
        text = plain.str.replace(",", ".", literal=True)
    elif decimals.thousands:
        grouped = text.str.contains(f"{BOTH['.']}|{GROUPED[',']}")
        text = pl.when(grouped).then(text.str.replace_all(",", "", literal=True)).otherwise(text)
    else:
        return cells.cast(pl.Float64, strict=False)
    return cells.select(text.name.keep()).cast(pl.Float64, strict=False)


def most(texts: Iterable[str | None], fits: Callable[[str], object]) -> bool:
    """Whether at least half of the texts fit, and there is one."""
    counts = Counter(text for text in texts if text is not None)
    return bool(counts) and 2 * sum(n for text, n in counts.items() if fits(text)) >= counts.total()


def looks_numeric(texts: Iterable[str | None]) -> bool:
    return most(texts, NUMBER.search)


# --- cells that do not fit ------------------------------------------------------------------------


_KINDS = (
    ("thousands separators", THOUSANDS),
    ("date", DATE),
    ("detection limit", LIMIT),
    ("number with a unit", UNIT),
    ("number with a unit", CURRENCY),
    ("not finite", rf"(?i)^[+-]?(inf(inity)?|nan)$|{INTEGER}|{POINT}|{COMMA}"),
)
_ADVICE = {
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
    if mark != "," and re.search(COMMA, cell):
        return "decimal comma"
    if mark != "." and re.search(POINT, cell):
        return "decimal point"
    return next((kind for kind, pattern in _KINDS if re.search(pattern, cell)), "text")


def advice(kind: str, column: str, *, target: bool = False) -> str:
    options = {key: flag(key, column) for key in ("drop", "categorical")}
    text = _ADVICE.get(kind, OF_TARGET if target else OTHERWISE)
    return text.format(dates=flag("dates", f"{column}=%d.%m.%Y"), **options)


# --- ids that a spreadsheet would run as formulas -------------------------------------------------


def guarded(text: str) -> str:
    """An id for a CSV file: an apostrophe before what a spreadsheet would run as a formula.

    Numbers stay.
    """
    return f"'{text}" if _RUNS.match(text) and not PLAIN.fullmatch(text) else text


def unguarded(text: str) -> str:
    return text[1:] if text.startswith("'") and _RUNS.match(text) else text
