"""Every state that three sites can bring the coordinator into, within bounds: no trap, no dead end, no dead transition.

The search feeds every event that could come next to a copy of the machine, from states that a fixed dice picks, and
treats two states as one when nothing but vectors and timer tokens tells them apart. It holds what no example can: that
*nothing* hangs. `MOST_STATES = 100_000` visits them all, in minutes.
"""

import copy
import random
from collections import deque
from dataclasses import dataclass
from functools import cache
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
from coordinator.machine import Coordinator
from coordinator.phases import TRANSITIONS, Phase, state_diagram
from coreg_core.messages import Ask, Fault, Finished, Leaving, Plan, PlanRefused, Prediction
from coreg_core.rounds.schedule import Stop

MOST_STATES = 500
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
            Received(site, hello(site, n_unlabelled=1)),
            Received(site, acceptance(site, machine.plan)),
            Received(site, PlanRefused(machine.plan.run, "no")),
            Received(site, answer(machine, site)),
            Received(site, Fault(machine.plan.run, machine._round, machine._attempt, "no")),
            Received(site, Leaving("stopped")),
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
            a.record for a in machine.handle(event) if isinstance(a, Persist) and isinstance(a.record, Membership)
        ]
    [membership] = written
    return Coordinator(plan, TIMEOUTS, Resumption(membership, 0, membership.state, (column(3.0),)))


@cache
def explored(on_lost: str, *, after_a_kill: bool) -> Explored:
    plan = tiny_plan(on_lost)
    first = resumed(plan) if after_a_kill else Coordinator(plan, TIMEOUTS)
    first.start()
    seen, frontier = {likeness(first): first}, [first]
    chance = random.Random(0)
    edges: dict[tuple[Phase, type[Event], Phase], None] = {}
    while frontier and len(seen) < MOST_STATES:
        machine = frontier.pop(chance.randrange(len(frontier)))
        for event in events_for(machine):
            after = copied(machine)
            after.handle(event)  # asserts by itself that the table allows what it does
            edges[machine.phase, type(event), after.phase] = None
            if likeness(after) not in seen and after._attempt <= MOST_ATTEMPTS and after.phase is not Phase.DONE:
                seen[likeness(after)] = after
                frontier.append(after)
    return Explored(list(seen.values()), edges)


def cooperate(machine: Coordinator) -> Finish | None:
    """Every site that may still take part dials anew, accepts and answers; nobody else does anything."""
    fresh = [s for s in machine.plan.sites if s not in machine._excluded]
    events: deque[Event] = deque(SiteJoined(hello(site, n_unlabelled=1)) for site in fresh)
    while events:
        for action in machine.handle(events.popleft()):
            match action:
                case Send(site, Plan()):
                    events.append(Received(site, acceptance(site, machine.plan)))
                case Send(site, Ask(run, round_, attempt)):
                    events.append(Received(site, Prediction(run, round_, attempt, column(1.0 + ord(site)))))
                case Send(site, Finished()):
                    events.append(Received(site, Leaving("it has its model")))
                case Reject(site, reason):
                    raise AssertionError(f"{site} was rejected: {reason}")
                case Finish():
                    return action
    return None


worlds = pytest.mark.parametrize(("on_lost", "after_a_kill"), [(p, k) for p in POLICIES for k in (False, True)])


@worlds
def test_whatever_happens_deadlines_alone_end_a_run(on_lost: str, after_a_kill: bool) -> None:
    for state in explored(on_lost, after_a_kill=after_a_kill).states:
        machine, was = copied(state), likeness(state)
        for _ in range(2 * len(machine.plan.sites) + 4):
            machine.handle(DeadlinePassed(machine._token))
        assert machine.phase is Phase.DONE, was


@worlds
def test_no_state_is_a_trap_when_every_site_behaves_from_now_on(on_lost: str, after_a_kill: bool) -> None:
    for state in explored(on_lost, after_a_kill=after_a_kill).states:
        machine, was = copied(state), likeness(state)
        end = cooperate(machine)
        assert end is not None, was
        expected = Stop.MAX_ROUNDS if state._outcome is None else state._outcome[0]
        assert end.stop is expected, was


@worlds
def test_all_that_is_asked_is_asked_of_participants_that_accepted_the_plan(on_lost: str, after_a_kill: bool) -> None:
    for state in explored(on_lost, after_a_kill=after_a_kill).states:
        for event in events_for(state):
            machine = copied(state)
            for action in machine.handle(event):
                if isinstance(action, Send) and isinstance(action.message, Ask):
                    assert action.site in machine.participants
                    assert action.site in machine._ready
                    assert len(machine.participants) >= machine.plan.min_sites


@worlds
def test_every_list_of_actions_ends_a_wait_or_begins_at_most_one(on_lost: str, after_a_kill: bool) -> None:
    """One timer: a list sets it at most once, to a token not used before; the last action of a run is its Finish."""
    for state in explored(on_lost, after_a_kill=after_a_kill).states:
        for event in events_for(state):
            machine = copied(state)
            actions: list[Action] = machine.handle(event)
            deadlines = [a.token for a in actions if isinstance(a, SetDeadline)]
            assert deadlines in ([], [state._token + 1])
            assert [a for a in actions if isinstance(a, Finish)] == (
                [actions[-1]] if machine.phase is Phase.DONE else []
            )
            if machine.phase not in (state.phase, Phase.DONE):
                assert deadlines or not machine.missing, "a new phase has its own deadline"


def test_the_table_holds_what_can_happen_and_nothing_else() -> None:
    made = {
        edge
        for on_lost in POLICIES
        for after_a_kill in (False, True)
        for edge in explored(on_lost, after_a_kill=after_a_kill).edges
        if edge[0] is not edge[2]
    }
    allowed = {
        (phase, event, target)
        for phase, row in TRANSITIONS.items()
        for event, targets in row.items()
        for target in targets
        if target is not phase
    }
    assert made == allowed


def test_every_phase_and_every_event_has_its_place_in_the_table() -> None:
    assert list(TRANSITIONS) == list(Phase)
    assert all(set(row) == set(get_args(Event)) for row in TRANSITIONS.values())
    assert {t for row in TRANSITIONS.values() for targets in row.values() for t in targets} == set(Phase)


def test_the_diagram_draws_the_table() -> None:
    arrows = [line.strip() for line in state_diagram().splitlines()[1:]]
    assert arrows[0] == "[*] --> ENROLLING"
    assert arrows[-1] == "DONE --> [*]"
    drawn = {tuple(arrow.replace(" --> ", " ").replace(":", "").split()) for arrow in arrows[1:-1]}
    assert drawn == {
        (phase.name, target.name, event.__name__)
        for phase, row in TRANSITIONS.items()
        for event, targets in row.items()
        for target in targets - {phase}
    }
    assert len(arrows) == len(set(arrows))
