r"""Prediction intervals from a stated deviation, calibrated on rows that folds left out: the conformal factor.

    r_i = |y_i − f_{−i}(x_i)| / d_{−i}(x_i)        q = the ⌈(n + 1) γ⌉-th smallest r        f(x) ± q d(x)

d is the posterior deviation of the site's own model (`coreg_core.additive.model.predictive_sd`): it is larger where the
model is less certain, and q corrects for its omissions (the others' uncertainty, a wrong σ, tails that are not
normal).

Derivation. If the n + 1 ratios r_1, …, r_n and r of a new row were exchangeable, r would be among the k smallest with probability
at least k/(n + 1); k = ⌈(n + 1)γ⌉ gives P(r ≤ q) ≥ γ, for any distribution (Vovk, Gammerman and Shafer 2005; for scaled
residuals Lei et al. 2018). Here each r_i comes from a model that k-fold left row i out, and the interval is put around the
model of all rows: cross-conformal, for which γ is guaranteed only up to 2γ − 1 and a term in folds/n (Barber et al. 2021,
"Predictive inference with the jackknife+", Theorem 4), and which in practice covers γ or a little more, since left-out models
have fewer rows than the last one. With too few labels for a coverage there is no finite interval: n ≥ γ/(1 − γ), so 19 labels for
95 %, 9 for 90 %. New rows must come from the distribution of the labelled ones.
"""

import math

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr


def least_rows(coverage: float) -> int:
    """The smallest number of left-out rows with a finite interval at this coverage."""
    return math.ceil(coverage / (1.0 - coverage) - 1e-9)


def conformal_factor(residuals: Float64[Arr, " n"], deviations: Float64[Arr, " n"], coverage: float) -> float:
    """q: the interval is f(x) ± q d(x).

    Parameters
    ----------
    residuals
        of left-out rows.
    deviations
        d there, stated by the same folds.
    coverage
        γ, between 0 and 1.

    Raises
    ------
    UsageError
        an invalid coverage, a deviation that is not positive, or too few rows for the coverage.
    """
    if not 0.0 < coverage < 1.0:
        raise UsageError(f"coverage={coverage!r}: needs a number between 0 and 1, such as 0.9.")
    n, least = len(residuals), least_rows(coverage)
    if n < least:
        raise UsageError(
            f"an interval of {100 * coverage:g} % needs {least} left-out labels; this model has {n}. "
            f"Ask for at most {math.floor(100 * n / (n + 1))} %."
        )
    if not np.all(deviations > 0.0):
        raise UsageError("a stated deviation is not positive; nothing can be scaled by it.")
    k = min(math.ceil((n + 1) * coverage - 1e-9), n)
    return float(np.partition(np.abs(residuals) / deviations, k - 1)[k - 1])
