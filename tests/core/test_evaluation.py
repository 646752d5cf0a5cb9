"""Errors by hand; Platt scaling, AUC and log loss, against scikit-learn and identities; a
classifier's left-out probabilities.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from scipy.stats import ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import r2_score, roc_auc_score, roc_curve

from coreg_core.errors import BadData
from coreg_core.estimators import CoRLSR, CoRLSRClassifier
from coreg_core.evaluation import (
    auc,
    auc_error,
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
    rng = default_rng(seed)
    labels = (rng.random(n) < 0.4).astype(float)
    labels[:2] = 0.0, 1.0
    scores = 0.4 + 0.5 * labels + rng.normal(size=n)
    return np.round(scores, 1), labels  # with ties


@given(seeds)
def test_auc_and_log_loss_are_scikit_learns(seed: int) -> None:
    scores, labels = drawn(seed)
    area = roc_auc_score(labels, scores)
    assert auc(scores, labels) == pytest.approx(area)
    p = expit(scores)
    loss = sklearn_log_loss(labels, p)
    assert log_loss(p, labels) == pytest.approx(loss)


# Squares 1, 4, 4, 9: mean 4.5, variance 11.
RESIDUALS = np.array([1.0, 2.0, 2.0, 3.0])
RMSE = np.sqrt(4.5)
ERROR_OF_SQUARES = np.sqrt(11 / 4)


def test_an_error_and_its_standard_error_by_hand() -> None:
    error = estimate(RESIDUALS)
    assert error.rmse == pytest.approx(RMSE)
    assert error.standard_error == pytest.approx(ERROR_OF_SQUARES / (2 * RMSE))
    assert error.rows == 4


def test_a_paired_difference_by_hand() -> None:
    baseline = np.full(4, 2.0)  # squares 4, without a variance
    beside = paired(RESIDUALS, baseline)
    ratio = RMSE / 2.0
    error_of_ratio = ERROR_OF_SQUARES / (2 * ratio * 4)
    expected = [0.5, ERROR_OF_SQUARES, ratio - 1, error_of_ratio]
    assert_allclose(list(vars(beside).values()), expected)


def test_a_calibration_error_by_hand() -> None:
    """Bins of two, two, and eight of one."""
    certain = np.linspace(0.4, 0.9, 10)
    p = np.concatenate([[0.1, 0.3], certain])
    labels = np.concatenate([[1.0, 0.0], np.ones(10)])
    of_certain = np.sum(1 - certain)
    expected = (2 * 0.3 + of_certain) / 12
    assert calibration_error(p, labels) == pytest.approx(expected)


@given(seeds)
def test_ks_is_the_two_sample_statistic_of_scipy(seed: int) -> None:
    scores, labels = drawn(seed)
    positive = scores[labels > 0]
    negative = scores[labels == 0]
    expected = ks_2samp(positive, negative).statistic
    _, statistic = ranks(scores, labels)
    assert statistic == pytest.approx(expected, abs=1e-12)


def test_ranks_of_one_class_are_not_known() -> None:
    one_class = ranks(np.arange(3.0), np.ones(3))
    nobody = ranks(np.zeros(0), np.zeros(0))
    assert np.isnan(one_class).all()
    assert np.isnan(nobody).all()


@given(seeds)
def test_tenths_are_the_bins_of_scikit_learn(seed: int) -> None:
    p, labels = different_probabilities(seed)
    table = tenths(p, labels)
    positive, mean = calibration_curve(labels, p, n_bins=10, strategy="quantile")
    assert_allclose(table["positive"][::-1], positive)
    assert_allclose(table["probability"][::-1], mean)
    assert_allclose(table["lift"], positive[::-1] / labels.mean())
    error = np.abs(positive - mean).mean()
    assert calibration_error(p, labels) == pytest.approx(error, abs=1e-12)


@given(seeds)
def test_gains_of_tenths_are_on_the_roc_curve_of_scikit_learn(seed: int) -> None:
    p, labels = different_probabilities(seed)
    _, recall, thresholds = roc_curve(labels, p, drop_intermediate=False)
    descending = np.sort(p)[::-1]
    lowest_of_each_tenth = descending[19::20]
    recall_at = dict(zip(thresholds, recall, strict=True))
    expected = [recall_at[probability] for probability in lowest_of_each_tenth]
    assert_allclose(tenths(p, labels)["gain"], expected)


def different_probabilities(seed: int) -> tuple[np.ndarray, np.ndarray]:
    _, labels = drawn(seed, 200)
    order = default_rng(seed).permutation(200)
    return order / 199.0, labels


def test_equal_probabilities_share_a_tenth() -> None:
    p = np.repeat([0.2, 0.6], [15, 5])
    labels = np.repeat([0.0, 1.0], [10, 10])
    assert tenths(p, labels) == {
        "rows": [5.0, 15.0],
        "probability": [pytest.approx(0.6), pytest.approx(0.2)],
        "positive": [1.0, pytest.approx(1 / 3)],
        "lift": [2.0, pytest.approx(2 / 3)],
        "gain": [0.5, 1.0],
    }


@given(seeds)
def test_r_squared_is_scikit_learns(seed: int) -> None:
    y, e = default_rng(seed).normal(size=(2, 20))
    expected = r2_score(y, y - e)
    assert r_squared(e, y) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(r_squared(e, np.ones(20)))


@given(seeds)
def test_no_other_slope_and_offset_fit_the_smoothed_labels_better(seed: int) -> None:
    scores, labels = drawn(seed)
    curve = fit_probability(scores, labels)
    positive = labels.sum()
    negative = len(labels) - positive
    smoothed_one = (positive + 1) / (positive + 2)
    smoothed_zero = 1 / (negative + 2)
    goal = np.where(labels > 0.5, smoothed_one, smoothed_zero)

    def loss(slope: float, offset: float) -> float:
        p = expit(slope * scores + offset)
        of_positive = goal * np.log(p)
        of_negative = (1 - goal) * np.log1p(-p)
        log_likelihood = of_positive + of_negative
        deviations = np.log(slope / 4) / 0.5
        return float(0.5 * deviations**2 - np.sum(log_likelihood))

    least = loss(curve.slope, curve.offset)
    for factor in (0.99, 1.01):
        assert least <= loss(curve.slope * factor, curve.offset) + 1e-9
    for shift in (-0.01, 0.01):
        assert least <= loss(curve.slope, curve.offset + shift) + 1e-9


@pytest.mark.parametrize("sign", [1.0, -1.0])
@given(seeds)
def test_the_order_of_the_scores_stays_even_if_they_run_against_the_labels(
    sign: float, seed: int
) -> None:
    scores, labels = drawn(seed)
    scores = sign * scores
    curve = fit_probability(scores, labels)
    assert curve.slope > 0.0
    area = auc(scores, labels)
    assert auc(curve.of(scores), labels) == pytest.approx(area)


@pytest.mark.parametrize("labels", [np.ones(20), np.zeros(20), np.array([0.0, 1.0]), np.zeros(0)])
def test_one_class_or_few_labels_state_no_certainty(labels: np.ndarray) -> None:
    scores = np.full(len(labels), 0.5)
    curve = fit_probability(scores, labels)
    p = curve.of(np.array([0.0, 0.5, 1.0]))
    assert not can_calibrate(labels)
    assert (np.diff(p) > 0).all()
    assert p.min() > 0.001
    assert p.max() < 0.999


# --- the classifier -------------------------------------------------------------------------------

VIEWS = [slice(0, 2), slice(2, 4)]


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X, all labels, labels with NaN): both views see the class, each with noise of its own."""
    rng = default_rng(1)
    latent = rng.normal(size=300)
    noise = rng.normal(size=(300, 4))
    X = latent[:, None] + noise
    whole = (latent > 0).astype(float)
    y = whole.copy()
    y[30:] = np.nan
    return X, whole, y


@pytest.mark.parametrize(("form", "intercept"), [("exact", True), ("semi-parametric", False)])
def test_without_coupling_the_curves_are_of_refits_without_each_label(
    form: str, intercept: bool
) -> None:
    X, whole, y = table()
    parameters = {"form": form, "bandwidth": 4.0, "ridge": 1.0, "coupling": 0.0}
    parameters["fit_intercept"] = intercept
    classifier = CoRLSRClassifier(views=VIEWS, **parameters).fit(X, y)
    scores = np.zeros((2, 30))
    for i in range(30):
        without = y - 0.5
        without[i] = np.nan
        refit = CoRLSR(views=VIEWS, **parameters).fit(X, without)
        row = X[i : i + 1]
        scores[:, i] = refit.predict_views(row)[:, 0] + 0.5
    for curve, left_out in zip(classifier.probabilities_, scores, strict=True):
        expected = fit_probability(left_out, whole[:30])
        assert curve.slope == pytest.approx(expected.slope, rel=1e-4)
        assert curve.offset == pytest.approx(expected.offset, rel=1e-4)


CHOSEN = {"views": VIEWS, "bandwidth": "loo", "ridge": "loo", "coupling": 0.01}


def test_the_probabilities_are_of_the_second_class() -> None:
    X, whole, y = table()
    classifier = CoRLSRClassifier(**CHOSEN).fit(X, y)
    p = classifier.predict_proba(X)
    _, of_second = p.T
    assert_allclose(p.sum(axis=1), 1.0)
    assert roc_auc_score(whole[30:], of_second[30:]) > 0.85
    predictions = (of_second > 0.5).astype(float)
    assert_array_equal(classifier.predict(X), predictions)


def test_a_probability_is_of_the_score_of_a_regression_on_labels_around_zero() -> None:
    X, _, y = table()
    classifier = CoRLSRClassifier(**CHOSEN).fit(X, y)
    regression = CoRLSR(**CHOSEN).fit(X, y - 0.5)
    scores = regression.predict(X) + 0.5
    expected = classifier.predict_proba(X)[:, 1]
    assert_allclose(classifier.probability_.of(scores), expected)


def test_names_of_classes_change_no_probability() -> None:
    X, whole, y = table()
    names = np.where(whole > 0, "yes", "no").astype(object)
    names[30:] = None
    named = CoRLSRClassifier(**CHOSEN).fit(X, names)
    numbered = CoRLSRClassifier(**CHOSEN).fit(X, y)
    assert_array_equal(named.predict_proba(X), numbered.predict_proba(X))


def test_a_classifier_of_one_class_is_refused() -> None:
    X, _, _ = table()
    zeros = np.zeros(30)
    with pytest.raises(BadData, match="one class"):
        CoRLSRClassifier(**CHOSEN).fit(X[:30], zeros)


def test_probabilities_of_several_classes_are_those_of_a_logistic_regression_with_much_data():
    rng = default_rng(0)
    scores = rng.normal(size=(20_000, 3))
    odds = np.exp(2.5 * scores + [0.5, -0.5, 0.0])
    truth = odds / odds.sum(axis=1, keepdims=True)
    ends = truth.cumsum(axis=1)
    draws = rng.random((20_000, 1))
    labels = np.sum(draws > ends, axis=1).astype(float)

    probabilities = fit_class_probabilities(scores, labels)

    assert probabilities.slope == pytest.approx(2.5, rel=0.05)
    errors = probabilities.of(scores) - truth
    assert np.abs(errors).max() < 0.03


def test_without_labels_the_largest_score_is_the_most_probable_class():
    no_scores = np.zeros((0, 3))
    probabilities = fit_class_probabilities(no_scores, np.zeros(0))
    scores = np.array([[0.1, 0.9, 0.2]])
    assert probabilities.of(scores).argmax() == 1


def test_the_error_of_an_auc_is_that_of_new_draws_of_exponential_scores():
    rng = default_rng(0)
    areas = []
    for _ in range(400):
        positive = rng.exponential(3.0, 30)
        negative = rng.exponential(1.0, 50)
        labels = np.repeat([1.0, 0.0], [30, 50])
        areas.append(auc(np.concatenate([positive, negative]), labels))
    assert auc_error(0.75, 30, 50) == pytest.approx(np.std(areas), rel=0.15)
