"""The text of a cell: one text for one value, whatever container holds it.

Ids, parts of ids, levels of a text column and classes are compared as texts. The same table comes
as CSV, Parquet, a query or a frame, and each writes a value in its own way. So a value gets its
text here:

| value                | text                                                            |
|----------------------|-----------------------------------------------------------------|
| 2.50, 2.0, −0.0      | "2.5", "2", "0": no zeros after the last decimal                |
| float32 0.1          | "0.1": the shortest number that float32 rounds to it            |
| true, True, TRUE     | "true"                                                          |
| 2024-01-31, midnight | "2024-01-31"; with a time "2024-01-31T10:20:00", without zeros  |
| … with a zone        | the instant in UTC, "2024-01-31T09:20:00Z"                      |

Zeros before a number stay: 01067 is a postal code. A code such as 2E15 stays, since it has no point
and no sign. A column in which 250.0 and 250.00 both occur holds codes: its decimals stay.
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Literal

import numpy as np

_LARGEST_WHOLE = 1e16  # above it, float64 does not show each whole number
_DECIMALS = re.compile(r"[+-]?(0|[1-9]\d*)?\.\d+|-0")
_POWER = re.compile(r"[+-]?\d+(\.\d*[eE][+-]?|[eE][+-])\d+")
_MOMENT = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})[T ](?P<time>\d{2}:\d{2}(:\d{2}(\.\d+)?)?)"
    r" ?(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?"
)
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_TIME_OF_DAY = re.compile(r"\d{2}:\d{2}:\d{2}\.\d+")


def text_of(value: Any) -> str | None:
    """The text of a value that has a type; None for a missing one. TypeError: neither."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        if value:
            return "true"
        return "false"
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating):
        # The text of a float32 is the shortest one that float32 rounds to it.
        if math.isnan(value):
            return None
        return _of_float(float(str(value)))
    if isinstance(value, Decimal):
        return canonical(f"{value:f}")
    if isinstance(value, date | time):
        return canonical(value.isoformat())
    raise TypeError(type(value).__name__)


def _of_float(number: float) -> str:
    if number.is_integer() and abs(number) < _LARGEST_WHOLE:
        return str(int(number))
    return repr(number)


def canonical(text: str, decimal: Literal[".", ",", "?"] = ".") -> str:
    """The one text of the value that a text without a type shows; ``decimal``: the file's mark."""
    if text[:1].isdigit() or text[:1] in "+-.":
        return _of_number_or_moment(text, decimal)
    folded = text.lower()
    if folded in ("true", "false"):
        return folded
    return text


def _of_number_or_moment(text: str, decimal: str) -> str:
    number = text
    if decimal == ",":  # there a point separates thousands, if anything
        number = ""
        if "." not in text:
            number = text.replace(",", ".")
    if _DECIMALS.fullmatch(number):
        return _without_zeros(number)
    if _POWER.fullmatch(number) and math.isfinite(float(number)):
        return _of_float(float(number))
    moment = _MOMENT.fullmatch(text)
    if moment:
        return _of_moment(moment["day"], moment["time"], moment["zone"]) or text
    if _TIME_OF_DAY.fullmatch(text):
        return _time_of(text)
    return text


def _without_zeros(number: str) -> str:
    plain = number.lstrip("+").rstrip("0").rstrip(".")
    plain = re.sub(r"^(-?)\.", r"\g<1>0.", plain)
    if plain in ("", "-", "-0"):
        return "0"
    return plain


def _of_moment(day: str, clock: str, zone: str | None) -> str | None:
    clock = _time_of(clock)
    if not zone:
        if clock == "00:00:00":
            return day
        return f"{day}T{clock}"
    offset = "+00:00" if zone in ("Z", "UTC") else zone
    try:
        # Digits beyond microseconds are no part of the hour and the minute that the zone moves.
        seconds, point, fraction = clock.partition(".")
        moment = datetime.fromisoformat(f"{day}T{seconds}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}{point}{fraction}Z"


def _time_of(clock: str) -> str:
    seconds = clock
    if clock.count(":") != 2:
        seconds = f"{clock}:00"
    if "." in seconds:
        return seconds.rstrip("0").rstrip(".")
    return seconds


def texts_of_column(shown: Sequence[str], decimal: Literal[".", ",", "?"] = ".") -> list[str]:
    """The texts of a column of cells without a type. Its decimals stay if two of them would become
    one text: they are codes.
    """
    texts = {text: canonical(text, decimal) for text in set(shown)}
    changed = [text for text, value in texts.items() if text != value]
    decimals = [text for text in changed if _DECIMALS.fullmatch(text.replace(",", "."))]
    others = texts.keys() - {*decimals}
    if len(others | {texts[text] for text in decimals}) < len(texts):
        texts |= {text: text for text in decimals}
    return [texts[text] for text in shown]


# --- ids that a spreadsheet would run as formulas -------------------------------------------------


def guarded(text: str) -> str:
    """An id for a CSV file: an apostrophe before what a spreadsheet would run as a formula.

    Numbers stay.
    """
    if _FORMULA.match(text) and not PLAIN.fullmatch(text):
        return f"'{text}"
    return text


def unguarded(text: str) -> str:
    if text.startswith("'") and _FORMULA.match(text):
        return text[1:]
    return text
