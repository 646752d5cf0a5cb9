r"""Probabilities from scores of a yes/no target, and how good they are.

    p = 1/(1 + exp(−(A s + B)))

A and B maximise the likelihood of left-out scores s, with labels (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2) in place of 1 and 0, so that
few labels state no certainty. A is at least 0. Sources: Platt (1999), "Probabilistic outputs for support vector machines";
Lin, Lin and Weng (2007).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit
from scipy.stats import rankdata

from coreg_core.numerics.arrays import Arr

LEAST_TO_CALIBRATE = 10  # labels, of both classes; with fewer a score is only clipped
_CLIP = 0.01
_BINS = 10


@dataclass(frozen=True)
class Probability:
    """From a score to a probability. ``fitted``: by left-out labels; otherwise the score is clipped to [0.01, 0.99]."""

    slope: float = 0.0
    offset: float = 0.0
    fitted: bool = False

    def log_odds(self, scores: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """log p/(1 − p)."""
        if not self.fitted:
            return np.asarray(logit(np.clip(scores, _CLIP, 1.0 - _CLIP)))
        return self.slope * scores + self.offset

    def of(self, scores: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """p."""
        return np.asarray(expit(self.log_odds(scores)))


def fit_probability(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> Probability:
    """A and B of left-out scores and their labels, 0 or 1; unfitted with too few labels or a single class."""
    positive = float(labels.sum())
    negative = len(labels) - positive
    if len(labels) < LEAST_TO_CALIBRATE or min(positive, negative) < 1.0:
        return Probability()
    goal = np.where(labels > 0.5, (positive + 1.0) / (positive + 2.0), 1.0 / (negative + 2.0))

    def loss(x: Arr) -> tuple[float, Arr]:
        odds = x[0] * scores + x[1]
        off = expit(odds) - goal
        value = -float(goal @ log_expit(odds) + (1.0 - goal) @ log_expit(-odds))
        return value, np.array([off @ scores, off.sum()])

    start = np.array([1.0, float(logit(goal.mean()))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None), (None, None)])
    return Probability(float(found.x[0]), float(found.x[1]), True)


def auc(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """The probability that a positive row has the larger score than a negative one, ties counted as a half; NaN for one class."""
    positive = labels > 0.5
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return (float(rankdata(scores)[positive].sum()) - n * (n + 1) / 2.0) / (n * m)


def log_loss(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """Mean of −log of the probability of the label, with probabilities within [1e-15, 1 − 1e-15]."""
    p = np.clip(np.where(labels > 0.5, probabilities, 1.0 - probabilities), 1e-15, 1.0)
    return -float(np.mean(np.log(p)))


def calibration_error(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """Mean of |share of positive labels − mean probability| over ten bins of equally many rows."""
    order = np.argsort(probabilities, kind="stable")
    bins = [rows for rows in np.array_split(order, _BINS) if len(rows)]
    return float(sum(len(b) * abs(labels[b].mean() - probabilities[b].mean()) for b in bins) / len(labels))
