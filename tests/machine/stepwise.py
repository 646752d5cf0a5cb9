"""What the tests that follow a run event by event share: events that are short to write, and what
to read of actions.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from machine.tiny import TIMEOUTS, Machine, hello, make_plan, offer_of

from coordinator.machine import notices as n
from coordinator.machine.events import (
    Action,
    Event,
    NotifyObservers,
    Persist,
    Received,
    Reject,
    SendToSite,
    SiteJoined,
)
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import NOT_BEGUN, AttemptBegan, Begun, Phase, Record
from coreg_core.messages import Answer, Approval, Dismissed, Fetched, Part, Report, Step, Words
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan

RUN = "run-1"
CONVERGED = Report(outcome="CONVERGED")
ROUND = Report(question="respond linear")


def started(plan: Plan | None = None, begun: Begun = NOT_BEGUN) -> Machine:
    machine = Machine(plan or make_plan(), TIMEOUTS, begun)
    machine.start()
    return machine


def planned(plan: Plan | None = None) -> Machine:
    """Everybody is here and has been sent the plan."""
    machine = started(plan)
    all_of(machine, [joins(site) for site in machine.plan.sites])
    assert machine.phase is Phase.PLANNING
    return machine


def begun(plan: Plan | None = None, *joining: str) -> Machine:
    """At its first step, with these sites (all of them unless told)."""
    machine = started(plan)
    names = joining or machine.plan.sites
    all_of(machine, [joins(site) for site in names])
    if machine.phase is Phase.ENROLLING:
        machine.handle(machine.deadline)
    all_of(machine, [offers(machine, site) for site in names])
    assert machine.phase is Phase.ASKING
    return machine


def joins(site: str, **changes: Any) -> Event:
    return SiteJoined(hello(site, **changes))


def offers(machine: Machine, site: str, /, **changes: Any) -> Event:
    return Received(site, offer_of(site, machine.plan, machine.attempt, **changes))


def comes_back(machine: Machine, site: str) -> list[Event]:
    """In the same process: its keys are what they were."""
    return [joins(site), offers(machine, site)]


def words(*numbers: int) -> Words:
    return Words(np.array(numbers, dtype="<u8"))


def answer(
    step: int = 0,
    attempt: int = 0,
    summed: Words | None = None,
    parts: Iterable[Part] = (),
    report: Report | None = None,
) -> Answer:
    """Of a round of the agreement, unless the report says otherwise."""
    report = report or ROUND
    return Answer(RUN, attempt, step, report, summed, tuple(parts))


def answers(
    site: str, step: int = 0, attempt: int = 0, summed: Words | None = None, **more: Any
) -> Event:
    return Received(site, answer(step, attempt, summed, **more))


def fetches(site: str) -> Event:
    return Received(site, Fetched(RUN))


def sends(actions: list[Action]) -> list[SendToSite]:
    return [a for a in actions if isinstance(a, SendToSite)]


def steps_sent(actions: list[Action]) -> dict[str, Step]:
    return {a.site: a.message for a in sends(actions) if isinstance(a.message, Step)}


def written(actions: list[Action]) -> list[Record]:
    return [a.record for a in actions if isinstance(a, Persist)]


def told(actions: list[Action]) -> list[Notice]:
    return [a.notice for a in actions if isinstance(a, NotifyObservers)]


def all_of(machine: Machine, events: Iterable[Event]) -> list[Action]:
    return [action for event in events for action in machine.handle(event)]


def members(records: Iterable[Record]) -> list[tuple[str, ...]]:
    return [r.participants for r in records if isinstance(r, AttemptBegan)]


def rejected(machine: Machine, event: Event) -> str:
    """The one reason that a session hears when it is closed, and that the operator sees too."""
    [reject, notify] = machine.handle(event)
    assert isinstance(reject, Reject)
    assert notify == NotifyObservers(
        n.notice(NoticeName.SESSION_REJECTED, site=reject.site, reason=reject.reason)
    )
    return reject.reason


def dismissed(machine: Machine, event: Event, outcome: Outcome, *, excluded: bool) -> str:
    """The one reason that a site hears when a run does not go on with it; on record where it is for
    good.
    """
    actions = machine.handle(event)
    [(at, send)] = [
        (i, a)
        for i, a in enumerate(actions)
        if isinstance(a, SendToSite) and isinstance(a.message, Dismissed)
    ]
    assert isinstance(send.message, Dismissed)
    assert send.message.run == RUN
    assert send.message.outcome == outcome
    assert actions[at + 1] == NotifyObservers(
        n.notice(
            NoticeName.SITE_DISMISSED,
            RUN,
            send.site,
            reason=send.message.reason,
            excluded=excluded,
        )
    )
    assert not any(isinstance(a, Reject) for a in actions), "its session stays open for other runs"
    return send.message.reason


def approval(site: str, given: bool = False) -> Received[Approval]:
    return Received(site, Approval(RUN, given))


def waits(machine: Any) -> str:
    return machine.waiting
