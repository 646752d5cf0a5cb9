r"""A site's model alone, from its own labels: the start of tuning, the input of the smoother, and a fifth of the blend.

Design, 7.1 and 7.3: ridge regression with a free intercept; σ₀² is its leave-one-out error, τ₀² = σ₀²/ν.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.hyperparameters import NOISE_FLOOR
from coreg_core.kernels.leave_one_out import choose, weigh
from coreg_core.numerics.arrays import Arr

# With fewer labels leave-one-out is impossible: such a site starts like one without labels.
LEAST_LABELS = 3


@dataclass(frozen=True, eq=False)
class OwnFit:
    """The site's model alone: ridge regression with a free intercept, width and ridge by leave-one-out on its own labels."""

    candidate: int
    ridge: float
    error: float
    intercept: float
    w: Float64[Arr, " r"]

    @property
    def noise(self) -> float:
        """σ₀²: the leave-one-out error, floored."""
        return max(self.error, NOISE_FLOOR)


def fit_alone(
    candidates: list[Arr], y: Float64[Arr, " n"], ridges: Float64[Arr, " g"], roots: Float64[Arr, " n"] | None = None
) -> OwnFit | None:
    """Width and ridge by leave-one-out, and the fit there; None below `LEAST_LABELS`. ``roots``: √ω of weighted rows."""
    if len(y) < LEAST_LABELS:
        return None
    chosen = choose(candidates, y, ridges, roots=roots)
    Phi = candidates[chosen.candidate]
    U, s, Vt = np.linalg.svd(weigh(Phi, roots, centred=True), full_matrices=False)
    w = Vt.T @ (s / (s * s + chosen.ridge) * (U.T @ weigh(y, roots, centred=True)))
    weights = None if roots is None else roots * roots
    intercept = float(np.average(y, weights=weights) - np.average(Phi, axis=0, weights=weights) @ w)
    # Equal labels have no error, and tell nothing of it: the noise is the federation's variance.
    error = chosen.error if np.ptp(y) > 0.0 else 1.0
    return OwnFit(chosen.candidate, chosen.ridge, error, intercept, w)
