"""coordinator/machine/dispatch.py and phases.py: every state that three sites can bring a run into, within bounds.

The search feeds every event that could come next to states that a fixed dice picks, each phase as often as any other. A state
is a frozen value, so nothing is copied; two are one when nothing but vectors and timer tokens tells them apart. It holds what
no example can: that *nothing* hangs. `MOST_STATES = 100_000` visits far more, in minutes.
"""

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from typing import Any, get_args
from unittest.mock import patch

import pytest
from machine.stepwise import CONVERGED, answer
from machine.tiny import TIMEOUTS, hello, make_plan, offer_of

from coordinator.machine import dispatch
from coordinator.machine import events as e
from coordinator.machine.dispatch import TABLE
from coordinator.machine.federation import Federation, begin, handle
from coordinator.machine.phases import TRANSITIONS, InvalidTransition, Phase, Transition, next_phase
from coordinator.machine.records import AttemptBegan, Ended, HeadSigned, Record, StepDone
from coordinator.machine.run import Run
from coordinator.machine.state import resume
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

RUN = "run-1"
MOST_STATES = 250
MOST_ATTEMPTS = 2
POLICIES = ("wait", "continue")
BEGINNINGS = ("new", "stalled", "returning", "delivering")  # the last two: resumed after a kill


LAST = 2  # the step to which sites answer that they have converged


def tiny_plan(on_dropout: str) -> Plan:
    return make_plan(on_dropout=on_dropout, max_rejoins=1)


def said(site: str, step: int, attempt: int) -> m.Answer:
    """Empty, since no number decides; the last one says so."""
    return answer(site, step, attempt, report=CONVERGED if step >= LAST else m.Report())


def run_of(federation: Federation) -> Run:
    return federation.runs[RUN]


def likeness(federation: Federation) -> tuple[object, ...]:
    """What tells two states apart, for whoever watches from outside."""
    run = run_of(federation)
    recorded, live = run.recorded, run.live
    return (
        tuple(sorted(federation.sessions)),
        live.phase,
        *(
            tuple(sorted(names))
            for names in (live.here, live.ready, live.invited, live.proven, live.late, live.fetched)
        ),
        tuple(sorted((site, offer.key, offer.attempt) for site, offer in live.offers.items())),
        tuple(sorted(live.answers)),
        live.operators,
        tuple(sorted((site, step.step, step.attempt) for site, step in live.steps.items())),
        (live.attempt, live.receivers, live.ending),
        (recorded.participants, recorded.attempt, recorded.closed, recorded.ended is not None),
        tuple(sorted(recorded.excluded)),
        tuple(sorted(recorded.fetched)),
        *(tuple(sorted(counts.items())) for counts in (recorded.returns, recorded.dropped)),
    )


def numbers_for(run: Run, site: str) -> tuple[int, int]:
    """The step that a message of this site would be about."""
    step = run.live.steps.get(site)
    return (0, run.live.attempt) if step is None else (step.step, step.attempt)


def events_for(federation: Federation) -> list[e.Event]:
    run = run_of(federation)
    events: list[e.Event] = [
        e.DeadlinePassed(RUN, run.live.token),
        e.Interrupted(),
        e.Cancelled(RUN, "enough"),
        e.AccessRefused("z", "no"),
    ]
    for site in run.plan.sites:
        events.append(e.SiteJoined(hello(site)))
        if site not in federation.sessions:
            continue
        events += [e.SiteLost(site, "its stream ended"), e.Breached(site, "10 MB")]
        events += [countersigned(site)] if site in run.live.here else []
        events += [e.Received(site, message) for message in messages_for(run, site)]
    return events


HEAD = m.LedgerHead(7, "ab", "2026-01-01")


def countersigned(site: str, signature: str = "05") -> e.HeadCountersigned:
    receipt = m.Countersigned(RUN, HEAD, "2026-01-02", signature, "06", "" if signature else "another key")
    return e.HeadCountersigned(RUN, HeadSigned(site, "03", "04", receipt))


def messages_for(run: Run, site: str) -> Iterator[m.FromSite]:
    yield hello(site)
    step, attempt = numbers_for(run, site)
    yield offer_of(site, run.plan, run.live.attempt)
    yield offer_of(site, run.plan, run.live.attempt, key="of another process")
    yield offer_of(site, run.plan, run.live.attempt, n_unlabelled=2)
    yield offer_of(site, run.plan, run.live.attempt + 1)  # these records are old
    yield m.PlanRefused(RUN, "no")
    yield m.Approval(RUN, run.live.approvals.get(site) is False)
    yield said(site, step, attempt)
    yield replace(said(site, step, attempt), head=m.Head(site, "another", "s"))
    yield m.Fault(RUN, attempt, step, "no")
    yield m.Fetched(RUN)
    yield m.Fetched(RUN, HEAD, "03")
    yield m.Leaving("stopped")


@dataclass
class Explored:
    states: list[Federation]
    turns: set[tuple[Phase, Transition]]
    cells: set[tuple[type, Phase]]


@contextmanager
def watched(found: Explored) -> Iterator[None]:
    """Every turn that a run takes, and every cell of the table that it looks up."""
    real = dispatch.handle

    def taking(phase: Phase, turn: Transition) -> Phase:
        found.turns.add((phase, turn))
        return next_phase(phase, turn)

    def handling(run: Run, event: Any) -> Any:
        found.cells.add((type(event.message) if isinstance(event, e.Received) else type(event), run.phase))
        return real(run, event)

    with patch("coordinator.machine.run.next_phase", taking), patch("coordinator.machine.dispatch.handle", handling):
        yield


def first_state(plan: Plan, beginning: str) -> Federation:
    """New; with two answers of three; resumed after the first step; or after the end, with nothing fetched."""
    federation, actions = begin(resume(plan, []), TIMEOUTS)
    if beginning == "new":
        return federation
    if beginning == "stalled":
        for event in islice(whole_run(plan), 8):
            federation, _ = handle(federation, event)
        return handle(federation, e.DeadlinePassed(RUN, run_of(federation).live.token))[0]
    records = [a.record for a in actions if isinstance(a, e.Persist)]
    wanted: type[Record] = StepDone if beginning == "returning" else Ended
    for event in whole_run(plan):
        federation, actions = handle(federation, event)
        records += [a.record for a in actions if isinstance(a, e.Persist)]
        if isinstance(records[-1] if records else None, wanted):
            break
    return begin(resume(plan, records), TIMEOUTS)[0]


def whole_run(plan: Plan) -> Iterator[e.Event]:
    yield from (e.SiteJoined(hello(s)) for s in plan.sites)
    yield from (e.Received(s, offer_of(s, plan)) for s in plan.sites)
    for step, site in product(range(LAST + 1), plan.sites):
        yield e.Received(site, said(site, step, 0))


@cache
def explored(on_dropout: str, beginning: str) -> Explored:
    found = Explored([], set(), set())
    with watched(found):
        path = [first_state(tiny_plan(on_dropout), beginning)]
        for event in islice(whole_run(tiny_plan(on_dropout)), 6):  # so that the dice cannot miss what comes after these
            path.append(handle(path[-1], event)[0])
        seen = {likeness(state): state for state in path if run_of(state).phase is not Phase.DONE}
        frontier = dict[Phase, list[Federation]]()
        for state in seen.values():
            frontier.setdefault(run_of(state).phase, []).append(state)
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


@cache
def steps(on_dropout: str, beginning: str) -> list[tuple[Federation, Federation, list[e.Action]]]:
    """Of every state and every event that could come next: the state before and after, and the actions."""
    states = explored(on_dropout, beginning).states
    return [(state, *handle(state, event)) for state in states for event in events_for(state)]


def cooperate(federation: Federation) -> e.Finish | None:
    """Every site that may still take part dials anew, accepts and answers; nobody else does anything."""
    plan = run_of(federation).plan
    fresh = [s for s in plan.sites if s not in run_of(federation).recorded.excluded]
    events: deque[e.Event] = deque(e.SiteJoined(hello(site)) for site in fresh)
    while events:
        federation, actions = handle(federation, events.popleft())
        for action in actions:
            match action:
                case e.Send(site, m.Proposal(attempt=attempt)):
                    events.append(e.Received(site, offer_of(site, plan, attempt, n_unlabelled=agreed(federation))))
                case e.Send(site, m.Step(step=step, attempt=attempt)):
                    events.append(e.Received(site, said(site, step, attempt)))
                case e.Send(site, m.Finished()):
                    events.append(e.Received(site, m.Fetched(RUN)))
                    events.append(e.Received(site, m.Leaving("it has its model")))
                case e.Send(site, m.Dismissed(reason=reason)):
                    assert run_of(federation).live.ending is not None, f"{site} was sent away: {reason}"
                    assert site not in run_of(federation).recorded.participants, reason
                case e.Reject(site, reason):
                    raise AssertionError(f"{site} was rejected: {reason}")
                case e.Finish():
                    return action
    return None


def agreed(federation: Federation) -> int:
    """How many instances the run's sites say that they share; a site may have said 2."""
    live = run_of(federation).live
    known = {live.offers[s].n_unlabelled for s in live.offers if s in live.ready}
    return max(known, default=6)


worlds = pytest.mark.parametrize(("on_dropout", "beginning"), list(product(POLICIES, BEGINNINGS)))


@worlds
def test_whatever_happens_deadlines_alone_end_a_run(on_dropout: str, beginning: str) -> None:
    for state in explored(on_dropout, beginning).states:
        federation = state
        for _ in range(2 * len(run_of(state).plan.sites) + 4):
            federation, _ = handle(federation, e.DeadlinePassed(RUN, run_of(federation).live.token))
        assert federation.done, likeness(state)


@worlds
def test_no_state_is_a_trap_when_every_site_behaves_from_now_on(on_dropout: str, beginning: str) -> None:
    for state in explored(on_dropout, beginning).states:
        end, ending = cooperate(state), run_of(state).live.ending
        assert end is not None, likeness(state)
        assert end.outcome is (Outcome.CONVERGED if ending is None else ending[0]), likeness(state)


@worlds
def test_steps_go_to_members_that_offered_in_this_session_and_are_answered_by_all_of_them(
    on_dropout: str, beginning: str
) -> None:
    for state, federation, actions in steps(on_dropout, beginning):
        run = run_of(federation)
        for action in actions:
            if isinstance(action, e.Send) and isinstance(action.message, m.Step):
                assert action.site in run.live.ready
                assert action.site in run.recorded.participants
                assert len(run.recorded.participants) >= run.plan.membership.min_sites
                assert action.message.attempt == run.recorded.attempt == run.live.attempt
                if action.message.step == 0:
                    assert [o.site for o in action.message.roster] == list(run.recorded.participants)
            if isinstance(action, e.Persist) and isinstance(action.record, StepDone):
                assert len(run_of(state).live.answers) == len(run_of(state).recorded.participants) - 1
        assert set(run.live.answers) <= set(run.recorded.participants)


@worlds
def test_no_attempt_is_begun_twice_or_gone_back_to(on_dropout: str, beginning: str) -> None:
    """Two rosters under one number would be two keys that the sites take for one."""
    for state, federation, actions in steps(on_dropout, beginning):
        began = [a.record.attempt for a in actions if isinstance(a, e.Persist) and isinstance(a.record, AttemptBegan)]
        assert all(number > run_of(state).recorded.attempt for number in began)
        assert run_of(federation).live.attempt >= run_of(state).live.attempt


@worlds
def test_an_excluded_site_is_never_asked_counted_or_awaited(on_dropout: str, beginning: str) -> None:
    for state, federation, actions in steps(on_dropout, beginning):
        run, excluded = run_of(federation), run_of(federation).recorded.excluded.keys()
        assert not excluded & (run.live.here | run.live.ready | run.live.proven | set(run.awaited))
        sent = [a.message for a in actions if isinstance(a, e.Send) and a.site in run_of(state).recorded.excluded]
        assert all(isinstance(message, m.Dismissed) for message in sent)


@worlds
def test_every_list_of_actions_ends_a_wait_or_begins_at_most_one(on_dropout: str, beginning: str) -> None:
    """One timer: a list sets it at most once, to a token not used before; the last action of a run is its Finish."""
    for state, federation, actions in steps(on_dropout, beginning):
        before, run = run_of(state), run_of(federation)
        deadlines = [a.token for a in actions if isinstance(a, e.SetDeadline)]
        assert deadlines in ([], [before.live.token + 1])
        ends = [a for a in actions if isinstance(a, e.Finish)]
        assert ends == ([actions[-1]] if run.phase is Phase.DONE else [])
        if run.phase not in (before.phase, Phase.DONE):
            assert deadlines, "a new phase has its own deadline"


@worlds
def test_what_a_run_remembers_is_what_its_records_tell(on_dropout: str, beginning: str) -> None:
    """An event changes what is remembered through records alone, so a kill after any of them loses nothing of it."""
    for state, federation, actions in steps(on_dropout, beginning):
        if not any(isinstance(a, e.Persist) for a in actions):
            assert run_of(federation).recorded is run_of(state).recorded


# --- the tables ---------------------------------------------------------------------------------------------------


def test_the_table_of_turns_holds_what_can_happen_and_nothing_else() -> None:
    taken = {turn for world in product(POLICIES, BEGINNINGS) for turn in explored(*world).turns}
    assert taken == {(phase, turn) for phase, row in TRANSITIONS.items() for turn in row}


def test_every_cell_of_the_table_of_events_is_looked_up_before_the_end() -> None:
    looked_up = {cell for world in product(POLICIES, BEGINNINGS) for cell in explored(*world).cells}
    assert looked_up >= set(product(TABLE, set(Phase) - {Phase.DONE}))


def test_every_phase_and_every_event_has_its_place_in_the_tables() -> None:
    assert list(TRANSITIONS) == list(Phase)
    targets = {target for row in TRANSITIONS.values() for target in row.values()}
    assert targets | {Phase.ENROLLING, Phase.RETURNING} == set(Phase)
    assert {turn for row in TRANSITIONS.values() for turn in row} == set(Transition)
    assert set(TABLE) == {*get_args(e.RunEvent), *get_args(m.FromSite)} - {m.Hello}
    assert all(set(row) == set(Phase) for row in TABLE.values())
    assert {row[Phase.DONE] for row in TABLE.values()} == {dispatch.nothing}


def test_a_turn_that_the_table_does_not_have_is_an_error() -> None:
    with pytest.raises(InvalidTransition, match="DELIVERING has no transition ASKED"):
        next_phase(Phase.DELIVERING, Transition.ASKED)
