"""Every state that three sites can bring a run into, within bounds: no trap, no dead end, no dead transition.

The search feeds every event that could come next to states that a fixed dice picks, each phase as often as any other. A state
is a frozen value, so nothing is copied; two are one when nothing but vectors and timer tokens tells them apart. It holds what
no example can: that *nothing* hangs. `MOST_STATES = 100_000` visits far more, in minutes.
"""

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
from tiny import CLOCKS, acceptance, column, hello, make_plan

from coordinator.machine import dispatch
from coordinator.machine.dispatch import TABLE, Happening, happened
from coordinator.machine.events import (
    Action,
    Breached,
    Cancelled,
    DeadlinePassed,
    Event,
    Finish,
    Interrupted,
    Persist,
    Received,
    Reject,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
    TurnedAway,
)
from coordinator.machine.federation import Federation, begin, handle
from coordinator.machine.phases import TRANSITIONS, InvalidTurn, Phase, Turn, next_phase, state_diagram
from coordinator.machine.records import Ended, Record, StepTaken
from coordinator.machine.run import Run
from coordinator.machine.state import resume
from coreg_core.protocol.messages import (
    Ask,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Leaving,
    Masked,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Share,
    Words,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

RUN = "run-1"
MOST_STATES = 300
MOST_ATTEMPTS = 2
POLICIES = ("wait", "continue")
BEGINNINGS = ("new", "returning", "delivering")  # the last two: taken up after a kill


def tiny_plan(on_lost: str) -> Plan:
    """One number a message, three rounds: the states are few and all of the kinds there are."""
    return make_plan(
        on_lost=on_lost,
        schedule="consensus",
        coupling=(0.1,),
        max_rounds=3,
        tolerance=0.0,
        prediction_tolerance=0.0,
        most_returns=1,
    )


def run_of(federation: Federation) -> Run:
    return federation.runs[RUN]


def likeness(federation: Federation) -> tuple[object, ...]:
    """What tells two states apart, for whoever watches from outside."""
    run = run_of(federation)
    recorded, live = run.recorded, run.live
    return (
        tuple(sorted(federation.sessions)),
        live.phase,
        *(tuple(sorted(names)) for names in (live.here, live.ready, live.invited, live.proven, live.fetched)),
        *(tuple(sorted(by_site)) for by_site in (live.accepted, live.answers)),
        tuple(sorted((site, asked.question, asked.attempt) for site, asked in live.trials.items())),
        (live.asked, live.receivers, live.ending),
        (recorded.participants, recorded.attempt, recorded.question, recorded.closed, recorded.ended is not None),
        tuple(sorted(recorded.excluded)),
        tuple(sorted(recorded.fetched)),
        *(tuple(sorted(counts.items())) for counts in (recorded.returns, recorded.dropped)),
    )


def numbers_for(run: Run, site: str) -> set[tuple[int, int]]:
    """The questions that a message of this site could be about."""
    asked = (run.live.ask, run.live.trials.get(site))
    return {(a.question, a.attempt) for a in asked if a is not None} or {(run.recorded.question, run.recorded.attempt)}


def events_for(federation: Federation) -> list[Event]:
    run = run_of(federation)
    events: list[Event] = [
        DeadlinePassed(RUN, run.live.token),
        Interrupted(),
        Cancelled(RUN, "enough"),
        TurnedAway("z", "no"),
    ]
    for site in run.plan.sites:
        events.append(SiteJoined(hello(site)))
        if site not in federation.sessions:
            continue
        events += [SiteLost(site, "its stream ended"), Breached(site, "10 MB")]
        events += [Received(site, message) for message in messages_for(run, site)]
    return events


def messages_for(run: Run, site: str) -> Iterator[FromSite]:
    yield hello(site)
    yield acceptance(site, run.plan, n_unlabelled=1)
    yield acceptance(site, run.plan, n_unlabelled=2)
    yield PlanRefused(RUN, "no")
    for question, attempt in sorted(numbers_for(run, site)):
        yield Prediction(RUN, question, attempt, column(1.0 + ord(site)))
        yield Fault(RUN, question, attempt, "no")
    yield Share(RUN, 0, 0, (1.0,), None)  # of another objective
    yield Masked(RUN, 0, 0, Words(np.zeros(3, dtype="<u8")))  # under a plan in the clear
    yield Fetched(RUN)
    yield Leaving("stopped")


@dataclass
class Explored:
    states: list[Federation]
    turns: set[tuple[Phase, Turn]]
    happenings: set[tuple[Happening, Phase]]


@contextmanager
def watched(turns: set[tuple[Phase, Turn]], happenings: set[tuple[Happening, Phase]]) -> Iterator[None]:
    """Every turn that a run takes, and every cell of the table that it looks up."""
    real = dispatch.handle

    def taking(phase: Phase, turn: Turn) -> Phase:
        turns.add((phase, turn))
        return next_phase(phase, turn)

    def handling(run: Run, happening: Happening, *details: Any) -> Any:
        happenings.add((happening, run.phase))
        return real(run, happening, *details)

    with patch("coordinator.machine.run.next_phase", taking), patch("coordinator.machine.dispatch.handle", handling):
        yield


def first_state(plan: Plan, beginning: str) -> Federation:
    """New; taken up after the first answered question of three sites; or after the end, with nothing fetched."""
    federation, actions = begin(resume(plan, []), CLOCKS)
    if beginning == "new":
        return federation
    records = [a.record for a in actions if isinstance(a, Persist)]
    wanted: type[Record] = StepTaken if beginning == "returning" else Ended
    for event in whole_run(plan):
        federation, actions = handle(federation, event)
        records += [a.record for a in actions if isinstance(a, Persist)]
        if isinstance(records[-1] if records else None, wanted):
            break
    return begin(resume(plan, records), CLOCKS)[0]


def whole_run(plan: Plan) -> Iterator[Event]:
    yield from (SiteJoined(hello(s)) for s in plan.sites)
    yield from (Received(s, acceptance(s, plan, n_unlabelled=1)) for s in plan.sites)
    for question, site in product(range(plan.iteration.max_rounds), plan.sites):
        yield Received(site, Prediction(RUN, question, 0, column(1.0 + ord(site))))


@cache
def explored(on_lost: str, beginning: str) -> Explored:
    found = Explored([], set(), set())
    with watched(found.turns, found.happenings):
        first = first_state(tiny_plan(on_lost), beginning)
        seen, frontier = {likeness(first): first}, {run_of(first).phase: [first]}
        chance = random.Random(0)
        while any(frontier.values()) and len(seen) < MOST_STATES:
            waiting = chance.choice([states for states in frontier.values() if states])
            state = waiting.pop(chance.randrange(len(waiting)))
            for event in events_for(state):
                after, _ = handle(state, event)  # says by itself when the table has no such turn
                run = run_of(after)
                if run.phase is Phase.DONE:
                    for last in events_for(after):  # what comes too late
                        assert run_of(handle(after, last)[0]) == run
                elif likeness(after) not in seen and run.recorded.attempt <= MOST_ATTEMPTS:
                    seen[likeness(after)] = after
                    frontier.setdefault(run.phase, []).append(after)
    found.states = list(seen.values())
    return found


def cooperate(federation: Federation) -> Finish | None:
    """Every site that may still take part dials anew, accepts and answers; nobody else does anything."""
    plan = run_of(federation).plan
    fresh = [s for s in plan.sites if s not in run_of(federation).recorded.excluded]
    events: deque[Event] = deque(SiteJoined(hello(site)) for site in fresh)
    while events:
        federation, actions = handle(federation, events.popleft())
        for action in actions:
            match action:
                case Send(site, Plan()):
                    events.append(Received(site, acceptance(site, plan, n_unlabelled=agreed(federation))))
                case Send(site, Ask(question=question, attempt=attempt)):
                    events.append(Received(site, Prediction(RUN, question, attempt, column(1.0 + ord(site)))))
                case Send(site, Finished()):
                    events.append(Received(site, Fetched(RUN)))
                    events.append(Received(site, Leaving("it has its model")))
                case Send(site, Dismissed(reason=reason)):
                    assert run_of(federation).live.ending is not None, f"{site} was sent away: {reason}"
                    assert site not in run_of(federation).recorded.participants, reason
                case Reject(site, reason):
                    raise AssertionError(f"{site} was rejected: {reason}")
                case Finish():
                    return action
    return None


def agreed(federation: Federation) -> int:
    """How many instances the run's sites say that they share; a site may have said 2."""
    run = run_of(federation)
    known = run.recorded.accepted or {s: a for s, a in run.live.accepted.items() if s in run.live.ready}
    return max((a.n_unlabelled for a in known.values()), default=1)


worlds = pytest.mark.parametrize(("on_lost", "beginning"), list(product(POLICIES, BEGINNINGS)))


@worlds
def test_whatever_happens_deadlines_alone_end_a_run(on_lost: str, beginning: str) -> None:
    for state in explored(on_lost, beginning).states:
        federation = state
        for _ in range(2 * len(run_of(state).plan.sites) + 4):
            federation, _ = handle(federation, DeadlinePassed(RUN, run_of(federation).live.token))
        assert federation.done, likeness(state)


@worlds
def test_no_state_is_a_trap_when_every_site_behaves_from_now_on(on_lost: str, beginning: str) -> None:
    for state in explored(on_lost, beginning).states:
        end, ending = cooperate(state), run_of(state).live.ending
        assert end is not None, likeness(state)
        assert end.outcome is (Outcome.MAX_ROUNDS if ending is None else ending[0]), likeness(state)


@worlds
def test_all_that_is_asked_is_asked_of_sites_that_accepted_the_plan_and_counted_only_of_members(
    on_lost: str, beginning: str
) -> None:
    for state in explored(on_lost, beginning).states:
        for event in events_for(state):
            federation, actions = handle(state, event)
            run = run_of(federation)
            for action in actions:
                if isinstance(action, Send) and isinstance(action.message, Ask):
                    assert action.site in run.live.ready
                    assert action.site in run.recorded.participants or run.live.trials[action.site] == action.message
                    assert len(run.recorded.participants) >= run.plan.membership.min_sites
                if isinstance(action, Persist) and isinstance(action.record, StepTaken):
                    assert action.record.answered == len(run_of(state).live.asked)
            assert set(run.live.answers) <= set(run.recorded.participants)


@worlds
def test_nobody_who_is_excluded_is_ever_asked_counted_or_waited_for(on_lost: str, beginning: str) -> None:
    for state in explored(on_lost, beginning).states:
        for event in events_for(state):
            federation, actions = handle(state, event)
            run, excluded = run_of(federation), run_of(federation).recorded.excluded.keys()
            assert not excluded & (run.live.here | run.live.ready | run.live.proven | set(run.awaited))
            sent = [a.message for a in actions if isinstance(a, Send) and a.site in run_of(state).recorded.excluded]
            assert all(isinstance(message, Dismissed) for message in sent)


@worlds
def test_every_list_of_actions_ends_a_wait_or_begins_at_most_one(on_lost: str, beginning: str) -> None:
    """One timer: a list sets it at most once, to a token not used before; the last action of a run is its Finish."""
    for state in explored(on_lost, beginning).states:
        for event in events_for(state):
            federation, actions = handle(state, event)
            before, run = run_of(state), run_of(federation)
            deadlines = [a.token for a in actions if isinstance(a, SetDeadline)]
            assert deadlines in ([], [before.live.token + 1])
            assert [a for a in actions if isinstance(a, Finish)] == last_of(actions, over=run.phase is Phase.DONE)
            if run.phase not in (before.phase, Phase.DONE):
                assert deadlines, "a new phase has its own deadline"


def last_of(actions: list[Action], *, over: bool) -> list[Action]:
    return [actions[-1]] if over else []


@worlds
def test_what_a_run_remembers_is_what_its_records_tell(on_lost: str, beginning: str) -> None:
    """An event changes what is remembered through records alone, so a kill after any of them loses nothing of it."""
    for state in explored(on_lost, beginning).states:
        before = run_of(state).recorded
        for event in events_for(state):
            federation, actions = handle(state, event)
            if not any(isinstance(a, Persist) for a in actions):
                assert run_of(federation).recorded is before


# --- the tables ---------------------------------------------------------------------------------------------------


def test_the_table_of_turns_holds_what_can_happen_and_nothing_else() -> None:
    taken = {turn for world in product(POLICIES, BEGINNINGS) for turn in explored(*world).turns}
    assert taken == {(phase, turn) for phase, row in TRANSITIONS.items() for turn in row}


def test_every_cell_of_the_table_of_happenings_is_looked_up_before_the_end() -> None:
    looked_up = {cell for world in product(POLICIES, BEGINNINGS) for cell in explored(*world).happenings}
    assert looked_up >= set(product(Happening, set(Phase) - {Phase.DONE}))


def test_every_phase_has_its_place_in_both_tables() -> None:
    assert list(TRANSITIONS) == list(Phase)
    assert {target for row in TRANSITIONS.values() for target in row.values()} | {
        Phase.ENROLLING,
        Phase.RETURNING,
    } == set(Phase)
    assert {turn for row in TRANSITIONS.values() for turn in row} == set(Turn)
    assert list(TABLE) == list(Happening)
    assert all(set(row) == set(Phase) for row in TABLE.values())
    assert {TABLE[happening][Phase.DONE] for happening in Happening} == {dispatch.nothing}


def test_every_message_of_a_site_has_its_row_and_those_of_a_session_have_none() -> None:
    messages: dict[type[FromSite], FromSite] = {
        Hello: hello("a"),
        PlanAccepted: acceptance("a", tiny_plan("wait")),
        PlanRefused: PlanRefused(RUN, ""),
        Prediction: Prediction(RUN, 0, 0, column(1.0)),
        Share: Share(RUN, 0, 0, (1.0,), None),
        Masked: Masked(RUN, 0, 0, Words(np.zeros(1, dtype="<u8"))),
        Fault: Fault(RUN, 0, 0, ""),
        Fetched: Fetched(RUN),
        Leaving: Leaving(""),
    }
    assert set(messages) == set(get_args(FromSite))
    rows = {kind: happened(message) for kind, message in messages.items()}
    assert {kind for kind, row in rows.items() if row is None} == {Hello, Leaving}
    assert {kind.__name__: row.value for kind, row in rows.items() if row is not None} == {
        kind.__name__: kind.__name__ for kind in set(messages) - {Hello, Leaving}
    }


def test_a_turn_that_the_table_does_not_have_is_a_defect_that_says_so() -> None:
    with pytest.raises(InvalidTurn, match="DELIVERING has no turn ASKED"):
        next_phase(Phase.DELIVERING, Turn.ASKED)


def test_the_diagram_draws_the_table() -> None:
    arrows = [line.strip() for line in state_diagram().splitlines()[1:]]
    first = [f"[*] --> {phase}" for phase in ("ENROLLING", "RETURNING", "DELIVERING")]
    assert arrows[:3] == first
    assert arrows[-1] == "DONE --> [*]"
    drawn = {tuple(arrow.replace(" --> ", " ").replace(":", "").split()) for arrow in arrows[3:-1]}
    assert drawn == {
        (phase.name, target.name, turn.name) for phase, row in TRANSITIONS.items() for turn, target in row.items()
    }
    assert len(arrows) == len(set(arrows))
