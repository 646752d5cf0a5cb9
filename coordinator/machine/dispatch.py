"""A run as a function: its state and one event in, its state and a list of actions out. No socket, no clock, no file.

`TABLE` decides: one row for each thing that can happen to a run, one column for each phase it can be in; the entry is the
handler, or `nothing`, for what comes too late to change anything. `happened` names the row of every message, exhaustively:
a new message does not pass mypy until it has one. Which phase comes next is decided in phases.py.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias, assert_never

from coordinator.machine import delivery, membership, notices, rounds, slow_links
from coordinator.machine.delivery import fetched
from coordinator.machine.events import Action, Flow
from coordinator.machine.membership import accepted, enrol, invite, refused
from coordinator.machine.phases import Clocks, Phase, Turn
from coordinator.machine.records import Ended
from coordinator.machine.rounds import answered, faulted, out_of_time
from coordinator.machine.run import Live, Reaction, Run
from coordinator.machine.state import Recorded
from coreg_core.protocol.messages import (
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    Masked,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Share,
)
from coreg_core.protocol.outcomes import Outcome

Handler: TypeAlias = Callable[..., None]


class Happening(Enum):
    """What can happen to a run: a session of one of its sites opens or ends, a message comes, time passes."""

    JOINED = "a site's session opened"
    LEFT = "a site ended its session"
    LOST = "a site's session broke"
    BREACHED = "a site broke the protocol"
    PLAN_ACCEPTED = "PlanAccepted"
    PLAN_REFUSED = "PlanRefused"
    PREDICTION = "Prediction"
    SHARE = "Share"
    MASKED = "Masked"
    FAULT = "Fault"
    FETCHED = "Fetched"
    DEADLINE = "the run's deadline passed"
    INTERRUPTED = "the operator wants to stop"
    CANCELLED = "the operator wants this run to end"


def happened(message: FromSite) -> Happening | None:
    """The row of a site's message; None for a session's own messages, which no run sees."""
    match message:
        case PlanAccepted():
            return Happening.PLAN_ACCEPTED
        case PlanRefused():
            return Happening.PLAN_REFUSED
        case Prediction():
            return Happening.PREDICTION
        case Share():
            return Happening.SHARE
        case Masked():
            return Happening.MASKED
        case Fault():
            return Happening.FAULT
        case Fetched():
            return Happening.FETCHED
        case Hello() | Leaving():
            return None
        case _:
            assert_never(message)


# --- handlers that belong to no room of their own -----------------------------------------------------------------


def nothing(_reaction: Reaction, *_details: Any) -> None:
    """Too early, too late, or of no consequence here."""


def _lost(reaction: Reaction, site: str, reason: str) -> None:
    membership.left(reaction, site, reason, lost=True)


def _left(reaction: Reaction, site: str, reason: str) -> None:
    membership.left(reaction, site, reason, lost=False)


def _left_undelivered(reaction: Reaction, site: str, reason: str) -> None:
    delivery.left(reaction, site, reason, lost=False)


def _lost_undelivered(reaction: Reaction, site: str, reason: str) -> None:
    delivery.left(reaction, site, reason, lost=True)


def _breached(reaction: Reaction, site: str, reason: str) -> None:
    if site in reaction.live.here:
        membership.exclude(reaction, site, Outcome.SITE_FAULT, f"{site} broke the protocol: {reason}")


def _not_joined(reaction: Reaction, _flows: Mapping[str, Flow]) -> None:
    run, missing = reaction.run, reaction.run.awaited
    if len(reaction.live.here) >= run.plan.membership.min_sites:
        reaction.notify(notices.GoingOnWithout(run.name, missing, "join in time"))
        membership.send_plan(reaction)
    else:
        names = ", ".join(missing)
        delivery.end(reaction, Outcome.TOO_FEW_SITES, f"{names} did not join within {run.clocks.join:g} s")


def _not_planned(reaction: Reaction, _flows: Mapping[str, Flow]) -> None:
    run, missing, ready = reaction.run, reaction.run.awaited, membership.counted_on(reaction)
    terms = run.plan.membership
    enough = len(ready) >= terms.min_sites
    if enough and (run.phase is Phase.PLANNING or terms.on_lost == "continue"):
        reaction.notify(notices.GoingOnWithout(run.name, missing, "answer the plan"))
        membership.regroup(reaction, ready)
    else:
        delivery.end(reaction, Outcome.TOO_FEW_SITES, f"{', '.join(missing)} did not accept the plan in time")


def _not_back(reaction: Reaction, flows: Mapping[str, Flow]) -> None:
    if slow_links.waits(reaction, flows):
        return
    names = ", ".join(reaction.run.awaited) or "enough sites"
    reason = f"{names} did not come back within {reaction.run.clocks.stall:g} s"
    delivery.end(reaction, Outcome.STALLED, reason)


def _interrupted(reaction: Reaction) -> None:
    # Not written down as an end: the same command takes the run up where it was. Agents come back by themselves.
    reaction.finish(Turn.INTERRUPTED, Outcome.INTERRUPTED, "")


def _cancelled(reaction: Reaction, reason: str) -> None:
    # Written down as an end, unlike an interruption: it is not taken up again.
    delivery.end(reaction, Outcome.CANCELLED, reason)


# --- the table ----------------------------------------------------------------------------------------------------

_PHASES = (Phase.ENROLLING, Phase.RETURNING, Phase.PLANNING, Phase.ASKING, Phase.STALLED, Phase.DELIVERING, Phase.DONE)
_ROWS: Mapping[Happening, tuple[Handler, ...]] = {
    # ENROLLING, RETURNING, PLANNING, ASKING, STALLED, DELIVERING, DONE
    Happening.JOINED: (enrol, invite, invite, invite, invite, invite, nothing),
    Happening.LEFT: (_left, _left, _left, _left, _left, _left_undelivered, nothing),
    Happening.LOST: (_lost, _lost, _lost, _lost, _lost, _lost_undelivered, nothing),
    Happening.BREACHED: (_lost, _breached, _breached, _breached, _breached, _breached, nothing),
    Happening.PLAN_ACCEPTED: (nothing, accepted, accepted, accepted, accepted, accepted, nothing),
    Happening.PLAN_REFUSED: (nothing, refused, refused, refused, refused, refused, nothing),
    Happening.PREDICTION: (nothing, nothing, nothing, answered, answered, nothing, nothing),
    Happening.SHARE: (nothing, nothing, nothing, answered, answered, nothing, nothing),
    Happening.MASKED: (nothing, nothing, nothing, answered, answered, nothing, nothing),
    Happening.FAULT: (nothing, nothing, nothing, faulted, faulted, nothing, nothing),
    Happening.FETCHED: (nothing, nothing, nothing, nothing, nothing, fetched, nothing),
    Happening.DEADLINE: (
        _not_joined,
        _not_planned,
        _not_planned,
        out_of_time,
        _not_back,
        delivery.out_of_time,
        nothing,
    ),
    Happening.INTERRUPTED: (*(5 * (_interrupted,)), delivery.interrupted, nothing),
    Happening.CANCELLED: (*(5 * (_cancelled,)), nothing, nothing),
}
TABLE: Mapping[Happening, Mapping[Phase, Handler]] = {
    happening: dict(zip(_PHASES, row, strict=True)) for happening, row in _ROWS.items()
}


# --- the doors ----------------------------------------------------------------------------------------------------


def begin(recorded: Recorded, clocks: Clocks) -> tuple[Run, list[Action]]:
    """A run's first state and actions: a new one, one that was left unfinished, or one that is over and not yet fetched."""
    over = recorded.ended or recorded.outcome
    if over is not None:
        return _take_up_delivery(recorded, clocks)
    phase = Phase.ENROLLING if recorded.computation is None else Phase.RETURNING
    reaction = Reaction(Run(recorded, Live(phase), clocks))
    if (last := membership.cannot_go_on_without(recorded)) is not None:  # killed between the two
        delivery.end(reaction, last.outcome, last.reason)
        return reaction.run, reaction.actions
    name, awaited = recorded.plan.run, reaction.run.awaited
    if not recorded.plan.masked:
        reaction.notify(notices.AnswersInClear(name))
    if phase is Phase.ENROLLING:
        reaction.notify(notices.RunBegan(name, awaited, clocks.join))
    else:
        reaction.notify(notices.RunTakenUp(name, recorded.question, awaited, clocks.join))
    reaction.deadline(clocks.join)
    return reaction.run, reaction.actions


def _take_up_delivery(recorded: Recorded, clocks: Clocks) -> tuple[Run, list[Action]]:
    if recorded.ended is not None:
        outcome, reason = recorded.ended.outcome, recorded.ended.reason
    else:  # killed between the last step and the word that it was the last
        assert recorded.outcome is not None
        outcome, reason = recorded.outcome
    live = Live(Phase.DELIVERING, ending=(outcome, reason), receivers=recorded.participants)
    reaction = Reaction(Run(recorded, live, clocks))
    if recorded.ended is None:
        reaction.record(Ended(outcome, reason, recorded.models))
    if recorded.models is None:  # nobody will come for nothing
        reaction.change(receivers=())
    reaction.notify(notices.DeliveryTakenUp(recorded.plan.run, reaction.run.awaited, clocks.round))
    delivery.deliver(reaction)
    return reaction.run, reaction.actions


def handle(run: Run, happening: Happening, *details: Any) -> tuple[Run, list[Action]]:
    """What an event makes of a run. Everything is welcome in every phase; what comes too late changes nothing."""
    reaction = Reaction(run)
    TABLE[happening][run.phase](reaction, *details)
    rounds.settle(reaction)
    return reaction.run, reaction.actions
