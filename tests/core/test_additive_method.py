"""The additive method: 50-digit answers, identities, refits, Monte Carlo, and edge cases."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import statsmodels.api as sm
from exact_sums import sums
from numpy.testing import assert_allclose
from sklearn.ensemble import RandomForestRegressor

from coreg_core.additive.check import (
    blend,
    gain,
    left_out_completion,
    left_out_score,
    own_leverage,
    rescaling,
    slope,
    verdict,
)
from coreg_core.additive.features import FeatureSettings, SiteRows, fit_features, grown, ridge_fit
from coreg_core.additive.moments import Moments, Own, ScoreWeights, Sums, fit
from coreg_core.additive.refined import refined
from coreg_core.additive.training import train
from coreg_core.errors import BadData
from coreg_core.estimators import AdditiveClassifier, AdditiveRegressor
from coreg_core.evaluation import p_value
from coreg_core.objectives.additive import IN_MEMORY, Additive

CASES = json.loads((Path(__file__).parent / "additive_method.json").read_text())


class Problem:
    """Correlated features of three sites at labelled rows (owner known) and shared rows; W_v starts
    with φ_v.
    """

    def __init__(
        self, seed=0, n=(12, 20, 15), m=200, d=(4, 3, 5), k=(7, 6, 8), scale=1.0, level=7.0
    ):
        rng = np.random.default_rng(seed)
        M = len(n)
        base = rng.normal(size=(sum(n) + m, 4))
        self.W = []
        for size in k:
            X = base @ rng.normal(size=(4, size)) + rng.normal(size=(len(base), size))
            X = X * 0.7 ** np.arange(size)
            self.W.append(X - X.mean(0))
        self.d = d
        self.M = M
        self.N = sum(n)
        self.owner = np.repeat(np.arange(M), n)
        self.Phi = np.concatenate(
            [W[:, :width] for W, width in zip(self.W, d, strict=True)], axis=1
        )
        noise = 0.6 * rng.normal(size=self.N) + 0.3 * rng.normal(size=M)[self.owner]
        self.y = level + scale * (
            self.Phi[: self.N] @ rng.normal(size=self.Phi.shape[1]) * 0.5 + noise
        )

    def moments(self, weight=None, repeats=1):
        w = np.ones(self.N * repeats) if weight is None else weight
        owner, y, rows = (np.tile(x, repeats) for x in (self.owner, self.y, np.arange(self.N)))
        n = np.bincount(owner, w, self.M)
        levels = np.bincount(owner, w * y, self.M) / np.maximum(n, 1e-300)
        C = self.Phi.T @ self.Phi / len(self.Phi)
        part = sums(self.Phi[rows], owner, y, w, levels)
        within = float(w @ (y - levels[owner]) ** 2)
        return Moments(tuple(self.d), C, len(self.Phi), n, levels, within, (part,))

    def own(self, m):
        rows = len(self.Phi)
        return [Own.of(m, v, W.T @ W / rows, W.T @ self.Phi / rows) for v, W in enumerate(self.W)]

    def rows(self):
        e = np.zeros((self.N, self.M + 1))
        e[np.arange(self.N), self.owner] = e[:, -1] = 1.0
        return np.concatenate([self.Phi[: self.N], e], axis=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_answers_of_fifty_digits(case):
    read = lambda key: np.array(case["in"][key], dtype=float)  # noqa: E731
    parts = tuple(
        Sums(
            *(np.array(q[x], dtype=float) for x in "Pobr"),
            q["s"],
            np.array(q["n"]),
            q["count"],
            q["mode"],
        )
        for q in case["in"]["parts"]
    )
    d = tuple(case["in"]["d"])
    rows = case["in"]["rows"]
    within = case["in"]["within"]
    m = Moments(d, read("C"), rows, read("n"), read("levels"), within, parts)
    f = fit(m)
    without = ScoreWeights.of(f).of_sites(range(len(m.d) - 1))
    found = {"tau": f.prior, "sigma": f.noise, "beta": f.beta, "without_last": without}
    for name, values in found.items():
        expected = np.array([float(x) for x in case["out"][name]])
        assert_allclose(values, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_the_score_is_pooled_additive_kernel_ridge_with_offsets():
    """The dual (generalised least squares) on the complete features, which no site has."""
    p = Problem()
    f = fit(p.moments())
    prior = np.concatenate([np.repeat(f.prior[:-1], p.d), np.repeat(f.prior[-1], p.M)])
    X = p.rows()[:, :-1]
    t = (p.y - f.moments.mean) / f.moments.deviation
    inverse = np.linalg.inv((X * prior) @ X.T + f.noise[0] * np.eye(p.N))
    a = np.sum(inverse @ t) / np.sum(inverse)
    new = np.concatenate([p.Phi, np.eye(p.M)[np.zeros(len(p.Phi), int)]], axis=1)
    dual = f.moments.mean + f.moments.deviation * (a + (new * prior) @ X.T @ inverse @ (t - a))
    assert_allclose(f.intercept(0) + p.Phi @ ScoreWeights.of(f).of_sites(range(3)), dual, atol=1e-8)


def test_left_out_residuals_are_those_of_refits():
    p = Problem(3)
    f = fit(p.moments())
    m = f.moments
    X = p.rows()
    N = p.N
    owns = p.own(f.moments)
    t = (p.y - m.mean) / m.deviation
    penalty = np.concatenate([np.repeat(1 / f.prior, [*p.d, p.M]), [0.0]])
    exact = np.empty(N)
    own = np.empty(N)
    for i in range(N):
        keep = np.arange(N) != i
        A = X[keep].T @ X[keep] / f.noise[0] + np.diag(penalty)
        beta = np.linalg.solve(A, X[keep].T @ t[keep] / f.noise[0])
        exact[i] = m.deviation * (t[i] - X[i] @ beta)
        own[i] = m.deviation * (t[i] - owns[p.owner[i]].rows(p.W[p.owner[i]][i : i + 1])[0] @ beta)
    score = np.empty(N)
    joined = np.empty(N)
    for v in range(p.M):
        r = np.flatnonzero(p.owner == v)
        score[r] = left_out_score(f, p.y[r], f.intercept(v) + p.Phi[r] @ f.coef)
        W = p.W[v][r]
        leverage = own_leverage(f, owns[v], W)
        joined[r] = p.y[r] - owns[v].predict(f, W) + leverage * exact[r]
    h = np.einsum("ij,jk,ik->i", X, f.S, X) / f.noise[0]
    fitted = np.array([f.intercept(u) for u in p.owner.tolist()]) + p.Phi[:N] @ f.coef
    assert_allclose((p.y - fitted) / (1 - h), exact, atol=1e-8)
    assert np.mean(score**2) == pytest.approx(np.mean(exact**2), rel=0.15), (
        "the mean leverage stands for a row's"
    )
    assert np.mean(joined**2) == pytest.approx(np.mean(own**2), rel=0.05)
    # it has the ridge
    own = owns[0]
    W = p.W[0][:12]
    w = p.W[0][3]
    A = np.linalg.inv(owns[0].H)
    without = replace(
        own, B=np.linalg.solve(A - np.outer(w, w), A @ own.B.T - np.outer(w, p.Phi[3])).T
    )
    nearer = own.predict(f, W) - left_out_completion(f, own, W, fitted[: len(W)])
    assert_allclose(
        nearer[3],
        without.predict(f, W[3:4])[0],
        rtol=1e-9,
        err_msg="the completion without the row",
    )
    Phi = p.W[0][:12]
    y = p.y[:12]
    ridges = np.array([0.7])
    fits = [ridge_fit(np.delete(Phi, i, 0), np.delete(y, i), ridges) for i in range(12)]
    again = [y[i] - intercept - Phi[i] @ w for i, (w, intercept, _) in enumerate(fits)]
    assert_allclose(ridge_fit(Phi, y, ridges)[2], again, atol=1e-8)


def test_missing_sites_and_deviations_against_draws():
    """Gaussian features of a known covariance: conditional means and deviations against 400,000
    draws.
    """
    rng = np.random.default_rng(5)
    p = Problem(5, m=40_000)
    f = fit(p.moments())
    m = f.moments
    D = len(f.moments.C)
    x = rng.multivariate_normal(np.zeros(D), m.C, size=400_000)
    full = x @ ScoreWeights.of(f).of_sites(range(3))
    part = x @ ScoreWeights.of(f).of_sites([0, 2])
    there = np.r_[m.blocks[0], m.blocks[2]]
    best = x[:, there] @ np.linalg.lstsq(x[:, there], full, rcond=None)[0]
    assert np.std(part - best) < 0.02 * np.std(full)
    assert ScoreWeights.of(f).missing_variance([0, 2]) == pytest.approx(
        np.var(full - best), rel=0.02
    )
    assert ScoreWeights.of(f).missing_variance(range(3)) == 0.0
    few = ScoreWeights(np.ones(8), np.eye(8), np.array([6, 2]), 30.0, 0.0).missing_variance([0])
    assert few == pytest.approx(2 * 30 / (30 - 6)), "residuals of a regression on six columns"
    own = p.own(m)[1]
    beta = rng.multivariate_normal(f.beta, f.S, size=200_000)
    e = rng.multivariate_normal(np.zeros(D), own.R, size=200_000)
    draws = beta @ own.rows(p.W[1][:1])[0] + np.einsum("ij,ij->i", beta[:, :D], e)
    draws += np.sqrt(f.noise[0]) * rng.normal(size=200_000)
    assert np.std(draws) * m.deviation == pytest.approx(
        own.deviations(f, p.W[1][:1])[1][0], rel=0.01
    )


EDGES = {
    "sites without labels": Problem(1, n=(30, 0, 0)),
    "seven labels": Problem(1, n=(3, 2, 2), d=(2, 2, 2), k=(3, 3, 3)),
    "no shared row": Problem(1, m=0),
    "labels of 1e9": Problem(1, scale=1e6, level=1e9),
}


@pytest.mark.parametrize("p", EDGES.values(), ids=EDGES)
def test_edge_cases_are_finite_and_units_do_not_matter(p):
    f = fit(p.moments())
    own = p.own(f.moments)
    for v in range(3):
        for present in (range(3), [v]):
            assert np.isfinite(f.intercept(v) + p.Phi @ ScoreWeights.of(f).of_sites(present)).all()
        assert np.isfinite(own[v].predict(f, p.W[v])).all()
        assert np.isfinite(own[v].deviations(f, p.W[v])).all()
    if p.y[0] > 1e8:
        q = Problem(1)
        assert_allclose((p.Phi @ f.coef) / 1e6, q.Phi @ fit(q.moments()).coef, atol=1e-6)


# --- features and the local model -----------------------------------------------------------------


def test_the_forest_predicts_with_numpy_what_scikit_learn_does():
    rng = np.random.default_rng(
        0
    )  # whole numbers: a threshold between two is often a third one, up to rounding
    S = (rng.integers(12, size=(580, 3)) - 5.3) / 3.7
    y = rng.normal(size=80)
    forest, out_of_bag = grown(S[:80], y, 3)
    made = RandomForestRegressor(50, min_samples_leaf=2, oob_score=True, random_state=3).fit(
        S[:80], y
    )
    assert_allclose(forest.predict(S), made.predict(S), rtol=0, atol=1e-14)
    assert_allclose(out_of_bag, made.oob_prediction_)


def multiplied(n, seed=0):
    """Own columns X, and a score whose slope depends on a column, as no sum over sites can have."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    score = rng.normal(size=n)
    return X, score, score * (1.0 + np.sign(X[:, 0])) + 0.1 * rng.normal(size=n)


def test_a_refinement_learns_what_own_columns_and_the_score_make_together():
    X, score, y = multiplied(300)
    refinement, left_out = refined(X, y, y - score, seed=1)
    new, new_score, truth = multiplied(1000, seed=5)
    errors = truth - new_score - refinement(new, new_score)
    assert rmse(errors, 0.0) < 0.75 * rmse(truth, new_score)
    assert rmse(left_out, 0.0) == pytest.approx(rmse(errors, 0.0), rel=0.2)
    new[:5] = np.nan
    assert not refinement(new, new_score)[:5].any(), "of a row that the site does not have"


def test_a_verdict_refines_after_the_slope_and_before_the_blend():
    X, score, y = multiplied(80)
    local = y - y.mean()
    refine = partial(refined, X, seed=1)
    found = verdict(y, local, y - 0.5 * score, y - score, refine=refine)
    correction, residuals = rescaling(found.slope, y, y - score)
    refinement, residuals = refine(y, residuals)
    w, residuals = blend(local, residuals, sloped=found.slope != 1.0)
    assert_allclose(found.left_out["score"], residuals)
    joined = correction.rescaled(score)
    joined = joined + refinement(X, joined)
    assert_allclose(found.score(score, local, X), (1.0 - w) * local + w * joined)


@pytest.mark.parametrize("n", [39, 40])
def test_a_refinement_needs_forty_labels_and_a_gain(n):
    X, score, y = multiplied(n)
    assert (refined(X, y, y - score, seed=1)[0] is None) is (n < 40)
    noise = np.tile([1.0, -1.0], 20)
    flat = refined(np.ones((40, 2)), noise, noise, seed=1)
    assert flat[0] is None, "out of bag the mean of the others is opposed to each label"
    assert flat[1] is noise


def test_the_model_of_a_site_refines_as_the_training_does():
    sites, n_common, new, _ = federation(n=80)
    run = train(sites, n_common)
    refinements = 0
    for v, (site, X, score) in enumerate(
        zip(run.sites, new, checked_scores(run, new), strict=True)
    ):
        total = run.score(features(run, new), v) - site.model.score_intercept
        assert_allclose(site.model.score(total, X), score)
        refinements += site.verdict.score.refinement is not None
    assert refinements


def test_a_linear_training_has_no_refinement():
    sites, n_common, _, _ = federation(n=80)
    run = train(sites, n_common, rules=replace(IN_MEMORY, kernel="linear"))
    assert all(site.verdict.score.refinement is None for site in run.sites)


@pytest.mark.parametrize("kind", ["constant", "binary", "heavy"])
def test_features_of_awkward_columns_are_finite_and_centred(kind):
    rng = np.random.default_rng(0)
    columns = {"constant": np.ones((60, 1)), "binary": (rng.random((60, 1)) < 0.3) * 1.0}
    X = columns.get(kind, rng.standard_cauchy((60, 2)))
    features, _, W = fit_features(
        SiteRows(X, np.arange(12), rng.normal(size=12)), FeatureSettings(60, 10, 0)
    )
    assert_allclose(features(X), W, atol=1e-9)
    assert np.isfinite(W).all()
    assert np.abs(W.mean(axis=0)).max() < 1e-9


def test_features_do_not_know_the_label_of_their_row():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(80, 3))
    y = rng.normal(size=45)
    own = np.arange(45)
    settings = FeatureSettings(80, 10, 0)
    _, local, _ = fit_features(SiteRows(X, own, y), settings)
    assert 0.0 <= local.weight <= 1.0
    other = y.copy()
    other[4] += 1.0
    _, changed, _ = fit_features(SiteRows(X, own, other), settings)
    assert changed.out_of_bag[4] == pytest.approx(local.out_of_bag[4])
    nothing, none, W = fit_features(SiteRows(X, own[:0], y[:0]), settings)
    assert none is None
    assert W.shape == (80, 10)
    assert_allclose(nothing(X), W, atol=1e-12)


def test_places_of_labels_ascend():
    """All sites list the common rows in one order, and each its labels in it."""
    with pytest.raises(ValueError, match="ascending"):
        SiteRows(np.zeros((4, 1)), np.array([2, 0]), np.zeros(2))


# --- the verdict ----------------------------------------------------------------------------------


def test_a_slope_is_found_only_where_it_is_clear():
    x, e = (
        np.tile([1.0, -1.0], 10),
        np.tile([1.0, 1.0, -1.0, -1.0], 5),
    )  # Σx² = Σe² = 20, so s.e. = size/√18
    assert slope(18 * x, 17 * x) == pytest.approx(18.0)
    assert slope(-x, -2 * x) == 0.0, "labels that are opposed"
    assert slope(18 * x[:19], 17 * x[:19]) == 1.0, "too few labels"
    for errors, found in ((2.01, 2.0), (1.99, 1.0)):  # by which 2 differs from 1
        assert slope(
            2 * x + np.sqrt(18) / errors * e, x + np.sqrt(18) / errors * e
        ) == pytest.approx(found)


def test_both_corrections_of_a_verdict_have_the_slope_of_refits():
    local, noise, other, x = np.random.default_rng(0).normal(size=(4, 40))
    y = 8.0 + 3.0 * x + 0.5 * noise
    score = y - x
    joined = y - x - 0.1 * other
    found = verdict(y, local, joined, score)
    refits = [np.polyfit(np.delete(x, i), np.delete(y, i), 1) for i in range(40)]
    w, left = blend(
        local, y - [np.polyval(line, at) for line, at in zip(refits, x, strict=True)], sloped=True
    )
    c, intercept = np.polyfit(x, y, 1)
    correction = found.score
    assert_allclose(
        [correction.slope, correction.level, correction.centre, correction.weight],
        [c, y.mean(), x.mean(), w],
    )
    assert correction.refinement is None, "without columns"
    assert_allclose(found.score.rescaled(x), intercept + c * x)
    assert_allclose(found.left_out["score"], left)
    assert_allclose(
        [found.slope, found.joined.slope, found.joined.centre], [c, c, np.mean(y - joined)]
    )
    nearer = verdict(y, local, joined, score, 0.1 * other)
    assert nearer.joined == found.joined, "it changes no prediction"
    assert_allclose(
        nearer.left_out["joined"], found.left_out["joined"] + found.joined.weight * c * 0.1 * other
    )
    few = verdict(y, local, joined, score[:2])
    assert few.slope == pytest.approx(np.polyfit(y - joined, y, 1)[0])
    assert few.score == replace(few.joined, weight=1.0), (
        "with two common labels that of all labels, and no blend"
    )


def test_a_blend_takes_what_is_better_and_is_pulled_where_labels_are_few():
    rng = np.random.default_rng(0)
    good = 0.1 * rng.normal(size=300)
    bad = rng.normal(size=300)
    assert blend(bad, good)[0] > 0.9
    assert blend(good, bad)[0] < 0.1
    assert blend(good[:5], 2 * good[:5])[0] > 0.7, "200/n labels speak for joining"
    assert gain(bad, good).change == pytest.approx(np.sqrt(np.mean(good**2) / np.mean(bad**2)) - 1)
    errors = [
        np.sqrt(np.mean(good[i] ** 2) / np.mean(bad[i] ** 2))
        for i in rng.integers(300, size=(2000, 300))
    ]
    assert gain(bad, good).standard_error == pytest.approx(1.5 * np.std(errors), rel=0.2), (
        "wider than the bootstrap's"
    )


def federation(seed=0, n=40, m=300, M=3, private=False, unit=1.0):
    """Sites' rows, and new rows with their truth: two columns a site, each site's own labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m + M * n + 500, 2 * M))
    truth = sum(np.sin(X[:, 2 * v]) + 0.5 * X[:, 2 * v + 1] for v in range(M))
    y = truth + 0.1 * rng.normal(size=len(X))
    sites = []
    for v in range(M):
        mine = m + v * n + np.arange(n)
        rows = np.r_[np.arange(m), mine] if private else np.arange(m + M * n)
        own = m + np.arange(n) if private else mine
        sites.append(SiteRows(X[rows, 2 * v : 2 * v + 2], own, (unit if v == 0 else 1.0) * y[mine]))
    return (
        sites,
        m if private else m + M * n,
        [X[-500:, 2 * v : 2 * v + 2] for v in range(M)],
        truth[-500:],
    )


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def features(run, tables):
    return [site.model.phi(X) for site, X in zip(run.sites, tables, strict=True)]


def checked_scores(run, tables):
    """The scores that each site's verdict makes."""
    total = [run.score(features(run, tables), v) for v in range(len(run.sites))]
    return [
        site.model.correct_score(score, site.model.alone(X), X)
        for site, score, X in zip(run.sites, total, tables, strict=True)
    ]


@pytest.mark.parametrize("private", [False, True])
def test_joining_pays_where_each_site_has_a_part(private):
    sites, n_common, new, truth = federation(n=80, private=private)
    run = train(sites, n_common, rules=Additive())
    phi = features(run, new)
    for site, X, score in zip(run.sites, new, checked_scores(run, new), strict=True):
        alone = rmse(site.model.alone(X), truth)
        assert rmse(score, truth) < (0.9 if private else 0.7) * alone
        assert rmse(site.model.predict(X), truth) < 1.03 * alone
        assert private or site.verdict.recommended == "score"
    site = run.sites[0]
    missing = rmse(run.score([phi[0], None, phi[2]], 0), truth)
    assert rmse(run.score(phi, 0), truth) < missing < rmse(site.model.alone(new[0]), truth)
    W = site.model.features(new[0])
    deviations = site.own.deviations(run.fits[0], W, site.private_noise)[0]
    inside = np.mean(np.abs(run.score(phi, 0) - truth) < 1.645 * site.verdict.spread * deviations)
    assert inside > 0.8


def test_the_left_out_error_of_the_joined_model_is_that_on_new_rows():
    """Columns of common factors, which say much of each other: a labelled row is one of those that
    complete them.
    """
    left = list[float]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(2400, 6)) @ rng.normal(size=(6, 12)) + rng.normal(size=(2400, 12))
        y = X @ rng.normal(size=12) / 3 + 0.5 * rng.normal(size=2400)
        owned = [80 * v + np.arange(80) for v in range(3)]
        sites = [SiteRows(X[:400, 4 * v : 4 * v + 4], at, y[at]) for v, at in enumerate(owned)]
        run = train(sites, 400)
        for v, site in enumerate(run.sites):
            joined = site.model.predict(X[400:, 4 * v : 4 * v + 4])
            left.append(
                np.mean(site.verdict.left_out["joined"] ** 2) / np.mean((y[400:] - joined) ** 2)
            )
    assert np.mean(left) == pytest.approx(1.0, abs=3 * np.sqrt(2 / (12 * 80)))  # of 12 · 80 squares


def test_labels_in_another_unit_are_named_and_rescaled():
    sites, n_common, new, truth = federation(n=80, unit=20.0)
    run = train(sites, n_common)
    site = run.sites[0]
    assert site.verdict.slope > 2.0
    alone = rmse(site.model.alone(new[0]), 20 * truth)
    assert rmse(checked_scores(run, new)[0], 20 * truth) < 1.02 * alone
    model = site.model
    assert model.correct_joined == site.verdict.joined != site.verdict.score == model.correct_score


def test_the_coefficients_of_a_linear_training_are_the_posterior_of_the_pooled_columns():
    """Components are a rotation: the prior is the same in standardised columns."""
    sites, n_common, _, _ = federation()
    run = train(sites, n_common, rules=replace(IN_MEMORY, kernel="linear"))
    f = run.fits[0]
    basis = [site.model.features.basis for site in run.sites]
    own = np.concatenate([rows.own for rows in sites])
    Z = np.concatenate(
        [b.standardised(rows.X) for b, rows in zip(basis, sites, strict=True)], axis=1
    )[own]
    design = np.c_[Z, np.eye(3)[np.repeat(np.arange(3), 40)], np.ones(120)]
    precision = np.concatenate(
        [np.repeat(1.0 / f.prior[:-1], 2), np.repeat(1.0 / f.prior[-1], 3), [0.0]]
    )
    unit = f.moments.deviation
    y = np.concatenate([rows.y for rows in sites])
    S = np.linalg.inv(design.T @ design / f.noise[0] + np.diag(precision))
    mean = S @ design.T @ (y - y.mean()) / f.noise[0]
    deviations = np.concatenate([b.deviation for b in basis])
    models = [site.model.slopes() for site in run.sites]
    estimate, error = (np.concatenate(each) for each in zip(*models, strict=True))
    assert_allclose(estimate, mean[:6] / deviations, atol=1e-8)
    assert_allclose(error, unit * np.sqrt(np.diag(S)[:6]) / deviations, rtol=1e-8)


def test_p_values_are_those_of_statsmodels_on_the_pooled_columns_and_the_prior():
    """The prior is rows of its own beside the pooled ones, with a goal of zero."""
    sites, n_common, _, _ = federation()
    noise = np.random.default_rng(0).normal(size=(3, 40))
    sites = [replace(rows, y=0.2 * rows.y + e) for rows, e in zip(sites, noise, strict=True)]
    run = train(sites, n_common, rules=replace(IN_MEMORY, kernel="linear"))
    f = run.fits[0]
    basis = [site.model.features.basis for site in run.sites]
    own = np.concatenate([rows.own for rows in sites])
    Z = [b.standardised(rows.X)[own] for b, rows in zip(basis, sites, strict=True)]
    design = np.c_[*Z, np.eye(3)[np.repeat(np.arange(3), 40)], np.ones(120)]
    precision = np.r_[np.repeat(1.0 / f.prior, [2, 2, 2, 3]), 0.0]
    unit = f.moments.deviation
    y = np.concatenate([rows.y for rows in sites])
    scale = unit * np.sqrt(f.noise[0])
    rows = np.concatenate([design / scale, np.diag(np.sqrt(precision)) / unit])
    goal = np.concatenate([(y - y.mean()) / scale, np.zeros(10)])
    pooled = sm.OLS(goal, rows).fit(cov_type="fixed scale", cov_kwds={"scale": 1.0}, use_t=False)
    models = [site.model.slopes() for site in run.sites]
    estimate, error = (np.concatenate(each) for each in zip(*models, strict=True))
    deviations = np.concatenate([b.deviation for b in basis])
    assert_allclose(estimate * deviations, pooled.params[:6], atol=1e-8)
    assert_allclose(error * deviations, pooled.bse[:6], rtol=1e-8)
    found = [p_value(b, se) for b, se in zip(estimate, error, strict=True)]
    assert_allclose(found, pooled.pvalues[:6], atol=1e-8)
    assert min(found) < 0.05 < max(found)


@pytest.mark.parametrize("seed", range(3))
def test_p_values_of_600_labels_are_within_a_twentieth_of_ordinary_least_squares(seed):
    sites, n_common, _, _ = federation(seed, n=200, m=100)
    noise = np.random.default_rng(seed).normal(size=(3, 200))
    sites = [replace(rows, y=0.1 * rows.y + e) for rows, e in zip(sites, noise, strict=True)]
    run = train(sites, n_common, rules=replace(IN_MEMORY, kernel="linear"))
    models = [site.model.slopes() for site in run.sites]
    found = [p_value(b, se) for model in models for b, se in zip(*model, strict=True)]
    own = np.concatenate([rows.own for rows in sites])
    X = np.column_stack([rows.X[own] for rows in sites])
    pooled = sm.OLS(np.concatenate([rows.y for rows in sites]), sm.add_constant(X)).fit()
    assert_allclose(found, pooled.pvalues[1:], atol=0.05)
    assert max(found) > 0.1, "some p-value could differ"


# --- the estimator --------------------------------------------------------------------------------


def table(n=300, labelled=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    truth = np.sin(X[:, 0]) + X[:, 1] + np.cos(2 * X[:, 2])
    y = np.where(np.arange(n) < labelled, truth + 0.1 * rng.normal(size=n), np.nan)
    mask = np.zeros((n, 2), dtype=bool)
    mask[: labelled // 2, 0] = mask[labelled // 2 : labelled, 1] = True
    return X, y, mask, truth


def test_rows_that_a_view_does_not_have():
    """A private row is its owner's; a prediction without a view is the expected score."""
    X, y, mask, truth = table()
    gaps = X.copy()
    gaps[:60, 2:] = np.nan  # the first view's labelled rows are its own
    model = AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(gaps, y, label_mask=mask)
    own = model.trained_.sites[1].model.alone(X[:, 2:])
    assert_allclose(
        model.predict_local(1, pl.DataFrame(X[:, 2:])), own, err_msg="the local model of a frame"
    )
    with pytest.warns(UserWarning, match=r"fewer than 10 labels at view 0 and 1"):
        AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(
            X, np.where(np.arange(300) % 60 < 9, y, np.nan), label_mask=mask
        )
    assert model.predict_views(gaps).shape == (2, 300)
    assert np.isnan(model.predict_views(gaps)[1, :60]).all()
    one = np.c_[X[120:, :2], np.full((180, 2), np.nan)]
    assert rmse(model.predict(X[120:]), truth[120:]) < rmse(model.predict(one), truth[120:])
    with pytest.raises(
        BadData, match=r"view 1, row 1 \(counted from 1\): a part of its cells is NaN"
    ):
        AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(
            np.where(np.arange(4) == 3, np.nan, X), y, label_mask=mask
        )
    with pytest.raises(BadData, match="Give label_mask"):
        AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(gaps, y)
    with pytest.raises(BadData, match="no view has it"):
        model.predict(np.full((1, 4), np.nan))


def test_a_label_that_no_view_sees_is_an_unlabelled_row():
    X, y, mask, truth = table()
    with pytest.warns(UserWarning, match="no view sees the label of 180 rows"):
        hidden = AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(
            X, np.where(np.isnan(y), truth, y), label_mask=mask
        )
    plain = AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=mask)
    assert_allclose(hidden.predict(X), plain.predict(X))
    with pytest.raises(BadData, match="needs booleans of shape"):
        AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=mask[:, :1])
    with pytest.raises(BadData, match="1 labels in all sites"):
        AdditiveRegressor(views=[[0, 1], [2, 3]]).fit(
            X, np.where(np.arange(300) == 0, 1.0, np.nan), label_mask=mask
        )


def test_a_classifier_of_several_classes_knows_more_together_than_each_view():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6))
    parts = np.stack([X[:, 0] + X[:, 2], X[:, 1] + X[:, 4], X[:, 3] - X[:, 0]], axis=1)
    truth = np.array(["a", "b", "c"])[parts.argmax(axis=1)]
    y = truth.astype(object)
    y[120:] = None
    views = [slice(0, 2), slice(2, 4), slice(4, 6)]
    mask = np.zeros((500, 3), dtype=bool)
    mask[np.arange(120), np.arange(120) % 3] = True

    model = AdditiveClassifier(views=views, random_state=0).fit(X, y, label_mask=mask)

    together = np.mean(model.predict(X)[120:] == truth[120:])
    alone = model.predict_proba_views(X)[:, 120:].argmax(axis=2)
    best = np.mean(model.classes_[alone] == truth[120:], axis=1).max()
    assert together > best + 0.1
    assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.decision_function(X).shape == (500, 3)
