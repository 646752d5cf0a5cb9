"""Contexts of the pages: plain values from the run store, opened read-only."""

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coordinator.observers.lines import Phases
from coordinator.store.history import History
from coordinator.store.queue import Queue
from coordinator.store.status import SiteStatus, Status
from coordinator.store.summaries import RunSummary, Summaries
from coordinator.web import charts
from coordinator.web.states import GROUPS, QUEUED, Progress, State, progress_of, state_of
from coreg_core.errors import UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files.locks import is_held

LATEST = 40  # rounds of a run's table, and runs of a page
FIRST = 8  # runs on the first page
NOTICES = 25
COMPARED = 8
SOON = 30  # days before the expiry of a certificate from which the page marks it


@dataclass(frozen=True)
class Row:
    """A run in a list; ``summary`` is None while it is in the queue."""

    run: str
    study: str
    plan: dict[str, Any]
    at: str
    state: State
    summary: RunSummary | None = None
    progress: Progress | None = None

    def matches(self, search: str) -> bool:
        """Whether its texts contain every word of the search."""
        sites = self.plan.get("membership", {}).get("sites", ())
        text = " ".join((self.run, self.study, *sites, self.state.label, self.state.text)).lower()
        return all(word in text for word in search.lower().split())

    @property
    def took(self) -> float | None:
        """Seconds from its beginning to its end."""
        if self.summary is None or self.summary.ended is None:
            return None
        return (dt.datetime.fromisoformat(self.summary.ended) - dt.datetime.fromisoformat(self.at)).total_seconds()


@contextmanager
def _opened(path: Path) -> Iterator[SimpleNamespace]:
    """The tables of the store, and the status of the coordinator."""
    tables = {"queue": Queue, "status": Status, "runs": Summaries, "history": History}
    with ExitStack() as stack:
        db = SimpleNamespace(
            **{n: stack.enter_context(closing(table(path, read_only=True))) for n, table in tables.items()}
        )
        db.up, db.service = is_held(path), db.status.service()
        db.sites = {site.site: site for site in db.status.sites()}
        db.connected = [name for name, site in db.sites.items() if site.connected and db.up]
        db.waits, db.at = db.service.get("waiting", {}) if db.up else {}, db.service.get("updated_at", "")
        yield db


def _rows(db: SimpleNamespace) -> list[Row]:
    """Every run, the queue first."""
    waiting = [
        Row(plan.run, plan.study or plan.federation, plan.to_dict(), at, QUEUED) for plan, at in db.queue.waiting()
    ]
    return waiting[::-1] + [_row(db, run) for run in db.runs.runs()]


def _row(db: SimpleNamespace, run: RunSummary) -> Row:
    # The status has waits of runs that ended since it was written.
    text = db.waits[run.run] if run.run in db.waits and (run.ended or "") <= db.at else ""
    state = state_of(run, text, parked=run.run in db.service.get("parked", ()), up=db.up)
    return Row(run.run, run.plan["study"] or run.federation, run.plan, run.started, state, run)


def _progressed(db: SimpleNamespace, row: Row, earlier: Iterable[RunSummary]) -> Row:
    if (run := row.summary) is None or run.stop is not None:
        return row
    rounds = db.runs.show(row.run)[1]
    if rounds and rounds[-1]["at"] > db.at and db.up:  # a step since the last status: the wait is over
        row = replace(row, state=state_of(run, "", parked=False, up=True))
    return replace(row, progress=progress_of(run, rounds, earlier))


def overview(path: Path) -> dict[str, Any]:
    """The coordinator, its sites, the runs that are open, the latest others and the latest notices."""
    with _opened(path) as db:
        rows, listed = _rows(db), db.service.get("sites", ())
        earlier = [row.summary for row in rows if row.summary is not None]
        active = [row for row in rows if row.state.belongs_to("open")]
        over = [row for row in rows if not row.state.belongs_to("open")][: max(2, FIRST - len(active))]
        return {
            "service": db.service,
            "up": db.up,
            "sites": [_site(db, name, rows) for name in sorted({*listed, *db.sites})],
            "rows": [_progressed(db, row, earlier) for row in [*active, *over]],
            "total": len(rows),
            "soon": SOON,
            "notices": db.history.notices(limit=FIRST),
        }


def _site(db: SimpleNamespace, name: str, rows: list[Row]) -> dict[str, Any]:
    seen, awaited = (
        db.sites.get(name) or SiteStatus(name),
        {run for run, sites in db.service.get("awaited", {}).items() if db.up and name in sites},
    )
    return {
        "name": name,
        "here": name in db.connected,
        "seen": seen,
        "last": seen.seen(db.service.get("updated_at")),
        "listed": name in db.service.get("sites", ()),
        "days": _days_left(seen.until, utc_now()),
        "awaited": [row for row in rows if row.state.kind != "running" and row.run in awaited],
    }


def runs(path: Path, asked: dict[str, str]) -> dict[str, Any]:
    """The runs that the filters ``state`` and ``study`` and the search ``q`` show, a page of them."""
    with _opened(path) as db:
        rows = _rows(db)
        earlier = [row.summary for row in rows if row.summary is not None]
        found = [
            row
            for row in rows
            if row.matches(asked.get("q", ""))
            and asked.get("study", "") in ("", row.study)
            and (not asked.get("state") or row.state.belongs_to(asked["state"]))
        ]
        pages = max(1, -(-len(found) // LATEST))
        page = min(pages, int(asked["page"])) if asked.get("page", "").isdecimal() and int(asked["page"]) else 1
        return {
            "service": db.service,
            "rows": [_progressed(db, row, earlier) for row in found[(page - 1) * LATEST : page * LATEST]],
            "found": len(found),
            "page": page,
            "pages": pages,
            "asked": asked,
            "groups": GROUPS,
            "studies": sorted({row.study for row in rows}),
        }


def studies(path: Path) -> dict[str, Any]:
    """The studies, the most recent first."""
    with _opened(path) as db:
        found: dict[str, list[Row]] = {}
        for row in _rows(db):
            found.setdefault(row.study, []).append(row)
        return {"service": db.service, "studies": found}


def study(path: Path, name: str) -> dict[str, Any]:
    """The runs of a study over time."""
    with _opened(path) as db:
        rows = [row for row in _rows(db) if row.study == name]
        if not rows:
            raise UsageError(f"No study has the name {name!r}. The page Studies lists them.")
        earlier = [row.summary for row in rows if row.summary is not None]
        over = [row for row in rows if row.summary is not None and row.summary.stop is not None][:LATEST][::-1]
        steps = [
            (r.run, f"{r.at[:10]}: {r.state.label}", r.state.kind, float(r.summary.steps)) for r in over if r.summary
        ]
        longest = max((r.took or 0.0 for r in over), default=0.0)
        unit, size = ("h", 3600) if longest > 7200 else ("min", 60) if longest > 300 else ("s", 1)
        times = [(*bar[:3], (r.took or 0.0) / size) for bar, r in zip(steps, over, strict=True)]
        return {
            "service": db.service,
            "name": name,
            "rows": [_progressed(db, row, earlier) for row in rows[:LATEST]],
            "found": len(rows),
            "drawn": [
                ("Steps", "steps", *charts.history(steps, "steps")),
                ("Duration", unit, *charts.history(times, f"duration in {unit}")),
            ],
        }


def notices(path: Path, asked: dict[str, str]) -> dict[str, Any]:
    """The latest notices, or the warnings among them, that have the words of the search ``q``."""
    with _opened(path) as db:
        found = db.history.notices(limit=1000)
        words, only = asked.get("q", "").lower(), asked.get("only") == "warnings"
        kept = [n for n in found if words in n["text"].lower() and (n["level"] == "warning" or not only)]
        return {"service": db.service, "notices": kept[:200], "found": len(kept), "asked": asked}


def one_run(path: Path, name: str) -> dict[str, Any]:
    """A run: its state and progress, convergence, answer times, disclosures, notices, rounds, plan."""
    with _opened(path) as db:
        if queued := [row for row in _rows(db) if row.run == name and row.summary is None]:
            return {"service": db.service, "row": queued[0], "plan": plan_rows(queued[0].plan), "up": db.up}
        summary, rounds = db.runs.show(name)
        phases = Phases()
        for r in rounds:
            phases.add(r)
        return {
            "service": db.service,
            "up": db.up,
            "row": _progressed(db, _row(db, summary), db.runs.runs()),
            "plan": plan_rows(summary.plan),
            "charts": charts.convergence(summary.plan, rounds),
            "phases": phases.spent if len(phases.spent) > 1 else {},
            "columns": charts.columns_of(summary.plan),
            "rounds": rounds[-LATEST:][::-1],
            "earlier": max(0, len(rounds) - LATEST),
            **_spent(rounds),
            "notices": db.history.notices(summary.run, NOTICES),
        }


def compared(path: Path, names: list[str]) -> dict[str, Any]:
    """Runs side by side, in the order asked for; the terms in which their plans differ; their convergence."""
    found, drawn = [], []
    with _opened(path) as db:
        for name in names[:COMPARED]:
            summary, rounds = db.runs.show(name)
            found.append({"row": _row(db, summary), **_spent(rounds)})
            drawn.append((summary.run, rounds))
        rows = [dict(plan_rows(run["row"].plan)) for run in found]
        terms = list(dict.fromkeys(term for row in rows for term in row))
        differ = [term for term in terms if len({row.get(term) for row in rows}) > 1 and term != "run"]
        return {
            "service": db.service,
            "runs": found,
            "rows": rows,
            "differ": differ,
            "chart": charts.side_by_side(drawn),
        }


def plan_rows(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Every term of a plan and its value."""
    rows: list[tuple[str, str]] = []
    for name, value in plan.items():
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
    except (ValueError, TypeError):  # no session so far, or no TLS
        return None


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
