"""Every state that three sites can bring the coordinator into, within bounds: no trap, no dead end, no dead transition.

The search feeds every event that could come next to a copy of the machine, breadth first, and treats two states as one
when nothing but vectors and timer tokens tells them apart. It holds what no example can: that *nothing* hangs.
"""

import copy
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import get_args

import pytest
from tiny import TIMEOUTS, acceptance, column, hello, make_plan

from coordinator.events import (
    Action,
    DeadlinePassed,
    Event,
    Finish,
    Interrupted,
    Membership,
    Persist,
    Received,
    Reject,
    Resumption,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
)
from coordinator.machine import TRANSITIONS, Coordinator, Phase, state_diagram
from coreg_core.messages import Ask, Fault, Finished, Leaving, Plan, PlanRefused, Prediction
from coreg_core.rounds.schedule import Stop

MOST_STATES = 1500
MOST_ATTEMPTS = 2
POLICIES = ("wait", "continue")


def tiny_plan(on_lost: str) -> Plan:
    """One number a message, three rounds: the states are few and all of the kinds there are."""
    return make_plan(
        on_lost=on_lost, schedule="consensus", coupling=(0.1,), max_rounds=3, tolerance=0.0, prediction_tolerance=0.0
    )


def copied(machine: Coordinator) -> Coordinator:
    """Another machine in the same state; values are shared, containers are not."""
    twin = copy.copy(machine)
    for name, value in vars(machine).items():
        if isinstance(value, dict | set):
            setattr(twin, name, copy.copy(value))
    return twin


def likeness(machine: Coordinator) -> tuple[object, ...]:
    """What tells two states apart, for whoever watches from outside."""
    return (
        machine.phase,
        machine.participants,
        tuple(sorted(machine.accepted)),
        tuple(sorted(machine._hellos)),
        tuple(sorted(machine._ready)),
        tuple(sorted(machine._excluded)),
        tuple(sorted(machine._answers)),
        tuple(sorted(machine._fetched)),
        machine._round,
        machine._attempt,
        machine._resumed,
    )


def answer(machine: Coordinator, site: str) -> Prediction:
    return Prediction(machine.plan.run, machine._round, machine._attempt, column(1.0 + ord(site)))


def events_for(machine: Coordinator) -> list[Event]:
    events: list[Event] = [DeadlinePassed(machine._token), Interrupted()]
    for site in machine.plan.sites:
        events.append(SiteJoined(hello(site, n_unlabelled=1)))
        if site not in machine._hellos:
            continue
        events += [
            SiteLost(site, "its stream ended"),
            Received(site, Leaving("stopped")),
            Received(site, Fault(machine.plan.run, machine._round, machine._attempt, "no")),
        ]
        if machine.phase is not Phase.ENROLLING or machine._resumed:
            events += [
                Received(site, acceptance(site, machine.plan)),
                Received(site, PlanRefused(machine.plan.run, "no")),
                Received(site, answer(machine, site)),
            ]
    return events


@dataclass
class Explored:
    states: list[Coordinator]
    edges: dict[tuple[Phase, type[Event], Phase], None]


def resumed(plan: Plan) -> Coordinator:
    """Taken up after the first round of three sites."""
    machine = Coordinator(plan, TIMEOUTS)
    machine.start()
    written: list[Membership] = []
    for event in (
        *(SiteJoined(hello(s, n_unlabelled=1)) for s in plan.sites),
        *(Received(s, acceptance(s, plan)) for s in plan.sites),
    ):
        written += [
            a.record
            for a in machine.handle(event)
            if isinstance(a, Persist) and isinstance(a.record, Membership)
        ]
    [membership] = written
    return Coordinator(plan, TIMEOUTS, Resumption(membership, 0, membership.state, (column(3.0),)))


@cache
def explored(on_lost: str, *, after_a_kill: bool) -> Explored:
    plan = tiny_plan(on_lost)
    first = resumed(plan) if after_a_kill else Coordinator(plan, TIMEOUTS)
    first.start()
    seen, queue = {likeness(first): first}, deque([first])
    edges: dict[tuple[Phase, type[Event], Phase], None] = {}
    while queue and len(seen) < MOST_STATES:
        machine = queue.popleft()
        for event in events_for(machine):
            after = copied(machine)
            after.handle(event)
            edges[machine.phase, type(event), after.phase] = None
            if likeness(after) not in seen and after._attempt <= MOST_ATTEMPTS:
                seen[likeness(after)] = after
                queue.append(after)
    return Explored(list(seen.values()), edges)
