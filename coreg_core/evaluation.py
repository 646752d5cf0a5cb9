r"""Errors of left-out rows with standard errors: of one model, and of the difference between two on
the same rows.

    mse = (1/n) Σ e_i²        se(mse) = sd(e²)/√n        se(rmse) = se(mse) / (2 rmse)
    (delta method)
    d_i = e_i² − b_i²         mean d,  se(d) = sd(d)/√n   change = rmse(e)/rmse(b) − 1

Pairs are compared row by row, so a difficulty of a row for both models cancels in d. The rows of
one fold share a model, so these standard errors are somewhat too small (Bengio and Grandvalet
2004).

Probabilities from scores of a yes/no target, and how good they are.

    p = 1/(1 + exp(−(A s + B))),   min Σ log-loss + ½ (log A/4)² / τ²,   τ = ½

Labels are smoothed to (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), so that few labels state no certainty. A is
above 0, so the order of the scores stays. Without labels A is 4 and B is −2, the line of least
squares at p = ½. Sources: Platt (1999); Lin, Lin and Weng (2007); the prior and τ are ours, chosen
on the first group of sets of the benefit study.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.special import expit, log_expit, logit

from coreg_core.arrays import Arr


@dataclass(frozen=True)
class Estimate:
    """A root mean squared error and its standard error, from ``rows`` residuals; NaN where there
    are too few.
    """

    rmse: float
    standard_error: float
    rows: int


@dataclass(frozen=True)
class Paired:
    """Two models on the same rows: the difference of their mean squared errors, below 0 where the
    first is better.
    """

    difference: float
    standard_error: float
    change: float
    rows: int


def estimate(residuals: Float64[Arr, " n"]) -> Estimate:
    """Of residuals of left-out rows."""
    n = len(residuals)
    if n == 0:
        return Estimate(float("nan"), float("nan"), 0)
    squares = residuals**2
    rmse = float(np.sqrt(squares.mean()))
    if n == 1:
        return Estimate(rmse, float("nan"), 1)
    se = float(squares.std(ddof=1)) / np.sqrt(n)
    return Estimate(rmse, float(se / (2.0 * rmse)) if rmse > 0.0 else 0.0, n)


def paired(residuals: Float64[Arr, " n"], baseline: Float64[Arr, " n"]) -> Paired:
    """One model's residuals beside another's on the same rows."""
    n = len(residuals)
    if n == 0:
        return Paired(float("nan"), float("nan"), float("nan"), 0)
    d = residuals**2 - baseline**2
    mine = float(np.sqrt(np.mean(residuals**2)))
    theirs = float(np.sqrt(np.mean(baseline**2)))
    change = mine / theirs - 1.0 if theirs > 0.0 else (0.0 if mine == 0.0 else float("inf"))
    se = float(d.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Paired(float(d.mean()), se, change, n)


LEAST_TO_CALIBRATE = 10  # labels, and two of each class; with fewer the prior decides
_SLOPE = 4.0
_SPREAD = 0.5
_BINS = 10


@dataclass(frozen=True)
class Probability:
    """From a score near 0 or 1 to a probability: A and B."""

    slope: float = _SLOPE
    offset: float = -_SLOPE / 2.0

    def log_odds(self, scores: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """log p/(1 − p)."""
        return self.slope * scores + self.offset

    def of(self, scores: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """p."""
        return np.asarray(expit(self.log_odds(scores)))


def can_calibrate(labels: Float64[Arr, " n"]) -> bool:
    """Whether labels of 0 and 1 tell more of A and B than the prior does."""
    positive = float(labels.sum())
    return len(labels) >= LEAST_TO_CALIBRATE and min(positive, len(labels) - positive) >= 2.0


def fit_probability(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> Probability:
    """A and B of left-out scores and their labels, 0 or 1."""
    from scipy.optimize import minimize  # a quarter of a second, which no other command needs

    if not len(labels):
        return Probability()
    positive = float(labels.sum())
    negative = len(labels) - positive
    goal = np.where(labels > 0.5, (positive + 1.0) / (positive + 2.0), 1.0 / (negative + 2.0))

    def loss(x: Arr) -> tuple[float, Arr]:
        slope = float(np.exp(x[0]))
        away = float(x[0] - np.log(_SLOPE)) / _SPREAD**2
        odds = slope * scores + x[1]
        off = expit(odds) - goal
        value = -float(goal @ log_expit(odds) + (1.0 - goal) @ log_expit(-odds))
        return value + 0.5 * (away * _SPREAD) ** 2, np.array(
            [slope * float(off @ scores) + away, off.sum()]
        )

    start = np.array([np.log(_SLOPE), float(logit(goal.mean())) - _SLOPE * float(scores.mean())])
    found = minimize(loss, start, jac=True, method="L-BFGS-B")
    return Probability(float(np.exp(found.x[0])), float(found.x[1]))


def auc(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """The probability that a positive row has the larger score than a negative one, ties counted as
    a half; NaN for one class.
    """
    positive = labels > 0.5
    n = int(positive.sum())
    m = int((~positive).sum())
    if not n or not m:
        return float("nan")
    _, which, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - 0.5 * (ties - 1))[which]
    return (float(ranks[positive].sum()) - n * (n + 1) / 2.0) / (n * m)


def log_loss(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """Mean of −log of the probability of the label, which counts as at least 1e-15."""
    p = np.clip(np.where(labels > 0.5, probabilities, 1.0 - probabilities), 1e-15, 1.0)
    return -float(np.mean(np.log(p)))


def calibration_error(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """Mean of |share of positive labels − mean probability| over ten bins of equally many rows;
    ties share their labels.
    """
    _, group = np.unique(probabilities, return_inverse=True)
    shared = (np.bincount(group, labels) / np.bincount(group))[group]
    order = np.argsort(probabilities, kind="stable")
    bins = [rows for rows in np.array_split(order, _BINS) if len(rows)]
    return float(
        sum(len(b) * abs(shared[b].mean() - probabilities[b].mean()) for b in bins) / len(labels)
    )


def quality(
    probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]
) -> tuple[float, float, float]:
    """AUC, log loss and calibration error."""
    return (
        auc(probabilities, labels),
        log_loss(probabilities, labels),
        calibration_error(probabilities, labels),
    )
