"""What the pages show, as plain values from the run store, opened for reading alone."""

import datetime as dt
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.machine.wording import is_warning, message_for
from coordinator.store.history import Disclosed, History, NoticeRow
from coordinator.store.queue import Queue
from coordinator.store.status import SiteStatus, Status, waits_in
from coordinator.store.summaries import RunSummary, Summaries
from coordinator.web.charts import Chart, convergence, side_by_side
from coreg_wire.files.locks import is_held

LATEST = 40  # rounds in a run's table, and runs in the overview
NOTICES = 25
COMPARED = 8
SOON = 30  # days before a certificate's end in which the page says so


@dataclass(frozen=True)
class Sent:
    """What one site sent so far: every message, and the words in them."""

    site: str
    messages: int
    words: int


def overview(path: Path) -> dict[str, Any]:
    """The federation, its sites, its queue, its latest runs, and what was told of it."""
    with (
        closing(Queue(path, read_only=True)) as queue,
        closing(Status(path, read_only=True)) as status,
        closing(Summaries(path, read_only=True)) as store,
        closing(History(path, read_only=True)) as history,
    ):
        service, waiting = status.service(), queue.waiting()
        known = {site.site: site for site in status.sites()}
        runs = store.runs()
        sent = {s.site: s for s in sent_by(history.disclosed())}
        notices = shown(history.notices(limit=NOTICES))
    up = is_held(path)
    listed = service.get("sites", ())
    sites = [(site, known.get(site) or SiteStatus(site)) for site in sorted({*listed, *known})]
    now = dt.datetime.now(dt.UTC)
    return {
        "service": service,
        "up": up,
        "sites": [
            {
                "name": name,
                "here": a.connected and up,
                "seen": a,
                "last": a.seen(service.get("updated_at")),
                "listed": name in listed,
                "days": _days_left(a.until, now),
                "sent": sent.get(name, Sent(name, 0, 0)),
            }
            for name, a in sites
        ],
        "soon": SOON,
        "waiting": [{"run": plan.run, "study": plan.study, "submitted": at} for plan, at in waiting],
        "runs": runs[:LATEST],
        "more": max(0, len(runs) - LATEST),
        "awaited": service.get("awaited", {}) if up else {},
        "waits": waits_in(service) if up else {},
        "notices": notices,
    }


def one_run(path: Path, name: str) -> dict[str, Any]:
    """A run: its plan, its convergence, its rounds, who is awaited, what was told of it, what was disclosed.

    Raises
    ------
    UsageError
        there is none of that name.
    """
    with (
        closing(Status(path, read_only=True)) as status,
        closing(Summaries(path, read_only=True)) as store,
        closing(History(path, read_only=True)) as history,
    ):
        summary, rounds = store.show(name)
        service = status.service()
        notices = shown(history.notices(summary.run, NOTICES))
        sent = sent_by(history.disclosed(summary.run))
    open_here = is_held(path) and summary.closed is None
    awaited = service.get("awaited", {}).get(summary.run) if open_here else None
    return {
        "summary": summary,
        "plan": plan_rows(summary),
        "chart": convergence(rounds),
        "rounds": rounds[-LATEST:][::-1],
        "earlier": max(0, len(rounds) - LATEST),
        "steps": summary.steps,  # and not the rows: `prune` removes them
        **_spent(rounds),
        "awaited": awaited,
        "wait": waits_in(service).get(summary.run) if open_here else None,
        "notices": notices,
        "sent": sent,
    }


@dataclass(frozen=True)
class Compared:
    """A run beside others."""

    summary: RunSummary
    seconds: float
    bytes: int
    sent: tuple[Sent, ...]

    @property
    def numbers(self) -> int:
        return sum(s.words for s in self.sent)


def compared(path: Path, names: list[str]) -> tuple[list[Compared], Chart]:
    """Runs side by side, in the order asked for, and their gaps over their rounds."""
    found, drawn = [], []
    with closing(Summaries(path, read_only=True)) as store, closing(History(path, read_only=True)) as history:
        for name in names[:COMPARED]:
            summary, rounds = store.show(name)
            sent = tuple(sent_by(history.disclosed(summary.run)))
            found.append(Compared(summary, **_spent(rounds), sent=sent))
            drawn.append((summary.run, rounds))
    return found, side_by_side(drawn)


def shown(rows: Iterable[NoticeRow]) -> list[dict[str, Any]]:
    """Notices in words; those that only a log needs are left out."""
    worded = [(row, message_for(row.notice)) for row in rows]
    return [
        {"at": row.at, "warning": is_warning(row.notice), "text": text, "times": row.times}
        for row, text in worded
        if text
    ]


def sent_by(disclosed: Iterable[Disclosed]) -> list[Sent]:
    """What each site sent, its kinds together."""
    found: dict[str, Sent] = {}
    for d in disclosed:
        before = found.get(d.site, Sent(d.site, 0, 0))
        found[d.site] = Sent(d.site, before.messages + d.messages, before.words + d.numbers)
    return list(found.values())


def plan_rows(summary: RunSummary) -> list[tuple[str, str]]:
    """Every term of a plan and its value."""
    rows: list[tuple[str, str]] = []
    for name, value in summary.plan.items():
        if isinstance(value, dict):
            rows += [(f"{name} {term}", _plain(chosen)) for term, chosen in value.items()]
        else:
            rows.append((name, _plain(value)))
    return rows


def _spent(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seconds": sum(r["seconds"] for r in rounds),
        "bytes": sum(r["bytes_sent"] + r["bytes_received"] for r in rounds),
    }


def _days_left(until: str, now: dt.datetime) -> int | None:
    try:
        return (dt.datetime.fromisoformat(until) - now).days
    except (ValueError, TypeError):  # no session so far, or none under TLS
        return None


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
