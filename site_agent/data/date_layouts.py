"""The layout of a column's dates: the one that reads most of its texts.

In 3/4/2024 the day or the month is first. If no text of the column shows which, it is refused with
the option to type.
"""

import re
from collections.abc import Iterable, Sequence

from site_agent.data.dates import ZONE, century, day_of, without_zone
from site_agent.data.notation import DATE, flag, most
from site_agent.data.sources import BadTable
from site_agent.data.tables import Table

DAY_FIRST = "%d/%m/%Y"
MONTH_FIRST = "%m/%d/%Y"
_LAYOUTS = ("%Y-%m-%d", "%d.%m.%Y", DAY_FIRST, MONTH_FIRST)
_SHORT_YEAR = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2}$")


def holds_dates(texts: Iterable[str]) -> bool:
    return most(texts, re.compile(DATE).search)


def find_layout(column: str, texts: Sequence[str], tables: Sequence[Table]) -> str:
    """The layout of these texts, which the column has in these tables."""
    read = {}
    for layout in _LAYOUTS:
        read[layout] = [text for text in texts if day_of(text, layout) is not None]
    most_read = max(map(len, read.values()))
    if not most_read:
        raise _unknown(column, texts[0], tables)
    best = [layout for layout in _LAYOUTS if len(read[layout]) == most_read]
    if best != [DAY_FIRST, MONTH_FIRST]:
        return best[0]
    raise _either_way(column, read[DAY_FIRST], read[MONTH_FIRST], tables)


def _either_way(
    column: str, day_first: Sequence[str], month_first: Sequence[str], tables: Sequence[Table]
) -> BadTable:
    """Dates of which as many are read with the day first as with the month first."""
    ambiguous = {*day_first} & {*month_first}
    sure_days = [text for text in day_first if text not in ambiguous]
    sure_months = [text for text in month_first if text not in ambiguous]
    if sure_days:
        shown = [sure_days[0], sure_months[0]]
        what = f"{shown[0]!r} and {shown[1]!r} have the day and the month first."
    else:
        shown = [day_first[0]]
        what = (
            f"{shown[0]!r} has the day or the month first, and no cell of the column shows which."
        )
    option = flag("dates", f"{column}={DAY_FIRST}")
    todo = f"Give {option}; or {MONTH_FIRST}."
    return _refused(column, shown, tables, what, todo, "date of two readings")


def _unknown(column: str, text: str, tables: Sequence[Table]) -> BadTable:
    """A date that no layout fits, with the option that names one, if one can."""
    what = f"{text!r} is a date in an unknown notation."
    option = flag("dates", f"{column}=%d.%m.%Y")
    todo = f"Give {option}, for example."
    short = _SHORT_YEAR.match(text)
    if short:
        form = "%d.%m.%y".replace(".", short[1])
        todo = f"Give {century(column, form)}"
    if ZONE.search(text):
        what = f"{text!r} is a time with a zone."
        todo = without_zone(column)
    return _refused(column, [text], tables, what, todo, "date")


def _refused(
    column: str, texts: Sequence[str], tables: Sequence[Table], what: str, todo: str, kind: str
) -> BadTable:
    table = next(table for table in tables if texts[0] in table.shown(column))
    cells = table.shown(column)
    rows = [cells.index(text) for text in texts if text in cells]
    return BadTable(table.fault(what, todo, kind, column, rows))
