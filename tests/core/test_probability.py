"""Platt scaling, AUC, log loss and calibration error, against scikit-learn and identities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from coreg_core.evaluation.probability import (
    LEAST_TO_CALIBRATE,
    Probability,
    auc,
    calibration_error,
    fit_probability,
    log_loss,
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


@given(seeds)
def test_no_other_slope_and_offset_fit_the_smoothed_labels_better(seed: int) -> None:
    scores, labels = drawn(seed)
    found = fit_probability(scores, labels)
    positive, negative = labels.sum(), len(labels) - labels.sum()
    goal = np.where(labels > 0.5, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(slope: float, offset: float) -> float:
        p = expit(slope * scores + offset)
        return float(-np.sum(goal * np.log(p) + (1 - goal) * np.log1p(-p)))

    least = loss(found.slope, found.offset)
    for slope, offset in ((0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01)):
        if found.slope + slope >= 0.0:
            assert least <= loss(found.slope + slope, found.offset + offset) + 1e-9
    assert found.fitted


@given(seeds, st.floats(0.1, 10.0), st.floats(-3.0, 3.0))
def test_the_probabilities_do_not_depend_on_the_units_of_the_scores(seed: int, scale: float, shift: float) -> None:
    scores, labels = drawn(seed)
    plain = fit_probability(scores, labels).of(scores)
    moved = fit_probability(scale * scores + shift, labels).of(scale * scores + shift)
    np.testing.assert_allclose(plain, moved, atol=2e-3)


def test_scores_against_the_labels_state_no_more_than_the_share() -> None:
    scores, labels = drawn(0, 400)
    found = fit_probability(-scores, labels)
    assert found.slope == 0.0
    np.testing.assert_allclose(found.of(scores), labels.mean(), atol=0.01)


@pytest.mark.parametrize("labels", [np.ones(20), np.zeros(20), np.array([0.0, 1.0] * (LEAST_TO_CALIBRATE // 2 - 1))])
def test_one_class_or_few_labels_are_clipped_scores(labels: np.ndarray) -> None:
    found = fit_probability(np.linspace(-1, 2, len(labels)), labels)
    assert found == Probability()
    np.testing.assert_allclose(found.of(np.array([-3.0, 0.3, 5.0])), [0.01, 0.3, 0.99])


def test_a_calibrated_forecast_has_a_small_calibration_error_and_a_bold_one_a_large() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    labels = (rng.random(20_000) < p).astype(float)
    assert calibration_error(p, labels) < 0.02
    assert calibration_error(np.where(p > 0.5, 0.99, 0.01), labels) > 0.2
    assert np.isnan(auc(p, np.ones(20_000)))
