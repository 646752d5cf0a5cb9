"""The state of a run as a badge and a sentence, and its progress."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from coordinator.store.summaries import RunSummary
from coreg_core.protocol.outcomes import Outcome, advice

RECENT = 20  # steps from which the duration of a step is estimated
GROUPS = {"open": "not finished", "approval": "approval pending", "good": "converged", "failed": "failed or stopped"}
_ENDS = {
    "CONVERGED": "good",
    "NOTHING_SHARED": "warn",
    "MAX_ROUNDS": "warn",
    "STAGNATED": "warn",
    "INTERRUPTED": "idle",
    "CANCELLED": "idle",
}


GOOD = {outcome.name for outcome in Outcome if outcome.good}


@dataclass(frozen=True)
class State:
    """``kind`` is the style of the badge, ``label`` its text, and ``text`` the sentence beside it."""

    kind: str
    label: str
    text: str = ""

    def belongs_to(self, group: str) -> bool:
        """Whether a filter of `GROUPS` shows it."""
        over = self.kind in ("good", "warn", "bad", "idle")
        return {"open": not over, "failed": over and self.kind != "good"}.get(group, self.kind == group)


@dataclass(frozen=True)
class Progress:
    """How far a run is, of ``most``; None before a run of the same plan has converged."""

    done: int
    most: int | None
    text: str
    seconds_left: float | None = None


QUEUED = State("queued", "queued", "waits for a free place")


def state_of(run: RunSummary, text: str, *, parked: bool, up: bool) -> State:
    """The state of a run that has begun. ``parked``: it stalled, and other runs use its place; ``up``: a coordinator serves."""
    if run.stop is not None:
        label = run.stop.lower().replace("_", " ")
        return State(_ENDS.get(run.stop, "bad"), label, _why(Outcome[run.stop], run.reason))
    if not up:
        return State("paused", "not running", "No coordinator serves this store. The next one begins the run again.")
    if "approval by" in text:
        return State("approval", "approval pending", text)
    if parked:
        return State("stalled", "stalled", text)
    if not text or (" to answer" in text and "connect" not in text):
        return State("running", "running", text)
    return State("waiting", "waiting", text)


def _why(outcome: Outcome, reason: str | None) -> str:
    """The reason of an end and the next step; for a converged run only a reason, if there is one."""
    if outcome.good:
        return reason or ""
    return f"{reason or outcome.value} {advice(outcome)}".rstrip()


def progress_of(run: RunSummary, rounds: list[dict[str, Any]], earlier: Iterable[RunSummary]) -> Progress:
    """Steps so far, and the expected number: that of the last converged run of the same plan."""
    step = f"step {run.steps}"
    terms = {name: value for name, value in run.plan.items() if name != "run"}
    same = (r for r in earlier if r.stop in GOOD and {k: v for k, v in r.plan.items() if k != "run"} == terms)
    before = next(same, None) if terms else None
    most = before.steps if before is not None and before.steps > run.steps else None
    phase = rounds[-1]["phase"] if rounds else ""
    if most is None:
        return Progress(run.steps, None, f"{step}{', ' * bool(phase)}{phase}")
    seconds = fmean(r["seconds"] for r in rounds[-RECENT:]) * (most - run.steps) if rounds else None
    return Progress(run.steps, most, f"{step} of about {most}", seconds)
