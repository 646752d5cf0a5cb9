"""Platt scaling, AUC, log loss and calibration error, against scikit-learn and identities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from coreg_core.evaluation import auc, can_calibrate, fit_probability, log_loss

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
