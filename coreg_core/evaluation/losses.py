r"""Errors of left-out rows with standard errors: of one model, and of the difference between two on the same rows.

    mse = (1/n) Σ e_i²        se(mse) = sd(e²)/√n        se(rmse) = se(mse) / (2 rmse)            (delta method)
    d_i = e_i² − b_i²         mean d,  se(d) = sd(d)/√n   change = rmse(e)/rmse(b) − 1

Pairs are compared row by row, so a difficulty of a row for both models cancels in d. The rows of one fold share a model,
so these standard errors are somewhat too small (Bengio and Grandvalet 2004). The rules that use them were judged with
this effect included.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True)
class Estimate:
    """A root mean squared error and its standard error, from ``rows`` residuals; NaN where there are too few."""

    rmse: float
    standard_error: float
    rows: int


@dataclass(frozen=True)
class Paired:
    """Two models on the same rows: the difference of their mean squared errors, below 0 where the first is better.

    Parameters
    ----------
    difference
        mean of e² − b².
    standard_error
        of it; NaN for one row.
    change
        relative change of the root mean squared error.
    rows
        number of rows.
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


def paired(residuals: Float64[Arr, " n"], baseline: Float64[Arr, " b"]) -> Paired:
    """One model's residuals beside another's on the same rows.

    Raises
    ------
    UsageError
        not the same rows.
    """
    if len(residuals) != len(baseline):
        raise UsageError(
            f"{len(residuals)} residuals beside {len(baseline)}: two models are compared on the same rows."
        )
    n = len(residuals)
    if n == 0:
        return Paired(float("nan"), float("nan"), float("nan"), 0)
    d = residuals**2 - baseline**2
    mine, theirs = float(np.sqrt(np.mean(residuals**2))), float(np.sqrt(np.mean(baseline**2)))
    change = mine / theirs - 1.0 if theirs > 0.0 else (0.0 if mine == 0.0 else float("inf"))
    se = float(d.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Paired(float(d.mean()), se, change, n)
