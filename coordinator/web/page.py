"""The page: values of `coreg-coordinator status --json` as tables, under their own names.

It has no script. The browser loads it again every few seconds. Words of the store are escaped.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from coordinator.store.schema import Values

PAGE = Path(__file__).with_name("page.html")
SECONDS = 5  # until the browser loads the page again
FEDERATION = [
    "state",
    "listen",
    "release",
    "since",
    "connected",
    "of",
    "certificates",
    "not_reloaded",
]
SITES = [
    "site",
    "connected",
    "listed",
    "since",
    "seen",
    "awaited",
    "release",
    "until",
    "refused",
    "refusal",
]
RUNS = ["run", "study", "state", "started", "rounds", "residual", "gap", "text"]
NOTICES = ["at", "level", "run", "text"]


def page(state: Values) -> str:
    """``state``: `coordinator.store.status.overview`."""
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        seconds=SECONDS,
        name=escape(state["federation"] or "coreg"),
        federation=_table(FEDERATION, [state]),
        sites=_table(SITES, state["sites"]),
        runs=_table(RUNS, state["latest"]),
        notices=_table(NOTICES, state["notices"]),
    )


def _table(names: Iterable[str], rows: Iterable[Values]) -> str:
    lines = [_row("th", names)]
    lines += [_row("td", (row.get(name) for name in names)) for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])


def _row(tag: str, values: Iterable[Any]) -> str:
    cells = "".join(f"<{tag}>{escape(_text(value))}</{tag}>" for value in values)
    return f"<tr>{cells}</tr>"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    if value is None:
        return ""
    return str(value)
