"""How much of the joined model a site takes: by rows left out one after another, and by the sign of the others' predictions."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import QUICK, federation, train
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.stats import linregress

from coreg_core.additive.model.blend import Blend, choose_blend, slope_on
from coreg_core.additive.model.features import with_intercept
from coreg_core.additive.model.terms import BLEND
from coreg_core.additive.model.view import Hyper
from coreg_core.additive.reference.dense_training import train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.kernels.leave_one_out import leave_one_out

TERMS = replace(QUICK, landmarks=60, tuning_steps=4, probes=16)


@given(st.integers(0, 10_000), st.sampled_from(["mean", "safety"]))
def test_the_weight_is_the_least_of_its_criterion(seed, aim):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 40))
    joined, alone = rng.normal(size=n) * rng.uniform(0.2, 2.0), rng.normal(size=n)
    found = choose_blend(joined, alone, alone, 1.0, aim).weight
    grid = np.linspace(0.0, BLEND, 2001)
    pull = {"mean": 2000.0 / n**2, "safety": 0.0}[aim] * float(np.mean(alone**2))
    errors = ((grid[:, None] * joined + (1 - grid[:, None]) * alone) ** 2).sum(axis=1) + pull * (grid - BLEND) ** 2
    assert found == pytest.approx(grid[errors.argmin()], abs=BLEND / 1000)


def test_equal_models_and_opposed_labels():
    same = np.ones(4)
    assert choose_blend(same, same, same, 1.0, "safety") == Blend(BLEND)
    assert choose_blend(0.1 * same, same, same, -1.51, "mean") == Blend(0.0, opposed=True)
    assert not choose_blend(0.1 * same, same, same, -1.49, "mean").opposed


def test_the_slope_in_its_standard_errors_is_that_of_a_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    y = 0.4 * x + rng.normal(size=30)
    fit = linregress(x, y)
    assert slope_on(x, y) == pytest.approx(fit.slope / fit.stderr)
    assert slope_on(np.ones(3), np.arange(3.0)) == 0.0
    assert slope_on(np.arange(2.0), np.arange(2.0)) == 0.0
    assert slope_on(np.arange(3.0), -np.arange(3.0)) == pytest.approx(-1e12)


def test_left_out_residuals_are_those_of_models_fitted_without_the_row():
    """The joined model's own part and its random intercept are fitted again without each row; the others' parts stay."""
    rng = np.random.default_rng(0)
    Phi, t, hyper, kappa = rng.normal(size=(12, 3)), rng.normal(size=12), Hyper(0.3, 0.7), 0.4
    [found] = leave_one_out(
        with_intercept(Phi, kappa, hyper.prior), t, np.array([hyper.noise / hyper.prior]), intercept=False
    )
    for i in range(12):
        kept = np.arange(12) != i
        K = hyper.prior * Phi[kept] @ Phi[kept].T + kappa + hyper.noise * np.eye(11)
        alpha = np.linalg.solve(K, t[kept])
        predicted = (hyper.prior * Phi[i] @ Phi[kept].T + kappa) @ alpha
        assert_allclose(found[i], t[i] - predicted, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_site_with_the_sign_flipped_stays_alone_and_the_others_do_not(seed):
    """Four sites measure one latent quantity with noise, so that the others' predictions tell of every site's labels."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=200 + 4 * 15)
    tables = [latent[:, None] * [1.0, 0.5] + 0.7 * rng.normal(size=(len(latent), 2)) for _ in range(4)]
    sites = []
    for v, table in enumerate(tables):
        rows = slice(200 + 15 * v, 200 + 15 * (v + 1))
        y = latent[rows] + 0.1 * rng.normal(size=15)
        sites.append(AdditiveSite(table[rows], -y if v == 3 else y, table[:200], TERMS, name=f"s{v}"))
    train_dense(TERMS, sites, 200)
    *others, flipped = (site.model.blend for site in sites)
    assert flipped == Blend(0.0, opposed=True)
    assert all(each.weight > 0.2 and not each.opposed for each in others)
    model = sites[3].model
    assert_allclose(model.own.predict(tables[3]), model.alone.predict(tables[3]))


@pytest.mark.parametrize("seed", range(3))
def test_labels_beside_wrong_rows_are_unexplained_at_their_site_alone(seed):
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=200 + 4 * 40)
    tables = [latent[:, None] * [1.0, 0.5] + 0.7 * rng.normal(size=(len(latent), 2)) for _ in range(4)]
    sites = []
    for v, table in enumerate(tables):
        rows = slice(200 + 40 * v, 200 + 40 * (v + 1))
        y = latent[rows] if v < 3 else rng.permutation(latent[rows])
        sites.append(AdditiveSite(table[rows], y, table[:200], TERMS, name=f"s{v}"))
    train_dense(TERMS, sites, 200)
    assert [site.model.blend.unexplained for site in sites] == [False, False, False, True]
    few = choose_blend(np.ones(19), np.ones(19), np.ones(19) * [*[0.1, -0.1] * 9, 0.1], 0.0, "mean")
    assert not few.unexplained, "19 labels tell too little"


def test_an_offset_of_a_site_is_its_random_intercept():
    """Labels shifted by three deviations at one site: with κ the parts barely move, without it they carry the offset."""

    def parts(kappa, shift):
        terms = replace(TERMS, random_intercept=kappa, targets="raw")
        made = federation(terms, n=(40, 40, 40), m=200, mean=0.0, labels=lambda v, y: y + shift if v == 2 else y)
        train(made, terms)
        rows = [table for table, _ in made.tables]
        return [site.model.part.predict(table) for site, table in zip(made.sites, rows, strict=True)], made

    for kappa, least, most in ((100.0, 0.0, 0.1), (0.0, 0.3, np.inf)):
        before, _ = parts(kappa, 0.0)
        after, made = parts(kappa, 10.0)
        moved = max(float(np.abs(a - b).max() / np.std(b)) for a, b in zip(after, before, strict=True))
        assert least <= moved <= most, (kappa, moved)
        intercepts = [site.model.intercept for site in made.sites]
        if kappa:
            assert intercepts[2] - np.mean(intercepts[:2]) == pytest.approx(10.0, abs=1.0)
        else:
            assert intercepts[0] == intercepts[2]
