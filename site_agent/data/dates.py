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
from site_agent.data.notation import DATE, flag, most
from site_agent.data.sources import BadTable, Fault

DAY_FIRST = "%d/%m/%Y"
MONTH_FIRST = "%m/%d/%Y"
_LAYOUTS = ("%Y-%m-%d", "%d.%m.%Y", DAY_FIRST, MONTH_FIRST)
_TIME = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$")
ZONE = re.compile(r"[T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*([Zz]|UTC|GMT|[+-]\d{2}:?(\d{2})?)$")
_SHORT_YEAR = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2}$")
_EPOCH = date(1970, 1, 1).toordinal()
_LATEST = ",latest="


def without_zone(column: str) -> str:
    """What to do about times with a zone: their day depends on the place."""
    return (
        "Write local times or dates without a zone: which day it is depends on the place. Or leave"
        f" the column out: {flag('drop', column)}."
    )


def holds_dates(texts: Iterable[str]) -> bool:
    return most(texts, re.compile(DATE).search)


# --- layouts of the operator ----------------------------------------------------------------------


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


def layout_of(table: Mapping[str, object]) -> str:
    """The layout of a table of agent.toml, {format = "%d.%m.%y", latest = "2026-11-28"}."""
    form = table.get("format")
    if set(table) - {"format", "latest"} or not isinstance(form, str):
        raise ValueError('needs a format, and with years of two digits `latest = "YYYY-MM-DD"`')
    return f"{form}{_LATEST}{table['latest']}" if "latest" in table else form


@cache
def _parts(layout: str) -> tuple[str, date | None]:
    """The format, and the latest date; ValueError: the latter is none."""
    form, latest, text = layout.partition(_LATEST)
    return form, date.fromisoformat(text) if latest else None


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
    whole = form if latest is None else f"{form}{_LATEST}2030-01-01"
    for day in (date(2023, 2, 1), date(2024, 11, 30)):
        if day_of(day.strftime(form), whole) != day.toordinal() - _EPOCH:
            raise UsageError(
                f"{where} the format needs a day, a month and a year, such as %d/%m/%Y or %Y-%m-%d."
            )


def century(column: str, form: str) -> str:
    """What to type where years have two digits."""
    return f"{flag('dates', f'{column}={form}{_LATEST}YYYY-MM-DD')} (of birth: today)."


# --- texts ----------------------------------------------------------------------------------------


def day_of(text: str, layout: str) -> int | None:
    """Days since 1970-01-01; None if the text is no date of this layout. A time of day is not
    used.
    """
    form, latest = _parts(layout)
    try:
        day = datetime.strptime(text if "%H" in form else _TIME.sub("", text), form).date()
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


def find_layout(column: str, places: Mapping[str, tuple[str, int]]) -> str:
    """The layout that reads most of a column's texts. ``places``: file and line of each text."""
    read = {
        layout: [text for text in places if day_of(text, layout) is not None] for layout in _LAYOUTS
    }
    layout = max(_LAYOUTS, key=lambda layout: len(read[layout]))
    if not read[layout]:
        text, (file, line) = next(iter(places.items()))
        raise BadTable(_unknown(column, file, line, text))
    if "/" not in layout:
        return layout
    ambiguous = {*read[DAY_FIRST]} & {*read[MONTH_FIRST]}
    day_first = [text for text in read[DAY_FIRST] if text not in ambiguous]
    month_first = [text for text in read[MONTH_FIRST] if text not in ambiguous]
    if day_first and not month_first:
        return DAY_FIRST
    if month_first and not day_first:
        return MONTH_FIRST
    texts = [*day_first[:1], *month_first[:1]] or read[layout][:1]
    what = f"{' and '.join(map(repr, texts))} have the day and the month first."
    if not day_first:
        what = (
            f"{texts[0]!r} has the day or the month first, and no cell of the column shows which."
        )
    todo = f"Give {flag('dates', f'{column}=%d/%m/%Y')}; or %m/%d/%Y."
    file = places[texts[0]][0]
    lines = tuple(places[text][1] for text in texts if places[text][0] == file)
    raise BadTable(Fault(file, what, todo, "date of two readings", column, lines))


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
