"""coordinator/machine/dispatch.py and phases.py: every state that three sites can bring a run into,
within bounds.

The search feeds every event that could come next to states that a fixed dice picks, each phase as
often as any other. A state is a frozen value, so nothing is copied; two are one when nothing but
vectors and timer tokens tells them apart. It holds what no example can: that *nothing* hangs.
`MOST_STATES = 100_000` visits far more, in minutes.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from typing import Any
from unittest.mock import patch

import pytest
from machine.stepwise import CONVERGED, ROUND, answer
from machine.tiny import TIMEOUTS, hello, make_plan, offer_of

from coordinator.machine.dispatch import TABLE
from coordinator.machine.events import (
    AccessRefused,
    Action,
    Aligned,
    BeginRun,
    Breached,
    Cancelled,
    DeadlinePassed,
    Event,
    Finish,
    HeadCountersigned,
    Interrupted,
    Persist,
    Received,
    Reject,
    RunEvent,
    SendToSite,
    SetDeadline,
    SiteJoined,
    SiteLost,
)
from coordinator.machine.federation import FederationState, begin, handle
from coordinator.machine.records import (
    TRANSITIONS,
    AttemptBegan,
    Begun,
    HeadSigned,
    InvalidTransition,
    Phase,
    StepDone,
    Transition,
    next_phase,
)
from coordinator.machine.run import Run
from coreg_core.messages import (
    Answer,
    Approval,
    Countersigned,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    FromSite,
    Leaving,
    LedgerHead,
    PlanRefused,
    Proposal,
    Step,
    Unaligned,
)
from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan

RUN = "run-1"
MOST_STATES = 250
MOST_ATTEMPTS = 2
POLICIES = ("wait", "continue")
BEGINNINGS = ("new", "unaligned", "stalled", "again", "ending")


LAST = 2  # the step to which sites answer that they have converged


def tiny_plan(on_dropout: str, beginning: str) -> Plan:
    plan = make_plan(on_dropout=on_dropout)
    if beginning == "unaligned":
        return replace(plan, align=Alignment())
    return plan


def said(step: int, attempt: int) -> Answer:
    """Empty, since no number decides; the last one says so."""
    report = ROUND
    if step >= LAST:
        report = CONVERGED
    return answer(step, attempt, report=report)


def run_of(federation: FederationState) -> Run:
    return federation.runs[RUN]


def likeness(federation: FederationState) -> tuple[object, ...]:
    """What tells two states apart, for whoever watches from outside."""
    run = run_of(federation)
    return (
        tuple(sorted(federation.sessions)),
        run.phase,
        *(
            tuple(sorted(names))
            for names in (run.here, run.ready, run.invited, run.fetched, run.signing, run.excluded)
        ),
        tuple(sorted((site, offer.key, offer.attempt) for site, offer in run.offers.items())),
        tuple(sorted(run.answers)),
        run.operators,
        tuple(sorted((site, step.step, step.attempt) for site, step in run.steps.items())),
        (
            run.attempt,
            run.participants,
            run.ending,
            run.aligning,
            run.aligned,
            tuple(sorted(run.unaligned)),
        ),
    )


def events_for(federation: FederationState) -> list[Event]:
    run = run_of(federation)
    events: list[Event] = [
        Aligned(RUN, Outcome.CONVERGED, ""),
        time_passes(run),
        Interrupted(),
        Cancelled(RUN, "enough"),
        AccessRefused("z", "no"),
    ]
    for site in run.plan.sites:
        events.append(SiteJoined(hello(site)))
        if site not in federation.sessions:
            continue
        events += [SiteLost(site, "its stream ended"), Breached(site, "10 MB")]
        if site in run.here:
            events.append(countersigned(site))
        events += [Received(site, message) for message in messages_for(run, site)]
    return events


def time_passes(run: Run) -> RunEvent:
    """While the ids are aligned, the other run has the deadlines."""
    if run.aligning:
        return Aligned(RUN, Outcome.STALLED, "b is gone")
    return DeadlinePassed(RUN, run.token)


HEAD = LedgerHead(7, "ab", "2026-01-01")


def countersigned(site: str) -> HeadCountersigned:
    receipt = Countersigned(RUN, HEAD, "2026-01-02", "05", "06", "")
    return HeadCountersigned(RUN, HeadSigned(site, "03", "04", receipt))


def messages_for(run: Run, site: str) -> Iterator[FromSite]:
    yield hello(site)
    asked = run.steps.get(site, Step(RUN, run.attempt, 0))
    step = asked.step
    attempt = asked.attempt
    yield offer_of(site, run.plan, run.attempt)
    yield offer_of(site, run.plan, run.attempt, key="of another process")
    yield offer_of(site, run.plan, run.attempt, n_unlabelled=2)
    yield offer_of(site, run.plan, run.attempt + 1)  # these records are old
    yield Unaligned(RUN)
    yield PlanRefused(RUN, "no")
    yield Approval(RUN, run.approvals.get(site) is False)
    yield said(step, attempt)
    yield replace(said(step, attempt), report=replace(ROUND, round=7))
    yield Fault(RUN, attempt, step, "no")
    yield Fetched(RUN)
    yield Fetched(RUN, HEAD, "03")
    yield Leaving("stopped")


@dataclass
class Explored:
    states: list[FederationState]
    turns: set[tuple[Phase, Transition]]
    cells: set[tuple[type, Phase]]


@contextmanager
def watched(found: Explored) -> Iterator[None]:
    """Every turn that a run takes, and every cell of the table that it looks up."""

    def taking(phase: Phase, turn: Transition) -> Phase:
        found.turns.add((phase, turn))
        return next_phase(phase, turn)

    class Row(dict[Phase, Any]):
        """A row of the table that says which of its cells are looked up."""

        def __init__(self, kind: type, cells: Mapping[Phase, Any]):
            super().__init__(cells)
            self.kind = kind

        def __getitem__(self, phase: Phase) -> Any:
            found.cells.add((self.kind, phase))
            return super().__getitem__(phase)

    table = {kind: Row(kind, cells) for kind, cells in TABLE.items()}
    with (
        patch("coordinator.machine.run.next_phase", taking),
        patch("coordinator.machine.federation.TABLE", table),
    ):
        yield


def first_state(plan: Plan, beginning: str) -> FederationState:
    """New; with two answers of three; begun again after an attempt; or after the end."""
    if beginning == "again":
        return begin(plan, TIMEOUTS, Begun(0, plan.sites, 1))[0]
    federation, _ = begin(plan, TIMEOUTS)
    if beginning in ("new", "unaligned"):
        return federation
    if beginning == "stalled":
        for event in islice(whole_run(plan), 8):
            federation, _ = handle(federation, event)
        return handle(federation, DeadlinePassed(RUN, run_of(federation).token))[0]
    for event in whole_run(plan):
        federation, _ = handle(federation, event)
    return federation


def whole_run(plan: Plan) -> Iterator[Event]:
    yield from (SiteJoined(hello(s)) for s in plan.sites)
    if plan.align is not None:
        yield from (Received(s, Unaligned(RUN)) for s in plan.sites)
        yield Aligned(RUN, Outcome.CONVERGED, "")
    yield from (Received(s, offer_of(s, plan)) for s in plan.sites)
    for step, site in product(range(LAST + 1), plan.sites):
        yield Received(site, said(step, 0))


@cache
def explored(on_dropout: str, beginning: str) -> Explored:
    found = Explored([], set(), set())
    plan = tiny_plan(on_dropout, beginning)
    with watched(found):
        path = [first_state(plan, beginning)]
        for event in islice(
            whole_run(plan), 10
        ):  # so that the dice cannot miss what comes after these
            path.append(handle(path[-1], event)[0])
        seen = {likeness(state): state for state in path if run_of(state).phase is not Phase.DONE}
        frontier = dict[Phase, list[FederationState]]()
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
                elif likeness(after) not in seen and run.attempt <= MOST_ATTEMPTS + 1:
                    seen[likeness(after)] = after
                    frontier.setdefault(run.phase, []).append(after)
    found.states = list(seen.values())
    return found


@cache
def steps(
    on_dropout: str, beginning: str
) -> list[tuple[FederationState, FederationState, list[Action]]]:
    """Of every state and every event that could come next: the state before and after, and the
    actions.
    """
    states = explored(on_dropout, beginning).states
    return [(state, *handle(state, event)) for state in states for event in events_for(state)]


def cooperate(federation: FederationState) -> Finish | None:
    """The sites that can still take part connect again, accept and answer. No other site acts."""
    run = run_of(federation)
    plan = run.plan
    events = deque[Event](SiteJoined(hello(site)) for site in run.members)
    events.extend(countersigned(site) for site in sorted(run.signing))
    events.extend([Aligned(RUN, Outcome.CONVERGED, "")] * run.aligning)
    while events:
        federation, actions = handle(federation, events.popleft())
        for action in actions:
            match action:
                case SendToSite(site, Proposal(attempt=attempt)):
                    run = run_of(federation)
                    agreed = max(
                        (run.offers[s].n_unlabelled for s in run.ready), default=6
                    )  # a site may have said 2
                    events.append(
                        Received(site, offer_of(site, plan, attempt, n_unlabelled=agreed))
                    )
                case BeginRun():
                    events.append(Aligned(RUN, Outcome.CONVERGED, ""))
                case SendToSite(site, Step(step=step, attempt=attempt)):
                    events.append(Received(site, said(step, attempt)))
                case SendToSite(site, Finished()):
                    events.append(Received(site, Fetched(RUN)))
                    events.append(Received(site, Leaving("it has its model")))
                case SendToSite(site, Dismissed(reason=reason)):
                    assert run_of(federation).ending is not None, f"{site} was sent away: {reason}"
                    assert site not in run_of(federation).participants, reason
                case Reject(site, reason):
                    raise AssertionError(f"{site} was rejected: {reason}")
                case Finish():
                    return action
    return None


worlds = pytest.mark.parametrize(("on_dropout", "beginning"), list(product(POLICIES, BEGINNINGS)))


@worlds
def test_whatever_happens_deadlines_alone_end_a_run(on_dropout: str, beginning: str) -> None:
    for state in explored(on_dropout, beginning).states:
        federation = state
        for _ in range(2 * len(run_of(state).plan.sites) + 4):
            federation, _ = handle(federation, time_passes(run_of(federation)))
        assert federation.done, likeness(state)


@worlds
def test_no_state_is_a_trap_when_every_site_behaves_from_now_on(
    on_dropout: str, beginning: str
) -> None:
    for state in explored(on_dropout, beginning).states:
        end = cooperate(state)
        ending = run_of(state).ending
        assert end is not None, likeness(state)
        expected = Outcome.CONVERGED
        if ending is not None:
            expected = ending[0]
        assert end.outcome is expected, likeness(state)


@worlds
def test_steps_go_to_members_that_offered_and_are_answered_by_all(
    on_dropout: str, beginning: str
) -> None:
    for state, federation, actions in steps(on_dropout, beginning):
        run = run_of(federation)
        for action in actions:
            if isinstance(action, SendToSite) and isinstance(action.message, Step):
                assert action.site in run.ready
                assert action.site in run.participants
                assert len(run.participants) >= run.plan.membership.min_sites
                assert action.message.attempt == run.attempt == run.attempt
                if action.message.step == 0:
                    assert [o.site for o in action.message.roster] == list(run.participants)
            if isinstance(action, Persist) and isinstance(action.record, StepDone):
                assert len(run_of(state).answers) == len(run_of(state).participants) - 1
        assert set(run.answers) <= set(run.participants)


@worlds
def test_no_attempt_is_begun_twice_or_gone_back_to_and_none_gains_a_site(
    on_dropout: str, beginning: str
) -> None:
    """Two rosters under one number would be two keys that the sites take for one."""
    for state, federation, actions in steps(on_dropout, beginning):
        before = run_of(state)
        after = run_of(federation)
        began = [
            a.record.attempt
            for a in actions
            if isinstance(a, Persist) and isinstance(a.record, AttemptBegan)
        ]
        assert all((before.phase, before.attempt) == (Phase.PLANNING, number) for number in began)
        assert after.attempt >= before.attempt
        if before.phase in (Phase.ASKING, Phase.STALLED) and after.phase is Phase.PLANNING:
            assert after.attempt > before.attempt
        assert set(after.participants) <= set(before.participants or before.plan.sites)
        if on_dropout == "wait" and before.participants:
            assert after.participants == before.participants


@worlds
def test_a_site_that_is_out_stays_out_and_is_never_asked_counted_or_awaited(
    on_dropout: str, beginning: str
) -> None:
    for state, federation, actions in steps(on_dropout, beginning):
        before = run_of(state)
        run = run_of(federation)
        out = set(run.plan.sites) - set(run.members)
        assert out >= set(before.plan.sites) - set(before.members)
        assert not out & (run.here | run.ready | set(run.awaited))
        late = [
            a.message for a in actions if isinstance(a, SendToSite) and a.site not in before.members
        ]
        assert all(isinstance(message, Dismissed) for message in late)


@worlds
def test_every_list_of_actions_ends_a_wait_or_begins_at_most_one(
    on_dropout: str, beginning: str
) -> None:
    """One timer: a list sets it at most once, to a token not used before; the last action of a run
    is its Finish.
    """
    for state, federation, actions in steps(on_dropout, beginning):
        before = run_of(state)
        run = run_of(federation)
        deadlines = [a.token for a in actions if isinstance(a, SetDeadline)]
        assert deadlines in ([], [before.token + 1])
        ends = [a for a in actions if isinstance(a, Finish)]
        if run.phase is Phase.DONE:
            assert ends == [actions[-1]]
        else:
            assert ends == []
        if run.phase not in (before.phase, Phase.DONE):
            assert deadlines, "a new phase has its own deadline"


def test_the_tables_hold_what_can_happen_and_nothing_else() -> None:
    found = [explored(*world) for world in product(POLICIES, BEGINNINGS)]
    taken = {turn for each in found for turn in each.turns}
    assert taken == {(phase, turn) for phase, row in TRANSITIONS.items() for turn in row}
    looked_up = {cell for each in found for cell in each.cells}
    assert looked_up >= set(product(TABLE, set(Phase) - {Phase.DONE}))
    with pytest.raises(InvalidTransition, match="ENDING has no transition ASKED"):
        next_phase(Phase.ENDING, Transition.ASKED)
