r"""Mean, deviation and fill value of one column, equal to the bit to those of scikit-learn's SimpleImputer and
StandardScaler.

    mean = Σx/n,   variance = (Σ(x − mean)² − (Σ(x − mean))²/n)/n,   a column with a variance of rounding size is not scaled

The agent does not import scikit-learn for these three sums: the import takes 65 MB and one second. The second term
corrects the rounding of the first sum. Source: Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance".
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.numerics.arrays import Arr


def mean_of_present(values: Float64[Arr, " n"]) -> float:
    """The mean of the values that are not NaN."""
    missing = np.isnan(values)
    total = np.where(missing, 0.0, values)[:, None].sum(axis=0)[0]
    return float(total / (len(values) - int(missing.sum())))


def standard(values: Float64[Arr, " n"]) -> tuple[float, float]:
    """Mean and population deviation. The deviation is 1 if the column is constant up to rounding."""
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
