"""Which run starts: a table of cases, and what holds for every queue, every limit and every order of events."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import make_plan

from coordinator.machine import scheduler
from coordinator.machine.events import BeginRun, CloseRun, LoadRun
from coordinator.machine.scheduler import PARKED, Scheduler
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

EVERYBODY = ("a", "b", "c")


def plan(run: str, threads: int = 1, **changes: Any) -> Plan:
    return make_plan(run=run, threads=threads, **changes)


def names(plans: Any) -> list[str]:
    return [each.run for each in plans]


ONE, TWO, OTHER = plan("one"), plan("two"), plan("other", threads=2)
RESTED, RESTING = {"one": (ONE, True)}, {"one": (ONE, False)}


@dataclass
class Case:
    """``starts`` are the runs that start, in order; ``waits`` what is left of the queue."""

    starts: list[Any]
    limit: int = 4
    unfinished: tuple[Plan, ...] = ()
    waiting: tuple[Plan, ...] = ()
    parked: dict[str, tuple[Plan, bool]] = field(default_factory=dict)
    starting: dict[str, Plan] = field(default_factory=dict)
    computing: tuple[Plan, ...] = ()
    connected: tuple[str, ...] = EVERYBODY
    draining: bool = False


CASES = {
    "nothing waits": Case([]),
    "a queued run begins, whether or not its sites are there": Case([BeginRun(ONE)], waiting=(ONE,), connected=()),
    "the queue keeps its order": Case([BeginRun(TWO), BeginRun(ONE)], waiting=(TWO, ONE)),
    "unfinished runs go before the queue": Case([LoadRun(TWO), BeginRun(ONE)], unfinished=(TWO,), waiting=(ONE,)),
    "unfinished, parked, queued": Case(
        [LoadRun(TWO), LoadRun(ONE), BeginRun(plan("new"))], unfinished=(TWO,), parked=RESTED, waiting=(plan("new"),)
    ),
    "no more than the limit": Case([BeginRun(ONE)], limit=1, waiting=(ONE, TWO)),
    "runs that compute count": Case([], limit=1, waiting=(ONE,), computing=(TWO,)),
    "runs that are being loaded count": Case([], limit=1, waiting=(ONE,), starting={"two": TWO}),
    "other threads wait": Case([], waiting=(OTHER,), computing=(ONE,)),
    "other threads wait for a run that is being loaded": Case([], waiting=(OTHER,), starting={"one": ONE}),
    "nobody overtakes a run that waits for its threads": Case([BeginRun(ONE)], waiting=(ONE, OTHER, TWO)),
    "not even from the queue past unfinished ones": Case([], unfinished=(OTHER,), waiting=(TWO,), computing=(ONE,)),
    "a parked run rests first": Case([BeginRun(TWO)], parked=RESTING, waiting=(TWO,)),
    "a parked run waits for its sites": Case([BeginRun(TWO)], parked=RESTED, waiting=(TWO,), connected=("a", "b")),
    "one that may continue needs min_sites": Case(
        [LoadRun(plan("p", on_dropout="continue"))],
        parked={"p": (plan("p", on_dropout="continue"), True)},
        connected=("a", "c"),
    ),
    "and no fewer": Case([], parked={"p": (plan("p", on_dropout="continue"), True)}, connected=("a", "z")),
    "a parked run of other threads holds nobody up": Case(
        [BeginRun(TWO)], parked={"other": (OTHER, True)}, waiting=(TWO,), computing=(ONE,)
    ),
    "no run starts while the service drains": Case(
        [], unfinished=(ONE,), parked={"other": (OTHER, True)}, waiting=(TWO,), draining=True
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_what_starts(what: str) -> None:
    case = CASES[what]
    before = Scheduler(
        case.limit,
        unfinished=case.unfinished,
        waiting=case.waiting,
        parked=case.parked,
        starting=case.starting,
        draining=case.draining,
    )
    after, starts = scheduler.start(before, case.computing, case.connected)
    assert starts == case.starts
    started = {each.plan.run for each in case.starts}
    assert after.waiting == tuple(p for p in case.waiting if p.run not in started)
    assert after.unfinished == tuple(p for p in case.unfinished if p.run not in started)
    assert after.parked == {run: kept for run, kept in case.parked.items() if run not in started}
    assert after.starting == case.starting | {each.plan.run: each.plan for each in case.starts}


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize(
    ("changes", "on_record", "may_park"),
    [
        ({}, False, True),
        ({"exit_when_idle": True}, False, False),
        ({"draining": True}, False, False),
        ({}, True, False),
    ],
)
def test_a_run_that_stalled_is_parked_where_the_service_stays_and_it_can_begin_again(
    outcome: Outcome, changes: dict[str, bool], on_record: bool, may_park: bool
) -> None:
    after = scheduler.finished(Scheduler(1, **changes), ONE, outcome, on_record=on_record)
    assert after.parked == (RESTING if outcome in PARKED and may_park else {})


def test_rest_is_over_for_parked_runs_alone() -> None:
    assert scheduler.rested(Scheduler(1, parked=RESTING), "one").parked == RESTED
    assert scheduler.rested(Scheduler(1), "one") == Scheduler(1)


def test_the_queue_is_read_without_runs_that_have_started() -> None:
    starting = Scheduler(1, starting={"one": ONE})
    assert names(scheduler.with_queue(starting, (ONE, TWO, OTHER), {"other"}).waiting) == ["two"]
    assert scheduler.started(starting, "one").starting == {}


def test_a_cancelled_run_is_closed_wherever_it_waits() -> None:
    full = Scheduler(1, unfinished=(ONE,), waiting=(TWO,), parked={"other": (OTHER, True)})
    for cancelled in (ONE, TWO, OTHER):
        after, closed = scheduler.cancel(full, {cancelled.run: "not today", "unknown": "x"})
        assert closed == [CloseRun(cancelled, Outcome.CANCELLED, "not today")]
        left = {*names(after.unfinished), *names(after.waiting), *after.parked}
        assert left == {"one", "two", "other"} - {cancelled.run}


@pytest.mark.parametrize("where", ["unfinished", "waiting", "starting"])
def test_idle_is_nothing_left_to_start(where: str) -> None:
    assert Scheduler(1, parked=RESTED).idle
    assert not Scheduler(1, **{where: {"one": ONE} if where == "starting" else (ONE,)}).idle


# --- what holds for every queue -----------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from(["submit", "load", "end", "stall", "rest", "connect", "lose"]), st.integers(0, 9)),
    max_size=60,
)


@given(EVENTS, st.lists(st.integers(1, 2), min_size=1, max_size=10), st.integers(1, 3), st.integers(0, 3))
def test_whatever_comes_the_limit_the_threads_and_the_order_hold_and_no_run_is_lost(
    events: list[tuple[str, int]], threads: list[int], limit: int, left: int
) -> None:
    plans = [plan(f"{i}", t) for i, t in enumerate(threads)]
    unfinished, to_come = plans[:left], plans[left:]
    state = Scheduler(limit, unfinished=tuple(unfinished))
    computing, queue, begun, over = dict[str, Plan](), list[Plan](), list[str](), set[str]()
    connected = set(EVERYBODY)
    for what, which in events:
        match what:
            case "submit" if to_come:
                queue.append(to_come.pop(0))
                state = scheduler.with_queue(state, queue, computing)
            case "load" if state.starting:
                run = sorted(state.starting)[which % len(state.starting)]
                computing[run] = state.starting[run]
                state = scheduler.started(state, run)
            case "end" | "stall" if computing:
                ended = computing.pop(sorted(computing)[which % len(computing)])
                outcome = Outcome.STALLED if what == "stall" else Outcome.CONVERGED
                over |= {ended.run} if what == "end" else set()
                state = scheduler.finished(state, ended, outcome, on_record=what == "end")
            case "rest":
                state = scheduler.rested(state, str(which))
            case "connect":
                connected = set(EVERYBODY)
            case "lose":
                connected -= set(EVERYBODY[which % 3])
        state, starts = scheduler.start(state, list(computing.values()), connected)
        queue = [p for p in queue if BeginRun(p) not in starts]
        begun += [each.plan.run for each in starts if each.plan.run not in begun]
        active = [*computing.values(), *state.starting.values()]
        assert len(active) <= limit
        assert len({p.iteration.threads for p in active}) <= 1
        assert begun == names(plans)[: len(begun)], "first come, first served"
        waiting = [*state.unfinished, *state.waiting, *to_come, *(p for p, _ in state.parked.values())]
        assert sorted([*names(active), *names(waiting), *over]) == sorted(names(plans)), (
            "no run is lost, or there twice"
        )
