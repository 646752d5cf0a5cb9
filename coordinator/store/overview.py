"""The state of a federation as plain values. `coreg-coordinator status --json` prints it, and the page shows it."""

from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.store.runs import History, Queue
from coordinator.store.status import SiteStatus, Status, waits
from coordinator.store.summaries import RunSummary, Summaries
from coreg_core.protocol.outcomes import Outcome, advice
from coreg_core.protocol.plan import OBJECTIVES
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import is_held

HEARTBEAT_SECONDS = 5.0  # between two writes of the status
RUNS, ROWS, NOTICES = 20, 60, 50  # at most


def overview(path: Path) -> dict[str, Any]:
    """The coordinator, its sites, the queue, the studies, the latest runs and the latest notices.

    ``latest`` has the runs that are not over, then the latest others, with at most `ROWS` rows of convergence each.
    """
    with ExitStack() as stack:
        status = stack.enter_context(closing(Status(path, read_only=True)))
        stack.enter_context(status.reading())  # a damaged value is a `StorageError`
        queue = stack.enter_context(closing(Queue(path, read_only=True)))
        runs = stack.enter_context(closing(Summaries(path, read_only=True)))
        history = stack.enter_context(closing(History(path, read_only=True)))
        up, service, known, waiting = is_held(path), status.service(), status.sites(), queue.waiting()
        now, written = service if up else {}, service.get("updated_at")
        here = [site for site in known if site.connected] if up else []
        age = None if written is None else (utc_now() - datetime.fromisoformat(written)).total_seconds()
        queued = [RunSummary(p.run, p.federation, at, None, None, None, 0, 0, p.to_dict()) for p, at in waiting]
        return {
            "not_reloaded": now.get("not_reloaded", ""),
            "ready": now.get("state") == "ready" and age is not None and age < 6 * HEARTBEAT_SECONDS,
            "state": service.get("state", "never served") if up else "not running",
            "federation": service.get("federation"),
            "listen": now.get("listen"),
            "release": service.get("release"),
            "since": now.get("started"),
            "connected": [site.site for site in here],
            "of": service.get("sites", []),
            "runs": now.get("runs", []),
            "stalled": now.get("parked", []),
            "queued": [run.run for run in queued],
            "waiting": now.get("waiting", {}),
            "certificates": [
                *now.get("certificates", []),
                *(f"certificate of {site.site}: {site.expiry}" for site in here if site.expiry),
            ],
            "sites": sites_now(known, service, up=up),
            "studies": runs.studies(),
            "latest": [
                *(_run(run, "queued", "It waits for a free place.") for run in queued[:RUNS]),
                *(_begun(runs, run, now, written or "", up=up) for run in runs.recent(RUNS)),
            ],
            "notices": history.notices(limit=NOTICES),
        }


def sites_now(known: list[SiteStatus], service: dict[str, Any], *, up: bool) -> list[dict[str, Any]]:
    """Every listed site and every other that was ever seen, in site order; ``up``: a coordinator serves."""
    listed, found = service.get("sites", ()), {site.site: site for site in known}
    awaited = service.get("awaited", {}) if up else {}
    rows = []
    for site in (found.get(name) or SiteStatus(name) for name in sorted({*listed, *found})):
        here = site.connected and up
        rows.append(
            {
                **asdict(site),
                "connected": here,
                "seen": None if here else site.seen(service.get("updated_at")),
                "listed": site.site in listed,
                "days_left": site.days_left,
                "awaited": [run for run, sites in awaited.items() if site.site in sites],
            }
        )
    return rows


def _begun(runs: Summaries, run: RunSummary, now: dict[str, Any], written: str, *, up: bool) -> dict[str, Any]:
    phases = runs.phases(run.run)
    # The status is up to 5 s old: after a later step or end, the run no longer waits.
    latest = max([run.ended or "", *(phase["at"] for phase in phases)])
    text = waits(now).get(run.run, "") if latest <= written else ""
    state, text = _state(run, text, parked=run.run in now.get("parked", ()), up=up)
    return {**_run(run, state, text), "phases": phases, "convergence": runs.convergence(run.run, ROWS)}


def _run(run: RunSummary, state: str, text: str) -> dict[str, Any]:
    asked = OBJECTIVES[run.plan["objective"]["name"]].questions
    discloses = {kind: question.discloses for kind, question in asked.items()}
    study = run.plan["study"] or run.federation
    return {**asdict(run), "study": study, "state": state, "text": text, "discloses": discloses}


def _state(run: RunSummary, text: str, *, parked: bool, up: bool) -> tuple[str, str]:
    """A label, and a sentence: what the run waits for, or why it ended and what to do."""
    if run.stop is not None:
        outcome = Outcome[run.stop]
        why = run.reason or ("" if outcome.good else outcome.value)
        return run.stop.lower().replace("_", " "), f"{why} {advice(outcome)}".strip()
    if not up:
        return "not running", "No coordinator serves this store. The next one begins the run again."
    if "approval by" in text:
        return "approval pending", text
    if not text or (" to answer" in text and "connect" not in text):
        return "running", text
    return "stalled" if parked else "waiting", text
