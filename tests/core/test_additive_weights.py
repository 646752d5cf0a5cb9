"""Rows with weights: an integer weight is a repeated row, in the algebra, in leave-one-out and in the model alone."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import EVERYTHING, QUICK, algebras, federation, train, weighted
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from benchmarks.additive_reference.dense_training import forecast_dense, train_dense
from benchmarks.additive_reference.in_memory import run_in_memory
from coreg_core.additive.closed_form import solve_dense
from coreg_core.additive.forecast import Forecast
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import BadData, UsageError


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
