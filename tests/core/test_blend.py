"""How much of the joined model a site takes: by rows left out one after another, and by the sign of the others' predictions."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import QUICK
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from benchmarks.additive_reference.dense_training import train_dense
from coreg_core.additive.model.blend import Blend, choose_blend
from coreg_core.additive.model.terms import BLEND
from coreg_core.additive.site import AdditiveSite

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
