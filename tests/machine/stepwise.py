"""What the tests that follow a run event by event share: events that are short to write, and what to read of actions."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
from machine.tiny import TIMEOUTS, UNLABELLED, Machine, acceptance, hello, make_plan

from coordinator.machine.events import Action, Event, Notify, Persist, Received, Reject, Send, SiteJoined
from coordinator.machine.notices import Notice, SessionRejected, SiteDismissed
from coordinator.machine.phases import Phase
from coordinator.machine.records import Ended, MembershipChanged, Record, StepTaken
from coordinator.machine.state import RunState, resume
from coreg_core.agreement.columns import Column
from coreg_core.agreement.schedules.schedule import ArrayState, FinalTargets, Progress
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.protocol.messages import Ask, Dismissed, Fetched, Prediction
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector

RUN = "run-1"
ZEROS, ONES = Vector(np.zeros((UNLABELLED, 1))), Vector(np.ones((UNLABELLED, 1)))


def small_plan(**changes: Any) -> Plan:
    """One column, so that a vector can be read off the page; the consensus iteration, whose first state is plain."""
    return make_plan(**({"coupling": (0.25,), "schedule": "consensus"} | changes))


def started(plan: Plan | None = None, records: Iterable[Record] = ()) -> Machine:
    machine = Machine(plan or small_plan(), TIMEOUTS, records)
    machine.start()
    return machine


def planned(plan: Plan | None = None) -> Machine:
    """Everybody is here and has been sent the plan."""
    machine = started(plan)
    all_of(machine, [joins(site) for site in machine.plan.sites])
    assert machine.phase is Phase.PLANNING
    return machine


def begun(plan: Plan | None = None, *joining: str) -> Machine:
    """At its first question, with these sites (all of them unless told)."""
    machine = started(plan)
    names = joining or machine.plan.sites
    all_of(machine, [joins(site) for site in names])
    if machine.phase is Phase.ENROLLING:
        machine.handle(machine.deadline)
    all_of(machine, [accepts(machine, site) for site in names])
    assert machine.phase is Phase.ASKING
    return machine


def joins(site: str, **changes: Any) -> Event:
    return SiteJoined(hello(site, **changes))


def accepts(machine: Machine, site: str, **changes: Any) -> Event:
    return Received(site, acceptance(site, machine.plan, **changes))


def comes_back(machine: Machine, site: str) -> list[Event]:
    return [joins(site), accepts(machine, site)]


def answers(site: str, values: Vector = ONES, question: int = 0, attempt: int = 0) -> Event:
    return Received(site, Prediction(RUN, question, attempt, values))


def fetches(site: str) -> Event:
    return Received(site, Fetched(RUN))


def ask(question: int, attempt: int = 0, targets: Vector = ZEROS, weight: float = 1.5) -> Ask:
    """The consensus iteration's question: 2 λ M = 2 · 0.25 · 3 for three sites."""
    bound = 2.0 ** acceptance("a", make_plan()).reach + float(np.linalg.norm(targets.values))
    exponents = (exponent_for(bound, round(2 * weight)),)
    return Ask(RUN, question, attempt, "affine", (Column(0.25, weight),), True, targets, exponents)


def sends(actions: list[Action]) -> list[Send]:
    return [a for a in actions if isinstance(a, Send)]


def written(actions: list[Action]) -> list[Record]:
    return [a.record for a in actions if isinstance(a, Persist)]


def told(actions: list[Action]) -> list[Notice]:
    return [a.notice for a in actions if isinstance(a, Notify)]


def all_of(machine: Machine, events: Iterable[Event]) -> list[Action]:
    return [action for event in events for action in machine.handle(event)]


def members(records: Iterable[Record]) -> list[tuple[str, ...]]:
    return [r.participants for r in records if isinstance(r, MembershipChanged)]


def without(events: Iterable[Event], site: str) -> list[Event]:
    """What is on its way, but for what a lost session would have brought."""
    return [e for e in events if getattr(e, "site", None) != site]


def rejected(machine: Machine, event: Event) -> str:
    """The one reason that a session hears when it is closed, and that the operator sees too."""
    [reject, notify] = machine.handle(event)
    assert isinstance(reject, Reject)
    assert notify == Notify(SessionRejected(reject.site, reject.reason))
    return reject.reason


def dismissed(machine: Machine, event: Event, outcome: Outcome, *, excluded: bool) -> str:
    """The one reason that a site hears when a run does not go on with it; on record where it is for good."""
    actions = machine.handle(event)
    [(at, send)] = [(i, a) for i, a in enumerate(actions) if isinstance(a, Send) and isinstance(a.message, Dismissed)]
    assert isinstance(send.message, Dismissed)
    assert (send.message.run, send.message.outcome) == (RUN, outcome)
    assert actions[at + 1] == Notify(SiteDismissed(RUN, send.site, send.message.reason, excluded=excluded))
    assert not any(isinstance(a, Reject) for a in actions), "its session stays open for other runs"
    return send.message.reason


# --- what a run remembers -----------------------------------------------------------------------------------------


def bits(value: Any) -> Any:
    """Comparable, and equal only where every bit is: arrays with their types and shapes."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case ArrayState() | FinalTargets():
            return type(value), {f.name: bits(getattr(value, f.name)) for f in fields(value)}
        case Ended():
            return value.outcome, value.reason, bits(value.models)
        case _:
            return value


def every_field(recorded: RunState) -> dict[str, Any]:
    return {f.name: bits(getattr(recorded, f.name)) for f in fields(recorded)}


def remembered(recorded: RunState) -> dict[str, Any]:
    """Field by field. Of a run that is over the store keeps no state: its models are what is left of it."""
    over, kept = recorded.ended is not None, every_field(recorded)
    return {k: v for k, v in kept.items() if not (over and k in ("state", "question", "affine"))}


def progress_of(plan: Plan, records: list[Record]) -> list[Progress]:
    found = []
    for i, record in enumerate(records, 1):
        if isinstance(record, StepTaken):
            shown = resume(plan, records[:i]).progress
            found += [shown] if shown is not None else []
    return found
