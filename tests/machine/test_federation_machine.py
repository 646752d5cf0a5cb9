"""coordinator/machine/federation.py: sessions and the runs that they carry, runs that come and go,
align first, and wait.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.service import SITES, Service, holding_back, until_answered
from machine.stepwise import (
    RUN,
    all_of,
    answers,
    approval,
    begun,
    dismissed,
    joins,
    offers,
    planned,
    rejected,
    sends,
    started,
    told,
    waits,
)
from machine.tiny import Machine, allowing, hello, make_plan, offer_of, sealed, undisturbed

from coordinator.machine import notices as n
from coordinator.machine.events import (
    Action,
    Aligned,
    BeginRun,
    Breached,
    Cancelled,
    CloseRun,
    CountersignHead,
    Draining,
    Event,
    Finish,
    Interrupted,
    NotifyObservers,
    QueueChanged,
    QueueRead,
    Received,
    Reconfigured,
    Reject,
    Revoked,
    SendToSite,
    SetDeadline,
    SiteJoined,
    SiteLost,
    Submitted,
)
from coordinator.machine.federation import Scheduler
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import Ended, Phase, StepDone, Timeouts
from coordinator.machine.run import Run
from coreg_core.messages import (
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    LedgerHead,
    Proposal,
    Unaligned,
)
from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan, alignment_of, aligns_for, plan_fault

FOUR = ("a", "b", "c", "d")

# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (
            hello("b", protocol=OLDEST_PROTOCOL - 1, release="0.3.0"),
            "b: its release 0.3.0 is too old for this coordinator. Upgrade it on the site's"
            " machine: pip install --upgrade ./coreg_federation-*.whl",
        ),
        (
            hello("b", protocol=PROTOCOL_VERSION + 1, release="0.9.0"),
            "b: its release 0.9.0 is newer than the coordinator's. The coordinator is upgraded",
        ),
        (hello("z"), "not in this federation's list of sites (a, b, c)"),
    ],
)
def test_a_session_that_cannot_stay_gets_the_reason(late: Any, words: str) -> None:
    machine = started()
    machine.handle(joins("a"))
    assert words in rejected(machine, SiteJoined(late))
    assert machine.awaited == ("b", "c")
    assert machine.handle(joins("b")) == [
        NotifyObservers(n.notice(NoticeName.JOINED, RUN, "b", here=2, of=3))
    ]  # once it is mended


def test_a_site_that_does_not_know_a_plan_is_told_and_keeps_its_session() -> None:
    machine = started()
    machine.handle(joins("a"))

    actions = machine.handle(SiteJoined(hello("b", plans=0, release="0.3.9")))

    [dismissal] = [a.message for a in actions if isinstance(a, SendToSite)]
    assert isinstance(dismissal, Dismissed)
    assert "release 0.3.9 does not know the terms of this plan" in dismissal.reason
    assert "pip install --upgrade ./coreg_federation-*.whl" in dismissal.reason
    assert not any(isinstance(action, Reject) for action in actions)
    assert "b" in machine.awaited, "it can come back with another release"
    machine.handle(joins("b"))
    assert machine.awaited == ("c",)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Received("b", hello("b")), "b sent Hello twice in one session."),
        (Breached("b", "a message of 10 MB"), "a message of 10 MB"),
    ],
)
def test_a_breach_excludes_the_site_once_the_plan_is_out(event: Any, reason: str) -> None:
    machine = started()
    machine.handle(joins("b"))
    assert NotifyObservers(n.left(RUN, "b", reason, lost=True)) in machine.handle(event)
    assert machine.awaited == ("a", "b", "c"), "no plan is out, so it may try again"
    machine = planned()
    why = f"b broke the protocol: {reason}"
    assert n.notice(NoticeName.SITE_DISMISSED, RUN, "b", reason=why, excluded=True) in told(
        machine.handle(event)
    )
    assert machine.handle(event) == [], "its session has ended"
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")
    assert (
        dismissed(machine, joins("b"), Outcome.SITE_FAULT, excluded=True)
        == f"b: no longer in this run: {why}"
    )


# --- a session carries any number of runs ---------------------------------------------------------


@pytest.fixture
def both() -> Machine:
    """Run 1 of a, b, c has begun; run 2 of b, c, d is put in beside it, and is the machine's
    own.
    """
    first = begun()
    second = Machine(make_plan(run="run-2", sites=("b", "c", "d")))
    second.federation = first.federation
    assert told(second.handle(Submitted(second.plan))) == [
        n.notice(NoticeName.ANSWERS_IN_CLEAR, "run-2"),
        n.run_began("run-2", "", 0, ("b", "c", "d"), 1.0),
        n.notice(NoticeName.JOINED, "run-2", "b", here=1, of=3),
        n.notice(NoticeName.JOINED, "run-2", "c", here=2, of=3),
    ], "sessions that are open join it at once"
    return second


def test_a_run_hears_of_its_own_sites_alone_and_of_the_messages_that_name_it(both: Machine) -> None:
    first = both.federation.runs[RUN]
    assert told(both.handle(joins("d"))) == [
        n.notice(NoticeName.JOINED, "run-2", "d", here=3, of=3),
        n.notice(NoticeName.PLAN_SENT, "run-2", sites=("b", "c", "d"), seconds=2.0),
    ]
    all_of(both, [offers(both, s) for s in "bcd"])
    assert both.run.phase is Phase.ASKING
    assert both.federation.runs[RUN] == first, "nothing of this concerns the other run"
    second = both.run
    both.handle(answers("b"))  # of run 1
    assert both.federation.runs[RUN].awaited == ("a", "c")
    assert both.run == second
    assert both.handle(Received("a", offer_of("a", both.plan))) == [], "a is not in run 2"


def test_a_lost_session_concerns_every_run_of_the_site_and_an_exclusion_only_one(
    both: Machine,
) -> None:
    lost = [n.left(run, "c", "gone", lost=True) for run in (RUN, "run-2")]
    assert told(both.handle(SiteLost("c", "gone"))) == lost
    both.handle(Received("b", Fault(RUN, 0, 0, "the disk is full")))
    assert set(both.federation.runs[RUN].excluded) == {"b"}
    assert "b" in both.federation.sessions
    assert both.run.here == {"b"}
    assert not both.federation.done
    assert both.handle(Interrupted())[-1] == Finish("run-2", Outcome.INTERRUPTED, "")
    assert both.federation.done
    assert rejected(both, joins("a")) == "a: run run-1, run-2 is over."


# --- runs come and go -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2])
def test_runs_come_and_go_over_the_same_sessions_and_do_not_meet(limit: int) -> None:
    plans = [make_plan(run="run-1"), make_plan(run="run-2", coupling=(0.3, 2.0))]
    service = Service(max_concurrent_runs=limit).joined()
    most = 0
    service.queue += plans
    service.events.append(QueueChanged())
    while service.events:
        service.one()
        most = max(most, len(service.federation.computing))
    assert most == limit
    assert service.federation.runs == {}, "nothing of them is kept"
    assert set(service.federation.sessions) == set(SITES), "and everybody is still there"
    assert not service.federation.done
    for plan in plans:
        assert service.bits(plan.run) == undisturbed(plan).bits


def test_a_cancelled_run_is_over_for_good_wherever_it_is_and_the_federation_goes_on() -> None:
    service = (
        Service(max_concurrent_runs=1)
        .joined("a")
        .submit(make_plan(run="run-1"), make_plan(run="run-2"))
    )
    service.tell(QueueRead((), {"run-1": "not today", "run-2": "nor this", "unknown": "x"}))
    assert service.finished == {"run-1": Finish("run-1", Outcome.CANCELLED, "not today")}
    assert [type(r) for r in service.records["run-1"]] == [Ended]
    assert not service.federation.done
    assert set(service.federation.runs) <= {"run-2"}
    service = Service().joined()
    service.events.append(Submitted(make_plan(run="run-1")))
    until_answered(service, 4).tell(Cancelled("run-1", "enough"))  # between two steps
    assert service.finished["run-1"].outcome is Outcome.CANCELLED
    assert {end.outcome for end in service.ends.values()} == {Outcome.CANCELLED}
    assert service.federation.runs == {}


def test_a_revoked_or_unlisted_site_is_expelled_with_the_reason_and_missed() -> None:
    service = Service(max_concurrent_runs=1).joined()
    service.tell(Revoked("b", "b is not in the list"), Revoked("z", "was never here"))
    assert service.rejected == {"b": "b is not in the list"}
    for notice in (
        n.notice(NoticeName.SESSION_REJECTED, site="b", reason="b is not in the list"),
        n.notice(NoticeName.SESSION_ENDED, site="b", reason="b is not in the list"),
    ):
        assert notice in service.notices
    service.submit(make_plan(run="run-1", min_sites=3))
    assert service.federation.runs["run-1"].awaited == ("b",)
    assert service.joined("b").finished["run-1"].outcome is Outcome.CONVERGED
    service.tell(Reconfigured(("a", "b", "d"), 2), joins("d"), joins("c"))
    assert set(service.federation.sessions) == {"a", "b", "d"}
    assert "c: not in this federation's list of sites (a, b, d)" in service.rejected["c"]
    service.submit(make_plan(run="one"), make_plan(run="two"), make_plan(run="three"))
    assert list(service.federation.runs) == ["one", "two"]


# --- the end of the process -----------------------------------------------------------------------


def test_draining_leaves_what_is_under_way_and_waits_for_what_is_over() -> None:
    """The first run waits for a fourth site; of the second, one site has not fetched its end; the
    third is being loaded.
    """
    service = Service().joined().submit(make_plan(run="waits", sites=FOUR, min_sites=4))
    held = holding_back(service.agents["c"], Finished)
    service.submit(make_plan(run="over"), make_plan(run="queued", sites=FOUR, min_sites=4))
    service.queue.append(make_plan(run="late"))
    service.tell(QueueRead(tuple(service.queue)), Draining())
    assert service.finished["waits"].outcome is Outcome.INTERRUPTED
    assert "waits" not in service.records, (
        "no end is written down: the next process begins it again"
    )
    later = make_plan(run="later")
    service.queue = [later]
    service.tell(QueueChanged())
    assert service.queue == [later], "it stays in the queue"
    assert list(service.federation.runs) == ["over"], "no run begins in a process that drains"
    assert not service.federation.done
    service.tell(*(Received("c", answer) for answer in held))
    assert service.federation.done
    assert service.finished["over"].outcome is Outcome.CONVERGED


def test_only_the_head_of_a_run_that_ends_is_countersigned() -> None:
    signed = LedgerHead(7, "ab", "2026-01-01")
    service = Service().joined()
    service.events.append(Submitted(make_plan(run="run-1")))
    until_answered(service).events.append(Received("a", Fetched("invented", signed, "03")))
    asked = list[Action]()
    while service.events:
        asked += [a for a in service.one() if isinstance(a, CountersignHead)]
    assert asked == []
    assert service.finished["run-1"].outcome is Outcome.CONVERGED


def test_a_service_of_one_study_is_done_when_its_queue_is_empty() -> None:
    service = Service(exit_when_idle=True, waiting=(make_plan(run="one"),), max_concurrent_runs=1)
    service.queue.append(make_plan(run="one"))
    assert not service.federation.done
    service.tell(QueueChanged()).out_of_time("one")
    assert service.finished["one"].outcome is Outcome.TOO_FEW_SITES
    assert service.federation.done


# --- a run whose ids are not aligned: another run aligns them first -------------------------------


PLAN = replace(sealed(make_plan(min_sites=3)), align=Alignment(max_ids=200))
OF_TWO = replace(PLAN, membership=replace(PLAN.membership, min_sites=2))
FIRST = f"{RUN}-ids-0"


def unaligned(site: str) -> Event:
    return Received(site, Unaligned(RUN))


def begins(actions: list[Action]) -> list[BeginRun]:
    return [action for action in actions if isinstance(action, BeginRun)]


def test_the_plan_of_an_alignment_is_the_runs_own_for_all_of_its_sites() -> None:
    plan = alignment_of(replace(OF_TWO, study="waits", data="patients", id="nhs"), 4)
    assert plan.run == f"{RUN}-ids-4"
    assert aligns_for(plan.run) == RUN
    assert aligns_for(RUN) == ""
    assert plan.sites == ("a", "b", "c")
    assert plan.membership.min_sites == 3
    assert plan.objective == PLAN.align
    assert plan.align is None
    assert plan.study == "waits"
    assert plan.data == "patients"
    assert plan.id == "nhs"
    assert plan.privacy == PLAN.privacy
    assert plan_fault(plan) is None
    clear = replace(make_plan(), align=Alignment())
    assert "an alignment needs sealed sums. Or write align = false in [alignment]" in (
        plan_fault(clear) or ""
    )


@pytest.mark.parametrize("aligned", ["", "a", "ab"])
def test_the_ids_are_aligned_once_if_a_site_asks_for_it_and_then_the_plan_is_sent_again(
    aligned: str,
) -> None:
    machine = planned(PLAN)
    said = [offers(machine, s) if s in aligned else unaligned(s) for s in "abc"]
    assert begins(all_of(machine, said[:2])) == []
    assert begins(machine.handle(said[2])) == [BeginRun(alignment_of(PLAN, 0))]
    assert waits(machine) == "waiting for the alignment of ids"
    assert machine.awaited == ()
    assert begins(machine.handle(offers(machine, "a"))) == []
    again = machine.handle(Aligned(RUN, Outcome.CONVERGED, ""))
    assert [(s.site, s.message) for s in sends(again)] == [
        (s, Proposal(RUN, 0, PLAN)) for s in "abc"
    ]
    all_of(machine, [offers(machine, s) for s in "abc"])
    assert machine.phase is Phase.ASKING
    assert machine.handle(Aligned(RUN, Outcome.CONVERGED, "")) == []


def test_offers_that_differ_are_aligned_and_dismissed_if_they_differ_still() -> None:
    machine = planned(PLAN)
    differ = [offers(machine, "a"), offers(machine, "b"), offers(machine, "c", n_unlabelled=5)]
    assert len(begins(all_of(machine, differ))) == 1
    machine.handle(Aligned(RUN, Outcome.CONVERGED, ""))
    all_of(machine, differ[:2])
    assert "5 at c" in dismissed(machine, differ[2], Outcome.REFUSED, excluded=False)
    reason = dismissed(machine, unaligned("b"), Outcome.REFUSED, excluded=False)
    assert reason.startswith(
        "b: its ids are not those that were aligned for this run. Restore its table"
    )
    all_of(machine, [joins(s) for s in "bc"] + [offers(machine, s) for s in "abc"])
    assert machine.phase is Phase.ASKING


def test_a_site_that_asks_for_an_alignment_that_the_plan_does_not_have_is_at_fault() -> None:
    machine = planned(sealed(make_plan()))
    all_of(machine, [offers(machine, "a"), offers(machine, "b")])
    reason = dismissed(machine, unaligned("c"), Outcome.SITE_FAULT, excluded=True)
    assert "which the plan does not have" in reason
    assert machine.participants == ("a", "b")


def test_ids_are_aligned_by_all_sites_or_not_at_all_and_without_a_result_the_run_ends() -> None:
    """Counts with and without a site would name it."""
    for here in ("a", "ab"):
        machine = planned(OF_TWO)
        assert begins(all_of(machine, [*map(unaligned, here), machine.deadline])) == []
        assert machine.ending[0] is Outcome.TOO_FEW_SITES
    machine = planned(PLAN)
    all_of(machine, [*map(unaligned, "abc"), SiteLost("c", "gone"), joins("c")])
    actions = all_of(machine, [approval("c"), approval("c", given=True), unaligned("c")])
    assert not any(isinstance(action, SetDeadline) for action in actions), (
        "the other run has the deadlines"
    )
    assert machine.aligning
    machine.handle(Aligned(RUN, Outcome.NOTHING_SHARED, "b left"))
    assert machine.ending == (Outcome.NOTHING_SHARED, "the ids could not be aligned: b left")


def aligning() -> Service:
    """In the middle of the alignment: a step is answered, and messages are on their way."""
    service = Service()
    service.submit(PLAN)
    service.events.extend(SiteJoined(agent.hello()) for agent in service.agents.values())
    while not any(isinstance(record, StepDone) for record in service.records.get(FIRST, ())):
        service.one()
    return service


def outcomes(service: Service) -> dict[str, Outcome]:
    return {run: end.outcome for run, end in service.finished.items()}


@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.CANCELLED])
def test_an_alignment_and_its_run_end_alike_and_the_next_run_trains_at_once(
    outcome: Outcome,
) -> None:
    service = aligning().tell(*[Cancelled(RUN, "enough")] * (outcome is Outcome.CANCELLED))
    assert outcomes(service) == {FIRST: outcome, RUN: outcome}
    if outcome is Outcome.CONVERGED:
        assert {agent.shared for agent in service.agents.values()} == {("ann", "bob")}
        service.submit(replace(PLAN, run="run-2"))
        assert [run for run in service.finished if aligns_for(run)] == [FIRST]
        assert set(service.bits("run-2")) == set(service.bits(RUN)) == set("abc")
    assert service.states() == {}


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        (
            {"policy": allowing(aggregation="secure", alignment=False)},
            Outcome.REFUSED,
            "b refused the plan: alignment",
        ),
        ({"ids": ("zoe",)}, Outcome.NOTHING_SHARED, "the ids could not be aligned"),
    ],
)
def test_a_failed_alignment_ends_the_run_at_every_site(
    change: dict[str, Any], outcome: Outcome, reason: str
) -> None:
    service = Service()
    vars(service.agents["b"]).update(change)
    service.submit(PLAN).joined()
    assert set(outcomes(service).values()) == {outcome}
    assert all(service.ends[RUN, site].outcome is outcome for site in "ac")
    assert all(reason in service.ends[RUN, site].reason for site in "ac")
    assert service.states() == {}


# --- which run starts: a table of cases, and what holds for every queue and order of events -------


def plan(run: str, threads: int = 1, **changes: Any) -> Plan:
    return make_plan(run=run, threads=threads, **changes)


def names(plans: Any) -> list[str]:
    return [each.run for each in plans]


ONE = plan("one")
TWO = plan("two")
OTHER = plan("other", threads=2)


def test_a_cancelled_run_is_closed_wherever_it_waits() -> None:
    full = Scheduler(1, unfinished=(ONE,), waiting=(TWO, OTHER))
    for cancelled in (ONE, TWO):
        after, closed = full.cancel({cancelled.run: "not today", "unknown": "x"})
        assert closed == [CloseRun(cancelled, Outcome.CANCELLED, "not today")]
        assert {*names(after.unfinished), *names(after.waiting)} == {"one", "two", "other"} - {
            cancelled.run
        }


def test_the_queue_is_read_without_runs_that_have_started_and_idle_is_nothing_left_to_start() -> (
    None
):
    starting = Scheduler(1, starting={"one": ONE})
    assert names(starting.with_queue((ONE, TWO, OTHER), {"other"}).waiting) == ["two"]
    assert starting.started("one").starting == {}
    assert starting.started("one").idle
    assert not any(
        s.idle for s in (starting, Scheduler(1, unfinished=(ONE,)), Scheduler(1, waiting=(ONE,)))
    )


EVENTS = st.lists(
    st.tuples(st.sampled_from(["submit", "load", "end"]), st.integers(0, 9)), max_size=60
)


@given(
    EVENTS,
    st.lists(st.integers(1, 2), min_size=1, max_size=10),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_whatever_comes_the_limit_the_threads_and_the_order_hold_and_no_run_is_lost(
    events: list[tuple[str, int]], threads: list[int], limit: int, left: int
) -> None:
    plans = [plan(f"{i}", t) for i, t in enumerate(threads)]
    unfinished = plans[:left]
    to_come = plans[left:]
    state = Scheduler(limit, unfinished=tuple(unfinished))
    computing = dict[str, Plan]()
    queue = list[Plan]()
    begun = list[str]()
    over = set[str]()
    for what, which in events:
        match what:
            case "submit" if to_come:
                queue.append(to_come.pop(0))
                state = state.with_queue(queue, computing)
            case "load" if state.starting:
                run = sorted(state.starting)[which % len(state.starting)]
                computing[run] = state.starting[run]
                state = state.started(run)
            case "end" if computing:
                over.add(computing.pop(sorted(computing)[which % len(computing)]).run)
        state, starts = state.start(list(computing.values()))
        queue = [p for p in queue if BeginRun(p) not in starts]
        begun += [each.plan.run for each in starts if each.plan.run not in begun]
        active = [*computing.values(), *state.starting.values()]
        assert len(active) <= limit
        assert len({p.iteration.threads for p in active}) <= 1
        assert begun == names(plans)[: len(begun)], "first come, first served"
        for first in [*state.unfinished, *state.waiting][:1]:
            others = {p.iteration.threads for p in active} - {first.iteration.threads}
            assert others or len(active) == limit, "it starts as soon as it can"
        waiting = [*state.unfinished, *state.waiting, *to_come]
        assert sorted([*names(active), *names(waiting), *over]) == sorted(names(plans))


def test_a_session_in_place_of_an_open_one_is_told_with_its_address() -> None:
    machine = started()
    joined = machine.handle(SiteJoined(hello("b"), address="10.0.0.2:1"))
    assert not replaced_in(joined)

    again = machine.handle(SiteJoined(hello("b"), address="10.0.0.3:1"))

    [notice] = replaced_in(again)
    assert notice.level == "warning"
    assert notice.text.startswith("a new session of b, from 10.0.0.3:1, replaced an open one.")


def replaced_in(actions: list[Action]) -> list[Notice]:
    notices = [action.notice for action in actions if isinstance(action, NotifyObservers)]
    return [notice for notice in notices if notice.name == NoticeName.SESSION_REPLACED]


def test_a_run_that_is_cancelled_during_its_alignment_waits_for_its_sites() -> None:
    run = Run(make_plan(), Timeouts(), phase=Phase.PLANNING, aligning=True, here=frozenset("a"))
    assert run.waiting == "waiting for the alignment of ids"

    ended = replace(run, phase=Phase.ENDING)

    assert ended.waiting == "waiting for a to receive the end of the run"
