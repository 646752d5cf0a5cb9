"""Errors by hand; Platt scaling, AUC and log loss, against scikit-learn and identities; a
classifier's left-out probabilities.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from scipy.stats import ks_2samp
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import r2_score, roc_auc_score, roc_curve

from coreg_core.errors import BadData
from coreg_core.estimators import CoRLSR, CoRLSRClassifier
from coreg_core.evaluation import (
    auc,
    calibration_error,
    can_calibrate,
    estimate,
    fit_class_probabilities,
    fit_probability,
    log_loss,
    paired,
    r_squared,
    ranks,
    tenths,
)

seeds = st.integers(0, 10_000)


def drawn(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.4).astype(float)
    labels[:2] = 0.0, 1.0
    return np.round(0.4 + 0.5 * labels + rng.normal(size=n), 1), labels  # with ties


@given(seeds)
def test_auc_and_log_loss_are_scikit_learns(seed: int) -> None:
    scores, labels = drawn(seed)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    p = expit(scores)
    assert log_loss(p, labels) == pytest.approx(sklearn_log_loss(labels, p))


def test_errors_and_their_standard_errors_by_hand() -> None:
    residuals = np.array([1.0, 2.0, 2.0, 3.0])  # squares 1, 4, 4, 9: mean 4.5, variance 11
    rmse = np.sqrt(4.5)
    se = np.sqrt(11 / 4)
    assert_allclose(list(vars(estimate(residuals)).values()), [rmse, se / (2 * rmse), 4])
    ratio = rmse / 2.0  # of the baseline, whose squares are 4; se of the squares as above
    beside = paired(residuals, np.full(4, 2.0))
    assert_allclose(list(vars(beside).values()), [0.5, se, ratio - 1, se / (2 * ratio * 4)])
    p = np.array([0.1, 0.3, *np.linspace(0.4, 0.9, 10)])  # bins of two, two, and eight of one
    assert calibration_error(p, np.array([1.0, 0.0, *[1.0] * 10])) == pytest.approx(
        (2 * 0.3 + np.sum(1 - p[2:])) / 12
    )


@given(seeds)
def test_ks_is_the_two_sample_statistic_of_scipy(seed: int) -> None:
    scores, labels = drawn(seed)
    expected = ks_2samp(scores[labels > 0], scores[labels == 0]).statistic
    assert ranks(scores, labels)[1] == pytest.approx(expected, abs=1e-12)


def test_ranks_of_one_class_are_not_known() -> None:
    assert np.isnan(ranks(np.arange(3.0), np.ones(3))).all()
    assert np.isnan(ranks(np.zeros(0), np.zeros(0))).all()


@given(seeds)
def test_tenths_are_the_bins_and_the_roc_curve_of_scikit_learn(seed: int) -> None:
    _, labels = drawn(seed, 200)
    p = np.random.default_rng(seed).permutation(200) / 199.0  # all different
    found = tenths(p, labels)
    positive, mean = calibration_curve(labels, p, n_bins=10, strategy="quantile")
    assert_allclose([found["positive"][::-1], found["probability"][::-1]], [positive, mean])
    assert_allclose(found["lift"], positive[::-1] / labels.mean())
    _, recall, at = roc_curve(labels, p, drop_intermediate=False)
    lowest = np.sort(p)[::-1][19::20]  # of each tenth of 20 rows
    assert_allclose(found["gain"], [recall[at == each][0] for each in lowest])
    error = np.abs(positive - mean).mean()
    assert calibration_error(p, labels) == pytest.approx(error, abs=1e-12)


def test_equal_probabilities_share_a_tenth() -> None:
    found = tenths(np.repeat([0.2, 0.6], [15, 5]), np.repeat([0.0, 1.0], [10, 10]))
    assert found == {
        "rows": [5.0, 15.0],
        "probability": [pytest.approx(0.6), pytest.approx(0.2)],
        "positive": [1.0, pytest.approx(1 / 3)],
        "lift": [2.0, pytest.approx(2 / 3)],
        "gain": [0.5, 1.0],
    }


@given(seeds)
def test_r_squared_is_scikit_learns(seed: int) -> None:
    y, e = np.random.default_rng(seed).normal(size=(2, 20))
    assert r_squared(e, y) == pytest.approx(r2_score(y, y - e), abs=1e-12)
    assert np.isnan(r_squared(e, np.ones(20)))


@given(seeds)
def test_no_other_slope_and_offset_fit_the_smoothed_labels_better(seed: int) -> None:
    scores, labels = drawn(seed)
    found = fit_probability(scores, labels)
    positive = labels.sum()
    negative = len(labels) - labels.sum()
    goal = np.where(labels > 0.5, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(slope: float, offset: float) -> float:
        p = expit(slope * scores + offset)
        prior = 0.5 * (np.log(slope / 4) / 0.5) ** 2
        return float(-np.sum(goal * np.log(p) + (1 - goal) * np.log1p(-p)) + prior)

    least = loss(found.slope, found.offset)
    for factor, offset in ((1.01, 0.0), (0.99, 0.0), (1.0, 0.01), (1.0, -0.01)):
        assert least <= loss(found.slope * factor, found.offset + offset) + 1e-9


@given(seeds)
def test_the_order_of_the_scores_stays_even_if_they_run_against_the_labels(seed: int) -> None:
    scores, labels = drawn(seed)
    for s in (scores, -scores):
        found = fit_probability(s, labels)
        assert found.slope > 0.0
        assert auc(found.of(s), labels) == pytest.approx(auc(s, labels))


@pytest.mark.parametrize("labels", [np.ones(20), np.zeros(20), np.array([0.0, 1.0]), np.zeros(0)])
def test_one_class_or_few_labels_state_no_certainty(labels: np.ndarray) -> None:
    assert not can_calibrate(labels)
    found = fit_probability(np.full(len(labels), 0.5), labels)
    p = found.of(np.array([0.0, 0.5, 1.0]))
    assert (np.diff(p) > 0).all()
    assert ((p > 0.001) & (p < 0.999)).all()


# --- the classifier -------------------------------------------------------------------------------

VIEWS = [slice(0, 2), slice(2, 4)]


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X, all labels, labels with NaN): both views see the class, each with noise of its own."""
    rng = np.random.default_rng(1)
    latent = rng.normal(size=300)
    X = latent[:, None] + rng.normal(size=(300, 4))
    whole = (latent > 0).astype(float)
    return X, whole, np.where(np.arange(300) < 30, whole, np.nan)


@pytest.mark.parametrize(("form", "intercept"), [("exact", True), ("semi-parametric", False)])
def test_without_coupling_the_curves_are_of_refits_without_each_label(
    form: str, intercept: bool
) -> None:
    X, whole, y = table()
    given = {
        "form": form,
        "bandwidth": 4.0,
        "ridge": 1.0,
        "coupling": 0.0,
        "fit_intercept": intercept,
    }
    model = CoRLSRClassifier(views=VIEWS, **given).fit(X, y)
    scores = np.zeros((2, 30))
    for i in range(30):
        without = np.where(np.arange(300) == i, np.nan, y - 0.5)
        one = CoRLSR(views=VIEWS, **given).fit(X, without)
        scores[:, i] = one.predict_views(X[i : i + 1])[:, 0] + 0.5
    for found, left_out in zip(model.probabilities_, scores, strict=True):
        expected = fit_probability(left_out, whole[:30])
        assert_allclose([found.slope, found.offset], [expected.slope, expected.offset], rtol=1e-4)


def test_agreement_helps_and_the_probabilities_are_of_the_second_class() -> None:
    X, whole, y = table()
    model = CoRLSRClassifier(views=VIEWS, bandwidth="loo", ridge="loo", coupling=0.01).fit(X, y)
    p = model.predict_proba(X)
    held = slice(30, None)
    assert_allclose(p.sum(axis=1), 1.0)
    assert roc_auc_score(whole[held], p[held, 1]) > 0.85
    assert_array_equal(model.predict(X), (p[:, 1] > 0.5).astype(float))
    regression = CoRLSR(views=VIEWS, bandwidth="loo", ridge="loo", coupling=0.01).fit(X, y - 0.5)
    assert_allclose(model.probability_.of(regression.predict(X) + 0.5), p[:, 1])
    named = np.where(whole > 0, "yes", "no").astype(object)
    named[30:] = None
    assert_array_equal(clone(model).fit(X, named).predict_proba(X), p)
    with pytest.raises(BadData, match="one class"):
        clone(model).fit(X[:30], np.zeros(30))


def test_probabilities_of_several_classes_are_those_of_a_logistic_regression_with_much_data():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_000, 3))
    logits = 2.5 * scores + [0.5, -0.5, 0.0]
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((20_000, 1)) > truth.cumsum(axis=1)).sum(axis=1).astype(float)

    found = fit_class_probabilities(scores, labels)

    assert found.slope == pytest.approx(2.5, rel=0.05)
    assert np.abs(found.of(scores) - truth).max() < 0.03


def test_without_labels_the_largest_score_is_the_most_probable_class():
    found = fit_class_probabilities(np.zeros((0, 3)), np.zeros(0))
    assert found.of(np.array([[0.1, 0.9, 0.2]])).argmax() == 1
