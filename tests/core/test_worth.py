"""What each partner's columns bring: exact restrictions, and signals of known size."""

from dataclasses import replace

import numpy as np
import pytest
from exact_sums import sums
from numpy.random import default_rng
from numpy.testing import assert_allclose

from coreg_core.additive.fit import fit
from coreg_core.additive.moments import Moments
from coreg_core.additive.worth import STEPS, without, worths

D = (4, 3, 5)


def moments(signal, n=300, seed=0, noise=0.5):
    """Of three sites with independent features; ``signal``: the weight of each site's."""
    rng = default_rng(seed)
    Phi = rng.normal(size=(n, sum(D)))
    widths = np.repeat(D, D)
    weights = np.repeat(signal, D) / np.sqrt(widths)
    score = Phi @ weights + noise * rng.normal(size=n)
    return of_rows(Phi, 7.0 + 3.0 * score, D)


def of_rows(Phi, y, d):
    n_sites = len(D)
    owner = np.arange(len(y)) % n_sites
    counts = np.bincount(owner).astype(float)
    levels = np.bincount(owner, y) / counts
    errors = y - levels[owner]
    within = float(errors @ errors)
    weight = np.ones(len(y))
    part = sums(Phi, owner, y, weight, levels)
    C = Phi.T @ Phi / len(y)
    return Moments(d, C, len(y), counts, levels, within, (part,))


def test_a_fit_without_a_site_is_that_of_moments_that_never_had_its_features():
    rng = default_rng(1)
    Phi = rng.normal(size=(200, 12))
    y = Phi @ rng.normal(size=12) + rng.normal(size=200)
    second = np.s_[4:7]
    others = np.delete(Phi, second, axis=1)

    everyone = of_rows(Phi, y, D)
    never = fit(of_rows(others, y, (4, 0, 5)), STEPS)
    less = fit(without(everyone, 1), STEPS)

    assert not less.beta[second].any()
    beta_of_others = np.delete(less.beta, second)
    assert_allclose(beta_of_others, never.beta, rtol=1e-9, atol=1e-12)
    assert less.leverage() == pytest.approx(never.leverage())


def test_a_partner_of_all_signal_is_worth_it_and_one_of_none_is_worth_nothing():
    whole = fit(moments((0.0, 2.0, 0.0)))
    partners = worths(whole, (0, 1, 2))
    assert next(iter(partners)) == 1, "the largest first"
    # Of variances 4 + 0.25 of the labels, and 0.25 of the noise.
    expected = np.sqrt(17.0) - 1.0
    assert partners[1].change == pytest.approx(expected, rel=0.15)
    for site in (0, 2):
        assert abs(partners[site].change) < 0.03
        assert partners[site].standard_error < 0.03


def test_the_worth_of_a_partner_is_the_ratio_of_generalised_cross_validation():
    """error² = rss/n/(1 − tr(H)/n)²."""
    n = 160
    m = moments((1.0, 0.5, 0.2), n=n)
    G, b, squares = m.standard(m.parts[0])

    def validated(fitted):
        rss = squares - 2.0 * fitted.beta @ b + fitted.beta @ G @ fitted.beta
        used = np.trace(fitted.S @ fitted.grams[0]) / fitted.sigma[0]
        return np.sqrt(rss / n) / (1.0 - used / n)

    whole = fit(m)
    [worth] = worths(whole, (0,)).values()
    expected = validated(fit(without(m, 0), STEPS)) / validated(whole) - 1.0
    assert worth.change == pytest.approx(expected)


def test_the_worth_of_a_partner_does_not_depend_on_the_unit_of_the_labels():
    plain = moments((1.0, 0.5, 0.0))
    [part] = plain.parts
    b = 9.0 * part.b
    r = 9.0 * part.r
    s = 81.0 * part.s
    part_in_another_unit = replace(part, b=b, r=r, s=s)
    in_another_unit = replace(
        plain,
        levels=9.0 * plain.levels,
        within=81.0 * plain.within,
        parts=(part_in_another_unit,),
    )

    before = worths(fit(plain), (1, 2), label_noise=0.3)
    after = worths(fit(in_another_unit), (1, 2), label_noise=81.0 * 0.3)

    assert list(before) == list(after)
    for site, worth in before.items():
        scaled = after[site]
        assert scaled.change == pytest.approx(worth.change, rel=1e-6)
        assert scaled.standard_error == pytest.approx(worth.standard_error, rel=1e-6)


def test_noise_on_labels_is_not_counted_as_an_error_of_the_score():
    """Noise of deviation 3 · 0.4 on the labels beside that of the score, 3 · 0.3."""
    plain = fit(moments((1.0, 1.0, 0.0), n=3000, noise=0.3))
    noisy = fit(moments((1.0, 1.0, 0.0), n=3000, noise=0.5))
    label_noise = (3 * 0.4) ** 2
    [expected] = worths(plain, (0,)).values()
    [uncorrected] = worths(noisy, (0,)).values()
    [corrected] = worths(noisy, (0,), label_noise=label_noise).values()
    assert uncorrected.change < 0.8 * expected.change
    assert corrected.change == pytest.approx(expected.change, rel=0.1)


def test_with_few_labels_only_the_order_is_known():
    whole = fit(moments((0.2, 2.0, 0.8), n=147))
    partners = worths(whole, (0, 1, 2))
    assert list(partners.items()) == [(1, None), (2, None), (0, None)]


def test_noise_on_labels_widens_the_interval():
    whole = fit(moments((1.0, 1.0, 0.0)))
    [plain] = worths(whole, (0,)).values()
    [noisy] = worths(whole, (0,), 1.2).values()
    assert noisy.standard_error > 1.5 * plain.standard_error


def test_an_interval_of_the_worth_holds_that_of_many_labels():
    signal = (1.0, 0.6, 0.3)
    many = fit(moments(signal, n=30_000, seed=99))
    truth = worths(many, (0, 1, 2))
    inside = []
    for seed in range(20):
        few = fit(moments(signal, n=300, seed=seed))
        estimates = worths(few, (0, 1, 2))
        for site, worth in estimates.items():
            error = abs(worth.change - truth[site].change)
            inside.append(error < 1.96 * worth.standard_error)
    assert np.mean(inside) > 0.9
