"""A run as a pure function: its state and one event in, its new state and a list of actions out.

`TABLE` selects the handler of an event. It has one row for each class of event (for a message: the
class of the message) and one column for each phase. The entry is the handler, or `nothing` if the
event has no effect in that phase. records.py has the transitions.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, get_args

from coordinator.machine import membership, notices
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
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import Begun, Phase, Timeouts, Transition
from coordinator.machine.run import (
    Run,
    RunUpdate,
    close,
    countersigned,
    end,
    fetched,
    interrupted_at_end,
    session_ended,
    session_ended_at_end,
)
from coordinator.machine.steps import answered, faulted, not_back, out_of_time
from coreg_core.messages import (
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
    Wanted,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan

E = TypeVar("E", bound="RunEvent | Received[Any]")
Handler: TypeAlias = Callable[[RunUpdate, E], None]


def nothing(_update: RunUpdate, _event: object) -> None:
    """The event has no effect in this phase."""


# --- time and the operator ------------------------------------------------------------------------


def _not_joined(update: RunUpdate, _event: DeadlinePassed) -> None:
    run = update.run
    missing = update.run.awaited
    if membership.go_on_without(update, missing, len(run.here), "join in time"):
        membership.propose(update)
    else:
        end(
            update,
            Outcome.TOO_FEW_SITES,
            f"{', '.join(missing)} did not join within {run.timeouts.join:g} s",
        )


def _not_planned(update: RunUpdate, _event: DeadlinePassed) -> None:
    if membership.wait_for_operators(update):
        return
    aligns = membership.must_align(update.run)
    ready = (
        sorted(update.run.ready | update.run.unaligned) if aligns else membership.agreeing(update)
    )
    run = update.run
    missing = update.run.awaited
    late = (
        f"approve the plan within {run.timeouts.approval:g} s"
        if run.operators
        else "accept the plan in time"
    )
    if membership.go_on_without(update, missing, len(ready), late):
        if aligns:
            membership.align(update)
        elif run.plan.rehearsal:
            membership.rehearsed(update)
        else:
            membership.begin(update, ready)
    else:
        why = "".join(f"; {reason}" for reason in dict.fromkeys(run.dismissed.values()))
        end(update, Outcome.TOO_FEW_SITES, f"{', '.join(missing)} did not {late}{why}")


def _interrupted(update: RunUpdate, _event: Interrupted) -> None:
    # Not recorded as an end: the next process begins the run again. Agents reconnect automatically.
    update.finish(Transition.INTERRUPTED, Outcome.INTERRUPTED, "")


def _cancelled(update: RunUpdate, event: Cancelled) -> None:
    # Recorded as an end, unlike an interruption: the run does not begin again.
    end(update, Outcome.CANCELLED, event.reason)


# --- the table ------------------------------------------------------------------------------------

_PHASES = (Phase.ENROLLING, Phase.PLANNING, Phase.ASKING, Phase.STALLED, Phase.ENDING, Phase.DONE)


def _row(kind: type, *handlers: Handler[Any]) -> tuple[type, Mapping[Phase, Handler[Any]]]:
    return kind, dict(zip(_PHASES, handlers, strict=True))


# ENROLLING, PLANNING, ASKING, STALLED, ENDING, DONE
TABLE: Mapping[type, Mapping[Phase, Handler[Any]]] = dict(
    [
        _row(SiteJoined, membership.enrol, *(3 * (membership.invite,)), membership.greet, nothing),
        _row(SiteLost, *(4 * (session_ended,)), session_ended_at_end, nothing),
        _row(Breached, session_ended, *(3 * (membership.breached,)), session_ended_at_end, nothing),
        _row(Leaving, *(4 * (session_ended,)), session_ended_at_end, nothing),
        _row(Offer, nothing, *(3 * (membership.offered,)), nothing, nothing),
        _row(PlanRefused, nothing, *(3 * (membership.refused,)), nothing, nothing),
        _row(Unaligned, nothing, *(3 * (membership.unaligned,)), nothing, nothing),
        _row(Approval, nothing, membership.approval, *(4 * (nothing,))),
        _row(Answer, nothing, nothing, *(2 * (answered,)), nothing, nothing),
        _row(Fault, nothing, nothing, *(2 * (faulted,)), nothing, nothing),
        _row(Fetched, *(4 * (nothing,)), fetched, nothing),
        _row(HeadCountersigned, *(4 * (nothing,)), countersigned, nothing),
        _row(DeadlinePassed, _not_joined, _not_planned, out_of_time, not_back, close, nothing),
        _row(Aligned, nothing, membership.aligned, *(4 * (nothing,))),
        _row(Interrupted, *(4 * (_interrupted,)), interrupted_at_end, nothing),
        _row(Cancelled, *(4 * (_cancelled,)), nothing, nothing),
    ]
)
assert TABLE.keys() == {*get_args(RunEvent), *get_args(FromSite)} - {Hello, Wanted}, (
    "every event has its row"
)


def begin(plan: Plan, timeouts: Timeouts, begun: Begun) -> tuple[Run, list[Action]]:
    """The first state and actions of a run, or of an unfinished one that begins again."""
    attempt = begun.attempt + 1
    update = RunUpdate(
        Run(plan, timeouts, attempt=attempt, participants=begun.participants, done=begun.steps)
    )
    if not plan.masked:
        update.tell(NoticeName.ANSWERS_IN_CLEAR)
    update.notify(
        notices.run_began(plan.run, plan.study, attempt, update.run.awaited, timeouts.join)
    )
    update.restart_timer(timeouts.join)
    return update.run, update.actions
