"""The dates of a table: how each column writes them, and the day that a text means.

A layout is a format of Python's `strptime`. Of years with two digits the century is open: the
layout then ends with the latest date that can occur, as in "%d.%m.%y,latest=2026-11-28", and each
date is the last one up to there.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import cache

from coreg_core.errors import UsageError
from site_agent.data.notation import DATE, flag, most
from site_agent.data.sources import BadTable, Fault

_TIME = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$")
_SLASHES = re.compile(r"(\d{1,2})/(\d{1,2})/\d{4}$")
_LAYOUTS = (
    ("%Y-%m-%d", re.compile(r"\d{4}-\d{1,2}-\d{1,2}$")),
    ("%d.%m.%Y", re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}$")),
)
_SHORT_YEAR = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2}$")
_EPOCH = date(1970, 1, 1).toordinal()
_LATEST = ",latest="


ZONE = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*([Zz]|UTC|GMT|[+-]\d{2}:?(\d{2})?)$")


def without_zone(column: str) -> str:
    """What to do about times with a zone: their day depends on the place."""
    return (
        "Write local times or dates without a zone: which day it is depends on the place. Or leave"
        f" the column out: {flag('drop', column)}."
    )


def holds_dates(texts: Iterable[str | None]) -> bool:
    return most(texts, re.compile(DATE).search)


def dates_of(values: Iterable[str]) -> dict[str, str]:
    """The layouts by column of the option's values: COLUMN=FORMAT, or COLUMN=FORMAT,latest=DATE."""
    layouts = dict[str, str]()
    for text in values:
        column, _, layout = text.partition("=")
        if not column or not layout:
            raise UsageError(
                f"--dates {text}: needs COLUMN=FORMAT, such as --dates '{column}=%d/%m/%Y'."
            )
        layouts[column] = layout
    return layouts


def layout_of(given: Mapping[str, object]) -> str:
    """The layout of a table of agent.toml, {format = "%d.%m.%y", latest = "2026-11-28"}."""
    if set(given) - {"format", "latest"} or not isinstance(given.get("format"), str):
        raise ValueError('needs a format, and with years of two digits `latest = "YYYY-MM-DD"`')
    latest = given.get("latest")
    return f"{given['format']}{_LATEST}{latest}" if latest is not None else str(given["format"])


@cache
def _parts(layout: str) -> tuple[str, date | None]:
    """The format, and the latest date; ValueError: the latter is none."""
    form, latest, text = layout.partition(_LATEST)
    return form, date.fromisoformat(text) if latest else None


def check_layout(column: str, layout: str) -> None:
    """Raise a UsageError if the layout does not name day, month and year, or leaves the century
    open.
    """
    try:
        form, latest = _parts(layout)
    except ValueError:
        raise UsageError(f"dates: {column}={layout}: latest is a date, YYYY-MM-DD.") from None
    if latest is not None and "%y" not in form:
        raise UsageError(f"dates: {column}={layout}: latest is for years of two digits, %y.")
    if "%y" in form and latest is None:
        raise UsageError(
            f"dates: {column}={form}: the years have two digits, so 30 can be 1930 or 2030. Say the"
            f" latest date that can occur: {century(column, form)}"
        )
    days = (date(2023, 2, 1), date(2024, 11, 30))
    whole = form if latest is None else f"{form}{_LATEST}2030-01-01"
    if [day_of(day.strftime(form), whole) for day in days] != [
        day.toordinal() - _EPOCH for day in days
    ]:
        raise UsageError(
            f"dates: {column}={layout}: the format needs a day, a month and a year, such as"
            " %d/%m/%Y or %Y-%m-%d."
        )


def century(column: str, form: str) -> str:
    """What to type where years have two digits."""
    return f"{flag('dates', f'{column}={form}{_LATEST}YYYY-MM-DD')} (of birth: today)."


def day_of(text: str, layout: str) -> int | None:
    """Days since 1970-01-01; None if the text is no date of this layout. A time of day is not
    used.
    """
    form, latest = _parts(layout)
    try:
        moment = datetime.strptime(text if "%H" in form else _TIME.sub("", text), form)
        day = moment.date() if latest is None else _up_to(moment.date(), latest)
    except (ValueError, re.error):
        return None
    return day.toordinal() - _EPOCH


def _up_to(day: date, latest: date) -> date:
    """The last date with these two digits of the year that is not after ``latest``."""
    year = latest.year - (latest.year - day.year) % 100
    if (year, day.month, day.day) > (latest.year, latest.month, latest.day):
        year -= 100
    return day.replace(year=year)


def _unknown(column: str, file: str, line: int, text: str) -> Fault:
    """A date that no layout fits, with the option that names one, if one can."""
    what = f"{text!r} is a date in an unknown notation."
    todo = f"Give {flag('dates', f'{column}=%d.%m.%Y')}, for example."
    short = _SHORT_YEAR.match(text)
    if short:
        todo = f"Give {century(column, short[1].join(('%d', '%m', '%y')))}"
    if ZONE.search(text):
        what = f"{text!r} is a time with a zone."
        todo = without_zone(column)
    return Fault(file, what, todo, "date", column, (line,))


def find_layout(column: str, cells: Sequence[tuple[str, int, str]]) -> str:
    """The layout of a column's dates. ``cells``: file, line and text."""
    counts, orders = Counter[str](), dict[str, tuple[str, int, str]]()
    for cell in cells:
        text = _TIME.sub("", cell[2])
        counts.update(layout for layout, pattern in _LAYOUTS if pattern.match(text))
        if slashed := _SLASHES.match(text):
            first, second = int(slashed[1]), int(slashed[2])
            order = (
                "%d/%m/%Y" if first > 12 >= second else "%m/%d/%Y" if second > 12 >= first else ""
            )
            orders.setdefault(order, cell)
            counts["/"] += 1
    layout = counts.most_common(1)[0][0] if counts else ""
    if not layout:
        raise BadTable(_unknown(column, *cells[0]))
    sure = [order for order in orders if order]
    if layout != "/":
        return layout
    if len(sure) == 1:
        return sure[0]
    places = [orders[order] for order in sure] or [orders[""]]
    shown, file = " and ".join(repr(text) for *_, text in places), places[0][0]
    what = f"{shown} has the day or the month first, and no cell of the column shows which."
    if sure:
        what = f"{shown} have the day and the month first."
    todo = f"Give {flag('dates', f'{column}=%d/%m/%Y')}; or %m/%d/%Y."
    lines = tuple(n for where, n, _ in places if where == file)
    raise BadTable(Fault(file, what, todo, "date of two readings", column, lines))
