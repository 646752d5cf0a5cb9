"""Quotas over the last 24 hours of a ledger: the runs that this site took part in, and its answers to any plan.

A plan that differs in one number has its own count of answers (`recall`). The daily quotas limit a coordinator that sends
many plans. They use the ledger's times, so they survive a restart.
"""

import datetime as dt
from collections import deque
from dataclasses import dataclass, field
from typing import Any

DAY = dt.timedelta(hours=24)
BEGINNINGS = ("Offer", "PlanAccepted")  # the second belongs to protocol 2, as do three kinds of answers


def is_answer(entry: dict[str, Any]) -> bool:
    """Whether the line's message contained numbers."""
    kind = entry.get("kind")
    return kind in ("Prediction", "Share", "Masked") or (kind == "Answer" and bool(entry.get("numbers")))


@dataclass
class RollingQuota:
    """See the module's docstring. Entries come in the order of the ledger. One with a future time counts until it is past."""

    runs: dict[str, dt.datetime] = field(default_factory=dict)  # when each was first accepted
    answers: deque[dt.datetime] = field(default_factory=deque)

    def add(self, entry: dict[str, Any]) -> None:
        """Count an entry of the ledger."""
        kind = entry["kind"]
        if kind in BEGINNINGS:
            self.runs.setdefault(str(entry["run"]), _time_of(entry))
        elif is_answer(entry):
            self.answers.append(_time_of(entry))

    def forget_before(self, now: dt.datetime) -> None:
        """Drop entries older than a day."""
        self.runs = {name: at for name, at in self.runs.items() if at > now - DAY}
        while self.answers and self.answers[0] <= now - DAY:
            self.answers.popleft()

    def run_objection(self, run: str, limit: int, now: dt.datetime) -> str | None:
        """The reason against another run, or None; a run that has begun continues."""
        self.forget_before(now)
        if run in self.runs or len(self.runs) < limit:
            return None
        times = sorted(self.runs.values())
        return (
            f"max_runs_per_day = {limit}: this site took part in {len(times)} runs since {_clock(times[0])}. The next can begin "
            f"at {_clock(times[len(times) - limit] + DAY)}, or when its operator raises max_runs_per_day in policy.toml."
        )

    def answer_objection(self, limit: int, now: dt.datetime) -> str | None:
        """The reason against another answer for now, or None."""
        self.forget_before(now)
        count = len(self.answers)
        if count < limit:
            return None
        return (
            f"max_questions_per_day = {limit}: this site sent {count} answers since {_clock(self.answers[0])}. The next can be "
            f"sent at {_clock(self.answers[count - limit] + DAY)}, or when its operator raises max_questions_per_day in "
            "policy.toml."
        )


def _time_of(entry: dict[str, Any]) -> dt.datetime:
    at = dt.datetime.fromisoformat(entry["at"])
    if at.tzinfo is None or not 1970 <= at.year < 9999:  # comparisons and additions of a day need such a time
        raise ValueError(f"{at} is not a time in UTC")
    return at


def _clock(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
