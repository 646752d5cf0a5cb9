"""A run as a pure function: its state and one event in, its new state and a list of actions out.

`TABLE` selects the handler. It has one row for each class of event (for a message: the class of the message) and one column
for each phase. The entry is the handler, or `nothing` if the event has no effect in that phase. phases.py has the transitions.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, get_args

from coordinator.machine import delivery, membership, notices, steps
from coordinator.machine.events import (
    Action,
    Breached,
    Cancelled,
    DeadlinePassed,
    HeadCountersigned,
    Interrupted,
    Received,
    RunEvent,
    SiteJoined,
    SiteLost,
)
from coordinator.machine.phases import Phase, Timeouts, Transition
from coordinator.machine.run import Run, RunUpdate, Volatile
from coordinator.machine.state import RunState
from coreg_core.protocol.messages import Answer, Approval, Fault, Fetched, FromSite, Hello, Leaving, Offer, PlanRefused
from coreg_core.protocol.outcomes import Outcome

E = TypeVar("E", bound="RunEvent | Received[Any]")
Handler: TypeAlias = Callable[[RunUpdate, E], None]
M = TypeVar("M", bound=FromSite)


def nothing(_update: RunUpdate, _event: object) -> None:
    """The event has no effect in this phase."""


# --- sessions -----------------------------------------------------------------------------------------------------


def _breached(update: RunUpdate, event: Breached) -> None:
    if event.site in update.live.here:
        reason = f"{event.site} broke the protocol: {event.reason}"
        membership.exclude(update, event.site, Outcome.SITE_FAULT, reason)


def _fetched_already(update: RunUpdate, event: Received[Fetched]) -> None:
    """A site answers the plan with `Fetched`: it has the end of this run, and these records have none."""
    delivery.end(
        update,
        Outcome.DAMAGED,
        f"{event.site} already has the result of run {update.run.name}, so the coordinator's records are older than "
        "the sites' (was a backup restored?). The sites keep their models. Submit the study again for a new run.",
    )


# --- time and the operator ----------------------------------------------------------------------------------------


def _not_joined(update: RunUpdate, _event: DeadlinePassed) -> None:
    run, missing = update.run, update.run.awaited
    if len(update.live.here) >= run.plan.membership.min_sites:
        update.notify(notices.GoingOnWithout(run.name, missing, "join in time"))
        membership.propose(update)
    else:
        names = ", ".join(missing)
        delivery.end(update, Outcome.TOO_FEW_SITES, f"{names} did not join within {run.timeouts.join:g} s")


def _not_planned(update: RunUpdate, _event: DeadlinePassed) -> None:
    if membership.wait_for_operators(update):
        return
    ready = membership.agreeing(update, membership.counted_on(update))
    run, missing = update.run, update.run.awaited
    late = (
        f"approve the plan within {run.timeouts.approval:g} s" if update.live.operators else "accept the plan in time"
    )
    terms = run.plan.membership
    enough = len(ready) >= terms.min_sites
    first = not run.recorded.participants
    if enough and (first or terms.on_dropout == "continue" or set(ready) >= set(run.recorded.participants)):
        update.notify(notices.GoingOnWithout(run.name, missing, late))
        membership.begin(update, ready)
    else:
        why = "".join(f"; {reason}" for reason in dict.fromkeys(run.live.dismissed.values()))
        delivery.end(update, Outcome.TOO_FEW_SITES, f"{', '.join(missing)} did not {late}{why}")


def _not_back(update: RunUpdate, _event: DeadlinePassed) -> None:
    names = ", ".join(update.run.awaited) or "enough sites"
    delivery.end(update, Outcome.STALLED, f"{names} did not reconnect within {update.run.timeouts.stall:g} s")


def _interrupted(update: RunUpdate, _event: Interrupted) -> None:
    # Not recorded as an end: the next process resumes the run. Agents reconnect automatically.
    update.finish(Transition.INTERRUPTED, Outcome.INTERRUPTED, "")


def _cancelled(update: RunUpdate, event: Cancelled) -> None:
    # Recorded as an end, unlike an interruption: the run is not resumed.
    delivery.end(update, Outcome.CANCELLED, event.reason)


# --- the table ----------------------------------------------------------------------------------------------------

_PHASES = (Phase.ENROLLING, Phase.RETURNING, Phase.PLANNING, Phase.ASKING, Phase.STALLED, Phase.DELIVERING, Phase.DONE)
Row: TypeAlias = tuple[type, Mapping[Phase, Handler[Any]]]


def _event(kind: type[E], *handlers: Handler[E]) -> Row:
    return kind, dict(zip(_PHASES, handlers, strict=True))


def _message(kind: type[M], *handlers: "Handler[Received[M]]") -> Row:
    return kind, dict(zip(_PHASES, handlers, strict=True))


# ENROLLING, RETURNING, PLANNING, ASKING, STALLED, DELIVERING, DONE
TABLE: Mapping[type, Mapping[Phase, Handler[Any]]] = dict(
    [
        _event(SiteJoined, membership.enrol, *(5 * (membership.invite,)), nothing),
        _event(SiteLost, *(5 * (membership.left,)), delivery.left, nothing),
        _event(Breached, membership.left, *(5 * (_breached,)), nothing),
        _message(Leaving, *(5 * (membership.left,)), delivery.left, nothing),
        _message(Offer, nothing, *(5 * (membership.offered,)), nothing),
        _message(PlanRefused, nothing, *(5 * (membership.refused,)), nothing),
        _message(Approval, nothing, membership.approval, membership.approval, *(4 * (nothing,))),
        _message(Answer, nothing, nothing, *(3 * (steps.answered,)), nothing, nothing),
        _message(Fault, nothing, nothing, nothing, steps.faulted, steps.faulted, nothing, nothing),
        _message(Fetched, nothing, *(4 * (_fetched_already,)), delivery.fetched, nothing),
        _event(HeadCountersigned, *(5 * (nothing,)), delivery.countersigned, nothing),
        _event(
            DeadlinePassed,
            _not_joined,
            _not_planned,
            _not_planned,
            steps.out_of_time,
            _not_back,
            delivery.out_of_time,
            nothing,
        ),
        _event(Interrupted, *(5 * (_interrupted,)), delivery.interrupted, nothing),
        _event(Cancelled, *(5 * (_cancelled,)), nothing, nothing),
    ]
)
assert TABLE.keys() == {*get_args(RunEvent), *get_args(FromSite)} - {Hello}, "every event has its row"


def begin(recorded: RunState, timeouts: Timeouts, only: frozenset[str] | None = None) -> tuple[Run, list[Action]]:
    """The first state and actions of a run: new, unfinished, or ended.

    ``only``: if the run has ended, the connected sites; no other site is awaited.
    """
    if recorded.ended is not None:
        update = delivery.resumed(recorded, timeouts, only)
        return update.run, update.actions
    phase = Phase.ENROLLING if recorded.attempt < 0 else Phase.RETURNING
    update = RunUpdate(Run(recorded, Volatile(phase, attempt=recorded.attempt + 1), timeouts))
    if (last := membership.cannot_go_on_without(recorded)) is not None:  # killed between the exclusion and the end
        delivery.end(update, last.outcome, last.reason)
        return update.run, update.actions
    name, awaited = recorded.plan.run, update.run.awaited
    if not recorded.plan.masked:
        update.notify(notices.AnswersInClear(name))
    if phase is Phase.ENROLLING:
        update.notify(notices.RunBegan(name, awaited, timeouts.join))
    else:
        update.notify(notices.RunTakenUp(name, recorded.steps, awaited, timeouts.join))
    update.deadline(timeouts.join)
    return update.run, update.actions


def handle(run: Run, event: "RunEvent | Received[FromSite]") -> tuple[Run, list[Action]]:
    """Handle one event. Every event is accepted in every phase; a late one has no effect."""
    update = RunUpdate(run)
    kind = type(event.message) if isinstance(event, Received) else type(event)
    TABLE[kind][run.phase](update, event)
    steps.settle(update)
    return update.run, update.actions
