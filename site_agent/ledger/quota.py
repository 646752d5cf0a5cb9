"""The last 24 hours of a ledger: the runs that this site took part in, and its answers to any plan.

A plan that differs in one number has other answers, and a count of its own (`recall`). What bounds a coordinator that
sends one plan after another is the number per day. The ledger's own times count, so that no restart forgets them.
"""

import datetime as dt
from collections import deque
from dataclasses import dataclass, field
from typing import Any

DAY = dt.timedelta(hours=24)
BEGINNINGS = ("Offer", "PlanAccepted")  # the second is of protocol 2, as are three kinds of answers


def is_answer(entry: dict[str, Any]) -> bool:
    """Whether numbers went out with that line."""
    kind = entry.get("kind")
    return kind in ("Prediction", "Share", "Masked") or (kind == "Answer" and bool(entry.get("numbers")))


@dataclass
class RollingQuota:
    """See the module's docstring. Entries come in the order of the ledger; one whose time lies ahead counts until it is past."""

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
        """Drop what is older than a day."""
        self.runs = {name: at for name, at in self.runs.items() if at > now - DAY}
        while self.answers and self.answers[0] <= now - DAY:
            self.answers.popleft()

    def run_objection(self, run: str, limit: int, now: dt.datetime) -> str | None:
        """Why no other run may begin; one that was begun goes on."""
        self.forget_before(now)
        if run in self.runs or len(self.runs) < limit:
            return None
        times = sorted(self.runs.values())
        return (
            f"max_runs_per_day={limit}: this site took part in {len(times)} runs since {_clock(times[0])}. The next may begin "
            f"at {_clock(times[len(times) - limit] + DAY)}, or when its operator raises max_runs_per_day in policy.toml."
        )

    def answer_objection(self, limit: int, now: dt.datetime) -> str | None:
        """Why no question is answered for now."""
        self.forget_before(now)
        count = len(self.answers)
        if count < limit:
            return None
        return (
            f"max_questions_per_day={limit}: this site gave {count} answers since {_clock(self.answers[0])}. The next may go "
            f"out at {_clock(self.answers[count - limit] + DAY)}, or when its operator raises max_questions_per_day in "
            "policy.toml."
        )


def _time_of(entry: dict[str, Any]) -> dt.datetime:
    at = dt.datetime.fromisoformat(entry["at"])
    if at.tzinfo is None or not 1970 <= at.year < 9999:  # times are compared with now, and a day is added to them
        raise ValueError(f"{at} is no time in UTC")
    return at


def _clock(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
