"""coordinator/machine/membership.py: joining, offering, and who takes part: lost, dropped, taken back, excluded."""

from collections.abc import Callable, Iterable
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
from coordinator.machine.phases import Phase, Timeouts
from coordinator.machine.records import AttemptBegan, Record, SiteExcluded
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
    assert machine.handle(event) == [e.Notify(n.Left(RUN, "a", "its stream ended", lost))]
    assert machine.awaited == ("a", "b", "c")
    assert machine.handle(event) == []


def test_time_settings_are_the_callers() -> None:
    assert Machine(make_plan(), Timeouts(join=9.0)).start()[-1] == e.SetDeadline(RUN, 1, 9.0)


def test_too_few_sites_join() -> None:
    machine, reason = started(), "a, c did not join within 1 s"
    machine.handle(joins("b"))
    [ended] = written(actions := machine.handle(machine.deadline))
    assert (ended.outcome, ended.reason, ended.heads) == (Outcome.TOO_FEW_SITES, reason, ())
    assert actions[1:] == [
        e.Notify(n.RunEnded(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.Send("b", m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.SetDeadline(RUN, 2, 3.0),
    ]
    assert machine.handle(fetches("b"))[-1] == e.Finish(RUN, Outcome.TOO_FEW_SITES, reason)
    nobody = started()
    assert nobody.handle(nobody.deadline)[-1].reason == "a, b, c did not join within 1 s"


def test_too_few_sites_offer_in_time() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), machine.deadline])
    reason = "b, c did not accept the plan in time"
    assert sends(actions) == [e.Send(s, m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)) for s in "abc"]


def test_enough_sites_go_on_without_one_that_did_not_join_and_do_not_wait_for_it_again() -> None:
    machine = started()
    actions = all_of(machine, [joins("a"), joins("b"), machine.deadline])
    assert n.GoingOnWithout(RUN, ("c",), "join in time") in told(actions)
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 0, machine.plan)) for s in "ab"]
    all_of(machine, [offers(machine, "a"), offers(machine, "b")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_enough_sites_go_on_without_one_that_did_not_answer_the_plan() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    assert n.GoingOnWithout(RUN, ("c",), "accept the plan in time") in told(actions)
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


# --- approvals ----------------------------------------------------------------------------------------------------


def test_operators_have_a_timeout_of_their_own_once_nobody_else_is_awaited() -> None:
    machine = planned()
    actions = machine.handle(approval("c"))
    assert told(actions) == [n.ApprovalAwaited(RUN, ("c",), 0, 3)]
    assert waits(machine) == "waiting for a, b to check the plan and factor its data and for approval by c"
    machine.handle(offers(machine, "a"))
    actions = machine.handle(offers(machine, "b"))
    assert told(actions)[-1] == n.ApprovalAwaited(RUN, ("c",), 2, 3)
    assert [a.seconds for a in actions if isinstance(a, e.SetDeadline)] == [500.0]
    assert waits(machine) == "waiting for approval by c"
    assert machine.handle(approval("c")) == [], "it comes again with a new session, and changes nothing"
    actions = machine.handle(approval("c", given=True))
    assert told(actions) == [n.Approved(RUN, "c")]
    assert [a.seconds for a in actions if isinstance(a, e.SetDeadline)] == [2.0], "it factors now"
    assert waits(machine) == "waiting for c to check the plan and factor its data"
    assert machine.handle(approval("c")) == []
    machine.handle(offers(machine, "c"))
    assert machine.phase is Phase.ASKING


def test_a_site_that_neither_accepts_nor_asks_its_operator_has_the_time_for_the_plan_alone() -> None:
    machine = planned()
    all_of(machine, [offers(machine, "a"), approval("c"), machine.deadline])
    assert machine.run.live.ending[1] == "b, c did not accept the plan in time"


def test_the_plan_timeout_passes_to_the_operators_and_theirs_ends_the_wait() -> None:
    machine = planned()
    all_of(machine, [offers(machine, "a"), approval("b"), approval("c"), machine.deadline])
    assert machine.phase is Phase.PLANNING
    assert machine.run.live.operators
    machine.handle(machine.deadline)
    assert machine.run.live.ending[1] == "b, c did not approve the plan within 500 s"


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
    assert machine.handle(offers(machine, "b")) == [e.Notify(n.PlanAcceptedBy(RUN, "b"))]


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
    assert told(actions)[0] == n.SiteDismissed(RUN, "b", reason, excluded=True)
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
    assert (machine.phase, told(actions)[-1]) == (Phase.STALLED, n.Stalled(RUN, ("b",), 4.0))
    all_of(machine, comes_back(machine, "b"))
    assert machine.phase is Phase.STALLED
    assert steps_sent(machine.handle(answers("b"))).keys() == set("abc")
    assert (machine.phase, machine.attempt, machine.participants) == (Phase.ASKING, 0, ("a", "b", "c"))


@pytest.mark.parametrize("changes", [{"data_digest": "other"}, {"n_unlabelled": 5}])
def test_a_site_that_comes_back_changed_is_refused_and_may_come_back_as_it_was(changes: Any) -> None:
    machine = begun()
    all_of(machine, [e.SiteLost("b", "gone"), joins("b")])
    dismissed(machine, offers(machine, "b", **changes), Outcome.REFUSED, excluded=False)
    assert machine.phase is Phase.ASKING
    assert machine.handle(answers("b")) == [], "the run does not hear it"
    assert steps_sent(all_of(machine, comes_back(machine, "b"))).keys() == {"b"}


def test_the_data_that_a_site_joined_with_are_remembered_over_kills_and_drops() -> None:
    machine = begun()
    again = started(machine.plan, [AttemptBegan(0, ("a", "b"), 0, {"a": "data-of-a", "b": "data-of-b", "c": "older"})])
    all_of(again, [joins("c")])
    told_to_c = dismissed(again, offers(again, "c"), Outcome.REFUSED, excluded=False)
    assert "reconnected with different data or preprocessing" in told_to_c


# --- going on without, and taking back ----------------------------------------------------------------------------


def next_attempt(machine: Machine, *sites: str) -> list[e.Action]:
    return all_of(machine, [offers(machine, s) for s in sites])


def test_a_plan_that_continues_goes_on_without_the_lost_site_in_another_attempt() -> None:
    machine = begun(CONTINUES)
    actions = all_of(machine, [e.SiteLost("b", "gone"), answers("a"), answers("c"), machine.deadline])
    assert told(actions)[1:] == [n.GoingOnWithout(RUN, ("b",), "answer in time"), n.PlanSent(RUN, ("a", "c"))]
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 1, CONTINUES)) for s in "ac"]
    [began] = written(next_attempt(machine, "a", "c"))
    assert (began.attempt, began.participants, began.dropped, began.returns) == (1, ("a", "c"), {"b": 0}, {})


def test_below_the_minimum_it_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(CONTINUES)
    all_of(machine, [e.SiteLost("b", "gone"), e.SiteLost("c", "gone"), answers("a"), machine.deadline])
    assert (machine.phase, machine.awaited) == (Phase.STALLED, ("b", "c"))
    all_of(machine, comes_back(machine, "b"))
    assert sends(machine.handle(answers("b"))) == [e.Send(s, m.Proposal(RUN, 1, CONTINUES)) for s in "ab"]
    next_attempt(machine, "a", "b")
    assert machine.participants == ("a", "b")


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
def test_a_newcomer_is_taken_in_after_a_step_where_the_plan_continues_and_nobody_is_dropped_for_it(
    on_dropout: str,
) -> None:
    machine = begun(make_plan(on_dropout=on_dropout), "a", "b")
    assert steps_sent(all_of(machine, comes_back(machine, "c"))) == {}, "nobody is asked on trial"
    all_of(machine, [answers("a"), e.SiteLost("a", "for a moment"), answers("b")])
    if on_dropout == "wait":
        assert machine.participants == ("a", "b")
        return
    assert (machine.phase, machine.attempt) == (Phase.PLANNING, 1)
    next_attempt(machine, "b", "c")
    machine.handle(joins("a"))
    next_attempt(machine, "a")
    assert machine.participants == ("a", "b", "c")


def test_under_sealed_sums_nobody_is_taken_back_unless_the_plan_lets_memberships_change() -> None:
    for may_change in (False, True):
        plan = sealed(make_plan(on_dropout="continue", membership_changes=may_change))
        machine = begun(plan, "a", "b")
        all_of(machine, [*comes_back(machine, "c"), answers("a"), answers("b")])
        assert machine.phase is (Phase.PLANNING if may_change else Phase.ASKING)


def test_a_site_that_is_not_counted_on_may_fail() -> None:
    machine = begun(CONTINUES, "a", "b")
    all_of(machine, comes_back(machine, "c"))
    assert machine.handle(e.Received("c", m.Fault(RUN, 0, 0, "no"))) == [], "it was asked nothing"
    dismissed(machine, e.Received("c", m.PlanRefused(RUN, "no")), Outcome.REFUSED, excluded=True)
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_a_late_answer_to_the_step_that_a_site_was_dropped_at_shows_that_it_is_there() -> None:
    machine = begun(CONTINUES)
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    next_attempt(machine, "a", "b")
    assert machine.handle(answers("c")) == []
    all_of(machine, comes_back(machine, "c"))
    all_of(machine, [answers(s, 0, 1) for s in "ab"])
    assert written(next_attempt(machine, "a", "b", "c"))[0].returns == {"c": 1}


def test_most_returns_may_be_none_at_all() -> None:
    machine = begun(make_plan(on_dropout="continue", max_rejoins=0))
    actions = all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert [r.outcome for r in written(actions) if isinstance(r, SiteExcluded)] == [Outcome.STALLED]
    next_attempt(machine, "a", "b")
    assert machine.participants == ("a", "b")


def test_a_site_that_joins_offers_and_leaves_again_and_again_changes_nothing() -> None:
    machine = begun(CONTINUES, "a", "b")
    machine.handle(answers("a"))
    token = machine.token
    for _ in range(50):
        all_of(machine, [*comes_back(machine, "c"), e.Received("c", m.Leaving("stopped"))])
        assert (machine.token, machine.participants, machine.phase) == (token, ("a", "b"), Phase.ASKING)
    assert steps_sent(machine.handle(answers("b"))).keys() == {"a", "b"}


@pytest.mark.parametrize("plan", [make_plan(), sealed(make_plan()), CONTINUES], ids=["wait", "sealed", "continue"])
def test_two_sites_that_come_back_one_after_the_other_are_both_waited_for(plan: Plan) -> None:
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


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("secure", [False, True])
def test_who_was_never_a_member_does_not_become_one_by_another_attempt(secure: bool, resumed: bool) -> None:
    """A plan that waits keeps its sites: sums over one site more would tell its answers, and nobody would give them."""
    plan = make_plan(sites=tuple("abcd"), min_sites=3)
    plan = sealed(plan) if secure else plan
    pump = Pump(plan, make_sites("abcd")).join(*"abc").run()
    pump.carry_out(pump.machine.handle(pump.machine.deadline))
    pump.steps(4).join("d")
    pump = pump.resumed().join().run() if resumed else pump.kill("a").run()
    assert pump.outcome is Outcome.CONVERGED
    assert members(pump.records)[-1] == ("a", "b", "c")
    assert pump.bits.keys() == set("abc")


DEADLINES = 60


def with_a_wavering_site(plan: Plan, answers_when: Callable[[Pump, m.Step], bool]) -> Pump:
    """c joins anew at every deadline, offers, and answers steps as it likes."""
    sites = make_sites(plan.sites)
    pump = Pump(plan, sites)
    honest = sites["c"].handle

    def handle(message: m.ToSite) -> list[m.FromSite]:
        told_to_c = honest(message)
        return [] if isinstance(message, m.Step) and not answers_when(pump, message) else told_to_c

    sites["c"].handle = handle  # type: ignore[method-assign]
    pump.join()
    for _ in range(DEADLINES):
        if pump.end is None:
            pump.out_of_time().join("c")
    return pump


def pauses_of(records: Iterable[Record], site: str) -> list[int]:
    """How many steps the run went on without the site, for each time that it was taken back."""
    pauses, since = [], None
    for record in records:
        if isinstance(record, AttemptBegan):
            if site in record.participants and since is not None:
                pauses.append(record.steps - since)
            since = None if site in record.participants else since if since is not None else record.steps
    return pauses


@pytest.mark.parametrize(
    "wavers", [lambda pump, step: False, lambda pump, step: step.step < 3], ids=["mute", "three steps"]
)
def test_a_site_that_wavers_costs_a_bounded_number_of_attempts_and_the_run_converges(wavers: Any) -> None:
    """Pauses double, returns are counted, and a site that is taken back too often is excluded."""
    pump = with_a_wavering_site(make_plan(on_dropout="continue", max_rejoins=3), wavers)
    assert pump.outcome is Outcome.CONVERGED
    assert set(pump.bits) >= {"a", "b"}
    assert len(members(pump.records)) <= 2 + 2 * 3
    pauses = pauses_of(pump.records, "c")
    assert pauses == sorted(pauses)
    assert all(pause >= 2**i for i, pause in enumerate(pauses)), pauses
    excluded = [r for r in pump.records if isinstance(r, SiteExcluded)]
    assert all("after it rejoined 3 times" in r.reason for r in excluded)
    assert not pump.breaches


def test_what_is_computed_with_a_site_fewer_is_the_run_of_those_who_are_left() -> None:
    pump = Pump(CONTINUES, make_sites("abc")).join().steps(4)
    pump.lose("c").out_of_time().run()
    assert pump.outcome is Outcome.CONVERGED
    assert pump.bits == Pump(CONTINUES, make_sites("ab")).join().out_of_time().run().bits
