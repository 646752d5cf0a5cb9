"""coordinator/machine/federation.py: sessions and the runs that they carry, runs that come and go."""

from typing import Any

import pytest
from machine.service import SITES, Service, holding_back, until_answered, without
from machine.stepwise import (
    RUN,
    all_of,
    answers,
    begun,
    joins,
    members,
    offers,
    planned,
    rejected,
    started,
    told,
)
from machine.tiny import Machine, Pump, hello, make_plan, make_sites, offer_of, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.records import AttemptBegan, Ended, Phase
from coordinator.machine.scheduler import REST_SECONDS
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    Leaving,
    LedgerHead,
    Proposal,
)
from coreg_core.protocol.outcomes import Outcome

FOUR = ("a", "b", "c", "d")

# --- sessions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (
            hello("b", protocol=7),
            ["uses protocol 7", f"this coordinator {PROTOCOL_VERSION}", "Install the same release"],
        ),
        (hello("z"), ["not in this federation's list of sites (a, b, c)", "federation.toml"]),
    ],
)
def test_a_session_that_cannot_stay_gets_the_reason(late: Any, words: list[str]) -> None:
    machine = started()
    machine.handle(joins("a"))
    reason = rejected(machine, e.SiteJoined(late))
    assert all(word in reason for word in words), reason
    assert machine.awaited == ("b", "c")
    assert machine.handle(joins("b")) == [e.Notify(n.joined(RUN, "b", 2, 3))]  # once it is mended


def test_a_site_that_joins_twice_counts_once_and_its_session_is_replaced() -> None:
    machine = started()
    for _ in range(2):
        assert machine.handle(joins("a")) == [e.Notify(n.joined(RUN, "a", 1, 3))]
    assert machine.awaited == ("b", "c")
    machine.handle(joins("a", protocol=7))
    assert machine.awaited == ("a", "b", "c"), "replaced by a session that cannot stay"


def test_two_hellos_end_the_session_and_exclude_the_site_once_the_plan_is_out() -> None:
    machine, reason = started(), "a sent Hello twice in one session."
    machine.handle(joins("a"))
    left = e.Notify(n.left(RUN, "a", reason, lost=True))
    assert machine.handle(e.Received("a", hello("a"))) == [e.Reject("a", reason), left]
    assert machine.awaited == ("a", "b", "c"), "no plan is out, so it may try again"
    machine = planned()
    [reject, *_] = actions = machine.handle(e.Received("a", hello("a")))
    assert reject == e.Reject("a", reason)
    assert n.site_dismissed(RUN, "a", f"a broke the protocol: {reason}", excluded=True) in told(actions)
    why = f"a: no longer in this run: a broke the protocol: {reason}"
    assert machine.handle(joins("a")) == [
        e.Send("a", Dismissed(RUN, Outcome.SITE_FAULT, why)),
        e.Notify(n.site_dismissed(RUN, "a", why, excluded=True)),
    ]


def test_a_breach_that_the_transport_saw_excludes_the_site_as_well() -> None:
    machine = planned()
    actions = machine.handle(e.Breached("b", "a message of 10 MB"))
    assert n.site_dismissed(RUN, "b", "b broke the protocol: a message of 10 MB", excluded=True) in told(actions)
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")
    assert machine.handle(e.Breached("b", "again")) == [], "its session has ended"


def test_a_peer_without_access_is_shown_and_changes_nothing() -> None:
    machine = started()
    before = machine.federation
    assert machine.handle(e.AccessRefused("z", "revoked")) == [e.Notify(n.access_denied("z", "revoked"))]
    assert machine.federation == before


def test_timers_of_other_runs_and_dropped_timers_do_nothing() -> None:
    machine = planned()
    assert machine.handle(e.DeadlinePassed(RUN, 1)) == machine.handle(e.DeadlinePassed("run-0", 2)) == []
    assert machine.phase is Phase.PLANNING


# --- a session carries any number of runs -------------------------------------------------------------------------


@pytest.fixture
def both() -> Machine:
    """Run 1 of a, b, c has begun; run 2 of b, c, d is put in beside it, and is the machine's own."""
    first, second = begun(), Machine(make_plan(run="run-2", sites=("b", "c", "d")))
    second.federation = first.federation
    assert told(second.handle(e.Submitted(second.plan))) == [
        n.answers_in_clear("run-2"),
        n.run_began("run-2", "", 0, ("b", "c", "d"), 1.0),
        n.joined("run-2", "b", 1, 3),
        n.joined("run-2", "c", 2, 3),
    ], "sessions that are open join it at once"
    return second


def test_a_run_hears_of_its_own_sites_alone_and_of_the_messages_that_name_it(both: Machine) -> None:
    first = both.federation.runs[RUN]
    assert told(both.handle(joins("d"))) == [n.joined("run-2", "d", 3, 3), n.plan_sent("run-2", ("b", "c", "d"), 2.0)]
    all_of(both, [offers(both, s) for s in "bcd"])
    assert both.run.phase is Phase.ASKING
    assert both.federation.runs[RUN] == first, "nothing of this concerns the other run"
    second = both.run
    both.handle(answers("b"))  # of run 1
    assert both.federation.runs[RUN].awaited == ("a", "c")
    assert both.run == second
    assert both.handle(e.Received("a", offer_of("a", both.plan))) == [], "a is not in run 2"


def test_a_lost_session_concerns_every_run_of_the_site_and_an_exclusion_only_one(both: Machine) -> None:
    lost = [n.left(run, "c", "gone", lost=True) for run in (RUN, "run-2")]
    assert told(both.handle(e.SiteLost("c", "gone"))) == lost
    both.handle(e.Received("b", Fault(RUN, 0, 0, "the disk is full")))
    assert set(both.federation.runs[RUN].excluded) == {"b"}
    assert "b" in both.federation.sessions
    assert both.run.here == {"b"}


def test_without_a_scheduler_the_federation_is_done_when_every_run_is(both: Machine) -> None:
    all_of(both, [e.DeadlinePassed("run-2", both.token)])
    both.handle(offers(both, "b"))
    assert not both.federation.done
    assert both.handle(e.Interrupted()) == [e.Finish(run, Outcome.INTERRUPTED, "") for run in (RUN, "run-2")]
    assert both.federation.done
    assert rejected(both, joins("a")) == "a: run run-1, run-2 is over."


# --- runs come and go ---------------------------------------------------------------------------------------------


def test_runs_come_and_go_over_the_same_sessions_on_the_bits_of_a_federation_of_one_run() -> None:
    service = Service().joined()
    assert [x for x in service.notices if x.name == "session_opened"] == [
        n.session_opened(name, "test", "2027-01-01") for name in SITES
    ]
    for number in range(3):
        service.submit(make_plan(run=f"run-{number}"))
        assert service.finished[f"run-{number}"].outcome is Outcome.CONVERGED
        assert not service.federation.done
        assert service.federation.runs == {}, "nothing of it is kept"
        assert set(service.federation.sessions) == set(SITES), "and everybody is still there"
        assert service.bits(f"run-{number}") == undisturbed(make_plan()).bits


@pytest.mark.parametrize("limit", [1, 2])
def test_two_runs_do_not_meet_and_a_limit_of_one_keeps_them_apart(limit: int) -> None:
    plans = [make_plan(run="run-1"), make_plan(run="run-2", coupling=(0.3, 2.0))]
    service, most = Service(max_concurrent_runs=limit).joined(), 0
    service.queue += plans
    service.events.append(e.QueueChanged())
    while service.events:
        service.one()
        most = max(most, len(service.federation.computing))
    assert most == limit
    for plan in plans:
        assert service.bits(plan.run) == undisturbed(plan).bits


@pytest.mark.parametrize("after", [1, 4, 10])
def test_an_unfinished_run_begins_again_on_the_same_bits_while_another_is_under_way(after: int) -> None:
    plan, other = make_plan(run="run-1"), make_plan(run="run-2", coupling=(0.3, 2.0))
    killed = Pump(plan, make_sites(SITES), kill_after=after).join().run()
    service = Service(unfinished=(plan,))
    service.records[plan.run] = list(killed.records)
    for name, agent in service.agents.items():
        agent.runs["run-1"] = killed.sites[name]  # they went on
    service.submit(other).joined()
    assert service.bits("run-1") == undisturbed(plan).bits
    assert service.bits("run-2") == undisturbed(other).bits
    assert members(service.records["run-1"]) == [SITES] * 2


def test_a_run_that_lacks_its_sites_is_parked_and_begins_again_once_they_are_back_and_rested() -> None:
    plan = make_plan(run="run-1")
    service = Service(max_concurrent_runs=1).joined()
    service.queue += [plan, make_plan(run="run-2", sites=("a", "b"))]
    service.events.append(e.QueueChanged())
    until_answered(service, 2).agents["c"].killed()
    service.events.appendleft(e.SiteLost("c", "gone"))
    service.events = without(service.events, "c")
    service.tell().out_of_time("run-1").out_of_time("run-1")
    assert service.finished["run-1"].outcome is Outcome.STALLED
    assert service.finished["run-2"].outcome is Outcome.CONVERGED, "the slot is free"
    assert list(service.federation.scheduler.parked) == ["run-1"]
    assert service.deadlines["run-1"].seconds == min(REST_SECONDS, service.federation.timeouts.round)
    service.joined("c")
    assert service.federation.runs == {}, "it rests"
    service.out_of_time("run-1")
    assert service.finished["run-1"].outcome is Outcome.CONVERGED
    assert service.bits("run-1") == undisturbed(plan).bits
    assert members(service.records["run-1"]) == [SITES] * 2


def test_a_late_word_about_an_end_that_is_not_on_record_does_nothing_to_the_next_attempt() -> None:
    """c is slow: it says "fetched" to the end of the run's first life in its second."""
    service = Service().joined()
    fetching = holding_back(service.agents["c"], Finished)
    service.queue.append(make_plan(run="run-1"))
    service.events.append(e.QueueChanged())
    until_answered(service)
    service.events = without(service.events, "c")
    service.tell().out_of_time("run-1").out_of_time("run-1").out_of_time("run-1")
    assert list(service.federation.scheduler.parked) == ["run-1"]
    offering = holding_back(service.agents["c"], Proposal)
    service.out_of_time("run-1")
    assert fetching == [Fetched("run-1")]
    del service.agents["c"].handle
    for words in (fetching, offering):
        assert service.states() == {"run-1": Phase.PLANNING}
        service.tell(*(e.Received("c", word) for word in words))
    assert service.finished["run-1"].outcome is Outcome.CONVERGED


def test_a_run_whose_attempts_are_used_up_is_not_parked() -> None:
    plan = make_plan(run="run-1")
    service = Service(unfinished=(plan,))
    service.records[plan.run] = [AttemptBegan(9, SITES)]
    service.submit().joined()
    assert service.finished["run-1"].outcome is Outcome.STALLED
    assert service.is_over("run-1")
    assert service.federation.scheduler.parked == {}
    assert {end.outcome for end in service.ends.values()} == {Outcome.STALLED}


def test_a_run_that_ended_before_its_first_question_is_over_and_does_not_begin_again() -> None:
    """Its end is in the store: to park it would begin and end it again every few seconds."""
    service = Service().joined("a", "b").submit(make_plan(run="run-1", min_sites=3)).out_of_time("run-1")
    assert service.finished["run-1"].outcome is Outcome.TOO_FEW_SITES
    assert service.is_over("run-1")
    assert service.federation.scheduler.parked == {}


def test_a_cancelled_run_is_over_for_good_wherever_it_is_and_the_federation_goes_on() -> None:
    service = Service(max_concurrent_runs=1).joined("a").submit(make_plan(run="run-1"), make_plan(run="run-2"))
    service.tell(e.QueueRead((), {"run-1": "not today", "run-2": "nor this", "unknown": "x"}))
    assert service.finished == {"run-1": e.Finish("run-1", Outcome.CANCELLED, "not today")}
    assert [type(r) for r in service.records["run-1"]] == [Ended]
    assert not service.federation.done
    assert set(service.federation.runs) <= {"run-2"}


def test_a_run_that_is_cancelled_between_two_steps_ends_with_what_it_has() -> None:
    service = Service().joined()
    service.events.append(e.Submitted(make_plan(run="run-1")))
    until_answered(service, 4).tell(e.Cancelled("run-1", "enough"))
    assert service.finished["run-1"].outcome is Outcome.CANCELLED
    assert {m.outcome for m in service.ends.values()} == {Outcome.CANCELLED}
    assert service.federation.runs == {}


def test_a_revoked_site_is_expelled_with_the_reason_and_missed() -> None:
    service = Service().joined()
    service.tell(e.Revoked("b", "b is not in the list"), e.Revoked("z", "was never here"))
    assert service.rejected == {"b": "b is not in the list"}
    assert set(service.federation.sessions) == {"a", "c"}
    for notice in (n.session_rejected("b", "b is not in the list"), n.session_ended("b", "b is not in the list")):
        assert notice in service.notices
    service.submit(make_plan(run="run-1", min_sites=3))
    assert service.federation.runs["run-1"].awaited == ("b",)
    assert service.joined("b").finished["run-1"].outcome is Outcome.CONVERGED


def test_the_list_of_sites_and_the_limit_are_read_anew() -> None:
    service = Service(max_concurrent_runs=1).joined().tell(e.Reconfigured(("a", "b", "d"), 2))
    assert list(service.rejected) == ["c"]
    service.tell(joins("d"), joins("c"))
    assert set(service.federation.sessions) == {"a", "b", "d"}
    assert "c: not in this federation's list of sites (a, b, d)" in service.rejected["c"]
    service.submit(make_plan(run="one"), make_plan(run="two"), make_plan(run="three"))
    assert list(service.federation.runs) == ["one", "two"]


# --- the end of the process ---------------------------------------------------------------------------------------


def test_draining_leaves_what_is_under_way_and_waits_for_what_is_over() -> None:
    """The first run waits for a fourth site; of the second, one site has not fetched its end yet."""
    service = Service().joined().submit(make_plan(run="waits", sites=FOUR, min_sites=4))
    held = holding_back(service.agents["c"], Finished)
    service.submit(make_plan(run="over"), make_plan(run="queued", sites=FOUR, min_sites=4)).tell(e.Draining())
    assert service.finished["waits"].outcome is Outcome.INTERRUPTED
    assert "waits" not in service.records, "no end is written down: the next process begins it again"
    assert not service.federation.done
    service.tell(*(e.Received("c", answer) for answer in held))
    assert service.federation.done
    assert service.finished["over"].outcome is Outcome.CONVERGED


def test_no_run_begins_in_a_process_that_drains() -> None:
    """Not even one that the store was asked for when the signal came: the next process begins it again."""
    service = Service().joined()
    held = holding_back(service.agents["c"], Finished)
    service.submit(make_plan(run="over"))
    service.queue.append(make_plan(run="late"))
    service.tell(e.QueueRead(tuple(service.queue)), e.Draining())
    assert list(service.federation.runs) == ["over"]
    service.tell(*(e.Received("c", answer) for answer in held))
    assert service.federation.done


def test_only_the_head_of_a_run_that_ends_is_countersigned() -> None:
    signed = LedgerHead(7, "ab", "2026-01-01")
    service = Service().joined()
    service.events.append(e.Submitted(make_plan(run="run-1")))
    until_answered(service).events.append(e.Received("a", Fetched("invented", signed, "03")))
    asked = list[e.Action]()
    while service.events:
        asked += [a for a in service.one() if isinstance(a, e.Countersign)]
    assert asked == []
    assert service.finished["run-1"].outcome is Outcome.CONVERGED


def test_an_interrupt_waits_for_no_site() -> None:
    service = Service().joined().submit(make_plan(run="waits", sites=FOUR, min_sites=4))
    assert service.tell(e.Interrupted()).federation.done


def test_a_service_of_one_study_is_done_when_its_queue_is_empty() -> None:
    service = Service(exit_when_idle=True, waiting=(make_plan(run="one"),), max_concurrent_runs=1)
    service.queue.append(make_plan(run="one"))
    assert not service.federation.done
    service.tell(e.QueueChanged()).out_of_time("one")
    assert service.finished["one"].outcome is Outcome.TOO_FEW_SITES
    assert service.federation.done, "it is not parked: the process does not wait without a limit"


def test_a_federation_of_one_run_notifies_nobody_of_sessions() -> None:
    machine = started()
    notices = told(all_of(machine, [joins("a"), e.Received("a", Leaving("over"))]))
    assert not [x for x in notices if x.name.startswith("session_")]
