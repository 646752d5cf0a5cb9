"""coordinator/machine/membership.py: joining, offering, and who takes part: lost, dropped,
excluded; also after a restart.
"""

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
from machine.tiny import IDS, Machine, Pump, make_plan, make_sites, sealed, undisturbed

from coordinator.machine import notices as n
from coordinator.machine.events import (
    Action,
    Finish,
    NotifyObservers,
    Received,
    SendToSite,
    SetDeadline,
    SiteLost,
)
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import AttemptBegan, Begun, Ended, Phase
from coreg_core.messages import Dismissed, Fault, Finished, PlanRefused, Proposal
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan

CONTINUES = make_plan(on_dropout="continue")

# --- before the first step ------------------------------------------------------------------------


def test_too_few_sites_join_or_offer_in_time() -> None:
    machine = started()
    reason = "a, c did not join within 1 s"
    machine.handle(joins("b"))
    assert waits(machine) == "waiting for a, c to connect"
    actions = machine.handle(machine.deadline)
    [ended] = written(actions)
    assert ended == Ended(Outcome.TOO_FEW_SITES, reason)
    assert actions[1:] == [
        NotifyObservers(n.run_ended(RUN, Outcome.TOO_FEW_SITES, reason)),
        SendToSite("b", Finished(RUN, Outcome.TOO_FEW_SITES, reason)),
        SetDeadline(RUN, 2, 3.0),
    ]
    assert machine.handle(fetches("b"))[-1] == Finish(RUN, Outcome.TOO_FEW_SITES, reason)
    machine = planned()
    all_of(machine, [offers(machine, "a"), approval("c"), machine.deadline])
    assert machine.ending == (Outcome.TOO_FEW_SITES, "b, c did not accept the plan in time")


REHEARSAL = replace(make_plan(), rehearsal=True)


def test_a_rehearsal_ends_with_the_offers_and_sends_no_step() -> None:
    machine = planned(REHEARSAL)
    actions = all_of(machine, [offers(machine, site) for site in "abc"])
    outcome, reason = machine.ending
    assert outcome is Outcome.REHEARSED
    assert reason.startswith("a rehearsal, without any answer about rows: a would take part, with ")
    assert [site for site in "abc" if f"{site} would take part" in reason] == ["a", "b", "c"]
    assert steps_sent(actions) == {}
    assert written(actions) == [Ended(outcome, reason)], "no attempt began"


def test_a_rehearsal_hears_every_site_before_it_ends_refused() -> None:
    machine = planned(REHEARSAL)
    machine.handle(Received("b", PlanRefused(RUN, "noise is below its policy.")))
    assert machine.ending is None, "the others say what they would do"
    all_of(machine, [offers(machine, "a"), offers(machine, "c")])
    outcome, reason = machine.ending
    assert outcome is Outcome.REFUSED
    assert "b refused the plan: noise is below its policy" in reason
    assert "c would take part" in reason


def test_sites_end_a_rehearsal_without_a_result() -> None:
    pump = Pump(REHEARSAL, make_sites("abc")).join().run()
    assert pump.outcome == Outcome.REHEARSED
    assert pump.bits == {}
    assert pump.missed == {}


def test_operators_have_a_timeout_of_their_own_once_nobody_else_is_awaited() -> None:
    machine = planned()
    assert told(machine.handle(approval("c"))) == [
        n.notice(NoticeName.APPROVAL_AWAITED, RUN, sites=("c",), approved=0, of=3, seconds=500.0)
    ]
    assert (
        waits(machine)
        == "waiting for a, b to check the plan and factor its data and for approval by c"
    )
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b")])
    assert told(actions)[-1] == n.notice(
        NoticeName.APPROVAL_AWAITED, RUN, sites=("c",), approved=2, of=3, seconds=500.0
    )
    assert [a.seconds for a in actions if isinstance(a, SetDeadline)] == [500.0]
    assert waits(machine) == "waiting for approval by c"
    assert machine.handle(approval("c")) == [], (
        "it comes again with a new session, and changes nothing"
    )
    late = planned()
    all_of(late, [offers(late, "a"), approval("b"), approval("c"), late.deadline])
    late.handle(late.deadline)
    assert late.ending[1] == "b, c did not approve the plan within 500 s"
    actions = machine.handle(approval("c", given=True))
    assert told(actions) == [n.notice(NoticeName.APPROVED, RUN, "c")]
    assert [a.seconds for a in actions if isinstance(a, SetDeadline)] == [2.0], "it factors now"
    assert machine.handle(approval("c")) == []
    machine.handle(offers(machine, "c"))
    assert machine.phase is Phase.ASKING


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
    assert dismissed(
        machine, offers(machine, "b", **changes), Outcome.SITE_FAULT, excluded=True
    ).startswith("b")
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")


def test_a_fault_that_a_site_can_correct_dismisses_it_until_it_comes_back() -> None:
    for event in (
        lambda machine: offers(machine, "b", n_unlabelled=0),
        lambda _: Received("b", PlanRefused(RUN, "column u is missing", for_now=True)),
    ):
        machine = planned(make_plan(min_sites=3))
        assert dismissed(machine, event(machine), Outcome.REFUSED, excluded=False)
        assert machine.awaited == ("a", "b", "c")
        all_of(machine, [offers(machine, "a"), offers(machine, "c"), *comes_back(machine, "b")])
        assert machine.participants == ("a", "b", "c")


def test_a_refusal_ends_a_run_that_needs_the_site_and_is_borne_where_enough_remain() -> None:
    refusal = Received("b", PlanRefused(RUN, "no"))
    reason = "b refused the plan: no"
    actions = planned(make_plan(min_sites=3)).handle(refusal)
    assert told(actions)[0] == n.notice(
        NoticeName.SITE_DISMISSED, RUN, "b", reason=reason, excluded=True
    )
    assert sends(actions) == [
        SendToSite("b", Dismissed(RUN, Outcome.REFUSED, reason)),
        *(SendToSite(s, Finished(RUN, Outcome.REFUSED, reason)) for s in "ac"),
    ]
    machine = planned()
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert steps_sent(machine.handle(refusal)).keys() == set("ac")
    assert machine.handle(Received("b", PlanRefused("another-run", "no"))) == []
    machine = started()
    all_of(machine, [joins("a"), joins("b"), machine.deadline, offers(machine, "a"), refusal])
    assert machine.phase == Phase.PLANNING, "it did not join, and is needed again"
    assert machine.awaited == ("c",), "it did not join, and is needed again"
    all_of(machine, comes_back(machine, "c"))
    assert machine.phase == Phase.ASKING
    assert machine.participants == ("a", "c")


# --- sites that list other shared instances -------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_unlabelled": 5}, ["5 at {}", "6 at {}", "compare the id columns"]),
        (
            {"ids_digest": "other-ids"},
            ["ids of the 6 shared instances differ", "other-ids at {}", f"{IDS[:12]} at {{}}"],
        ),
    ],
)
@pytest.mark.parametrize("wrong", ["a", "b", "c"])
def test_the_site_that_differs_is_named_whoever_came_first(
    wrong: str, changes: Any, said: list[str]
) -> None:
    machine = planned()
    others = ", ".join(s for s in "abc" if s != wrong)
    messages = {s: offers(machine, s) for s in "abc"}
    messages[wrong] = offers(machine, wrong, **changes)
    *before, last = messages.values()
    assert sends(all_of(machine, before)) == []
    reason = dismissed(machine, last, Outcome.REFUSED, excluded=False)
    assert said[0].format(wrong) in reason or said[1].format(wrong) in reason, reason
    assert said[-1].format(others) in reason, reason
    assert machine.awaited == (wrong,)
    assert f"{wrong} to correct this: {reason[:40]}" in waits(machine), (
        "not: to reconnect, it is connected"
    )
    actions = all_of(machine, comes_back(machine, wrong))
    assert SendToSite(wrong, Proposal(RUN, 0, machine.plan)) in actions
    assert machine.phase == Phase.ASKING
    assert machine.participants == ("a", "b", "c")


def test_of_two_sites_that_differ_both_are_dismissed_and_come_back_with_the_same_list() -> None:
    machine = planned(make_plan(sites=("a", "b")))
    actions = all_of(machine, [offers(machine, s, n_unlabelled=5 if s == "a" else 6) for s in "ab"])
    assert {send.site for send in sends(actions)} == {"a", "b"}, (
        "which of them is wrong is not known"
    )
    assert waits(machine).startswith(
        "waiting for a, b to correct this: the sites list different numbers"
    )
    assert machine.handle(Received("a", PlanRefused(RUN, "no"))) == [], (
        "a site that is dismissed is not heard"
    )
    all_of(machine, [*comes_back(machine, "a"), *comes_back(machine, "b")])
    assert machine.phase is Phase.ASKING


def test_a_dismissed_site_is_no_member_and_no_measure_for_members() -> None:
    machine = planned()
    all_of(
        machine,
        [
            offers(machine, "a", n_unlabelled=5),
            *(offers(machine, s) for s in "bc"),
            machine.deadline,
        ],
    )
    assert machine.participants == ("b", "c"), "the timeout of the plan leaves the sites that agree"
    all_of(machine, [SiteLost("b", "gone"), joins("b"), offers(machine, "b", key="new")])
    assert not any(
        send.site == "a" for send in sends(machine.handle(offers(machine, "a", n_unlabelled=5)))
    )
    all_of(machine, [offers(machine, "b", key="new"), offers(machine, "c")])
    assert machine.phase == Phase.ASKING
    assert machine.participants == ("b", "c")
    machine = planned(make_plan(min_sites=3))
    all_of(machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b"), machine.deadline])
    told_at_the_end = (
        "did not accept the plan in time; the sites list different numbers of shared instances"
    )
    assert told_at_the_end in machine.ending[1]


def test_a_site_that_comes_back_changed_is_refused_and_may_come_back_as_it_was() -> None:
    machine = begun()
    for other in (0, 5):
        all_of(machine, [SiteLost("b", "gone"), joins("b")])
        dismissed(
            machine, offers(machine, "b", n_unlabelled=other), Outcome.REFUSED, excluded=False
        )
    assert machine.phase is Phase.ASKING
    assert machine.handle(answers("b")) == [], "the run does not hear it"
    assert steps_sent(all_of(machine, comes_back(machine, "b"))).keys() == {"b"}


# --- dropped --------------------------------------------------------------------------------------


def next_attempt(machine: Machine, *sites: str) -> list[Action]:
    return all_of(machine, [offers(machine, s) for s in sites])


def test_a_plan_that_continues_goes_on_in_another_attempt_and_a_dropped_site_stays_out() -> None:
    machine = begun(CONTINUES)
    actions = all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert told(actions) == [
        n.notice(NoticeName.GOING_ON_WITHOUT, RUN, sites=("c",), what="answer in time"),
        n.notice(
            NoticeName.SITE_DISMISSED,
            RUN,
            "c",
            reason="c: did not answer in time.",
            excluded=True,
        ),
        n.notice(NoticeName.PLAN_SENT, RUN, sites=("a", "b"), seconds=2.0),
    ]
    assert sends(actions) == [
        SendToSite("c", Dismissed(RUN, Outcome.STALLED, "c: did not answer in time.")),
        *(SendToSite(s, Proposal(RUN, 1, CONTINUES)) for s in "ab"),
    ]
    assert machine.handle(answers("c")) == [], "the run does not hear it"
    assert written(next_attempt(machine, "a", "b")) == [AttemptBegan(1, ("a", "b"))]
    reason = dismissed(machine, joins("c"), Outcome.STALLED, excluded=True)
    assert reason == "c: no longer in this run: c: did not answer in time."
    assert machine.handle(offers(machine, "c")) == machine.handle(SiteLost("c", "gone")) == []
    all_of(machine, [answers(s, 0, 1) for s in "ab"])
    assert machine.phase == Phase.ASKING
    assert machine.participants == ("a", "b")


def test_below_the_minimum_it_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(CONTINUES)
    all_of(machine, [SiteLost("b", "gone"), SiteLost("c", "gone"), answers("a"), machine.deadline])
    assert machine.phase == Phase.STALLED
    assert machine.awaited == ("b", "c")
    all_of(machine, comes_back(machine, "b"))
    assert sends(machine.handle(answers("b"))) == [
        SendToSite(s, Proposal(RUN, 1, CONTINUES)) for s in "ab"
    ]
    next_attempt(machine, "a", "b")
    assert machine.participants == ("a", "b")


@pytest.mark.parametrize("answers_too", [False, True])
def test_a_missing_site_that_is_back_has_its_time_to_answer(answers_too: bool) -> None:
    """To be dropped is for good."""
    machine = begun(CONTINUES)
    all_of(machine, [SiteLost("b", "gone"), SiteLost("c", "gone"), answers("a"), machine.deadline])
    all_of(machine, [*comes_back(machine, "b"), *comes_back(machine, "c")])
    assert machine.handle(answers("b")) == []
    actions = machine.handle(answers("c") if answers_too else machine.deadline)
    assert bool(steps_sent(actions)) is answers_too
    assert (machine.phase, machine.attempt) == (
        (Phase.ASKING, 0) if answers_too else (Phase.PLANNING, 1)
    )


@pytest.mark.parametrize(("may_change", "phase"), [(False, Phase.STALLED), (True, Phase.PLANNING)])
def test_under_sealed_sums_nobody_is_dropped_unless_the_plan_allows_it(
    may_change: bool, phase: Phase
) -> None:
    plan = sealed(make_plan(on_dropout="continue", membership_changes=may_change))
    machine = begun(plan)
    faulty = begun(plan)
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert machine.phase is phase
    faulty.handle(Received("b", Fault(RUN, 0, 0, "x")))
    assert faulty.phase is (Phase.PLANNING if may_change else Phase.ENDING)


@pytest.mark.parametrize(("on_dropout", "goes_on"), [("wait", False), ("continue", True)])
def test_a_site_that_does_not_offer_again_is_dropped_where_the_plan_continues(
    on_dropout: str, goes_on: bool
) -> None:
    machine = begun(make_plan(on_dropout=on_dropout))
    all_of(machine, [joins("a"), offers(machine, "a", key="new")])
    assert machine.phase == Phase.PLANNING
    assert machine.attempt == 1
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    if goes_on:
        assert n.notice(
            NoticeName.GOING_ON_WITHOUT, RUN, sites=("c",), what="accept the plan in time"
        ) in told(actions)
        assert machine.participants == ("a", "b")
    else:
        assert machine.ending == (Outcome.TOO_FEW_SITES, "c did not accept the plan in time")


# --- the sites of a run are those of its first attempt --------------------------------------------


def test_connected_sites_that_have_not_offered_when_it_begins_are_dismissed() -> None:
    machine = planned()
    actions = all_of(machine, [offers(machine, "a"), offers(machine, "b"), machine.deadline])
    reason = "c: the run began without this site."
    assert SendToSite("c", Dismissed(RUN, Outcome.STALLED, reason)) in sends(actions)
    assert dismissed(machine, joins("c"), Outcome.STALLED, excluded=True).endswith(reason)


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
@pytest.mark.parametrize("again", [False, True])
def test_who_was_never_a_member_does_not_become_one_by_another_attempt(
    on_dropout: str, again: bool
) -> None:
    """Sums over one site more would tell its answers."""
    plan = sealed(make_plan(sites=tuple("abcd"), min_sites=3, on_dropout=on_dropout))
    pump = Pump(plan, make_sites("abcd")).join(*"abc").run()
    pump.carry_out(pump.machine.handle(pump.machine.deadline))
    pump.steps(4).join("d")
    pump = pump.restarted().join().run() if again else pump.kill("a").run()
    assert pump.outcome is Outcome.CONVERGED
    assert members(pump.records) == [("a", "b", "c")] * 2
    assert (
        pump.bits
        == undisturbed(replace(plan, membership=replace(plan.membership, sites=tuple("abc")))).bits
    )


# --- after a restart ------------------------------------------------------------------------------

AGAIN = Begun(2, ("a", "b", "c"), 17)
FOUR = make_plan(sites=("a", "b", "c", "d"), min_sites=2)


def test_a_run_that_begins_again_waits_for_its_own_sites_and_begins_from_its_beginning() -> None:
    machine = Machine(FOUR, begun=AGAIN)
    assert machine.start() == [
        NotifyObservers(n.notice(NoticeName.ANSWERS_IN_CLEAR, RUN)),
        NotifyObservers(n.run_began(RUN, "", 3, ("a", "b", "c"), 1.0)),
        SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.phase is Phase.ENROLLING
    dismissed(machine, joins("d"), Outcome.STALLED, excluded=True)
    assert sends(all_of(machine, [joins("a"), joins("b")])) == []
    assert sends(machine.handle(joins("c"))) == [
        SendToSite(s, Proposal(RUN, 3, FOUR)) for s in "abc"
    ]
    actions = next_attempt(machine, "a", "b", "c")
    assert written(actions) == [AttemptBegan(3, ("a", "b", "c"))]
    assert {step.step for step in steps_sent(actions).values()} == {0}
    assert [r.number for r in written(all_of(machine, [answers(s, 0, 3) for s in "abc"]))] == [17]


@pytest.mark.parametrize(("on_dropout", "goes_on"), [("wait", False), ("continue", True)])
def test_a_run_that_begins_again_goes_on_without_a_site_where_the_plan_does(
    on_dropout: str, goes_on: bool
) -> None:
    machine = started(
        replace(FOUR, membership=replace(FOUR.membership, on_dropout=on_dropout)), AGAIN
    )
    actions = all_of(machine, [joins("a"), joins("c"), machine.deadline])
    if not goes_on:
        assert machine.ending == (Outcome.TOO_FEW_SITES, "b did not join within 1 s")
        return
    assert n.notice(NoticeName.GOING_ON_WITHOUT, RUN, sites=("b",), what="join in time") in told(
        actions
    )
    dismissed(machine, joins("b"), Outcome.STALLED, excluded=True)
    assert written(next_attempt(machine, "a", "c")) == [AttemptBegan(3, ("a", "c"))]
