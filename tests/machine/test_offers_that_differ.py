"""coordinator/machine/membership.py: sites that list other shared instances, before the first attempt."""

from typing import Any

import pytest
from machine.stepwise import RUN, all_of, approval, comes_back, dismissed, joins, offers, planned, sends, started, waits
from machine.tiny import IDS, make_plan

from coordinator.machine import events as e
from coordinator.machine.records import Phase
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome

DIFFERENT = [
    ({"n_unlabelled": 5}, ["5 at {wrong}", "6 at {others}", "compare the id columns"]),
    (
        {"ids_digest": "other-ids"},
        ["ids of the 6 shared instances differ", "other-ids at {wrong}", f"{IDS[:12]} at {{others}}"],
    ),
]


@pytest.mark.parametrize(("changes", "said"), DIFFERENT)
@pytest.mark.parametrize("wrong", ["a", "b", "c"])
def test_the_site_that_differs_from_the_others_is_named_whoever_came_first(
    wrong: str, changes: Any, said: list[str]
) -> None:
    machine = planned()
    others = [s for s in "abc" if s != wrong]
    for site in "ab":
        assert sends(machine.handle(offers(machine, site, **(changes if site == wrong else {})))) == []
    last = offers(machine, "c", **(changes if wrong == "c" else {}))
    reason = dismissed(machine, last, Outcome.REFUSED, excluded=False)
    assert all(text.format(wrong=wrong, others=", ".join(others)) in reason for text in said), reason
    assert machine.awaited == (wrong,)
    assert f"{wrong} to correct this: {reason[:40]}" in waits(machine), "not: to reconnect, it is connected"
    actions = all_of(machine, comes_back(machine, wrong))
    assert e.Send(wrong, m.Proposal(RUN, 0, machine.plan)) in actions
    assert machine.participants == ("a", "b", "c")
    assert machine.phase is Phase.ASKING


def test_a_site_without_shared_instances_is_named_at_once() -> None:
    machine = planned()
    reason = dismissed(machine, offers(machine, "b", n_unlabelled=0), Outcome.REFUSED, excluded=False)
    assert all(text in reason for text in ("b: shares no unlabelled instance", "--unlabelled FILE"))


def test_of_two_sites_that_differ_either_can_be_corrected_and_the_other_is_asked_again() -> None:
    for wrong, right in (("a", "b"), ("b", "a")):
        machine = planned(make_plan(sites=("a", "b")))
        all_of(machine, [offers(machine, "a", n_unlabelled=5 if wrong == "a" else 6)])
        actions = machine.handle(offers(machine, "b", n_unlabelled=5 if wrong == "b" else 6))
        assert {send.site for send in sends(actions)} == {"a", "b"}, "which of them is wrong is not known"
        assert waits(machine).startswith("waiting for a, b to correct this: the sites list different numbers")
        actions = all_of(machine, comes_back(machine, wrong))
        assert e.Send(right, m.Proposal(RUN, 0, machine.plan)) in actions
        machine.handle(offers(machine, right))
        assert machine.phase is Phase.ASKING


def test_where_most_sites_are_wrong_each_can_be_corrected() -> None:
    machine = planned()
    all_of(machine, [offers(machine, s, n_unlabelled=5) for s in "ab"])
    dismissed(machine, offers(machine, "c"), Outcome.REFUSED, excluded=False)
    actions = all_of(machine, comes_back(machine, "a"))
    assert e.Send("c", m.Proposal(RUN, 0, machine.plan)) in actions
    dismissed(machine, offers(machine, "c"), Outcome.REFUSED, excluded=False)
    assert waits(machine).startswith("waiting for b to correct this")
    all_of(machine, comes_back(machine, "b"))
    assert machine.phase is Phase.ASKING


def test_a_dismissed_site_is_asked_again_when_another_site_comes_or_goes() -> None:
    machine = started(make_plan(sites=("a", "b", "c")))
    all_of(machine, [joins("a"), joins("b"), machine.deadline])
    all_of(machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b")])
    assert waits(machine).startswith("waiting for a, b to correct this")
    actions = all_of(machine, comes_back(machine, "c"))
    assert {send.site for send in sends(actions) if isinstance(send.message, m.Proposal)} == {"a", "b", "c"}
    all_of(machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b")])
    assert waits(machine).startswith("waiting for a to correct this"), "b and c are the majority"
    machine = planned(make_plan(sites=("a", "b", "c")))
    all_of(machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b", n_unlabelled=7), offers(machine, "c")])
    actions = machine.handle(e.Received("a", m.PlanRefused(RUN, "no")))
    assert actions == [], "a site that is dismissed is not heard"


def test_a_dismissed_site_is_no_member_and_no_measure_for_members() -> None:
    machine = planned(make_plan(sites=("a", "b", "c"), min_sites=2))
    all_of(
        machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b"), offers(machine, "c"), machine.deadline]
    )
    assert machine.participants == ("b", "c")
    all_of(machine, [e.SiteLost("b", "gone"), joins("b"), offers(machine, "b", key="new")])
    assert not any(send.site == "a" for send in sends(all_of(machine, [offers(machine, "a", n_unlabelled=5)])))
    all_of(machine, [offers(machine, "b", key="new"), offers(machine, "c")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("b", "c"))


def test_five_sites_without_a_majority_are_all_dismissed() -> None:
    machine = planned(make_plan(sites=tuple("abcde")))
    actions = all_of(
        machine, [offers(machine, s, n_unlabelled=n) for s, n in zip("abcde", (5, 5, 6, 7, 8), strict=True)]
    )
    assert {send.site for send in sends(actions) if isinstance(send.message, m.Dismissed)} == set("abcde")


def test_an_operator_has_the_whole_time_again_after_a_dismissal() -> None:
    machine = planned(make_plan(sites=("a", "b")))
    all_of(
        machine, [approval("b"), approval("b", given=True), offers(machine, "a", n_unlabelled=5), offers(machine, "b")]
    )
    all_of(machine, [*comes_back(machine, "a")])
    assert not machine.run.operators, "the time for the plan begins again"
    all_of(machine, [approval("b")])
    assert (machine.run.operators, machine.run.unapproved) == (True, ("b",))


def test_the_timeout_of_the_plan_leaves_the_sites_that_agree() -> None:
    machine = planned(make_plan(sites=("a", "b", "c", "d")))
    all_of(
        machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b"), offers(machine, "c"), machine.deadline]
    )
    assert machine.participants == ("b", "c")
    machine = planned(make_plan(min_sites=3))
    all_of(machine, [offers(machine, "a", n_unlabelled=5), offers(machine, "b"), machine.deadline])
    told_at_the_end = machine.run.ending[1]
    assert "did not accept the plan in time; the sites list different numbers of shared instances" in told_at_the_end
