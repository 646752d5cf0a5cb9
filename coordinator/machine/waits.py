"""The sites or operators that a run waits for, as values and as one sentence for terminals, logs and pages."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isinf

from coordinator.machine.phases import Phase
from coordinator.machine.run import Run

_APPROVE = "approve"


@dataclass(frozen=True)
class Wait:
    """A task that these sites have not done; for approvals also how many of the sites have accepted the plan."""

    what: str
    sites: tuple[str, ...]
    approved: int = 0
    of: int = 0


def waits_of(run: Run) -> tuple[Wait, ...]:
    """The tasks that a run waits for now; empty if it is over."""
    live, awaited, undecided = run.live, run.awaited, run.unapproved
    away = tuple(s for s in awaited if s not in live.here and s not in live.dismissed)
    here = tuple(s for s in awaited if s in live.here and s not in undecided)
    wrong = {reason: tuple(s for s in awaited if live.dismissed.get(s) == reason) for reason in live.dismissed.values()}
    match live.phase:
        case Phase.ENROLLING | Phase.RETURNING | Phase.PLANNING:
            work = "check the plan and factor its data"
        case Phase.ASKING | Phase.STALLED:
            work = "answer"
        case _:
            work = "fetch the result"
    asking = tuple(s for s in undecided if s in live.here)
    found = (
        Wait(_APPROVE, asking, len(live.ready), len(live.ready) + len(awaited)),
        Wait("connect" if live.phase is Phase.ENROLLING else "reconnect", away),
        Wait(work, here),
        *(Wait(f"correct this: {reason.rstrip('.')}", sites) for reason, sites in wrong.items()),
    )
    return tuple(wait for wait in found if wait.sites)


def waiting_text(waits: Iterable[Wait], left: float) -> str:
    """One sentence, for example "waiting for approval by north (2 of 3 approved, expires in 7 min)".

    ``left`` are the seconds until the timeout; infinity for none.
    """
    waits = tuple(waits)
    parts, limit = list[str](), "" if isinf(left) else f"timeout in {duration(left)}"
    alone = all(wait.what == _APPROVE for wait in waits)  # the timeout of approvals begins when all else is done
    for wait in waits:
        names = ", ".join(wait.sites)
        if wait.what == _APPROVE:
            expires = "" if isinf(left) or not alone else f", expires in {duration(left)}"
            parts.append(f"approval by {names} ({wait.approved} of {wait.of} approved{expires})")
            limit = "" if alone else limit
        else:
            parts.append(f"{names} to {wait.what}")
    return f"waiting for {' and for '.join(parts)}{f' ({limit})' * bool(limit)}" if parts else ""


def duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves at least two of it: "90 s", "7 min", "23 h"."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
