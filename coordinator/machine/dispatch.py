"""A run as a pure function: its state and one event in, its new state and a list of actions out.

`TABLE` selects the handler. It has one row for each class of event (for a message: the class of the message) and one column
for each phase. The entry is the handler, or `nothing` if the event has no effect in that phase. phases.py has the transitions.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, get_args

from coordinator.machine import ending, membership, notices, steps
from coordinator.machine.events import (
    Action,
    Aligned,
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
from coordinator.machine.records import Begun, Phase, Timeouts, Transition
from coordinator.machine.run import Run, RunUpdate
from coreg_core.protocol.messages import (
    Answer,
    Approval,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    Offer,
    PlanRefused,
    Unaligned,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

E = TypeVar("E", bound="RunEvent | Received[Any]")
Handler: TypeAlias = Callable[[RunUpdate, E], None]
M = TypeVar("M", bound=FromSite)


def nothing(_update: RunUpdate, _event: object) -> None:
    """The event has no effect in this phase."""


# --- time and the operator ----------------------------------------------------------------------------------------


def _not_joined(update: RunUpdate, _event: DeadlinePassed) -> None:
    run, missing = update.run, update.run.awaited
    if membership.go_on_without(update, missing, len(run.here), "join in time"):
        membership.propose(update)
    else:
        ending.end(update, Outcome.TOO_FEW_SITES, f"{', '.join(missing)} did not join within {run.timeouts.join:g} s")


def _not_planned(update: RunUpdate, _event: DeadlinePassed) -> None:
    if membership.wait_for_operators(update):
        return
    aligns = membership.must_align(update.run)
    ready = sorted(update.run.ready | update.run.unaligned) if aligns else membership.agreeing(update)
    run, missing = update.run, update.run.awaited
    late = f"approve the plan within {run.timeouts.approval:g} s" if run.operators else "accept the plan in time"
    if membership.go_on_without(update, missing, len(ready), late):
        if aligns:
            membership.align(update)
        else:
            membership.begin(update, ready)
    else:
        why = "".join(f"; {reason}" for reason in dict.fromkeys(run.dismissed.values()))
        ending.end(update, Outcome.TOO_FEW_SITES, f"{', '.join(missing)} did not {late}{why}")


def _interrupted(update: RunUpdate, _event: Interrupted) -> None:
    # Not recorded as an end: the next process begins the run again. Agents reconnect automatically.
    update.finish(Transition.INTERRUPTED, Outcome.INTERRUPTED, "")


def _cancelled(update: RunUpdate, event: Cancelled) -> None:
    # Recorded as an end, unlike an interruption: the run does not begin again.
    ending.end(update, Outcome.CANCELLED, event.reason)


# --- the table ----------------------------------------------------------------------------------------------------

_PHASES = (Phase.ENROLLING, Phase.PLANNING, Phase.ASKING, Phase.STALLED, Phase.ENDING, Phase.DONE)
Row: TypeAlias = tuple[type, Mapping[Phase, Handler[Any]]]


def _event(kind: type[E], *handlers: Handler[E]) -> Row:
    return kind, dict(zip(_PHASES, handlers, strict=True))


def _message(kind: type[M], *handlers: "Handler[Received[M]]") -> Row:
    return kind, dict(zip(_PHASES, handlers, strict=True))


# ENROLLING, PLANNING, ASKING, STALLED, ENDING, DONE
TABLE: Mapping[type, Mapping[Phase, Handler[Any]]] = dict(
    [
        _event(SiteJoined, membership.enrol, *(3 * (membership.invite,)), membership.greet, nothing),
        _event(SiteLost, *(4 * (ending.departed,)), ending.left, nothing),
        _event(Breached, ending.departed, *(3 * (membership.breached,)), ending.left, nothing),
        _message(Leaving, *(4 * (ending.departed,)), ending.left, nothing),
        _message(Offer, nothing, *(3 * (membership.offered,)), nothing, nothing),
        _message(PlanRefused, nothing, *(3 * (membership.refused,)), nothing, nothing),
        _message(Unaligned, nothing, *(3 * (membership.unaligned,)), nothing, nothing),
        _message(Approval, nothing, membership.approval, *(4 * (nothing,))),
        _message(Answer, nothing, nothing, *(2 * (steps.answered,)), nothing, nothing),
        _message(Fault, nothing, nothing, *(2 * (steps.faulted,)), nothing, nothing),
        _message(Fetched, *(4 * (nothing,)), ending.fetched, nothing),
        _event(HeadCountersigned, *(4 * (nothing,)), ending.countersigned, nothing),
        _event(
            DeadlinePassed, _not_joined, _not_planned, steps.out_of_time, steps.not_back, ending.out_of_time, nothing
        ),
        _event(Aligned, nothing, membership.aligned, *(4 * (nothing,))),
        _event(Interrupted, *(4 * (_interrupted,)), ending.interrupted, nothing),
        _event(Cancelled, *(4 * (_cancelled,)), nothing, nothing),
    ]
)
assert TABLE.keys() == {*get_args(RunEvent), *get_args(FromSite)} - {Hello}, "every event has its row"


def begin(plan: Plan, timeouts: Timeouts, begun: Begun) -> tuple[Run, list[Action]]:
    """The first state and actions of a run, or of an unfinished one that begins again."""
    attempt = begun.attempt + 1
    update = RunUpdate(Run(plan, timeouts, attempt=attempt, participants=begun.participants, done=begun.steps))
    if not plan.masked:
        update.notify(notices.answers_in_clear(plan.run))
    update.notify(notices.run_began(plan.run, plan.study, attempt, update.run.awaited, timeouts.join))
    update.deadline(timeouts.join)
    return update.run, update.actions


def handle(run: Run, event: "RunEvent | Received[FromSite]") -> tuple[Run, list[Action]]:
    """Handle one event. Every event is accepted in every phase; a late one has no effect."""
    update = RunUpdate(run)
    kind = type(event.message) if isinstance(event, Received) else type(event)
    TABLE[kind][run.phase](update, event)
    return update.run, update.actions
