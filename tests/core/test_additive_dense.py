"""The dense driver gives what messages give: models, grids, folds; and what folds tell a site beside the federation's sums."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import QUICK, federation, train
from numpy.testing import assert_allclose

from benchmarks.additive_reference.dense_training import forecast_dense, train_dense
from benchmarks.additive_reference.in_memory import run_in_memory
from coreg_core.additive.forecast import Forecast
from coreg_core.additive.question_types import Operator

# Solves so tight that tuning follows the same path; 2Σn + 1 rounds are always enough.
TIGHT = replace(QUICK, tolerance=1e-12, final_tolerance=1e-12, folds=3)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tuning_steps": 0},
        {"rows": "common"},
        {"rows": "common", "residuals": "grouped"},
        {"rows": "common", "residuals": "open"},
    ],
    ids=str,
)
def test_the_dense_driver_gives_what_messages_give(changes):
    terms = replace(TIGHT, **changes)
    by_rounds, at_once = federation(terms), federation(terms)
    _, state = train(by_rounds, terms)
    run = train_dense(terms, at_once.sites, at_once.n_unlabelled)
    assert_allclose(run.x, state.x[:, :1], atol=1e-7)
    assert_allclose(run.operator, state.operator)
    assert_allclose(run.joint, state.joint, rtol=1e-6)
    for mine, theirs, (X, _) in zip(at_once.sites, by_rounds.sites, at_once.tables, strict=True):
        assert_allclose(mine.model.own.predict(X), theirs.model.own.predict(X), atol=1e-6)
        assert_allclose(mine.model.part.predict(X), theirs.model.part.predict(X), atol=1e-6)


@pytest.mark.parametrize("rows", ["private", "common"])
def test_folds_are_the_same_and_a_site_keeps_its_rows(rows):
    terms = replace(TIGHT, rows=rows)
    by_rounds, at_once = federation(terms), federation(terms)
    _, state = train(by_rounds, terms)
    schedule = Forecast.of(terms, state)
    gain = run_in_memory(schedule, schedule.start(by_rounds.n_unlabelled), by_rounds.sites).gain
    assert forecast_dense(
        terms, at_once.sites, train_dense(terms, at_once.sites, at_once.n_unlabelled)
    ) == pytest.approx(gain, abs=1e-7)
    squares = np.zeros(2)
    for mine, theirs in zip(at_once.sites, by_rounds.sites, strict=True):
        for name in ("labels", "alone", "own", "together", "deviation"):
            assert_allclose(getattr(mine.left_out, name), getattr(theirs.left_out, name), atol=1e-6)
        found = mine.left_out
        assert sorted(found.rows) == list(range(mine.n_labelled))  # every labelled row, each once
        assert_allclose(found.labels, mine._y[found.rows])
        assert found.scored_together == (rows == "common" and mine.n_labelled > 0)
        squares += [np.sum((found.labels - found.own) ** 2), np.sum((found.labels - found.alone) ** 2)]
    assert np.sqrt(squares[0] / squares[1]) - 1.0 == pytest.approx(gain, abs=1e-7)


def test_a_stated_deviation_is_the_posterior_of_the_label():
    """At labelled rows of one site among fixed others: σ² + τ²φᵀ(I − Φᵀ(ΦΦᵀ + σ²/τ² I)⁻¹Φ)φ, in function space."""
    terms = replace(TIGHT, tuning_steps=1)
    made = federation(terms)
    run = train_dense(terms, made.sites, made.n_unlabelled)
    for site in made.sites:
        view, hyper = site.at(Operator(), run.step)
        spread = site.spread(Operator(), run.step)
        Phi = np.c_[view.labelled, np.full(view.n_labelled, np.sqrt(view.random_intercept / hyper.prior))]
        gram = Phi @ Phi.T
        inverse = np.linalg.inv(gram + hyper.noise / hyper.prior * np.eye(len(Phi)))
        variance = hyper.noise + hyper.prior * np.diag(gram - gram @ inverse @ gram)
        expected = run.units[1] * np.sqrt(variance)
        assert_allclose(spread.deviations(site._X), expected, rtol=1e-6)
        far = spread.deviations(site._X + 1e3) if len(Phi) else expected
        assert np.all(far >= spread.factor * np.sqrt(hyper.noise))
