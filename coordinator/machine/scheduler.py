"""The scheduler: starts, parks and cancels runs. Pure functions of the queue and the sessions.

Runs overlap up to a limit if all of them compute with the same number of threads, since another number changes the bits of
sums. Runs of an earlier process go before the queue. A stalled run is parked, and begins again when its sites reconnect.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from coordinator.machine.events import BeginRun, CloseRun, LoadRun
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

PARKED = (Outcome.STALLED, Outcome.TOO_FEW_SITES)
REST_SECONDS = 5.0  # minimum pause before a parked run begins again: its sites may be unstable

Start: TypeAlias = BeginRun | LoadRun


@dataclass(frozen=True)
class Scheduler:
    """Runs that are not active."""

    max_concurrent_runs: int  # runs that compute at once
    exit_when_idle: bool = False  # the process ends when no run is left to start; then no run is parked
    unfinished: tuple[Plan, ...] = ()  # runs that an earlier process left, in order
    waiting: tuple[Plan, ...] = ()  # the queue, in order
    parked: Mapping[str, tuple[Plan, bool]] = field(
        default_factory=dict
    )  # stalled, and whether the pause of each is over
    starting: Mapping[str, Plan] = field(default_factory=dict)  # requested from the store
    draining: bool = False  # no further run starts

    @property
    def idle(self) -> bool:
        """Whether no run is left to start."""
        return not (self.unfinished or self.waiting or self.starting)


Change: TypeAlias = Callable[[Scheduler], Scheduler]


def with_queue(scheduler: Scheduler, waiting: Iterable[Plan], under_way: Collection[str]) -> Scheduler:
    """Take over the queue, without runs that have started since."""
    known = {*under_way, *scheduler.starting}
    return replace(scheduler, waiting=tuple(plan for plan in waiting if plan.run not in known))


def start(
    scheduler: Scheduler, computing: Collection[Plan], connected: Collection[str]
) -> tuple[Scheduler, list[Start]]:
    """The runs that start now, in order. ``computing`` are the active runs, ``connected`` the sites with a session."""
    starts = list[Start]()
    if scheduler.draining or not (scheduler.unfinished or scheduler.waiting or scheduler.parked):
        return scheduler, starts
    active = [*computing, *scheduler.starting.values()]
    fits = True

    def take(plan: Plan, action: Start) -> bool:
        threads = {other.iteration.threads for other in active}
        if len(active) >= scheduler.max_concurrent_runs or not threads <= {plan.iteration.threads}:
            return False
        active.append(plan)
        starts.append(action)
        return True

    unfinished = list(scheduler.unfinished)
    while fits and unfinished and (fits := take(unfinished[0], LoadRun(unfinished[0]))):
        unfinished.pop(0)
    parked = dict(scheduler.parked)
    for run, (plan, rested) in scheduler.parked.items():
        if fits and rested and _enough(plan, connected) and take(plan, LoadRun(plan)):
            del parked[run]
    waiting = list(scheduler.waiting)
    while fits and waiting and (fits := take(waiting[0], BeginRun(waiting[0]))):
        waiting.pop(0)
    starting = {**scheduler.starting, **{each.plan.run: each.plan for each in starts}}
    changed = replace(scheduler, unfinished=tuple(unfinished), parked=parked, waiting=tuple(waiting), starting=starting)
    return changed, starts


def _enough(plan: Plan, connected: Collection[str]) -> bool:
    here = set(plan.sites) & set(connected)
    terms = plan.membership
    return len(here) == len(plan.sites) or (terms.on_dropout == "continue" and len(here) >= terms.min_sites)


def started(scheduler: Scheduler, run: str) -> Scheduler:
    """The store has answered: the run is active."""
    return replace(scheduler, starting={name: plan for name, plan in scheduler.starting.items() if name != run})


def finished(scheduler: Scheduler, plan: Plan, outcome: Outcome, *, on_record: bool) -> Scheduler:
    """A run is over: park it if it stalled. ``on_record``: its end is recorded, so it does not begin again."""
    if outcome not in PARKED or on_record or scheduler.draining or scheduler.exit_when_idle:
        return scheduler
    return replace(scheduler, parked={**scheduler.parked, plan.run: (plan, False)})


def rested(scheduler: Scheduler, run: str) -> Scheduler:
    """The pause of a parked run is over."""
    if run not in scheduler.parked:
        return scheduler
    return replace(scheduler, parked={**scheduler.parked, run: (scheduler.parked[run][0], True)})


def cancel(scheduler: Scheduler, reasons: Mapping[str, str]) -> tuple[Scheduler, list[CloseRun]]:
    """Close the runs to cancel that are not active."""
    plans = [*scheduler.unfinished, *scheduler.waiting, *(plan for plan, _ in scheduler.parked.values())]
    closed = [CloseRun(plan, Outcome.CANCELLED, reasons[plan.run]) for plan in plans if plan.run in reasons]
    changed = replace(
        scheduler,
        unfinished=tuple(p for p in scheduler.unfinished if p.run not in reasons),
        waiting=tuple(p for p in scheduler.waiting if p.run not in reasons),
        parked={run: kept for run, kept in scheduler.parked.items() if run not in reasons},
    )
    return changed, closed
