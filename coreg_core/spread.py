"""Mean and deviation of columns, and which columns are constant.

Whether a column is constant depends on its own size alone: grams or megatons of the same thing are
the same column. Squares are taken of numbers near one, so that none of them underflows.
"""

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.arrays import Arr

# A column whose values differ by less than this many roundings of the largest is constant: the
# mean of 0.1, 0.1 and 0.1 is not 0.1.
ROUNDINGS = 16


def constant(X: Float64[Arr, "n d"]) -> Bool[Arr, " d"]:
    """Which columns are constant up to rounding: max − min ≤ 16 ε max|x|. NaN is left out."""
    low = np.nanmin(X, axis=0)
    high = np.nanmax(X, axis=0)
    rounding = ROUNDINGS * np.finfo(np.float64).eps * np.maximum(np.abs(low), np.abs(high))
    # At the ends of float64's range a difference can overflow: halves of it do not.
    return np.asarray(high / 2 - low / 2 <= rounding / 2)


def mean_and_deviation(
    X: Float64[Arr, "n d"],
) -> tuple[Float64[Arr, " d"], Float64[Arr, " d"]]:
    r"""The columns' means, and $\sqrt{\sum (x - \bar x)^2/n}$; 1 for a constant column."""
    mean = X.mean(axis=0)
    apart = X - mean
    # A power of two changes no bit of a quotient.
    _, exponent = np.frexp(np.abs(apart).max(axis=0, initial=0.0))
    unit = np.ldexp(1.0, exponent)
    deviation = unit * np.sqrt(np.mean((apart / unit) ** 2, axis=0))
    return mean, np.where(constant(X), 1.0, deviation)
