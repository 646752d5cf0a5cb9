"""coordinator/machine/membership.py: joining, offering, and who takes part: lost, dropped, excluded; also after a restart."""

from dataclasses import replace
from typing import Any

import pytest
from machine.stepwise import (
    RUN,
    all_of,
    answers,
    approval,
    begun,
    comes_back,
    dismissed,
    fetches,
    joins,
    members,
    offers,
    planned,
    sends,
    started,
    steps_sent,
    told,
    waits,
    written,
)
from machine.tiny import Machine, Pump, make_plan, make_sites, restarted, sealed, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.records import AttemptBegan, Begun, Ended, Phase, StepDone, Timeouts
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

CONTINUES = make_plan(on_dropout="continue")

# --- before the first step ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "lost"),
    [(e.SiteLost("a", "its stream ended"), True), (e.Received("a", m.Leaving("its stream ended")), False)],
)
def test_a_site_that_goes_before_the_plan_is_out_is_awaited_again(event: e.Event, lost: bool) -> None:
    machine = started()
    machine.handle(joins("a"))
    assert machine.handle(event) == [e.Notify(n.left(RUN, "a", "its stream ended", lost=lost))]
    assert machine.awaited == ("a", "b", "c")
    assert machine.handle(event) == []


def test_time_settings_are_the_callers() -> None:
    assert Machine(make_plan(), Timeouts(join=9.0)).start()[-1] == e.SetDeadline(RUN, 1, 9.0)


def test_too_few_sites_join() -> None:
    machine, reason = started(), "a, c did not join within 1 s"
    machine.handle(joins("b"))
    [ended] = written(actions := machine.handle(machine.deadline))
    assert ended == Ended(Outcome.TOO_FEW_SITES, reason)
    assert actions[1:] == [
        e.Notify(n.run_ended(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.Send("b", m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.SetDeadline(RUN, 2, 3.0),
    ]
    assert machine.handle(fetches("b"))[-1] == e.Finish(RUN, Outcome.TOO_FEW_SITES, reason)
    nobody = started()
    reason = "a, b, c did not join within 1 s"
    assert nobody.handle(nobody.deadline)[-1] == e.Finish(RUN, Outcome.TOO_FEW_SITES, reason)


def test_too_few_sites_offer_in_time() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), machine.deadline])
    reason = "b, c did not accept the plan in time"
    assert sends(actions) == [e.Send(s, m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)) for s in "abc"]


def test_enough_sites_go_on_without_one_that_did_not_join_and_do_not_wait_for_it_again() -> None:
    machine = started()
    actions = all_of(machine, [joins("a"), joins("b"), machine.deadline])
    assert n.going_on_without(RUN, ("c",), "join in time") in told(actions)
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 0, machine.plan)) for s in "ab"]
    all_of(machine, [offers(machine, "a"), offers(machine, "b")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_enough_sites_go_on_without_one_that_did_not_answer_the_plan() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    assert n.going_on_without(RUN, ("c",), "accept the plan in time") in told(actions)
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


# --- approvals ----------------------------------------------------------------------------------------------------


def test_operators_have_a_timeout_of_their_own_once_nobody_else_is_awaited() -> None:
    machine = planned()
    actions = machine.handle(approval("c"))
    assert told(actions) == [n.approval_awaited(RUN, ("c",), 0, 3, 500.0)]
    assert waits(machine) == "waiting for a, b to check the plan and factor its data and for approval by c"
    machine.handle(offers(machine, "a"))
    actions = machine.handle(offers(machine, "b"))
    assert told(actions)[-1] == n.approval_awaited(RUN, ("c",), 2, 3, 500.0)
    assert [a.seconds for a in actions if isinstance(a, e.SetDeadline)] == [500.0]
    assert waits(machine) == "waiting for approval by c"
    assert machine.handle(approval("c")) == [], "it comes again with a new session, and changes nothing"
    actions = machine.handle(approval("c", given=True))
    assert told(actions) == [n.approved(RUN, "c")]
    assert [a.seconds for a in actions if isinstance(a, e.SetDeadline)] == [2.0], "it factors now"
    assert waits(machine) == "waiting for c to check the plan and factor its data"
    assert machine.handle(approval("c")) == []
    machine.handle(offers(machine, "c"))
    assert machine.phase is Phase.ASKING


def test_a_site_that_neither_accepts_nor_asks_its_operator_has_the_time_for_the_plan_alone() -> None:
    machine = planned()
    all_of(machine, [offers(machine, "a"), approval("c"), machine.deadline])
    assert machine.run.ending[1] == "b, c did not accept the plan in time"


def test_the_plan_timeout_passes_to_the_operators_and_theirs_ends_the_wait() -> None:
    machine = planned()
    all_of(machine, [offers(machine, "a"), approval("b"), approval("c"), machine.deadline])
    assert machine.phase is Phase.PLANNING
    assert machine.run.operators
    machine.handle(machine.deadline)
    assert machine.run.ending[1] == "b, c did not approve the plan within 500 s"


def test_a_site_that_has_not_connected_is_waited_for_by_name() -> None:
    machine = started()
    machine.handle(joins("a"))
    assert waits(machine) == "waiting for b, c to connect"


def test_who_offered_alone_may_mend_its_own_list_and_who_offers_twice_counts_once() -> None:
    machine = planned()
    machine.handle(offers(machine, "a", n_unlabelled=5))
    assert machine.handle(offers(machine, "a")) == []
    all_of(machine, [e.SiteLost("a", "stopped by its operator"), joins("a")])
    assert machine.handle(offers(machine, "a"))[0] == e.Expect(RUN, machine.plan.most_words(6))
    assert machine.handle(offers(machine, "b")) == [e.Notify(n.plan_accepted(RUN, "b"))]


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (make_plan(), {"plan_digest": "other"}),
        (make_plan(), {"site": "a"}),
        *((sealed(make_plan()), {name: ""}) for name in ("key", "signature")),
    ],
)
def test_an_offer_that_cannot_be_used_excludes_the_site(plan: Plan, changes: Any) -> None:
    machine = planned(plan)
    assert dismissed(machine, offers(machine, "b", **changes), Outcome.SITE_FAULT, excluded=True).startswith("b")
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")


def test_a_refusal_ends_a_run_that_needs_the_site_and_is_borne_where_enough_remain() -> None:
    refusal, reason = e.Received("b", m.PlanRefused(RUN, "no")), "b refused the plan: no"
    actions = planned(make_plan(min_sites=3)).handle(refusal)
    assert told(actions)[0] == n.site_dismissed(RUN, "b", reason, excluded=True)
    assert sends(actions) == [
        e.Send("b", m.Dismissed(RUN, Outcome.REFUSED, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.REFUSED, reason)) for s in "ac"),
    ]
    machine = planned()
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert steps_sent(machine.handle(refusal)).keys() == set("ac")
    assert machine.handle(e.Received("b", m.PlanRefused("another-run", "no"))) == []


def test_after_a_refusal_sites_that_did_not_join_are_needed_again() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("b"), machine.deadline, offers(machine, "a")])
    machine.handle(e.Received("b", m.PlanRefused(RUN, "no")))
    assert (machine.phase, machine.awaited) == (Phase.PLANNING, ("c",))
    all_of(machine, comes_back(machine, "c"))
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "c"))


# --- lost, waited for, changed ------------------------------------------------------------------------------------


def test_a_plan_that_waits_stalls_and_takes_the_lost_site_back_where_it_was() -> None:
    machine = begun()
    actions = all_of(machine, [e.SiteLost("b", "gone"), answers("a"), answers("c"), machine.deadline])
    assert (machine.phase, told(actions)[-1]) == (Phase.STALLED, n.stalled(RUN, ("b",), 4.0))
    all_of(machine, comes_back(machine, "b"))
    assert machine.phase is Phase.STALLED
    assert steps_sent(machine.handle(answers("b"))).keys() == set("abc")
    assert (machine.phase, machine.attempt, machine.participants) == (Phase.ASKING, 0, ("a", "b", "c"))


def test_a_site_that_comes_back_changed_is_refused_and_may_come_back_as_it_was() -> None:
    machine = begun()
    all_of(machine, [e.SiteLost("b", "gone"), joins("b")])
    dismissed(machine, offers(machine, "b", n_unlabelled=5), Outcome.REFUSED, excluded=False)
    assert machine.phase is Phase.ASKING
    assert machine.handle(answers("b")) == [], "the run does not hear it"
    assert steps_sent(all_of(machine, comes_back(machine, "b"))).keys() == {"b"}


# --- dropped ------------------------------------------------------------------------------------------------------


def next_attempt(machine: Machine, *sites: str) -> list[e.Action]:
    return all_of(machine, [offers(machine, s) for s in sites])


def test_a_plan_that_continues_goes_on_without_the_lost_site_in_another_attempt() -> None:
    machine = begun(CONTINUES)
    actions = all_of(machine, [e.SiteLost("b", "gone"), answers("a"), answers("c"), machine.deadline])
    assert told(actions)[1:] == [n.going_on_without(RUN, ("b",), "answer in time"), n.plan_sent(RUN, ("a", "c"), 2.0)]
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 1, CONTINUES)) for s in "ac"]
    assert written(next_attempt(machine, "a", "c")) == [AttemptBegan(1, ("a", "c"))]


def test_a_dropped_site_hears_so_and_stays_out_whatever_it_does() -> None:
    machine = begun(CONTINUES)
    actions = all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert sends(actions)[0] == e.Send("c", m.Dismissed(RUN, Outcome.STALLED, "c: did not answer in time."))
    assert machine.handle(answers("c")) == [], "the run does not hear it"
    next_attempt(machine, "a", "b")
    for _ in range(2):
        reason = dismissed(machine, joins("c"), Outcome.STALLED, excluded=True)
        assert reason == "c: no longer in this run: c: did not answer in time."
        assert machine.handle(offers(machine, "c")) == machine.handle(e.SiteLost("c", "gone")) == []
    all_of(machine, [answers(s, 0, 1) for s in "ab"])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_below_the_minimum_it_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(CONTINUES)
    all_of(machine, [e.SiteLost("b", "gone"), e.SiteLost("c", "gone"), answers("a"), machine.deadline])
    assert (machine.phase, machine.awaited) == (Phase.STALLED, ("b", "c"))
    all_of(machine, comes_back(machine, "b"))
    assert sends(machine.handle(answers("b"))) == [e.Send(s, m.Proposal(RUN, 1, CONTINUES)) for s in "ab"]
    next_attempt(machine, "a", "b")
    assert machine.participants == ("a", "b")


@pytest.mark.parametrize("answers_too", [False, True])
def test_a_missing_site_that_is_back_has_its_time_to_answer(answers_too: bool) -> None:
    """To be dropped is for good."""
    machine = begun(CONTINUES)
    all_of(machine, [e.SiteLost("b", "gone"), e.SiteLost("c", "gone"), answers("a"), machine.deadline])
    all_of(machine, [*comes_back(machine, "b"), *comes_back(machine, "c")])
    assert machine.handle(answers("b")) == []
    actions = machine.handle(answers("c") if answers_too else machine.deadline)
    assert bool(steps_sent(actions)) is answers_too
    assert (machine.phase, machine.attempt) == ((Phase.ASKING, 0) if answers_too else (Phase.PLANNING, 1))


def test_a_site_that_answered_and_is_away_is_in_the_next_attempt() -> None:
    machine = begun(CONTINUES)
    all_of(machine, [answers("a"), answers("b"), e.SiteLost("b", "for a moment"), machine.deadline])
    assert (machine.phase, machine.awaited) == (Phase.PLANNING, ("a", "b"))
    all_of(machine, [offers(machine, "a"), *comes_back(machine, "b")])
    assert machine.participants == ("a", "b")


@pytest.mark.parametrize(("may_change", "phase"), [(False, Phase.STALLED), (True, Phase.PLANNING)])
def test_under_sealed_sums_nobody_is_dropped_unless_the_plan_lets_memberships_change(
    may_change: bool, phase: Phase
) -> None:
    machine = begun(sealed(make_plan(on_dropout="continue", membership_changes=may_change)))
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert machine.phase is phase
    machine = begun(sealed(make_plan(on_dropout="continue", membership_changes=may_change)))
    machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "x")))
    assert machine.phase is (Phase.PLANNING if may_change else Phase.ENDING)


@pytest.mark.parametrize(("on_dropout", "goes_on"), [("wait", False), ("continue", True)])
def test_a_site_that_does_not_offer_for_the_next_attempt_is_dropped_where_the_plan_continues(
    on_dropout: str, goes_on: bool
) -> None:
    machine = begun(make_plan(on_dropout=on_dropout))
    all_of(machine, [joins("a"), offers(machine, "a", key="new")])
    assert (machine.phase, machine.attempt) == (Phase.PLANNING, 1)
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    if goes_on:
        assert n.going_on_without(RUN, ("c",), "accept the plan in time") in told(actions)
        assert machine.participants == ("a", "b")
    else:
        assert machine.run.ending == (Outcome.TOO_FEW_SITES, "c did not accept the plan in time")
        assert not machine.run.final


# --- the sites of a run are those of its first attempt ------------------------------------------------------------


def test_connected_sites_that_have_not_offered_when_it_begins_are_dismissed() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    reason = "c: the run began without this site."
    assert e.Send("c", m.Dismissed(RUN, Outcome.STALLED, reason)) in sends(actions)
    assert dismissed(machine, joins("c"), Outcome.STALLED, excluded=True).endswith(reason)


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_who_was_never_a_member_does_not_become_one_by_another_attempt(
    secure: bool, on_dropout: str, again: bool
) -> None:
    """Sums over one site more would tell its answers."""
    plan = make_plan(sites=tuple("abcd"), min_sites=3, on_dropout=on_dropout)
    plan = sealed(plan) if secure else plan
    pump = Pump(plan, make_sites("abcd")).join(*"abc").run()
    pump.carry_out(pump.machine.handle(pump.machine.deadline))
    pump.steps(4).join("d")
    pump = pump.restarted().join().run() if again else pump.kill("a").run()
    assert pump.outcome is Outcome.CONVERGED
    assert members(pump.records) == [("a", "b", "c")] * 2
    assert pump.bits.keys() == set("abc")
    assert pump.bits == undisturbed(replace(plan, membership=replace(plan.membership, sites=tuple("abc")))).bits


@pytest.mark.parametrize("plan", [make_plan(), sealed(make_plan()), CONTINUES], ids=["wait", "sealed", "continue"])
def test_two_sites_that_restart_one_after_the_other_are_both_waited_for(plan: Plan) -> None:
    """The first of them begins another attempt; the one that is still away is a member, and away for a moment."""
    pump = Pump(plan, make_sites("abc")).join().steps(5)
    for name in "bc":
        pump.sites[name] = restarted(pump.sites[name])
        pump.lose(name)
    pump.join("b").run()
    assert (pump.machine.phase, pump.machine.awaited) == (Phase.PLANNING, ("c",))
    pump.join("c").run()
    assert pump.outcome is Outcome.CONVERGED
    assert members(pump.records) == [("a", "b", "c")] * 2
    assert pump.bits == undisturbed(plan).bits


def test_what_is_computed_with_a_site_fewer_is_the_run_of_those_who_are_left() -> None:
    pump = Pump(CONTINUES, make_sites("abc")).join().steps(4)
    pump.lose("c").out_of_time().run()
    assert pump.outcome is Outcome.CONVERGED
    pump.bits.pop("c", None)
    assert pump.bits == Pump(CONTINUES, make_sites("ab")).join().out_of_time().run().bits


@pytest.mark.parametrize(("on_dropout", "converges"), [("continue", True), ("wait", False)])
def test_a_site_that_restarts_at_every_step_costs_a_bounded_number_of_attempts(
    on_dropout: str, converges: bool
) -> None:
    pump, attempts = Pump(make_plan(on_dropout=on_dropout), make_sites("abc")).join(), 0
    while pump.end is None and pump.machine.phase is not Phase.ENDING:
        attempts = pump.machine.attempt
        pump.steps(1 + sum(isinstance(r, StepDone) for r in pump.records)).kill("c")
        if converges and attempts == 2:
            pump.lose("c").out_of_time()
            break
        pump.events.rotate(1)
        while pump.machine.attempt == attempts and pump.machine.phase is not Phase.ENDING:
            pump.step()
        while pump.machine.phase is Phase.PLANNING:
            pump.step()
    pump.run()
    assert pump.machine.run.ending[0] is (Outcome.CONVERGED if converges else Outcome.STALLED)
    assert len(members(pump.records)) == (4 if converges else 10)
    assert not pump.breaches


# --- after a restart ----------------------------------------------------------------------------------------------

AGAIN = Begun(2, ("a", "b", "c"), 17)
FOUR = make_plan(sites=("a", "b", "c", "d"), min_sites=2)


def test_a_run_that_begins_again_waits_for_its_own_sites_and_begins_from_its_beginning() -> None:
    machine = Machine(FOUR, begun=AGAIN)
    assert machine.start() == [
        e.Notify(n.answers_in_clear(RUN)),
        e.Notify(n.run_began(RUN, "", 3, ("a", "b", "c"), 1.0)),
        e.SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.phase is Phase.ENROLLING
    dismissed(machine, joins("d"), Outcome.STALLED, excluded=True)
    assert sends(all_of(machine, [joins("a"), joins("b")])) == []
    assert sends(machine.handle(joins("c"))) == [e.Send(s, m.Proposal(RUN, 3, FOUR)) for s in "abc"]
    actions = next_attempt(machine, "a", "b", "c")
    assert written(actions) == [AttemptBegan(3, ("a", "b", "c"))]
    assert {step.step for step in steps_sent(actions).values()} == {0}
    assert [r.number for r in written(all_of(machine, [answers(s, 0, 3) for s in "abc"]))] == [17]


def test_a_run_before_its_first_attempt_waits_for_all_sites_of_its_plan() -> None:
    machine = started(FOUR, Begun())
    assert machine.awaited == FOUR.sites
    assert machine.attempt == 0


@pytest.mark.parametrize(("on_dropout", "goes_on"), [("wait", False), ("continue", True)])
def test_a_run_that_begins_again_goes_on_without_a_site_only_where_the_plan_says_so(
    on_dropout: str, goes_on: bool
) -> None:
    machine = started(replace(FOUR, membership=replace(FOUR.membership, on_dropout=on_dropout)), AGAIN)
    actions = all_of(machine, [joins("a"), joins("c"), machine.deadline])
    if not goes_on:
        assert machine.run.ending == (Outcome.TOO_FEW_SITES, "b did not join within 1 s")
        assert written(actions) == [], "it is not over for good"
        return
    assert n.going_on_without(RUN, ("b",), "join in time") in told(actions)
    dismissed(machine, joins("b"), Outcome.STALLED, excluded=True)
    assert written(next_attempt(machine, "a", "c")) == [AttemptBegan(3, ("a", "c"))]
