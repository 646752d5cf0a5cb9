"""The additive objective through both machines: the dense oracle's solution, its folds, groups, and what a site refuses."""

from typing import Any

import numpy as np
import pytest
from machine.additive_tiny import (
    EVERYTHING,
    NAMES,
    SMALL,
    additive_plan,
    additive_sites,
    job,
    off_the_oracle,
    private_data,
    undisturbed,
)
from machine.tiny import Pump, sealed, site_with
from numpy.testing import assert_allclose

from benchmarks.additive_reference.dense_training import forecast_dense, train_dense
from coordinator.machine.records import AttemptBegan, StepDone
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.site import AdditiveSite
from coreg_core.evaluation.recommendation import Told
from coreg_core.protocol.messages import Offer, PlanRefused, Proposal
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.problems import generated
from site_agent.machine.additive import _probe_secret
from site_agent.machine.memory import Remembered
from site_agent.machine.site import Site


def refusal(site: Site, plan: Plan) -> str:
    """Empty where the site takes part."""
    [said] = site.handle(Proposal(plan.run, 0, plan))
    assert isinstance(said, Offer | PlanRefused)
    return said.reason if isinstance(said, PlanRefused) else ""


def steps_of(pump: Pump) -> list[StepDone]:
    return [record for record in pump.records if isinstance(record, StepDone)]


def test_messages_alone_equal_the_dense_oracle() -> None:
    tables = generated(3, 40, 150, 4, 0).sites
    plan = additive_plan(tables, tuning_steps=2, probes=4, landmarks=60, final_tolerance=1e-11)
    pump = Pump(plan, {name: site_with(name, table) for name, table in tables.items()}).join().run()
    assert pump.outcome is Outcome.CONVERGED
    assert off_the_oracle(pump) < 1e-8
    assert steps_of(pump)[-1].report.round <= 60


def test_the_site_predicts_in_its_own_units_from_its_own_columns() -> None:
    pump = undisturbed(additive_plan(tuning_steps=3))
    for name, site in pump.sites.items():
        model, data = site.result.additive, private_data(name)
        weight = model.blend.weight
        blended = weight * model.joined.predict(data.X) + (1.0 - weight) * model.alone.predict(data.X)
        assert_allclose(model.own.predict(data.X), blended, rtol=1e-10)
        assert np.abs(model.own.predict(data.X) - data.y).mean() < np.abs(data.y - data.y.mean()).mean()
        assert any("label noise of this site" in text for text in site.result.findings)


def test_a_site_without_labels_ends_with_a_model() -> None:
    pump = undisturbed(additive_plan(), {"b": 0})
    model = pump.sites["b"].result.additive
    assert model.alone is None
    assert np.isfinite(model.own.predict(private_data("b").Z)).all()
    assert off_the_oracle(pump) < 1e-6


@pytest.mark.parametrize("secure", [False, True])
def test_where_nobody_has_a_label_the_run_ends_with_that_sentence_and_no_model(secure: bool) -> None:
    plan = additive_plan(min_sites=3)
    pump = undisturbed(sealed(plan) if secure else plan, dict.fromkeys(NAMES, 0))
    assert pump.outcome is Outcome.SITE_FAULT
    assert "no site of this federation has a label" in pump.end.reason
    assert pump.bits == {}
    assert not pump.breaches


def test_a_lost_site_costs_the_training_its_beginning_and_the_others_go_on() -> None:
    plan = additive_plan(on_dropout="continue")
    pump = Pump(plan, additive_sites(plan)).join().steps(8).lose("c").out_of_time().run()
    assert [r.participants for r in pump.records if isinstance(r, AttemptBegan)] == [("a", "b", "c"), ("a", "b")]
    alone = Pump(plan, additive_sites(additive_plan("ab"))).join().out_of_time().run()
    assert pump.bits == alone.bits


COMMON: dict[str, dict[str, Any]] = {
    "smoothed": {"rows": "common", "folds": 2, "landmarks": 10},
    "grouped": {"rows": "common", "residuals": "grouped"},
    "open": {"rows": "common", "residuals": "open"},
}
FORECAST = {"forecast": True, "folds": 3, "tolerance": 1e-10}


@pytest.mark.parametrize("residuals", ["grouped", "open"])
def test_common_rows_through_the_same_messages(residuals: str) -> None:
    pump = undisturbed(additive_plan(**COMMON[residuals]), common=True)
    assert pump.outcome is Outcome.CONVERGED
    assert off_the_oracle(pump) < 1e-8


# --- killed anywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["private", "grouped"])
def test_killed_anywhere_it_ends_on_the_same_bits(kind: str) -> None:
    """An agent, at every fifteenth step; its engine keeps factors and numbers between questions, which follow from the sums."""
    terms = COMMON.get(kind, {})
    plan, common = sealed(additive_plan(min_sites=3, **terms)), kind in COMMON
    whole = undisturbed(plan, common=common)
    assert whole.outcome is Outcome.CONVERGED
    for after in range(4, len(steps_of(whole)), 15):
        pump = Pump(plan, additive_sites(plan, common=common)).join().steps(after).kill("b").run()
        assert pump.bits == whole.bits, after


# --- folds after the training -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folded() -> Pump:
    return undisturbed(additive_plan(**FORECAST))


def test_messages_forecast_what_the_dense_folds_do(folded: Pump) -> None:
    terms = Additive(**(SMALL | FORECAST))
    data = {name: site._data for name, site in folded.sites.items()}
    engines = [
        AdditiveSite(d.X, d.y, d.Z, terms, name=n, probe_secret=_probe_secret(d, terms)) for n, d in data.items()
    ]
    gain = forecast_dense(terms, engines, train_dense(terms, engines, 30))
    told = folded.sites["a"]._replica.state.sums
    assert_allclose(np.sqrt(told[0] / told[1]) - 1.0, gain, atol=1e-6)  # folds are solved to 1e-10 of their start
    assert told[2] == 27.0, "every label was left out once"
    assert told[3:].sum() == 3.0, "each site counts once"
    for engine in engines:
        judged = folded.sites[engine.name].result.judged
        assert_allclose(judged.left_out.own, engine.left_out.own, atol=1e-5)
        assert_allclose(judged.federation, gain, atol=1e-6)
        assert judged.verdict.told is Told.FEDERATION
        assert judged.verdict.together is None, "private rows: nobody else knows them"


@pytest.mark.parametrize("telling", ["a", ""])
def test_a_policy_may_keep_what_folds_found(folded: Pump, telling: str) -> None:
    plan = additive_plan(**FORECAST)
    sites = {n: site_with(n, private_data(n), tells_forecast=n == telling, residuals=EVERYTHING) for n in NAMES}
    kept = Pump(plan, sites).join().run()
    told = kept.sites["b"]._replica.state.sums
    assert (told[2], told[3:].sum()) == ((9.0, 1.0) if telling else (0.0, 0.0)), "the sum of one site's, or of nobody's"
    verdict, before = (pump.sites["b"].result.judged.verdict for pump in (kept, folded))
    assert_allclose(verdict.alone.rmse, before.alone.rmse), "what a site keeps it knows itself"
    assert telling or verdict.told is Told.NOTHING


# --- groups -------------------------------------------------------------------------------------------------------


def later(pump: Pump, plan: Plan, *, rows: int = 9) -> str:
    """What site a, in another process and with a table of so many rows, says of another run of another plan."""
    known = Remembered(groups=frozenset(job(pump.sites["a"]).groups))
    return refusal(
        site_with("a", private_data("a", rows, common=True), recall=lambda *_: known, residuals=EVERYTHING), plan
    )


def test_no_label_goes_out_in_two_groups_whatever_the_run() -> None:
    """Another group size, or a table with one row more: the difference of two means would be one label."""
    grouped = COMMON["grouped"]
    pump = undisturbed(additive_plan(**grouped), common=True)
    assert later(pump, additive_plan(run="run-2", tuning_steps=1, **grouped)) == ""
    for plan, rows in (
        (additive_plan(run="run-2", group_size=4, **grouped), 9),
        (additive_plan(run="run-2", **grouped), 10),
    ):
        assert "went out in other groups before" in later(pump, plan, rows=rows)
    for other in ("smoothed", "open"):
        assert later(pump, additive_plan(run="run-2", **COMMON[other])) == ""


def test_the_means_of_groups_are_told_once_and_in_the_first_answer_that_has_them() -> None:
    plan, fresh = additive_plan(**COMMON["grouped"]), []
    sites = additive_sites(plan, common=True)
    honest = sites["a"].handle
    sites["a"].handle = lambda message: [honest(message), fresh.append(sites["a"].told)][0]  # type: ignore[method-assign]
    Pump(plan, sites).join().run()
    told = [t.fresh for t in fresh if t is not None and t.fresh]
    assert told
    assert all(groups == job(sites["a"]).groups for groups in told)
    assert all(t.residuals == "grouped" for t in fresh if t is not None)
