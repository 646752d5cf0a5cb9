r"""Errors of left-out rows with standard errors: of one model, and of the difference between two on
the same rows.

    mse = (1/n) Σ e_i²        se(mse) = sd(e²)/√n        se(rmse) = se(mse) / (2 rmse)
    (delta method)
    d_i = e_i² − b_i²         mean d,  se(d) = sd(d)/√n
    change = r − 1 with r = rmse(e)/rmse(b),  se(change) = sd(e² − r² b²)/(2 √n r mse(b))

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
from math import erfc, isnan, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy.special import expit, log_expit, log_softmax, logit, softmax

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
    first is better, and the relative change of the root mean squared error; NaN where not known.
    """

    difference: float
    standard_error: float
    change: float
    change_se: float


def estimate(residuals: Float64[Arr, " n"]) -> Estimate:
    """Of residuals of left-out rows."""
    n = len(residuals)
    if n < 2:
        return Estimate(abs(float(residuals[0])) if n else float("nan"), float("nan"), n)
    squares = residuals**2
    rmse = float(np.sqrt(squares.mean()))
    return Estimate(rmse, _standard_error(squares) / (2.0 * rmse) if rmse > 0.0 else 0.0, n)


def paired(residuals: Float64[Arr, " n"], baseline: Float64[Arr, " n"]) -> Paired:
    """One model's residuals beside another's on the same rows. The change is 0 beside a baseline
    without errors.
    """
    a = baseline**2
    b = residuals**2
    of_difference = _standard_error(b - a)
    difference = float(b.mean() - a.mean())
    scale = float(a.mean())
    ratio = float(np.sqrt(b.mean() / scale)) if scale > 0.0 else 1.0
    if not scale > 0.0 or ratio == 0.0:
        return Paired(difference, of_difference, ratio - 1.0, float("nan"))
    of_change = _standard_error(b - ratio**2 * a) / (2.0 * ratio * scale)
    return Paired(difference, of_difference, ratio - 1.0, of_change)


def _standard_error(values: Float64[Arr, " n"]) -> float:
    """Of the mean; NaN of one value."""
    n = len(values)
    if n > 1:
        return float(np.sqrt(np.var(values, ddof=1) / n))
    return float("nan")


LEAST_TO_CALIBRATE = 10  # labels, and two of each class; with fewer the prior decides
_SLOPE = 4.0
_SPREAD = 0.5
TENTHS = ("rows", "probability", "positive", "lift", "gain")  # the columns of `tenths`


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
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B")
    return Probability(float(np.exp(optimum.x[0])), float(optimum.x[1]))


@dataclass(frozen=True, eq=False)
class ClassProbabilities:
    """From scores of several classes to probabilities: p_k ∝ exp(A s_k + B_k)."""

    slope: float
    offsets: Float64[Arr, " t"]

    def log_odds(self, scores: Float64[Arr, "n t"]) -> Float64[Arr, "n t"]:
        """log p."""
        return np.asarray(log_softmax(self.slope * scores + self.offsets, axis=1))

    def of(self, scores: Float64[Arr, "n t"]) -> Float64[Arr, "n t"]:
        """p, whose rows add up to 1."""
        return np.asarray(softmax(self.slope * scores + self.offsets, axis=1))


AnyProbability: TypeAlias = Probability | ClassProbabilities


def fit_class_probabilities(
    scores: Float64[Arr, "n t"], labels: Float64[Arr, " n"]
) -> ClassProbabilities:
    """A and B of left-out scores and their labels, places of classes: multinomial calibration.

    min Σ log-loss + ½ (log A/4)²/τ², with labels smoothed to (n_k + 1)/(n_k + K).
    """
    from scipy.optimize import minimize

    n, K = scores.shape
    if not n:
        return ClassProbabilities(_SLOPE, np.zeros(K))
    place = labels.astype(np.int64)
    count = np.bincount(place, minlength=K)
    missed = 1.0 / (count + K)  # of each other class
    goal = np.repeat(missed[place][:, None], K, axis=1)
    goal[np.arange(n), place] = (count[place] + 1.0) / (count[place] + K)

    def loss(x: Arr) -> tuple[float, Arr]:
        slope = float(np.exp(x[0]))
        away = float(x[0] - np.log(_SLOPE)) / _SPREAD**2
        logits = slope * scores + x[1:]
        off = softmax(logits, axis=1) - goal
        value = -float(np.sum(goal * log_softmax(logits, axis=1)))
        slopes = [slope * float(np.sum(off * scores)) + away]
        return value + 0.5 * (away * _SPREAD) ** 2, np.concatenate([slopes, off.sum(axis=0)])

    start = np.concatenate([[np.log(_SLOPE)], np.log(goal.mean(axis=0))])
    start[1:] -= _SLOPE * scores.mean(axis=0)
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B").x
    return ClassProbabilities(float(np.exp(optimum[0])), optimum[1:] - optimum[1:].mean())


def brier_residuals(
    probabilities: Float64[Arr, "n t"], labels: Float64[Arr, " n"]
) -> Float64[Arr, " n"]:
    """√Σ_k (p_k − [label is k])² of each row: the mean of their squares is the Brier score."""
    truth = labels[:, None] == np.arange(probabilities.shape[1])
    return np.asarray(np.sqrt(np.sum((probabilities - truth) ** 2, axis=1)))


def ranks(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> tuple[float, float]:
    """How well scores separate labels of 0 and 1: AUC and KS, by scikit-learn's ROC curve; NaN for
    one class.

    AUC: the probability that a positive row has the larger score than a negative one, ties counted
    as a half. The Gini coefficient is 2 AUC − 1. KS (Kolmogorov and Smirnov): max |F₁(s) − F₀(s)|,
    the distance of the distribution functions of both classes' scores.
    """
    from sklearn.metrics import auc, roc_curve  # a second, which no other command needs

    if not 0.0 < labels.sum() < len(labels):
        return float("nan"), float("nan")
    false_positive, true_positive, _ = roc_curve(labels, scores)
    distance = np.abs(true_positive - false_positive).max()
    return float(auc(false_positive, true_positive)), float(distance)


def auc(scores: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """The area under the ROC curve (`ranks`)."""
    return ranks(scores, labels)[0]


def auc_error(area: float, positive: float, negative: float) -> float:
    """The standard error of an AUC from so many labels of 1 and of 0, for exponential scores
    (Hanley and McNeil 1982):

    se² = (A(1 − A) + (n₁ − 1)(A/(2 − A) − A²) + (n₀ − 1)(2A²/(1 + A) − A²))/(n₁ n₀)

    NaN of an area that is not known.
    """
    if isnan(area):
        return area
    of_positives = (positive - 1.0) * (area / (2.0 - area) - area**2)
    of_negatives = (negative - 1.0) * (2.0 * area**2 / (1.0 + area) - area**2)
    return sqrt((area * (1.0 - area) + of_positives + of_negatives) / (positive * negative))


def log_loss(probabilities: Float64[Arr, "n *t"], labels: Float64[Arr, " n"]) -> float:
    """Mean of −log of the probability of the label, which counts as at least 2.2e-16. By
    scikit-learn. Of several classes there is a column for each.
    """
    from sklearn.metrics import log_loss as mean_log_loss

    classes = 2 if probabilities.ndim == 1 else probabilities.shape[1]
    return float(mean_log_loss(labels, probabilities, labels=np.arange(float(classes))))


def tenths(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> dict[str, list[float]]:
    """Tenths of the rows, the largest probabilities first, as columns; a label must be 1.

    ``rows``; ``probability``: the mean prediction; ``positive``: the share of label 1, equal to it
    in a calibrated model; ``lift``: ``positive`` over the share in all rows; ``gain``: the share of
    all labels 1 that this tenth and those above it hold. Row i of n in ascending order is in tenth
    ⌊10 i/n⌋. Equal probabilities share a tenth, so there can be fewer than ten. These are the bins
    of scikit-learn's ``calibration_curve(strategy="quantile")`` if 10 divides n and none are equal.
    """
    rows, probability, positive = _by_tenth(probabilities, labels)
    gain = np.cumsum(rows * positive) / labels.sum()
    columns = (rows, probability, positive, positive / labels.mean(), gain)
    return {name: column.tolist() for name, column in zip(TENTHS, columns, strict=True)}


def _by_tenth(probabilities: Arr, labels: Arr) -> tuple[Arr, Arr, Arr]:
    """Rows, mean probability and share of label 1 of each tenth."""
    below = np.searchsorted(np.sort(probabilities), probabilities)
    _, group = np.unique(-(10 * below // len(labels)), return_inverse=True)
    rows = np.bincount(group).astype(np.float64)
    return rows, np.bincount(group, probabilities) / rows, np.bincount(group, labels) / rows


def calibration_error(probabilities: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """Mean over the rows of |share of labels 1 − mean probability| of their tenth."""
    rows, probability, positive = _by_tenth(probabilities, labels)
    return float(rows @ np.abs(positive - probability)) / len(labels)


def r_squared(residuals: Float64[Arr, " n"], labels: Float64[Arr, " n"]) -> float:
    """R² = 1 − Σ e²/Σ (y − mean y)², below 0 for a model that is worse than the mean; NaN for equal
    labels.
    """
    around = float(np.sum((labels - labels.mean()) ** 2))
    if around:
        return 1.0 - float(residuals @ residuals) / around
    return float("nan")


def p_value(estimate: float, standard_error: float) -> float:
    """p = 2 Φ(−|b|/se), two-sided and normal, as for a known noise: twice the posterior probability
    of the other sign. 1 without a standard error (a constant column).
    """
    if standard_error > 0.0:
        return erfc(abs(estimate) / (standard_error * sqrt(2.0)))
    return 1.0
