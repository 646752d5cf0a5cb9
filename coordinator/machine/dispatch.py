"""A run as a pure function: its state and one event in, its new state and a list of actions out; and the steps of a run.

`TABLE` selects the handler. It has one row for each class of event (for a message: the class of the message) and one column
for each phase. The entry is the handler, or `nothing` if the event has no effect in that phase. records.py has the transitions.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, get_args

from coordinator.machine import membership, notices
from coordinator.machine.answers import answer_fault, disagreement, next_steps, phase_of
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
from coordinator.machine.records import Begun, Phase, StepDone, Timeouts, Transition
from coordinator.machine.run import (
    Run,
    RunUpdate,
    close,
    countersigned,
    departed,
    end,
    fetched,
    interrupted_at_end,
    left,
)
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
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan

E = TypeVar("E", bound="RunEvent | Received[Any]")
Handler: TypeAlias = Callable[[RunUpdate, E], None]


def nothing(_update: RunUpdate, _event: object) -> None:
    """The event has no effect in this phase."""


# --- steps --------------------------------------------------------------------------------------
# The coordinator cannot interpret an answer. It compares it with what the plan allows (answers.py),
# adds words, forwards parts, and compares the reports.


def answered(update: RunUpdate, event: Received[Answer]) -> None:
    """Handle an answer to the open step.

    A site that has not offered in this session receives the step again.
    """
    run, site, answer = update.run, event.site, event.message
    step = run.steps.get(site)
    if site not in run.ready or site in run.answers or step is None:
        return
    if (answer.attempt, answer.step) != (step.attempt, step.step):
        return
    shared = run.offers[site].n_unlabelled
    fault = answer_fault(run.plan, run.participants, shared, site, answer)
    if fault is not None:
        membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault}.")
        return
    update.change(answers={**run.answers, site: answer})
    if update.run.complete:
        _step(update)
    elif run.phase is Phase.STALLED and not run.here & set(update.run.awaited):
        _drop_missing(update)  # a missing site that is back has its time to answer


def faulted(update: RunUpdate, event: Received[Fault]) -> None:
    """A site reports a fault, of its own or of what it received. That of an earlier attempt is old.

    Which site sent what another could not use is not known: the run ends, and blames no one.
    """
    run, site, fault = update.run, event.site, event.message
    if site not in run.ready or site not in run.steps or fault.attempt != run.attempt:
        return
    if fault.received:
        reason = f"{fault.reason.removesuffix('.')} (found by {site}, which received it)"
        end(update, Outcome.SITE_FAULT, reason)
        return
    membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def _step(update: RunUpdate) -> None:
    """Record the step, then end the run or send the next step."""
    run = update.run
    answers = {site: run.answers[site] for site in run.participants}
    if (fault := disagreement(answers)) is not None:
        end(update, Outcome.SITE_FAULT, fault)
        return
    count = sum(answer.size > 0 for answer in answers.values())
    report = answers[run.participants[0]].report
    phase = phase_of(run.plan, report)
    update.record(StepDone(run.done, run.attempt, count, report, phase))
    update.notify(notices.step_answered(run.name, run.done, run.attempt, count, report, phase))
    update.change(done=run.done + 1)
    if report.outcome:
        end(update, Outcome[report.outcome], report.reason)
        return
    step = next(iter(run.steps.values())).step + 1
    membership.ask(update, next_steps(run.name, run.attempt, step, answers))


def _drop_missing(update: RunUpdate) -> bool:
    """Begin the next attempt without the sites that have not answered, if the plan allows it and enough remain."""
    missing, members = update.run.awaited, update.run.members
    if not membership.go_on_without(update, missing, len(members) - len(missing), "answer in time"):
        return False
    membership.propose(update, f"{', '.join(missing)} did not answer in time")
    return True


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not answer within ``round``: continue without them, or wait."""
    if _drop_missing(update):
        return
    update.take(Transition.STALLED)
    update.notify(
        notices.stalled(
            update.run.name, update.run.awaited, update.run.waiting, update.run.timeouts.stall
        )
    )
    update.deadline(update.run.timeouts.stall)


def not_back(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not come back within ``stall``."""
    if not _drop_missing(update):
        names = ", ".join(update.run.awaited)
        end(
            update,
            Outcome.STALLED,
            f"{names} did not reconnect within {update.run.timeouts.stall:g} s",
        )


# --- time and the operator ----------------------------------------------------------------------------------------


def _not_joined(update: RunUpdate, _event: DeadlinePassed) -> None:
    run, missing = update.run, update.run.awaited
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
    run, missing = update.run, update.run.awaited
    late = (
        f"approve the plan within {run.timeouts.approval:g} s"
        if run.operators
        else "accept the plan in time"
    )
    if membership.go_on_without(update, missing, len(ready), late):
        if aligns:
            membership.align(update)
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


# --- the table ----------------------------------------------------------------------------------------------------

_PHASES = (Phase.ENROLLING, Phase.PLANNING, Phase.ASKING, Phase.STALLED, Phase.ENDING, Phase.DONE)


def _row(kind: type, *handlers: Handler[Any]) -> tuple[type, Mapping[Phase, Handler[Any]]]:
    return kind, dict(zip(_PHASES, handlers, strict=True))


# ENROLLING, PLANNING, ASKING, STALLED, ENDING, DONE
TABLE: Mapping[type, Mapping[Phase, Handler[Any]]] = dict(
    [
        _row(SiteJoined, membership.enrol, *(3 * (membership.invite,)), membership.greet, nothing),
        _row(SiteLost, *(4 * (departed,)), left, nothing),
        _row(Breached, departed, *(3 * (membership.breached,)), left, nothing),
        _row(Leaving, *(4 * (departed,)), left, nothing),
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
assert TABLE.keys() == {*get_args(RunEvent), *get_args(FromSite)} - {Hello}, (
    "every event has its row"
)


def begin(plan: Plan, timeouts: Timeouts, begun: Begun) -> tuple[Run, list[Action]]:
    """The first state and actions of a run, or of an unfinished one that begins again."""
    attempt = begun.attempt + 1
    update = RunUpdate(
        Run(plan, timeouts, attempt=attempt, participants=begun.participants, done=begun.steps)
    )
    if not plan.masked:
        update.notify(notices.answers_in_clear(plan.run))
    update.notify(
        notices.run_began(plan.run, plan.study, attempt, update.run.awaited, timeouts.join)
    )
    update.deadline(timeouts.join)
    return update.run, update.actions


def handle(run: Run, event: "RunEvent | Received[FromSite]") -> tuple[Run, list[Action]]:
    """Handle one event. Every event is accepted in every phase; a late one has no effect."""
    update = RunUpdate(run)
    kind = type(event.message) if isinstance(event, Received) else type(event)
    TABLE[kind][run.phase](update, event)
    return update.run, update.actions
