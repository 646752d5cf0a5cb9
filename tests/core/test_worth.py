"""What each partner's columns bring: exact restrictions, and signals of known size."""

from dataclasses import replace

import numpy as np
import pytest
from exact_sums import sums
from numpy.testing import assert_allclose

from coreg_core.additive.moments import Moments, fit
from coreg_core.additive.worth import STEPS, without, worths

D = (4, 3, 5)


def moments(signal, n=300, seed=0, noise=0.5, d=D):
    """Of sites with ``d`` independent features each; ``signal``: the weight of each site's."""
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(n, sum(d)))
    weights = np.repeat(signal, d) / np.sqrt(np.repeat(d, d))
    y = 7.0 + 3.0 * (Phi @ weights + noise * rng.normal(size=n))
    return of_rows(Phi, y, d)


def of_rows(Phi, y, d):
    owner = np.arange(len(y)) % len(D)
    labels = [y[owner == v] for v in range(len(D))]
    levels = np.array([each.mean() for each in labels])
    within = float(sum(((each - each.mean()) ** 2).sum() for each in labels))
    counts = np.array([float(len(each)) for each in labels])
    part = sums(Phi, owner, y, np.ones(len(y)), levels)
    return Moments(d, Phi.T @ Phi / len(y), len(y), counts, levels, within, (part,))


def test_a_fit_without_a_site_is_that_of_moments_that_never_had_its_features():
    rng = np.random.default_rng(1)
    Phi = rng.normal(size=(200, 12))
    y = Phi @ rng.normal(size=12) + rng.normal(size=200)
    never = fit(of_rows(np.delete(Phi, np.s_[4:7], axis=1), y, (4, 0, 5)), STEPS)
    less = fit(without(of_rows(Phi, y, D), 1), STEPS)
    assert not less.beta[4:7].any()
    assert_allclose(np.delete(less.beta, np.s_[4:7]), never.beta, rtol=1e-9, atol=1e-12)
    assert less.leverage() == pytest.approx(never.leverage())


def test_a_partner_of_all_signal_is_worth_it_and_one_of_none_is_worth_nothing():
    found = worths(fit(moments((0.0, 2.0, 0.0))), (0, 1, 2))
    assert next(iter(found)) == 1, "the largest first"
    # Of variances 4 + 0.25 of the labels, and 0.25 of the noise.
    assert found[1].change == pytest.approx(np.sqrt(17.0) - 1.0, rel=0.15)
    for site in (0, 2):
        assert abs(found[site].change) < 0.03
        assert found[site].standard_error < 0.03


def test_the_worth_of_a_partner_does_not_depend_on_the_unit_of_the_labels():
    m = moments((1.0, 0.5, 0.0))
    part = m.parts[0]
    scaled = replace(part, b=9.0 * part.b, r=9.0 * part.r, s=81.0 * part.s)
    other = replace(m, levels=9.0 * m.levels, within=81.0 * m.within, parts=(scaled,))
    before = worths(fit(m), (1, 2), label_noise=0.3)
    after = worths(fit(other), (1, 2), label_noise=81.0 * 0.3)
    assert list(before) == list(after)
    assert_allclose(
        [[each.change, each.standard_error] for each in before.values()],
        [[each.change, each.standard_error] for each in after.values()],
        rtol=1e-6,
    )


def test_noise_on_labels_is_not_counted_as_an_error_of_the_score():
    """Noise of deviation 3 · 0.4 on the labels beside that of the score, 3 · 0.3."""
    plain = worths(fit(moments((1.0, 1.0, 0.0), n=3000, noise=0.3)), (0,))[0]
    noisy = fit(moments((1.0, 1.0, 0.0), n=3000, noise=0.5))
    assert worths(noisy, (0,))[0].change < 0.8 * plain.change
    corrected = worths(noisy, (0,), label_noise=(3 * 0.4) ** 2)[0]
    assert corrected.change == pytest.approx(plain.change, rel=0.1)


def test_with_few_labels_only_the_order_is_known():
    found = worths(fit(moments((0.2, 2.0, 0.8), n=147)), (0, 1, 2))
    assert list(found.items()) == [(1, None), (2, None), (0, None)]


def test_noise_on_labels_widens_the_interval():
    whole = fit(moments((1.0, 1.0, 0.0)))
    assert worths(whole, (0,), 1.2)[0].standard_error > 1.5 * worths(whole, (0,))[0].standard_error


def test_an_interval_of_the_worth_holds_that_of_many_labels():
    truth = worths(fit(moments((1.0, 0.6, 0.3), n=30_000, seed=99)), (0, 1, 2))
    inside = []
    for seed in range(20):
        found = worths(fit(moments((1.0, 0.6, 0.3), n=300, seed=seed)), (0, 1, 2))
        for site, each in found.items():
            inside.append(abs(each.change - truth[site].change) < 1.96 * each.standard_error)
    assert np.mean(inside) > 0.9
