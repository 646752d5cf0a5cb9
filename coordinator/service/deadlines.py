"""The timers of the runs as dates: for the status that other processes read, and for reminders."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from math import isinf
from typing import Any

from coordinator.machine.federation import Federation
from coordinator.machine.notices import StillWaiting
from coordinator.machine.run import Run
from coordinator.machine.waits import waiting_text, waits_of
from coreg_wire.clock import utc_now

REMINDER_SECONDS = 60.0  # until the first notice about a wait; then twice as long each time, up to an hour
HOUR = 3600.0


@dataclass(frozen=True)
class _Deadline:
    """A run's timer: its token, its end on the loop's clock and as a date, and the time of the last reminder."""

    token: int
    end: float
    until: str | None
    notified: float
    pause: float = REMINDER_SECONDS


class Deadlines:
    """The timer of each run of a federation; ``now`` is the time of the event loop."""

    def __init__(self) -> None:
        self._known: dict[str, _Deadline] = {}

    def follow(self, federation: Federation, now: float) -> None:
        """Read the timers that changed."""
        known = self._known
        self._known = {
            name: known[name] if name in known and known[name].token == run.live.token else _deadline(run, now)
            for name, run in federation.runs.items()
        }

    def status(self, federation: Federation) -> dict[str, Any]:
        """Plain values for `coordinator.store.status.waits_in`. Called in a thread: the federation can be older or newer."""
        known = self._known
        return {
            name: {"until": known[name].until, "waits": [asdict(wait) for wait in waits_of(run)]}
            for name, run in federation.runs.items()
            if name in known
        }

    def reminders(self, federation: Federation, now: float) -> Iterator[StillWaiting]:
        """The sites that each run waits for, and the time left: after a minute, and then more and more seldom."""
        for name, run in federation.runs.items():
            deadline = self._known[name]
            if now - deadline.notified >= deadline.pause and run.awaited:
                self._known[name] = replace(deadline, notified=now, pause=min(2.0 * deadline.pause, HOUR))
                left = max(0.0, deadline.end - now)
                yield StillWaiting(name, run.awaited, waiting_text(waits_of(run), left), left)


def _deadline(run: Run, now: float) -> _Deadline:
    seconds = run.live.deadline
    until = None if isinf(seconds) else (utc_now() + timedelta(seconds=seconds)).isoformat(timespec="seconds")
    return _Deadline(run.live.token, now + seconds, until, now)
