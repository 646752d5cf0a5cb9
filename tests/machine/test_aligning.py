"""A run whose ids are not aligned: another run aligns them first, and the training follows, or ends with it."""

from dataclasses import replace
from typing import Any

import pytest
from machine.service import Service, without
from machine.stepwise import RUN, all_of, approval, dismissed, joins, offers, planned, sends, waits
from machine.tiny import allowing, make_plan, sealed

from coordinator.machine import events as e
from coordinator.machine.records import Phase
from coreg_core.objectives.alignment import Alignment
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import alignment_of, aligns_for, plan_fault

PLAN = replace(sealed(make_plan(min_sites=3)), align=Alignment(max_ids=200))
TWO = replace(PLAN, membership=replace(PLAN.membership, min_sites=2))
FIRST, SECOND = f"{RUN}-ids-0", f"{RUN}-ids-1"


def unaligned(site: str) -> e.Event:
    return e.Received(site, m.Unaligned(RUN))


def begins(actions: list[e.Action]) -> list[e.BeginRun]:
    return [action for action in actions if isinstance(action, e.BeginRun)]


# --- event by event -----------------------------------------------------------------------------------------------


def test_the_plan_of_an_alignment_is_the_runs_own_for_all_of_its_sites() -> None:
    plan = alignment_of(replace(TWO, study="waits", data="patients", id="nhs"), 4)
    assert (plan.run, aligns_for(plan.run), aligns_for(RUN)) == (f"{RUN}-ids-4", RUN, "")
    assert (plan.sites, plan.membership.min_sites, plan.objective, plan.align) == (("a", "b", "c"), 3, PLAN.align, None)
    assert (plan.study, plan.data, plan.id, plan.privacy) == ("waits", "patients", "nhs", PLAN.privacy)
    assert plan_fault(plan) is None
    clear = replace(make_plan(), align=Alignment())
    assert "an alignment needs sealed sums. Or write align = false in [alignment]" in (plan_fault(clear) or "")


@pytest.mark.parametrize("aligned", ["", "a", "ab"])
def test_the_ids_are_aligned_once_if_a_site_asks_for_it_and_then_the_plan_is_sent_again(aligned: str) -> None:
    machine = planned(PLAN)
    said = [offers(machine, s) if s in aligned else unaligned(s) for s in "abc"]
    assert begins(all_of(machine, said[:2])) == []
    assert begins(machine.handle(said[2])) == [e.BeginRun(alignment_of(PLAN, 0))]
    assert (waits(machine), machine.awaited) == ("waiting for the alignment of ids", ())
    assert begins(machine.handle(offers(machine, "a"))) == []
    again = machine.handle(e.Aligned(RUN, Outcome.CONVERGED, ""))
    assert [(s.site, s.message) for s in sends(again)] == [(s, m.Proposal(RUN, 0, PLAN)) for s in "abc"]
    all_of(machine, [offers(machine, s) for s in "abc"])
    assert machine.phase is Phase.ASKING
    assert machine.handle(e.Aligned(RUN, Outcome.CONVERGED, "")) == []


def test_offers_that_differ_are_aligned_and_dismissed_if_they_differ_still() -> None:
    machine = planned(PLAN)
    differ = [offers(machine, "a"), offers(machine, "b"), offers(machine, "c", n_unlabelled=5)]
    assert len(begins(all_of(machine, differ))) == 1
    machine.handle(e.Aligned(RUN, Outcome.CONVERGED, ""))
    all_of(machine, differ[:2])
    assert "5 at c" in dismissed(machine, differ[2], Outcome.REFUSED, excluded=False)


def test_a_site_whose_ids_changed_after_the_alignment_is_dismissed_until_it_restores_them() -> None:
    machine = planned(PLAN)
    all_of(machine, [*map(unaligned, "abc"), e.Aligned(RUN, Outcome.CONVERGED, "")])
    reason = dismissed(machine, unaligned("b"), Outcome.REFUSED, excluded=False)
    assert reason.startswith("b: its ids are not those that were aligned for this run. Restore its table")
    all_of(machine, [offers(machine, "a"), offers(machine, "c"), joins("b"), offers(machine, "b")])
    assert machine.phase is Phase.ASKING


def test_a_site_that_asks_for_an_alignment_that_the_plan_does_not_have_is_at_fault() -> None:
    machine = planned(sealed(make_plan()))
    all_of(machine, [offers(machine, "a"), offers(machine, "b")])
    reason = dismissed(machine, unaligned("c"), Outcome.SITE_FAULT, excluded=True)
    assert "which the plan does not have" in reason
    assert machine.participants == ("a", "b")


@pytest.mark.parametrize("here", ["a", "ab"])
def test_ids_are_aligned_by_all_sites_or_not_at_all(here: str) -> None:
    """Counts with and without a site would name it."""
    machine = planned(TWO)
    assert begins(all_of(machine, [*map(unaligned, here), machine.deadline])) == []
    assert machine.run.ending is not None
    assert machine.run.ending[0] is Outcome.TOO_FEW_SITES


def test_an_approval_during_the_alignment_starts_no_timeout() -> None:
    machine = planned(PLAN)
    all_of(machine, [*map(unaligned, "abc"), e.SiteLost("c", "gone"), joins("c")])
    actions = all_of(machine, [approval("c"), approval("c", given=True), unaligned("c")])
    assert not any(isinstance(action, e.SetDeadline) for action in actions)
    assert machine.run.aligning


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.STALLED, Outcome.NOTHING_SHARED])
def test_an_alignment_without_a_result_ends_the_run(outcome: Outcome) -> None:
    machine = planned(PLAN)
    all_of(machine, [*map(unaligned, "abc"), e.Aligned(RUN, outcome, "b left")])
    assert machine.run.ending == (outcome, "the ids could not be aligned: b left")


# --- both runs ----------------------------------------------------------------------------------------------------


def aligning(service: Service | None = None) -> Service:
    """In the middle of the alignment: a step is answered, and messages are on their way."""
    service = service or Service()
    service.submit(PLAN)
    service.events.extend(e.SiteJoined(agent.hello()) for agent in service.agents.values())
    while not any((notice.name, notice.run) == ("round", FIRST) for notice in service.notices):
        service.one()
    return service


def outcomes(service: Service) -> dict[str, Outcome]:
    return {run: end.outcome for run, end in service.finished.items()}


def trained(service: Service, alignment: str = FIRST) -> None:
    assert outcomes(service)[alignment] is outcomes(service)[RUN] is Outcome.CONVERGED
    assert {agent.shared for agent in service.agents.values()} == {("ann", "bob")}
    assert set(service.bits(RUN)) == set("abc")


def test_a_run_aligns_the_ids_and_trains_and_the_next_run_trains_at_once() -> None:
    service = aligning().tell()
    trained(service)
    service.submit(replace(PLAN, run="run-2"))
    assert [run for run in service.finished if aligns_for(run)] == [FIRST]
    assert set(service.bits("run-2")) == set("abc")
    assert service.states() == {}


def test_a_run_that_is_cancelled_ends_its_alignment_too() -> None:
    service = aligning().tell(e.Cancelled(RUN, "enough"))
    assert outcomes(service) == {FIRST: Outcome.CANCELLED, RUN: Outcome.CANCELLED}
    assert service.states() == {}


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        (
            {"policy": allowing(aggregation="secure", alignment=False)},
            Outcome.REFUSED,
            "b refused the plan: alignment of ids",
        ),
        ({"ids": ("zoe",)}, Outcome.NOTHING_SHARED, "the ids could not be aligned"),
    ],
)
def test_a_failed_alignment_ends_the_run_at_every_site(change: dict[str, Any], outcome: Outcome, reason: str) -> None:
    service = Service()
    vars(service.agents["b"]).update(change)
    service.submit(PLAN).joined()
    assert set(outcomes(service).values()) == {outcome}
    for site in "ac":
        end = service.ends[RUN, site]
        assert (end.outcome, reason in end.reason) == (outcome, True)
    assert service.states() == {}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_site_that_is_lost_during_the_alignment_goes_on_with_it(restarts: bool) -> None:
    service = aligning()
    service.events = without(service.events, "b")
    service.lost("b")
    assert service.states() == {RUN: Phase.PLANNING, FIRST: Phase.ASKING}
    if restarts:
        service.agents["b"].killed()
    trained(service.joined("b"))


def test_a_site_that_stays_away_stops_both_runs_and_they_begin_again_when_it_is_back() -> None:
    service = aligning()
    service.events = without(service.events, "b")
    service.lost("b").out_of_time(FIRST).out_of_time(FIRST)
    assert set(outcomes(service).values()) == {Outcome.STALLED}
    service.out_of_time(RUN).joined("b")
    trained(service, SECOND)


def test_a_coordinator_that_restarts_during_the_alignment_begins_it_anew() -> None:
    service = aligning().restarted(PLAN)
    trained(service.joined(), SECOND)
    assert FIRST not in service.states()
