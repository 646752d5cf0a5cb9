"""Scoring together as a job over sessions: what comes out, who gets it, what is refused, and who cannot read it."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.tiny import Pump, make_plan, make_site, sealed, site_with
from numpy.testing import assert_allclose

from coreg_core.errors import BadData
from coreg_core.protocol.messages import PlanRefused, Proposal, Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring, plan_fault
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site
from site_agent.policy.policy import Policy

SITES = ("a", "b", "c")
M = 5


def plan_of(**changes: Any) -> Plan:
    terms = replace(Scoring("run-1"), **changes)
    return Plan("score-1", "tiny", Membership(SITES, 3), terms, privacy=Privacy(aggregation="plaintext"))


def batch(name: str, **changes: Any) -> Batch:
    rng = np.random.default_rng([1, *name.encode()])
    part, none = rng.normal(size=M), np.zeros(M, dtype=np.bool_)
    return replace(Batch(part, none, 0.25, 10.0, "run-1", "additive", SITES, "digest", name.encode()), **changes)


def sites_of(**changes: Any) -> dict[str, Site]:
    return {name: site_with(name, batch(name, **changes.get(name, {}))) for name in SITES}


def scored(plan: Plan | None = None, **changes: Any) -> Pump:
    return Pump(plan or plan_of(), sites_of(**changes)).join().run()


def scores(pump: Pump) -> dict[str, Any]:
    return {name: site.result.scores for name, site in pump.sites.items()}


@pytest.mark.parametrize("secure", [False, True])
def test_parts_add_up_and_every_site_adds_the_intercept(secure: bool) -> None:
    pump = scored(sealed(plan_of()) if secure else None)
    assert pump.outcome is Outcome.CONVERGED
    assert "5 instances scored together by 3 sites" in pump.end.reason
    for found in scores(pump).values():
        assert_allclose(found, 10.0 + sum(batch(name).part for name in SITES), rtol=1e-15)


def test_agreeing_models_are_averaged() -> None:
    changes = {name: {"trained": "agreement", "intercept": 0.0} for name in SITES}
    found = scores(scored(plan_of(trained="agreement"), **changes))["a"]
    assert_allclose(found, sum(batch(name).part for name in SITES) / 3, rtol=1e-15)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("receivers", [("b",), ("a", "c")])
def test_scores_go_to_those_who_may_have_them_and_to_nobody_else(receivers: tuple[str, ...], secure: bool) -> None:
    plan = plan_of(receivers=receivers)
    pump = scored(sealed(plan) if secure else plan)
    assert {name for name, found in scores(pump).items() if found is not None} == set(receivers)
    assert {site.result.outcome for site in pump.sites.values()} == {Outcome.CONVERGED}


def test_who_is_no_receiver_has_no_key_to_the_sum_that_it_is_sent_and_writes_none_down() -> None:
    pump = scored(sealed(plan_of(receivers=("b",))))
    last = [s.message for s in pump.sent if s.site == "a" and isinstance(s.message, Step)][-1]
    seals = {name: pump.sites[name]._replica._seal for name in SITES}
    assert (seals["a"].sealing, seals["c"].sealing) == (None, None)
    for name in SITES:
        assert pump.sites[name].kept.sums[-1].values is None or name == "b"
    context = b"whatever the step was"
    assert seals["a"].open(context, last.words.values, M, SITES, private=True) is None
    with pytest.raises(BadData):
        seals["a"].open(context, last.words.values, M, SITES, private=False)


@pytest.mark.parametrize("killed", ["a", "b"])
def test_killed_between_the_sum_and_the_end_each_has_what_it_had(killed: str) -> None:
    """Receivers and others keep other sums, and go on from the last state that they have in common."""
    plan = sealed(plan_of(receivers=("b",)))
    for after in (2, 3, 4):
        pump = Pump(plan, sites_of()).join().steps(after).kill(killed).run()
        assert pump.bits == scored(plan).bits


LACKING = {"missing": np.array([False, True, False, True, False])}


def test_an_instance_that_one_site_lacks_is_refused_by_name_and_number() -> None:
    pump = scored(b=LACKING)
    assert pump.outcome is Outcome.REFUSED
    assert "b has no record of 2 of 5 instances" in pump.end.reason
    assert 'missing_instances = "mean"' in pump.end.reason, "and what would help"


def test_or_its_part_stands_at_its_mean_where_the_plan_says_so() -> None:
    plan = plan_of(missing_instances="mean")
    pump = scored(plan, b=LACKING)
    at_its_mean = np.where(LACKING["missing"], 0.25, batch("b").part)
    assert_allclose(scores(pump)["a"], 10.0 + batch("a").part + at_its_mean + batch("c").part, rtol=1e-15)
    assert "of 2 of these instances" in pump.sites["b"].result.findings[0]
    assert scored(plan, b={**LACKING, "mean": None}).outcome is Outcome.REFUSED, "an older model keeps no mean"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"of_run": "run-0"}, "run-1 \\(additive\\), but b was started with one of run run-0"),
        ({"trained": "agreement"}, "one of run run-1 \\(agreement\\)"),
        ({"sites": ("a", "b")}, "c took no part in run run-1"),
    ],
)
def test_sites_that_cannot_score_together(changes: Any, said: str) -> None:
    pump = scored(b=changes)
    assert pump.outcome is Outcome.REFUSED
    assert re.search(said, pump.end.reason), pump.end.reason
    assert all(site._answered == 0 for site in pump.sites.values())


@pytest.mark.parametrize("may_change", [False, True])
def test_models_are_not_scored_with_fewer_sites_than_trained_them(may_change: bool) -> None:
    """On a list with one instance more the earlier sum would not be known again."""
    four = batch("a", sites=tuple("abcd"))
    plan = sealed(replace(plan_of(), privacy=Privacy(membership_changes=may_change)))
    [said] = site_with("a", four).handle(Proposal(plan.run, 0, plan))
    assert isinstance(said, PlanRefused) is not may_change
    assert may_change or "d took part in run run-1 and would be left out" in said.reason


def test_a_trainer_does_not_score_and_a_scorer_does_not_train() -> None:
    plan = plan_of()
    [said] = make_site("a").handle(Proposal(plan.run, 0, plan))
    assert "has no model for scoring together" in said.reason
    other = make_plan(sites=SITES, min_sites=len(SITES))
    [said] = sites_of()["a"].handle(Proposal(other.run, 0, other))
    assert "cannot train" in said.reason


def test_the_policy_has_a_key_and_is_off() -> None:
    plan = plan_of()
    assert "scoring = false" in (Policy(aggregation="plaintext", objectives=("additive",)).objection(plan) or "")
    assert "objectives" in (Policy(aggregation="plaintext", scoring=True).objection(plan) or ""), (
        "as is what was trained"
    )
    assert Policy(aggregation="plaintext", scoring=True, objectives=("additive",)).objection(plan) is None


def test_a_plan_of_fewer_sites_than_it_lists_or_for_strangers_is_none() -> None:
    assert plan_fault(plan_of()) is None
    assert "every site's part" in (plan_fault(replace(plan_of(), membership=Membership(SITES, 2))) or "")
    assert "none of the sites" in (plan_fault(plan_of(receivers=("d",))) or "")
