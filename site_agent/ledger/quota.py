"""The last 24 hours of a ledger: in how many runs this site took part, and how many answers it gave, to whichever plan.

A plan that differs in one number has other answers, and so a count of its own (`recall`): what bounds a coordinator that sends
one plan after another is the day. Counted by the ledger's own times, so that nothing is forgotten over runs and restarts. Knows
times and names; the clock is the caller's.
"""

import datetime as dt
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

DAY = dt.timedelta(hours=24)
ANSWERS = ("Prediction", "Share", "Masked")
# A ledger's line begins with its time, since its keys are in order.
_AT = b'{"at": "'


@dataclass
class Day:
    """See the module's docstring. Entries come in the order of the ledger; one whose time lies ahead counts until it is past."""

    runs: dict[str, dt.datetime] = field(default_factory=dict)  # when each was first accepted, of the last day
    answers: deque[dt.datetime] = field(default_factory=deque)

    def note(self, kind: str, run: str, at: dt.datetime) -> None:
        if kind == "PlanAccepted":
            self.runs.setdefault(run, at)
        elif kind in ANSWERS:
            self.answers.append(at)

    def run_objection(self, run: str, most: int, now: dt.datetime) -> str | None:
        """Why no other run may begin; one that was begun goes on."""
        self.runs = {name: at for name, at in self.runs.items() if at > now - DAY}
        if run in self.runs or len(self.runs) < most:
            return None
        times = sorted(self.runs.values())
        return (
            f"runs_a_day={most}: this site took part in {len(times)} runs since {_clock(times[0])}, and the next may begin at "
            f"{_clock(times[len(times) - most] + DAY)}, or when its operator has raised runs_a_day in policy.toml."
        )

    def answer_objection(self, most: int, now: dt.datetime) -> str | None:
        """Why nothing more is answered for now."""
        while self.answers and self.answers[0] <= now - DAY:
            self.answers.popleft()
        count = len(self.answers)
        if count < most:
            return None
        return (
            f"questions_a_day={most}: this site gave {count} answers since {_clock(self.answers[0])}, and the next may go out at "
            f"{_clock(self.answers[count - most] + DAY)}, or when its operator has raised questions_a_day in policy.toml."
        )


def day_of(lines: Iterable[bytes], now: dt.datetime) -> Day:
    """What the lines of a ledger tell of the 24 hours before; lines that were torn, or that are older, are passed."""
    found, since = Day(), (now - DAY).isoformat(timespec="milliseconds").encode()
    for line in lines:
        if not line.startswith(_AT) or line[len(_AT) : len(_AT) + len(since)] <= since:
            continue
        try:
            entry = json.loads(line)
            at = dt.datetime.fromisoformat(entry["at"])
            found.note(str(entry["kind"]), str(entry.get("run")), at)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _clock(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
