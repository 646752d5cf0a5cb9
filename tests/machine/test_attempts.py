"""A run begins again: killed anywhere, it ends on the same bits; and nothing is answered twice or
otherwise.

site_agent/machine/site.py and coordinator/machine.
"""

from dataclasses import replace

import pytest
from machine.tiny import (
    Pump,
    TinySite,
    all_restarted,
    make_plan,
    make_sites,
    restarted,
    sealed,
    undisturbed,
)

from coordinator.machine.records import AttemptBegan
from coreg_core.messages import PlanRefused, Proposal, Step
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan

SHORT = make_plan(min_sites=3, coupling=(0.3,), tolerance=1e-4, prediction_tolerance=0.03)
BOTH = pytest.mark.parametrize("plan", [SHORT, sealed(SHORT)], ids=["plaintext", "sealed"])


def attempts(pump: Pump) -> list[int]:
    return [r.attempt for r in pump.records if isinstance(r, AttemptBegan)]


@BOTH
def test_an_agent_that_is_killed_at_any_step_changes_no_bit(plan: Plan) -> None:
    expected = undisturbed(plan)
    n_steps = len([r for r in expected.records if hasattr(r, "number")])
    assert n_steps > 5
    for after in range(1, n_steps):
        pump = Pump(plan, make_sites("abc")).join().steps(after).kill("b").run()
        assert pump.bits == expected.bits, after
        assert attempts(pump) == [0, 1]


@BOTH
def test_the_coordinator_killed_after_any_record_and_its_sites_with_it_or_not(plan: Plan) -> None:
    expected = undisturbed(plan)
    for kept in range(1, len(expected.records)):
        first = Pump(plan, make_sites("abc"), kill_after=kept).join().run()
        if kept % 2:
            first.sites = all_restarted(first.sites)
        again = first.restarted().join().run()
        assert again.outcome is Outcome.CONVERGED, kept
        assert again.bits == expected.bits, kept


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_older_records_and_a_site_in_another_process_lead_to_a_later_attempt(steps: int) -> None:
    """Step 0 comes again with another roster: the answer to the first one would be of another
    attempt (storm, seed 64).
    """
    plan = sealed(SHORT)
    first = Pump(plan, make_sites("abc")).join().steps(steps)
    for sites in (first.sites, first.sites | {"b": restarted(first.sites["b"])}):
        again = Pump(plan, sites, []).join().run()
        assert again.outcome is Outcome.CONVERGED
        assert again.bits == undisturbed(plan).bits


def test_a_site_that_is_lost_and_is_the_same_process_goes_on_with_the_attempt() -> None:
    pump = Pump(sealed(SHORT), make_sites("abc")).join().steps(5)
    asked = len(pump.sites["b"].disclosed)
    view = pump.sites["b"].computation.view
    pump.lose("b").join("b").run()
    assert pump.outcome is Outcome.CONVERGED
    assert pump.sites["b"].computation.view is view
    assert (
        len(pump.sites["b"].disclosed)
        == len(undisturbed(sealed(SHORT)).sites["b"].disclosed)
        >= asked
    )
    assert attempts(pump) == [0]


# --- what a step is answered with -----------------------------------------------------------------


def under_way(plan: Plan, steps: int) -> tuple[TinySite, list[Step]]:
    """Site a of a run, which has answered step ``steps``, and its steps so far."""
    pump = Pump(plan, make_sites("abc")).join().steps(steps)
    return pump.sites["a"], [
        s.message for s in pump.sent if s.site == "a" and isinstance(s.message, Step)
    ]


@BOTH
def test_a_step_that_is_sent_again_has_the_very_answer_and_is_never_answered_anew(
    plan: Plan,
) -> None:
    """Whatever comes under its number: one mask would hide two numbers, and their difference would
    be in the clear.
    """
    site, sent = under_way(plan, 6)
    count = len(site.disclosed)
    site.computation.answer = None  # nothing is computed
    first = site.handle(sent[-1])
    for other in (
        sent[-1],
        replace(sent[-1], summed=None),
        replace(sent[-1], summed=sent[-3].summed),
    ):
        assert site.handle(other)[0] is first[0]
    assert len(site.disclosed) == count


@BOTH
def test_older_newer_and_foreign_steps_have_no_answer(plan: Plan) -> None:
    site, sent = under_way(plan, 6)
    last = sent[-1]
    for wrong in (
        sent[1],
        sent[2],
        sent[-2],
        replace(last, step=last.step + 2),
        replace(last, attempt=1),
    ):
        [said] = site.handle(wrong)
        assert isinstance(said, PlanRefused)
        assert "expected step" in said.reason
    [offer] = site.handle(Proposal(plan.run, 1, plan))
    assert offer.attempt == 1
    assert all(site.handle(step) == [] for step in sent), (
        "an attempt that is over is not gone back to"
    )
    [later] = site.handle(Proposal(plan.run, 0, plan))
    assert later == offer, "records that are older than its keys hear of the later attempt"
    pump = undisturbed(plan)
    last = [s.message for s in pump.sent if s.site == "a" and isinstance(s.message, Step)][-1]
    [said] = pump.sites["a"].handle(last)
    assert said.report.outcome == "CONVERGED"
    [said] = pump.sites["a"].handle(replace(last, step=last.step + 1))
    assert isinstance(said, PlanRefused), "after the last answer no step has another"
    alone = make_sites("a")["a"]
    [said] = alone.handle(Step("run-1", 0, 0))
    assert "whose plan this site did not accept" in said.reason
