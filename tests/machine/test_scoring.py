"""Scoring together as a job over sessions: what comes out, who gets it, what is refused, and who
cannot read it.
"""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machine.tiny import Pump, TinySite, against, allowing, make_plan, make_site, sealed, site_with
from numpy.testing import assert_allclose

from coreg_core.errors import BadData
from coreg_core.messages import PlanRefused, Proposal, Step
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, plan_fault
from coreg_core.terms import Membership, Privacy
from site_agent.consent.memory import Memory
from site_agent.consent.policy import Policy
from site_agent.machine.scoring import Batch, ScoringComputation

SITES = ("a", "b", "c", "d")
M = 5


def plan_of(least: int = 3, sites: tuple[str, ...] = SITES, **changes: Any) -> Plan:
    terms = replace(Scoring("run-1", "agreement"), **changes)
    return Plan("score-1", "tiny", Membership(sites, least), terms)


def batch(site: str, /, **changes: Any) -> Batch:
    rng = np.random.default_rng([1, *site.encode()])
    values = rng.normal(size=(M, 1))
    none = np.zeros(M, dtype=np.bool_)
    made = Batch(
        values, none, None, 0.0, "run-1", "agreement", "sums", SITES, "digest", site.encode()
    )
    return replace(made, **changes)


def lacks(*rows: int) -> dict[str, Any]:
    return {"missing": np.isin(np.arange(M), rows)}


def sites_of(names: tuple[str, ...] = SITES, **changes: Any) -> dict[str, TinySite]:
    batches = {name: batch(name, **changes.get(name, {})) for name in names}
    return {name: site_with(name, rows) for name, rows in batches.items()}


def scored(plan: Plan | None = None, **changes: Any) -> Pump:
    plan = plan or plan_of()
    return Pump(plan, sites_of(plan.sites, **changes)).join().run()


def scores(pump: Pump) -> dict[str, Any]:
    return {name: site.result.scores for name, site in pump.sites.items()}


def means(names: str) -> np.ndarray:
    """Of these sites' parts, of each individual."""
    parts = [batch(name).features[:, 0] for name in names]
    return np.mean(parts, axis=0)


@pytest.mark.parametrize("receivers", [(), ("b",), ("a", "c")])
def test_agreeing_models_are_averaged_for_those_who_may_have_the_scores(
    receivers: tuple[str, ...],
) -> None:
    pump = scored(plan_of(receivers=receivers))
    assert pump.outcome is Outcome.CONVERGED
    results = scores(pump)
    expected = means("abcd")
    assert {name for name in SITES if results[name] is not None} == set(receivers or SITES)
    for name in receivers or SITES:
        assert_allclose(results[name], expected, atol=1e-11)  # a part has 40 bits


def test_parts_of_different_sizes_add_up_at_every_receiver() -> None:
    large = 1e9 * batch("b").features
    expected = 0.75 * means("acd") + 0.25 * large[:, 0]
    for values in scores(scored(b={"features": large})).values():
        assert_allclose(values, expected, atol=1e9 * 2.0**-38)  # of the largest part's 40 bits


def test_an_individual_is_scored_by_the_sites_that_have_a_record_of_it() -> None:
    pump = scored(b=lacks(1, 3), c=lacks(3), d=lacks(3))
    result = pump.sites["a"].result
    assert result.present == (SITES, ("a", "c", "d"), SITES, ("a",), SITES)
    expected = means("abcd")
    expected[1] = means("acd")[1]
    expected[3] = np.nan
    for name in "ab":
        assert_allclose(scores(pump)[name], expected, atol=1e-11)  # a part has 40 bits
    assert "1 of 5 individuals lack a record at some site" in result.findings[0]
    assert (
        "no score for 1 of 5 individuals (empty cells): fewer than min_sites = 3 sites"
        in result.findings[1]
    )
    of_two = scored(c=lacks(2), d=lacks(2))
    for values in scores(of_two).values():
        assert np.isnan(values[2]), "each could compute the other's part"


def test_an_offline_site_does_not_stop_the_others_and_a_trainer_does_not_score() -> None:
    plan = plan_of(trained="additive")
    sites = {name: site_with(name, additive_batch(name)) for name in SITES}
    pump = Pump(plan, sites).join("b", "c", "d")
    pump.out_of_time().run()
    assert pump.outcome is Outcome.CONVERGED
    result = pump.sites["b"].result
    there = ("b", "c", "d")
    assert result.present[0] == there
    parts = 3.0 * means("bcd")
    expected = 10.0 + parts / total(there)
    assert_allclose(result.scores, expected, atol=1e-11)  # a part has 40 bits
    assert_allclose(result.missing, total(there))
    proposal = Proposal(plan.run, 0, plan)
    [reply] = make_site("a").handle(proposal)
    assert isinstance(reply, PlanRefused)
    assert "has no model for scoring together" in reply.reason
    other = sealed(make_plan(sites=SITES, min_sites=len(SITES)))
    proposal = Proposal(other.run, 0, other)
    [reply] = sites_of()["a"].handle(proposal)
    assert "cannot train" in reply.reason


def test_no_one_opens_what_is_for_another_and_no_receiver_opens_a_single_part() -> None:
    pump = scored(plan_of(receivers=("b",)))
    steps = [s for s in pump.sent if isinstance(s.message, Step)]
    [*_, of_b] = [s.message for s in steps if s.site == "b"]
    ends = [(part.sender, part.receiver) for part in of_b.parts]
    assert ends == [("a", "b"), ("c", "b"), ("d", "b")]
    for site in "acd":
        [*_, last] = [s.message for s in steps if s.site == site]
        assert last.parts == (), "the coordinator sends a part to its receiver alone"
    context = pump.sites["a"].attempt.context
    for part in of_b.parts:
        for name in set("acd") - {part.sender}:
            seal = pump.sites[name].attempt.seal
            with pytest.raises(BadData):
                seal.open_text(context, part.data, part.sender, to_all=False)
    receiver = pump.sites["b"]
    [of_a, *_] = of_b.parts
    opened = receiver.attempt.seal.open_text(context, of_a.data, "a", to_all=False)
    single = np.frombuffer(opened, "<i8") * 2.0**receiver.computation.power
    assert np.abs(single).min() > 1e3, "blinded: a number of 64 random bits"


def test_an_individual_has_few_models_in_its_life() -> None:
    memories = {name: Memory() for name in SITES}
    policy = allowing(models_per_individual=2)

    def run(number: int, **changes: Any) -> Pump:
        sites = {}
        for name in SITES:
            rows = batch(name, **changes.get(name, {}))
            sites[name] = site_with(name, rows, policy=policy, memory=memories[name])
        plan = replace(plan_of(), run=f"score-{number}")
        return Pump(plan, sites).join().run()

    assert run(1).outcome is run(2).outcome is Outcome.CONVERGED, (
        "the same model and sites tell nothing new"
    )
    assert run(3, b=lacks(1)).outcome is Outcome.CONVERGED
    assert run(4, b=lacks(0)).outcome is Outcome.CONVERGED, "it is another individual's second"
    refused = run(5, c=lacks(1))
    assert refused.outcome is Outcome.REFUSED
    assert "scored by 2 models or sets of sites (models_per_individual" in refused.end.reason


@pytest.mark.parametrize(
    ("changes", "said", "outcome"),
    [
        (
            {"of_run": "run-0"},
            "run-1 \\(agreement\\), but b was started with one of run run-0",
            Outcome.REFUSED,
        ),
        ({"trained": "additive"}, "one of run run-1 \\(additive\\)", Outcome.REFUSED),
        ({"sites": ("a", "b")}, "c, d took no part in run run-1", Outcome.REFUSED),
        (
            {"name": "other sums"},
            "the sites have models of different attempts at run run-1",
            Outcome.SITE_FAULT,
        ),
    ],
)
def test_sites_that_cannot_score_together(changes: Any, said: str, outcome: Outcome) -> None:
    pump = scored(plan_of(least=4), b=changes)
    assert pump.outcome is outcome
    assert re.search(said, pump.end.reason), pump.end.reason
    assert pump.bits == {}
    if outcome is Outcome.REFUSED:
        assert not any(site.disclosed for site in pump.sites.values())


@pytest.mark.parametrize(
    ("keys", "least", "told"),
    [
        ({}, 3, ""),
        ({"scoring": False}, 3, "scoring = false"),
        ({"objectives": ("additive",)}, 3, "objectives"),
        ({}, 2, "scores_of_two = false"),
        ({"scores_of_two": True}, 2, ""),
    ],
)
def test_a_policy_allows_scorings_and_can_forbid_them(keys: Any, least: int, told: str) -> None:
    said = against(Policy(**keys), plan_of(least=least))
    if told:
        assert said is not None
        assert told in said
    else:
        assert said is None


def test_a_plan_in_the_clear_or_for_strangers_is_none() -> None:
    assert plan_fault(plan_of()) is None
    assert "needs sealed sums" in (
        plan_fault(replace(plan_of(), privacy=Privacy("plaintext"))) or ""
    )
    assert "none of the sites" in (plan_fault(plan_of(receivers=("z",))) or "")
    assert "parts add up only" in str(plan_fault(plan_of(contributions=True))), "of an agreement"
    plan = plan_of(trained="additive", contributions=True)
    assert "contributions = false" in str(against(allowing(), plan))
    assert against(allowing(contributions=True), plan) is None


# --- contributions --------------------------------------------------------------------------------


def total(names: Any) -> int:
    return sum(SITES.index(name) + 1 for name in names)


def sum_of_places(present: Any) -> int:
    return sum(v + 1 for v in present)


def additive_batch(site: str, noise: float = 0.0, **changes: Any) -> Batch:
    """A batch whose model is a stand-in: the part of a row is its first feature divided by a number
    of the present sites.
    """

    def missing_variance(present: Any) -> float:
        return float(sum_of_places(present)) ** 2

    class Model:
        deviation_of_labels = 1.0
        weights = SimpleNamespace(noise=noise, missing_variance=missing_variance)

        def part(self, phi: Any, present: Any) -> Any:
            return phi[:, 0] / sum_of_places(present)

    return batch(site, trained="additive", model=Model(), intercept=10.0, **changes)


def with_parts(contributions: bool, noise: float = 0.0, **changes: Any) -> Pump:
    plan = plan_of(trained="additive", receivers=("a", "c"), contributions=contributions)
    policy = allowing(contributions=True)
    sites = {}
    for name in SITES:
        rows = additive_batch(name, noise, **changes.get(name, {}))
        sites[name] = site_with(name, rows, policy)
    return Pump(plan, sites).join().run()


def test_receivers_read_each_part_where_all_policies_allow_it() -> None:
    pump = with_parts(True, d=lacks(2))
    without_d = np.arange(M) == 2
    divisor = np.where(without_d, total("abc"), total("abcd"))
    for name in "ac":
        result = pump.sites[name].result
        assert list(result.contributions) == list(SITES)
        for site, part in result.contributions.items():
            expected = batch(site).features[:, 0] / divisor
            if site == "d":
                expected[without_d] = np.nan
            assert_allclose(part, expected, atol=1e-11)
        parts = list(result.contributions.values())
        expected = 10.0 + np.nansum(parts, axis=0)
        assert_allclose(result.scores, expected, atol=1e-11)
    assert pump.sites["b"].result.contributions == {}
    hidden = with_parts(False, d=lacks(2)).sites["a"].result
    assert list(hidden.contributions) == ["a"], "its own alone"
    assert_allclose(hidden.scores, pump.sites["a"].result.scores, atol=1e-11)


def test_the_noise_on_a_part_is_one_for_an_individual_and_the_sites_that_know_it() -> None:
    def noise(**lacking: Any) -> Any:  # on the parts of b, c and d, as "a" reads them
        result = with_parts(True, 1.0, **lacking).sites["a"].result
        sizes = [total(there) for there in result.present]
        noises = []
        for site in "bcd":
            part = batch(site).features[:, 0] / sizes
            noises.append(result.contributions[site] - part)
        return np.array(noises)

    first = noise()
    deviation = np.sqrt(np.mean(first**2))
    assert 0.5 < deviation / 0.05 < 1.5, "of 15 numbers: its own deviation is 18 %"
    assert_allclose(noise(), first)
    change = np.abs(noise(a=lacks(2)) - first)
    moved = change.max(axis=0) > 1 / 64  # more than the rounding
    assert moved.tolist() == [False, False, True, False, False]


def test_no_part_leaves_of_an_individual_that_too_few_sites_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = dict[str, Any]()
    take = ScoringComputation.take

    def spy(computation: ScoringComputation, question: Any, answers: Any, chain: bytes) -> None:
        opened[computation.name] = answers.to_me  # of the last question, which is the scores
        take(computation, question, answers, chain)

    monkeypatch.setattr(ScoringComputation, "take", spy)
    with_parts(True, c=lacks(2), d=lacks(2))
    words = np.frombuffer(opened["a"]["b"], np.int64)
    assert (words != 0).tolist() == [True, True, False, True, True]
