"""Rows with weights: an integer weight is a repeated row, in the algebra, in leave-one-out and in the model alone."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import EVERYTHING, QUICK, algebras, federation, train, weighted
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge

from coreg_core.additive.forecast import Forecast
from coreg_core.additive.model.blend import slope_on
from coreg_core.additive.model.local_fit import fit_alone
from coreg_core.additive.question_types import NOTHING, Ask, Column, Operator, Question
from coreg_core.additive.reference.closed_form import solve_dense
from coreg_core.additive.reference.dense_training import forecast_dense, train_dense
from coreg_core.additive.reference.in_memory import run_in_memory
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import BadData, UsageError
from coreg_core.kernels.leave_one_out import leave_one_out

WEIGHTS = np.array([1.0, 3.0, 2.0, 1.0, 2.0, 1.0, 1.0, 4.0])


@given(algebras(rows=(1, 6)), st.integers(0, 2**32 - 1))
def test_an_integer_weight_is_a_repeated_row(algebra, seed):
    rng = np.random.default_rng(seed)
    counts = [rng.integers(1, 4, size=view.n_labelled) for view in algebra.views]
    plain = [replace(view, weighted=None) for view in algebra.views]
    repeated = [view.keep(np.repeat(np.arange(len(k)), k)) for view, k in zip(plain, counts, strict=True)]
    views = [weighted(view, k) for view, k in zip(plain, counts, strict=True)]
    found = solve_dense(views, algebra.hypers, algebra.intercept_prior)
    expected = solve_dense(repeated, algebra.hypers, algebra.intercept_prior)
    assert_allclose(found.intercept, expected.intercept, rtol=1e-7, atol=1e-9)
    for mine, theirs in zip(found.w, expected.w, strict=True):
        assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)
    m = algebra.n_unlabelled
    x, rho, delta = rng.normal(size=(2 * m + 1, 1)), rng.normal(size=m), rng.normal(size=m)
    for one, many, hyper in zip(views, repeated, algebra.hypers, strict=True):
        answers = [view.answer(x, view.y[:, None], hyper) for view in (one, many)]
        assert_allclose(*answers, rtol=1e-7, atol=1e-9)
        assert_allclose(*(view.gradient_norm(rho, delta, hyper) for view in (one, many)), rtol=1e-6)
        assert_allclose(*(view.smoothed(rho[:, None], hyper) for view in (one, many)), rtol=1e-7, atol=1e-9)
        intercepts = [view.own_intercept(view.solve(x, view.y[:, None], hyper)[0]) for view in (one, many)]
        assert_allclose(*intercepts, rtol=1e-7, atol=1e-9)
        assert_allclose(one.stretch(hyper), many.stretch(hyper), rtol=1e-7)
        assert_allclose(one.gain(hyper), many.gain(hyper), rtol=1e-7)


@pytest.mark.parametrize("intercept", [True, False])
def test_left_out_residuals_are_those_of_refits(intercept):
    rng = np.random.default_rng(3)
    Phi, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    [found] = leave_one_out(Phi, y, np.array([0.7]), intercept=intercept, roots=np.sqrt(WEIGHTS))
    for i in range(8):
        rest = np.arange(8) != i
        refit = Ridge(alpha=0.7, fit_intercept=intercept).fit(Phi[rest], y[rest], sample_weight=WEIGHTS[rest])
        assert found[i] / np.sqrt(WEIGHTS[i]) == pytest.approx(y[i] - refit.predict(Phi[i : i + 1])[0], rel=1e-9)


def test_the_model_alone_is_weighted_ridge_regression():
    rng = np.random.default_rng(4)
    Phi, y = rng.normal(size=(8, 3)), rng.normal(size=8)
    own = fit_alone([Phi], y, np.array([0.5]), np.sqrt(WEIGHTS))
    expected = Ridge(alpha=0.5).fit(Phi, y, sample_weight=WEIGHTS)
    assert_allclose(own.w, expected.coef_, rtol=1e-9)
    assert own.intercept == pytest.approx(expected.intercept_, rel=1e-9)
    # The slope of weighted least squares, in its standard errors.
    roots = np.sqrt(WEIGHTS)
    A = np.column_stack([roots, roots * Phi[:, 0]])
    coefficients, [rest], *_ = np.linalg.lstsq(A, roots * y)
    error = np.sqrt(rest / (8 - 2) * np.linalg.inv(A.T @ A)[1, 1])
    assert slope_on(Phi[:, 0], y, roots) == pytest.approx(coefficients[1] / error, rel=1e-9)


@pytest.fixture(params=["private", "common"])
def weighed(request):
    """A trained federation with random weights, and its terms and end."""
    terms = replace(QUICK, folds=3, rows=request.param)
    made = federation(terms, weights=3.0)
    run = train_dense(terms, made.sites, made.n_unlabelled)
    forecast_dense(terms, made.sites, run)
    return terms, made, run


def weights_of(site):
    return site._roots**2


def test_sums_count_each_label_by_its_weight(weighed):
    _, made, run = weighed
    deviation = run.units[1]
    for site in made.sites:
        n, total = site.answer(Question(Ask.LABELS, NOTHING, ())).scalars
        assert (n, weights_of(site).sum()) == (site.n_labelled, pytest.approx(site.n_labelled))
        assert total == pytest.approx(weights_of(site) @ site.labels)
        [spread] = site.answer(Question(Ask.SPREAD, NOTHING, (), scalars=(1.5,))).scalars
        assert spread == pytest.approx(weights_of(site) @ (site.labels - 1.5) ** 2)
        found = site.left_out
        for told, predicted in zip(site.forecast, (found.own, found.alone), strict=False):
            errors = (found.labels - predicted) / deviation
            assert told == pytest.approx(weights_of(site)[found.rows] @ errors**2)


def test_own_model_and_blend_are_of_weighted_refits(weighed):
    """Each row left out in turn by a weighted ridge regression, and the blend that minimises the weighted squares."""
    terms, made, run = weighed
    for site in made.sites[:2]:
        setting, (view, hyper) = site._settings[None], site.at(Operator(), run.step)
        features, labels, weights = site._features(setting).labelled, site._labels(), weights_of(site)
        fixed = np.linspace(-1.0, 1.0, len(labels))
        blend, left_out = site._blend(setting, hyper, fixed)
        joined, alone = np.empty((2, len(labels)))
        part = np.c_[features, np.full(len(labels), np.sqrt(terms.random_intercept / hyper.prior))]
        for i in range(len(labels)):
            rest = np.arange(len(labels)) != i
            mine = Ridge(alpha=hyper.noise / hyper.prior, fit_intercept=False, solver="cholesky")
            mine.fit(part[rest], (labels - fixed)[rest], sample_weight=weights[rest])
            joined[i] = fixed[i] + mine.predict(part[i : i + 1])[0]
            theirs = Ridge(alpha=setting.own.ridge).fit(features[rest], labels[rest], sample_weight=weights[rest])
            alone[i] = theirs.predict(features[i : i + 1])[0]
        assert_allclose(left_out[1], alone, rtol=1e-6)
        assert_allclose(left_out[0], blend.weight * joined + (1.0 - blend.weight) * alone, rtol=1e-6)
        pull = 2000.0 / len(labels) ** 2 * (weights @ (labels - alone) ** 2) / len(labels)
        cost = lambda w, a=alone, b=joined, p=pull, y=labels, o=weights: (  # noqa: E731
            o @ (y - w * b - (1.0 - w) * a) ** 2 + p * (0.8 - w) ** 2
        )
        best = minimize_scalar(cost, bounds=(0.0, 0.8), method="bounded", options={"xatol": 1e-9})
        if setting.slope >= -1.5:
            assert blend.weight == pytest.approx(best.x, abs=1e-5)
        spread = site.spread(Operator(), run.step)
        whole = np.c_[view.labelled, view.level * np.sqrt(view.random_intercept / hyper.prior)]
        inverse = np.linalg.inv(whole @ whole.T + hyper.noise / hyper.prior * np.eye(len(whole)))
        shape = part @ part.T - (part @ whole.T) @ inverse @ (whole @ part.T)
        expected = run.units[1] * np.sqrt(hyper.noise + hyper.prior * np.diag(shape))
        assert_allclose(spread.deviations(site._X), expected, rtol=1e-6)


def test_a_restored_site_answers_with_its_weights(weighed):
    terms, made, run = weighed
    again = federation(terms, weights=3.0)
    x = np.random.default_rng(0).normal(size=(2 * made.n_unlabelled + 1, 1))
    asked = Question(Ask.FIXED_POINT, x, (Column(),), "affine", run.step)
    for site, fresh in zip(made.sites, again.sites, strict=True):
        fresh.restore(site.to_arrays())
        assert_allclose(fresh.answer(asked).vectors, site.answer(asked).vectors, rtol=1e-12)


@pytest.mark.parametrize("rows", ["private", "common"])
def test_messages_give_what_the_dense_driver_gives(rows):
    terms = replace(QUICK, tolerance=1e-12, final_tolerance=1e-12, folds=3, rows=rows)
    by_rounds, at_once, plain = federation(terms, weights=1.0), federation(terms, weights=7.0), federation(terms)
    _, state = train(by_rounds, terms)
    run = train_dense(terms, at_once.sites, at_once.n_unlabelled)
    unweighted = train_dense(terms, plain.sites, plain.n_unlabelled)
    assert_allclose(run.x, state.x[:, :1], atol=1e-7)  # only the ratios of weights matter
    assert np.abs(run.x - unweighted.x).max() > 1e-3
    schedule = Forecast.of(terms, state)
    gain = run_in_memory(schedule, schedule.start(by_rounds.n_unlabelled), by_rounds.sites).gain
    assert forecast_dense(terms, at_once.sites, run) == pytest.approx(gain, abs=1e-7)
    for mine, theirs, (X, _) in zip(at_once.sites, by_rounds.sites, at_once.tables, strict=True):
        assert_allclose(mine.model.own.predict(X), theirs.model.own.predict(X), atol=1e-6)
        assert_allclose(mine.model.left_out, theirs.model.left_out, atol=1e-6)


def test_weights_are_not_for_residuals_that_disclose_labels():
    rng = np.random.default_rng(0)
    terms = replace(QUICK, rows="common", residuals="open")
    X, y = rng.normal(size=(5, 2)), rng.normal(size=5)
    with pytest.raises(UsageError, match='residuals="smoothed", not "open"'):
        AdditiveSite(X, y, X, terms, positions=np.arange(5), policy=EVERYTHING, weights=np.ones(5))
    with pytest.raises(BadData, match="one positive number for each of the 5 labels"):
        AdditiveSite(X, y, X, QUICK, weights=np.r_[0.0, np.ones(4)])
