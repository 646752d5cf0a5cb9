r"""Mean, deviation and fill value of one column, to the bit what scikit-learn's SimpleImputer and StandardScaler make of
it.

    mean = Σx/n,   variance = (Σ(x − mean)² − (Σ(x − mean))²/n)/n,   a column whose variance is rounding is not scaled

Three sums: an agent that imported scikit-learn for them held 65 MB more, and began a second later. Chan, Golub and
LeVeque (1983), "Algorithms for computing the sample variance": the second term is what rounding left of the first sum.
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.numerics.arrays import Arr


def mean_of_present(values: Float64[Arr, " n"]) -> float:
    """The mean of the values that are there; NaN is a missing one."""
    missing = np.isnan(values)
    total = np.where(missing, 0.0, values)[:, None].sum(axis=0)[0]
    return float(total / (len(values) - int(missing.sum())))


def standard(values: Float64[Arr, " n"]) -> tuple[float, float]:
    """Mean and deviation (of the population); 1 for the deviation of a column that is constant but for rounding."""
    column, n = values[:, None], len(values)
    mean = column.sum(axis=0) / n
    apart = column - mean
    left = apart.sum(axis=0)
    apart *= apart
    variance = (apart.sum(axis=0) - left**2 / n) / n
    eps = np.finfo(np.float64).eps
    rounding = n * eps * variance + (n * mean * eps) ** 2
    scale = 1.0 if variance[0] <= rounding[0] or variance[0] == 0.0 else float(np.sqrt(variance[0]))
    return float(mean[0]), scale
