"""The forecast in the service: folds after the training, what they sum to, what stays at the site, and who may withhold it."""

from dataclasses import replace

import numpy as np
import pytest
from machine.additive_tiny import SMALL, additive_plan, additive_sites, bits, job, restarted, undisturbed
from machine.tiny import Pump
from numpy.testing import assert_allclose

from coordinator.machine.records import StepTaken
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Ask, Question
from coreg_core.additive.reference.dense_training import forecast_dense, train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import UsageError
from coreg_core.evaluation.recommendation import Told
from coreg_core.protocol.messages import Fault, Inquiry
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.site import Terms

TERMS = {"forecast": True, "folds": 3, "tolerance": 1e-10}


def plan(**changes):
    return additive_plan(**(TERMS | changes))


@pytest.fixture(scope="module")
def pump():
    return undisturbed(plan())


def judged(pump, name):
    result = pump.sites[name].result
    assert result is not None
    assert result.judged is not None
    return result.judged


def test_messages_forecast_what_the_dense_folds_do(pump):
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    terms = Additive(**(SMALL | TERMS))
    data = {name: site._data for name, site in pump.sites.items()}
    engines = [AdditiveSite(d.X, d.y, d.Z, terms, name=name) for name, d in data.items()]
    gain = forecast_dense(terms, engines, train_dense(terms, engines, 30))
    told = np.array(pump.models["a"].forecast)
    assert len(told) == 6
    assert_allclose(np.sqrt(told[0] / told[1]) - 1.0, gain, atol=1e-6)  # folds are solved to 1e-10 of their start
    assert told[2] == 27.0, "every label was left out once"
    assert told[3:].sum() == 3.0, "each site counts once"
    assert all(pump.models[name].forecast == tuple(told) for name in "abc")
    assert f"forecast: error {100 * gain:+.1f} % over 27 left-out labels" in pump.end.reason
    for engine in engines:
        found = judged(pump, engine.name).left_out
        assert found is not None
        assert engine.left_out is not None
        assert_allclose(found.own, engine.left_out.own, atol=1e-5)


def test_a_site_with_few_labels_is_told_the_federations_figure(pump):
    for name in "abc":
        verdict = judged(pump, name).verdict
        told = pump.models[name].forecast
        assert verdict.told is Told.FEDERATION
        assert_allclose(verdict.forecast, np.sqrt(told[0] / told[1]) - 1.0)
        assert verdict.alone is not None
        assert verdict.alone.rows == 9
        assert verdict.together is None, "private rows: nobody else knows them"


def test_models_are_those_of_the_training_without_folds(pump):
    plain = bits(undisturbed(plan(forecast=False)))
    for name, found in bits(pump).items():
        assert found[1:] == plain[name][1:]
        assert found[0][2] == plain[name][0][2]


def test_with_common_rows_the_joint_score_is_judged_too():
    pump = undisturbed(plan(rows="common", tolerance=1e-6), common=True)
    for name in "abc":
        assert judged(pump, name).verdict.together is not None


def questions(pump):
    return sum(isinstance(record, StepTaken) for record in pump.records)


@pytest.mark.parametrize("behind", [1, 2, 5])
def test_an_agent_that_is_started_again_among_the_folds_goes_on_on_the_same_bits(pump, behind):
    """Killed after FORECAST's SCORE, after its SMOOTHER, and in the middle of its solve."""
    the_plan = plan()
    before = questions(undisturbed(plan(forecast=False)))
    sites = additive_sites(the_plan)
    again = Pump(the_plan, sites).join().steps(before + behind)
    again.sites["b"] = restarted(again.sites["b"])
    again.join("b").run()
    assert again.end is not None
    assert again.end.outcome is Outcome.CONVERGED
    assert again.models["a"].forecast == pump.models["a"].forecast
    assert bits(again) == bits(pump)


def test_a_coordinator_that_is_killed_among_the_folds_takes_them_up_on_the_same_bits(pump):
    the_plan = plan()
    kill_after = questions(undisturbed(plan(forecast=False))) + 5
    killed = Pump(the_plan, additive_sites(the_plan), kill_after=kill_after).join().run()
    again = Pump(the_plan, killed.sites, killed.records).join().run()
    assert again.models["a"].forecast == pump.models["a"].forecast
    assert bits(again) == bits(pump)


def test_a_policy_may_keep_it(pump):
    the_plan = plan()
    sites = additive_sites(the_plan)
    for site in sites.values():
        site._terms = replace(site._terms, tells_forecast=site.name == "a")
    kept = Pump(the_plan, sites).join().run()
    told = kept.models["b"].forecast
    assert told[2] == 9.0, "the sum of one site's"
    assert told[3:].count(1.0) == 1
    assert judged(kept, "b").verdict.alone is not None, "what a site keeps it knows itself"
    assert_allclose(judged(kept, "b").verdict.alone.rmse, judged(pump, "b").verdict.alone.rmse)
    nobody = additive_sites(the_plan)
    for site in nobody.values():
        site._terms = Terms(tells_forecast=False)
    silent = Pump(the_plan, nobody).join().run()
    assert silent.end is not None
    assert "no site told one" in silent.end.reason
    assert judged(silent, "c").verdict.told is Told.NOTHING


def test_folds_are_answered_where_the_plan_has_them_and_in_the_trainings_units(pump):
    site = undisturbed(plan(forecast=False)).sites["a"]
    held = job(site)
    asked = Question(Ask.SCORE, np.zeros((0, 0)), (), scalars=(0.0, 1.0))
    number = max(held.remembered.asked)[0] + 1
    columns = tuple(replace(c) for c in _columns(held.terms))
    inquiry = Inquiry.of("run-1", number, 0, replace(asked, columns=columns))
    assert isinstance(replace(held, result=None).answer(inquiry)[1], Fault)
    with_folds = replace(job(pump.sites["a"]), result=None)
    first = next(n for n, d in enumerate(sorted(with_folds.remembered.asked)) if n)  # any; the position is what counts
    assert first
    model = with_folds.remembered.kept
    assert model is not None
    at_model = replace(model, position=replace(model.position, ask=Ask.MODEL, solve="none"))
    waiting = replace(with_folds, remembered=replace(with_folds.remembered, kept=at_model))
    number = max(waiting.remembered.asked)[0] + 1
    units = tuple(waiting.engine.to_arrays()["units"].tolist())
    for scalars, answered in ((units, True), ((units[0], 2.0 * units[1]), False)):
        inquiry = Inquiry.of("run-1", number, 0, replace(asked, columns=_columns(waiting.terms), scalars=scalars))
        assert isinstance(waiting.answer(inquiry)[1], Fault) is not answered


def _columns(terms):
    from coreg_core.additive.question_rules import forecast_columns
    from coreg_core.additive.question_types import Operator

    return forecast_columns(terms, Operator())


def test_grouped_and_open_residuals_have_no_honest_folds():
    for residuals in ("grouped", "open"):
        with pytest.raises(UsageError, match="groups are made once"):
            Additive(rows="common", residuals=residuals, forecast=True)


def test_before_anything_is_trained_a_site_knows_what_its_columns_tell_of_the_others():
    the_plan = plan(forecast=True)
    pump = Pump(the_plan, additive_sites(the_plan)).join().steps(4)  # LABELS, SPREAD, SCORE, SMOOTHER
    site, held = pump.sites["a"], job(pump.sites["a"])
    assert held.last is not None
    smoother = next(q for q in (held.last[0], _asked(Ask.SMOOTHER)) if q.kind is Ask.SMOOTHER)
    r2 = site.without_labels(smoother)
    assert r2 is not None
    assert r2 == held.engine.smoother.r2
    assert site.without_labels(_asked(Ask.SCORE)) is None
    folds = replace(_asked(Ask.SMOOTHER), columns=_columns(held.terms))
    assert site.without_labels(folds) is None, "folds are after the training"


def _asked(kind):
    return Inquiry.of("run-1", 3, 0, Question(kind, np.zeros((0, 0))))
