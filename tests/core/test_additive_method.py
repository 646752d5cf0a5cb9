"""The additive method: 50-digit answers, identities, refits, Monte Carlo, and edge cases."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from exact_sums import sums
from numpy.random import default_rng
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
from coreg_core.additive.fit import fit
from coreg_core.additive.missing_features import Completion, ScoreWeights
from coreg_core.additive.moments import Moments, Sums
from coreg_core.additive.refined import refined

FILE_OF_CASES = Path(__file__).parent / "additive_method.json"
CASES = json.loads(FILE_OF_CASES.read_text())


class Problem:
    """Correlated features of three sites at labelled rows (owner known) and shared rows; W_v starts
    with φ_v.
    """

    def __init__(self, seed=0, n=(12, 20, 15), m=200, d=(4, 3, 5), k=(7, 6, 8)):
        rng = default_rng(seed)
        factors = rng.normal(size=(sum(n) + m, 4))
        self.W = []
        for size in k:
            loadings = rng.normal(size=(4, size))
            own_part = rng.normal(size=(len(factors), size))
            columns = factors @ loadings + own_part
            columns *= 0.7 ** np.arange(size)
            self.W.append(columns - columns.mean(axis=0))
        self.d = d
        self.M = len(n)
        self.N = sum(n)
        self.owner = np.repeat(np.arange(self.M), n)
        features = [W[:, :width] for W, width in zip(self.W, d, strict=True)]
        self.Phi = np.concatenate(features, axis=1)
        self.labelled = self.Phi[: self.N]
        noise = 0.6 * rng.normal(size=self.N)
        noise += 0.3 * rng.normal(size=self.M)[self.owner]
        coefficients = 0.5 * rng.normal(size=self.Phi.shape[1])
        self.y = 7.0 + self.labelled @ coefficients + noise

    def in_another_unit(self):
        """The same problem, with labels of a level of 1e9 and a deviation of 1e6."""
        self.y = 1e9 + 1e6 * (self.y - 7.0)
        return self

    def moments(self):
        weight = np.ones(self.N)
        n = np.bincount(self.owner, weight, self.M)
        totals = np.bincount(self.owner, self.y, self.M)
        levels = totals / np.maximum(n, 1e-300)
        errors = self.y - levels[self.owner]
        within = float(errors @ errors)
        rows = len(self.Phi)
        C = self.Phi.T @ self.Phi / rows
        d = tuple(self.d)
        part = sums(self.labelled, self.owner, self.y, weight, levels)
        return Moments(d, C, rows, n, levels, within, (part,))

    def own(self, moments):
        """Each site's moments of its own features."""
        rows = len(self.Phi)
        owns = []
        for v, W in enumerate(self.W):
            among_own = W.T @ W / rows
            with_all = W.T @ self.Phi / rows
            owns.append(Completion.of(moments, v, among_own, with_all))
        return owns

    def design(self):
        """Labelled rows: features, a column for each owner's offset, and the constant."""
        offsets = np.eye(self.M)[self.owner]
        constant = np.ones(self.N)
        return np.column_stack([self.labelled, offsets, constant])


def numbers_of_sums(part):
    """`Sums` of one part of a case of 50 digits."""
    arrays = {name: np.array(part[name], dtype=float) for name in "Pobr"}
    return Sums(
        **arrays, s=part["s"], n=np.array(part["n"]), count=part["count"], mode=part["mode"]
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_answers_of_fifty_digits(case):
    given = case["in"]
    moments = Moments(
        d=tuple(given["d"]),
        C=np.array(given["C"], dtype=float),
        rows=given["rows"],
        n=np.array(given["n"], dtype=float),
        levels=np.array(given["levels"], dtype=float),
        within=given["within"],
        parts=tuple(numbers_of_sums(part) for part in given["parts"]),
    )

    f = fit(moments)

    all_but_the_last = range(len(moments.d) - 1)
    answers = {
        "tau": f.tau,
        "sigma": f.sigma,
        "beta": f.beta,
        "without_last": ScoreWeights.of(f).of_sites(all_but_the_last),
    }
    for name, values in answers.items():
        digits = case["out"][name]
        expected = np.array([float(number) for number in digits])
        largest = np.abs(expected).max()
        assert_allclose(values, expected, rtol=0, atol=1e-9 * largest)


def test_the_score_is_pooled_additive_kernel_ridge_with_offsets():
    """The dual (generalised least squares) on the complete features, which no site has."""
    p = Problem()
    f = fit(p.moments())
    mean = f.moments.mean
    deviation = f.moments.deviation

    weights = ScoreWeights.of(f).of_sites(range(3))
    score = f.intercept(0) + p.Phi @ weights

    blocks = [*p.d, p.M]
    prior = np.repeat(f.tau, blocks)
    X = p.design()[:, :-1]
    t = (p.y - mean) / deviation
    noise = f.sigma[0] * np.eye(p.N)
    covariance = (X * prior) @ X.T + noise
    inverse = np.linalg.inv(covariance)
    precisions = inverse.sum(axis=0)
    constant = precisions @ t / precisions.sum()
    offset_of_the_first = np.tile([1.0, 0.0, 0.0], (len(p.Phi), 1))
    new = np.concatenate([p.Phi, offset_of_the_first], axis=1)
    cross_covariance = (new * prior) @ X.T
    dual = constant + cross_covariance @ inverse @ (t - constant)
    assert_allclose(score, mean + deviation * dual, atol=1e-8)


def coefficients_without(p, f, row):
    """The posterior's mean if one labelled row did not exist, in units of the deviation."""
    m = f.moments
    X = np.delete(p.design(), row, axis=0)
    labels = np.delete(p.y, row)
    t = (labels - m.mean) / m.deviation
    blocks = [*p.d, p.M]
    precision = np.append(np.repeat(1 / f.tau, blocks), 0.0)
    noise = f.sigma[0]
    A = X.T @ X / noise + np.diag(precision)
    return np.linalg.solve(A, X.T @ t / noise)


def residual_of_refit(p, f, row, features):
    """The label of a row, less the prediction from its features by a refit without it."""
    predicted = features @ coefficients_without(p, f, row)
    return p.y[row] - f.moments.mean - f.moments.deviation * predicted


def refit_residuals(p, f):
    """Residuals of each labelled row by a refit without it: of the score."""
    X = p.design()
    residuals = np.empty(p.N)
    for i in range(p.N):
        residuals[i] = residual_of_refit(p, f, i, X[i])
    return residuals


def refit_residuals_of_own_columns(p, f):
    """The same of the joined models, which complete a row from its owner's columns."""
    owns = p.own(f.moments)
    residuals = np.empty(p.N)
    for i, owner in enumerate(p.owner):
        own_columns = p.W[owner][i : i + 1]
        [completed] = owns[owner].design(own_columns)
        residuals[i] = residual_of_refit(p, f, i, completed)
    return residuals


def fitted_scores(p, f):
    intercepts = np.array([f.intercept(v) for v in range(p.M)])
    return intercepts[p.owner] + p.labelled @ f.coef


def test_a_residual_over_one_minus_its_leverage_is_that_of_a_refit():
    p = Problem(3)
    f = fit(p.moments())
    X = p.design()
    variances = np.einsum("ij,jk,ik->i", X, f.S, X)
    leverage = variances / f.sigma[0]
    residuals = p.y - fitted_scores(p, f)
    left_out = residuals / (1 - leverage)
    assert_allclose(left_out, refit_residuals(p, f), atol=1e-8)


def test_left_out_scores_have_the_error_of_refits():
    p = Problem(3)
    f = fit(p.moments())
    fitted = fitted_scores(p, f)
    left_out = np.empty(p.N)
    for v in range(p.M):
        rows = p.owner == v
        left_out[rows] = left_out_score(f, p.y[rows], fitted[rows])
    error = np.mean(left_out**2)
    of_refits = np.mean(refit_residuals(p, f) ** 2)
    assert error == pytest.approx(of_refits, rel=0.15), "the mean leverage stands for a row's"


def test_left_out_joined_models_have_the_error_of_refits():
    p = Problem(3)
    f = fit(p.moments())
    owns = p.own(f.moments)
    of_the_score = refit_residuals(p, f)
    left_out = np.empty(p.N)
    for v in range(p.M):
        rows = np.flatnonzero(p.owner == v)
        W = p.W[v][rows]
        leverage = own_leverage(f, owns[v], W)
        joined = owns[v].predict(f, W)
        residuals = p.y[rows] - joined
        left_out[rows] = residuals + leverage * of_the_score[rows]
    error = np.mean(left_out**2)
    of_refits = np.mean(refit_residuals_of_own_columns(p, f) ** 2)
    assert error == pytest.approx(of_refits, rel=0.05)


def test_a_completion_without_a_row_is_that_of_its_removal():
    p = Problem(3)
    f = fit(p.moments())
    own = p.own(f.moments)[0]
    W = p.W[0][:12]
    row = W[3]

    scores = fitted_scores(p, f)[:12]
    correction = left_out_completion(f, own, W, scores)
    completed = own.predict(f, W) - correction

    # The moments without the row: H is the inverse of an A that has the ridge.
    A = np.linalg.inv(own.H)
    with_all = A @ own.B.T
    without_the_row = A - np.outer(row, row)
    removed = np.linalg.solve(without_the_row, with_all - np.outer(row, p.Phi[3]))
    without = replace(own, B=removed.T)
    [expected] = without.predict(f, W[3:4])
    assert completed[3] == pytest.approx(expected, rel=1e-9)


def test_left_out_residuals_of_a_ridge_fit_are_those_of_refits():
    p = Problem(3)
    Phi = p.W[0][:12]
    y = p.y[:12]
    ridges = np.array([0.7])

    _, _, left_out = ridge_fit(Phi, y, ridges)

    refits = np.empty(12)
    for i in range(12):
        others = np.delete(Phi, i, axis=0)
        labels = np.delete(y, i)
        coef, intercept, _ = ridge_fit(others, labels, ridges)
        predicted = intercept + Phi[i] @ coef
        refits[i] = y[i] - predicted
    assert_allclose(left_out, refits, atol=1e-8)


@pytest.fixture(scope="module")
def drawn():
    """A fit, and 400,000 draws of Gaussian features of its covariance."""
    rng = default_rng(5)
    p = Problem(5, m=40_000)
    f = fit(p.moments())
    covariance = f.moments.C
    mean = np.zeros(len(covariance))
    draws = rng.multivariate_normal(mean, covariance, size=400_000)
    return p, f, draws


def best_without_the_second(f, draws):
    """The score of all sites, and its best prediction by least squares without the second site."""
    weights = ScoreWeights.of(f).of_sites(range(3))
    full = draws @ weights
    first, _, third = f.moments.blocks
    present = np.r_[first, third]
    known_columns = draws[:, present]
    coef = np.linalg.lstsq(known_columns, full, rcond=None)[0]
    return full, known_columns @ coef


def test_a_score_without_a_site_is_the_conditional_mean(drawn):
    _, f, draws = drawn
    full, best = best_without_the_second(f, draws)
    weights = ScoreWeights.of(f).of_sites([0, 2])
    part = draws @ weights
    error = np.std(part - best)
    assert error < 0.02 * full.std()


def test_the_missing_variance_is_that_of_draws(drawn):
    _, f, draws = drawn
    full, best = best_without_the_second(f, draws)
    weights = ScoreWeights.of(f)
    expected = np.var(full - best)
    assert weights.missing_variance([0, 2]) == pytest.approx(expected, rel=0.02)
    assert weights.missing_variance(range(3)) == 0.0


def test_the_missing_variance_is_that_of_residuals_of_a_regression_on_six_columns():
    widths = np.array([6, 2])
    weights = ScoreWeights(np.ones(8), np.eye(8), widths, 30.0, 0.0)
    expected = 2 * 30 / (30 - 6)
    assert weights.missing_variance([0]) == pytest.approx(expected)


def test_a_site_knows_its_own_features(drawn):
    p, f, _ = drawn
    for site, own in enumerate(p.own(replace(f.moments, noise=0.1))):
        block = f.moments.blocks[site]
        unknown = np.trace(own.R)
        assert unknown > 0.0
        assert_allclose(own.R[block], 0.0, atol=1e-12 * unknown)
        assert_allclose(own.R[:, block], 0.0, atol=1e-12 * unknown)


def test_a_deviation_is_that_of_draws_of_coefficients_features_and_noise(drawn):
    p, f, _ = drawn
    rng = default_rng(6)
    m = f.moments
    own = p.own(m)[1]
    first_row = p.W[1][:1]
    D = len(m.C)
    coefficients = rng.multivariate_normal(f.beta, f.S, size=200_000)
    completion_errors = rng.multivariate_normal(np.zeros(D), own.R, size=200_000)

    [completed] = own.design(first_row)
    noise = rng.normal(size=200_000)
    draws = coefficients @ completed
    draws += np.sum(coefficients[:, :D] * completion_errors, axis=1)
    draws += np.sqrt(f.sigma[0]) * noise

    _, deviations = own.deviations(f, first_row)
    deviation = draws.std() * m.deviation
    assert deviation == pytest.approx(deviations[0], rel=0.01)


EDGES = {
    "sites without labels": Problem(1, n=(30, 0, 0)),
    "seven labels": Problem(1, n=(3, 2, 2), d=(2, 2, 2), k=(3, 3, 3)),
    "no shared row": Problem(1, m=0),
    "labels of 1e9": Problem(1).in_another_unit(),
}


@pytest.mark.parametrize("p", EDGES.values(), ids=EDGES)
def test_edge_cases_are_finite(p):
    f = fit(p.moments())
    weights = ScoreWeights.of(f)
    for v, own in enumerate(p.own(f.moments)):
        for present in (range(3), [v]):
            part = p.Phi @ weights.of_sites(present)
            score = f.intercept(v) + part
            assert np.isfinite(score).all()
        W = p.W[v]
        assert np.isfinite(own.predict(f, W)).all()
        assert np.isfinite(own.deviations(f, W)).all()


def test_units_of_labels_do_not_matter():
    p = Problem(1)
    q = Problem(1).in_another_unit()
    scores = p.Phi @ fit(p.moments()).coef
    in_another_unit = q.Phi @ fit(q.moments()).coef
    assert_allclose(in_another_unit / 1e6, scores, atol=1e-6)


# --- features and the local model -----------------------------------------------------------------


def test_the_forest_predicts_with_numpy_what_scikit_learn_does():
    rng = default_rng(0)
    # Whole numbers: a threshold between two is often a third one, up to rounding.
    whole = rng.integers(12, size=(580, 3))
    S = (whole - 5.3) / 3.7
    y = rng.normal(size=80)

    forest, out_of_bag = grown(S[:80], y, 3, trees=50)

    reference = RandomForestRegressor(50, min_samples_leaf=2, oob_score=True, random_state=3)
    reference.fit(S[:80], y)
    expected = reference.predict(S)
    assert_allclose(forest.predict(S), expected, rtol=0, atol=1e-14)
    assert_allclose(out_of_bag, reference.oob_prediction_)


def multiplied(n, seed=0):
    """Own columns X, and a score whose slope depends on a column, as no sum over sites can have."""
    rng = default_rng(seed)
    X = rng.normal(size=(n, 2))
    score = rng.normal(size=n)
    slopes = 1.0 + np.sign(X[:, 0])
    y = score * slopes + 0.1 * rng.normal(size=n)
    return X, score, y


def rmse(errors):
    return float(np.sqrt(np.mean(errors**2)))


def test_a_refinement_learns_what_own_columns_and_the_score_make_together():
    X, score, y = multiplied(300)
    new, new_score, truth = multiplied(1000, seed=5)

    refinement, left_out = refined(X, score, y - score, seed=1)

    errors = truth - new_score - refinement(new, new_score)
    assert rmse(errors) < 0.75 * rmse(truth - new_score)
    assert rmse(left_out) == pytest.approx(rmse(errors), rel=0.2)


def test_a_refinement_is_nothing_for_a_row_that_the_site_does_not_have():
    X, score, y = multiplied(300)
    refinement, _ = refined(X, score, y - score, seed=1)
    new, new_score, _ = multiplied(1000, seed=5)
    new[:5] = np.nan
    assert not refinement(new, new_score)[:5].any()


def test_a_verdict_refines_after_the_slope_and_before_the_blend():
    X, score, y = multiplied(80)
    local = y - y.mean()
    refine = partial(refined, X, seed=1)

    joined_residuals = y - 0.5 * score
    result = verdict(y, local, joined_residuals, y - score, refine=refine)

    # (1) the slope
    correction, residuals = rescaling(result.slope, y, y - score)
    rescaled = correction.rescaled(score)
    # (2) the refinement
    refinement, residuals = refine(rescaled, residuals)
    joined = rescaled + refinement(X, rescaled)
    # (3) the blend
    weight, residuals = blend(local, residuals, sloped=result.slope != 1.0)
    blended = (1.0 - weight) * local + weight * joined
    assert_allclose(result.left_out["score"], residuals)
    assert_allclose(result.score(score, local, X), blended)


@pytest.mark.parametrize("opposed", [True, False])
def test_a_forecast_promises_nothing_where_scores_do_not_tell_the_labels(opposed):
    """It promised 38 % where labels had the other sign: their left-out mean tells each of them."""
    rng = default_rng(0)
    y = rng.normal(size=60)
    score = -y if opposed else rng.normal(size=60)
    X = rng.normal(size=(60, 2))
    residuals = y - score

    result = verdict(y, y - y.mean(), residuals, residuals, refine=partial(refined, X, seed=1))

    assert result.slope < 0.5
    assert abs(result.gains["score"].change) < 0.05


def test_the_weight_of_a_refinement_is_that_of_least_squares_pulled_to_0_by_50_labels():
    X, score, y = multiplied(60)
    residuals = y - score
    refinement, left_out = refined(X, score, residuals, seed=1)
    forest = (residuals - left_out) / refinement.weight  # out of bag
    pull = 50.0 * np.mean(residuals**2) / len(y)
    assert 0.1 < refinement.weight < 0.9
    assert refinement.weight == pytest.approx(residuals @ forest / (forest @ forest + pull))


@pytest.mark.parametrize("n", [39, 40])
def test_a_refinement_needs_forty_labels(n):
    X, score, y = multiplied(n)
    refinement, _ = refined(X, score, y - score, seed=1)
    assert (refinement is None) is (n < 40)


def test_a_refinement_needs_a_gain():
    """Out of bag the mean of the others is opposed to each label."""
    noise = np.tile([1.0, -1.0], 20)
    X = np.ones((40, 2))
    refinement, residuals = refined(X, np.zeros(40), noise, seed=1)
    assert refinement is None
    assert residuals is noise


@pytest.mark.parametrize("kind", ["constant", "binary", "heavy"])
def test_features_of_awkward_columns_are_finite_and_centred(kind):
    rng = default_rng(0)
    columns = {
        "constant": np.ones((60, 1)),
        "binary": (rng.random((60, 1)) < 0.3).astype(float),
        "heavy": rng.standard_cauchy((60, 2)),
    }
    X = columns[kind]
    own = np.arange(12)
    labels = rng.normal(size=12)
    settings = FeatureSettings(60, 10, 0)

    features, _, W = fit_features(SiteRows(X, own, labels), settings)

    assert_allclose(features(X), W, atol=1e-9)
    assert np.isfinite(W).all()
    assert np.abs(W.mean(axis=0)).max() < 1e-9


def test_features_do_not_know_the_label_of_their_row():
    rng = default_rng(2)
    X = rng.normal(size=(80, 3))
    y = rng.normal(size=45)
    own = np.arange(45)
    settings = FeatureSettings(80, 10, 0)
    changed_labels = y.copy()
    changed_labels[4] += 1.0

    before = SiteRows(X, own, y)
    after = SiteRows(X, own, changed_labels)
    _, local, _ = fit_features(before, settings)
    _, changed, _ = fit_features(after, settings)

    assert 0.0 <= local.weight <= 1.0
    expected = local.out_of_bag[4]
    assert changed.out_of_bag[4] == pytest.approx(expected)


def test_a_site_without_labels_has_features_and_no_local_model():
    rng = default_rng(2)
    X = rng.normal(size=(80, 3))
    nobody = np.arange(0)

    rows = SiteRows(X, nobody, np.zeros(0))
    settings = FeatureSettings(80, 10, 0)
    features, local, W = fit_features(rows, settings)

    assert local is None
    assert W.shape == (80, 10)
    assert_allclose(features(X), W, atol=1e-12)


def test_places_of_labels_ascend():
    """All sites list the common rows in one order, and each its labels in it."""
    X = np.zeros((4, 1))
    descending = np.array([2, 0])
    with pytest.raises(ValueError, match="ascending"):
        SiteRows(X, descending, np.zeros(2))


# --- the verdict ----------------------------------------------------------------------------------

# Σx² = Σe² = 20, so the standard error of a slope is size/√18.
X_OF_SLOPE = np.tile([1.0, -1.0], 10)
ERRORS_OF_SLOPE = np.tile([1.0, 1.0, -1.0, -1.0], 5)


def test_a_slope_without_an_error_is_found():
    x = X_OF_SLOPE
    assert slope(18 * x, 17 * x) == pytest.approx(18.0)


def test_labels_that_are_opposed_have_slope_zero():
    assert slope(-X_OF_SLOPE, -2 * X_OF_SLOPE) == 0.0


def test_19_labels_are_too_few_for_a_slope():
    x = X_OF_SLOPE[:19]
    assert slope(18 * x, 17 * x) == 1.0


@pytest.mark.parametrize(("standard_errors", "expected"), [(2.01, 2.0), (1.99, 1.0)])
def test_a_slope_is_used_if_it_differs_from_one_by_two_standard_errors(standard_errors, expected):
    x = X_OF_SLOPE
    size = np.sqrt(18) / standard_errors
    errors = size * ERRORS_OF_SLOPE
    assert slope(2 * x + errors, x + errors) == pytest.approx(expected)


@pytest.fixture
def sloped():
    """Labels of slope 3 in x, residuals of three models, and the verdict on them."""
    rng = default_rng(0)
    local, noise, other, x = rng.normal(size=(4, 40))
    y = 8.0 + 3.0 * x + 0.5 * noise
    score = y - x
    joined = y - x - 0.1 * other
    return x, y, local, joined, score


def test_the_correction_of_a_score_is_a_line_by_least_squares(sloped):
    x, y, local, joined, score = sloped
    correction = verdict(y, local, joined, score).score
    c, intercept = np.polyfit(x, y, 1)
    assert_allclose(correction.slope, c)
    assert_allclose(correction.level, y.mean())
    assert_allclose(correction.centre, x.mean())
    assert_allclose(correction.rescaled(x), intercept + c * x)
    assert correction.refinement is None, "without columns"


def test_left_out_scores_of_a_verdict_are_those_of_refitted_lines(sloped):
    x, y, local, joined, score = sloped
    result = verdict(y, local, joined, score)
    residuals = np.empty(40)
    for i in range(40):
        others = np.delete(x, i)
        labels = np.delete(y, i)
        line = np.polyfit(others, labels, 1)
        residuals[i] = y[i] - np.polyval(line, x[i])
    weight, left_out = blend(local, residuals, sloped=True)
    assert_allclose(result.score.weight, weight)
    assert_allclose(result.left_out["score"], left_out)


def test_the_joined_model_has_the_slope_of_the_score(sloped):
    x, y, local, joined, score = sloped
    result = verdict(y, local, joined, score)
    c, _ = np.polyfit(x, y, 1)
    assert_allclose(result.slope, c)
    assert_allclose(result.joined.slope, c)
    assert_allclose(result.joined.centre, np.mean(y - joined))


def test_a_left_out_completion_changes_residuals_and_no_prediction(sloped):
    _, y, local, joined, score = sloped
    completion = 0.1 * default_rng(1).normal(size=40)
    plain = verdict(y, local, joined, score)
    completed = verdict(y, local, joined, score, completion)
    change = plain.joined.weight * plain.slope * completion
    assert completed.joined == plain.joined
    expected = plain.left_out["joined"] + change
    assert_allclose(completed.left_out["joined"], expected)


def test_with_two_common_labels_the_slope_is_that_of_all_labels(sloped):
    _, y, local, joined, score = sloped
    few = verdict(y, local, joined, score[:2])
    expected, _ = np.polyfit(y - joined, y, 1)
    assert few.slope == pytest.approx(expected)
    assert few.score == replace(few.joined, weight=1.0), "no blend"


GOOD = 0.1 * default_rng(0).normal(size=300)
BAD = default_rng(1).normal(size=300)


def test_a_blend_takes_what_is_better():
    assert blend(BAD, GOOD)[0] > 0.9
    assert blend(GOOD, BAD)[0] < 0.1


def test_a_blend_of_few_labels_is_pulled_to_joining():
    few = GOOD[:5]
    weight, _ = blend(few, 2 * few)
    assert weight > 0.7, "200/n labels speak for joining"


def ratio_of_rmse(rows):
    return rmse(GOOD[rows]) / rmse(BAD[rows])


def test_a_gain_is_the_change_of_the_root_mean_square():
    expected = ratio_of_rmse(np.arange(300)) - 1
    assert gain(BAD, GOOD).change == pytest.approx(expected)


def test_the_standard_error_of_a_gain_is_wider_than_the_bootstrap_s():
    resamples = default_rng(0).integers(300, size=(2000, 300))
    ratios = [ratio_of_rmse(rows) for rows in resamples]
    expected = 1.5 * np.std(ratios)
    assert gain(BAD, GOOD).standard_error == pytest.approx(expected, rel=0.2)
