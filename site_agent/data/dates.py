"""The dates of a table: how each column writes them, and the day that a text means.

A layout is a format of Python's `strptime`. Of years with two digits the century is open: the
layout then ends with the latest date that can occur, as in "%d.%m.%y,latest=2026-11-28", and each
date is the last one up to there.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from functools import cache

from coreg_core.errors import UsageError
from site_agent.data.notation import flag

_TIME = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$")
ZONE = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*([Zz]|UTC|GMT|[+-]\d{2}:?(\d{2})?)$")
_EPOCH = date(1970, 1, 1).toordinal()
_LATEST = ",latest="


def without_zone(column: str) -> str:
    """What to do about times with a zone: their day depends on the place."""
    return (
        "Write local times or dates without a zone: which day it is depends on the place. Or leave"
        f" the column out: {flag('drop', column)}."
    )


# --- layouts of the operator ----------------------------------------------------------------------


def dates_of(values: Iterable[str]) -> dict[str, str]:
    """The layouts by column of the option's values: COLUMN=FORMAT, or COLUMN=FORMAT,latest=DATE."""
    layouts = {}
    for text in values:
        column, _, layout = text.partition("=")
        if not column or not layout:
            raise UsageError(
                f"--dates {text}: needs COLUMN=FORMAT, such as --dates '{column}=%d/%m/%Y'."
            )
        layouts[column] = layout
    return layouts


def layout_of(table: Mapping[str, object]) -> str:
    """The layout of a table of agent.toml, {format = "%d.%m.%y", latest = "2026-11-28"}."""
    form = table.get("format")
    if set(table) - {"format", "latest"} or not isinstance(form, str):
        raise ValueError('needs a format, and with years of two digits `latest = "YYYY-MM-DD"`')
    if "latest" in table:
        return f"{form}{_LATEST}{table['latest']}"
    return form


@cache
def _parts(layout: str) -> tuple[str, date | None]:
    """The format, and the latest date; ValueError: the latter is none."""
    form, latest, text = layout.partition(_LATEST)
    if not latest:
        return form, None
    return form, date.fromisoformat(text)


def check_layout(column: str, layout: str) -> None:
    """Raise a UsageError if the layout does not name day, month and year, or leaves the century
    open.
    """
    where = f"dates: {column}={layout}:"
    try:
        form, latest = _parts(layout)
    except ValueError:
        raise UsageError(f"{where} latest is a date, YYYY-MM-DD.") from None
    if latest is not None and "%y" not in form:
        raise UsageError(f"{where} latest is for years of two digits, %y.")
    if "%y" in form and latest is None:
        raise UsageError(
            f"{where} the years have two digits, so 30 can be 1930 or 2030. Say the latest date"
            f" that can occur: {century(column, form)}"
        )
    whole = form
    if latest is not None:
        whole = f"{form}{_LATEST}2030-01-01"
    for day in (date(2023, 2, 1), date(2024, 11, 30)):
        if day_of(day.strftime(form), whole) != day.toordinal() - _EPOCH:
            raise UsageError(
                f"{where} the format needs a day, a month and a year, such as %d/%m/%Y or %Y-%m-%d."
            )


def century(column: str, form: str) -> str:
    """What to type where years have two digits."""
    option = flag("dates", f"{column}={form}{_LATEST}YYYY-MM-DD")
    return f"{option} (of birth: today)."


# --- texts ----------------------------------------------------------------------------------------


def day_of(text: str, layout: str) -> int | None:
    """Days since 1970-01-01; None if the text is no date of this layout. A time of day is not
    used.
    """
    form, latest = _parts(layout)
    if "%H" not in form:
        text = _TIME.sub("", text)
    try:
        day = datetime.strptime(text, form).date()
        if latest is not None:
            day = _up_to(day, latest)
    except (ValueError, re.error):
        return None
    return day.toordinal() - _EPOCH


def _up_to(day: date, latest: date) -> date:
    """The last date with these two digits of the year that is not after ``latest``."""
    year = latest.year - (latest.year - day.year) % 100
    if (year, day.month, day.day) > (latest.year, latest.month, latest.day):
        year -= 100
    return day.replace(year=year)
