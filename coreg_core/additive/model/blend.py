r"""How much of the joined model a site takes, chosen by its own labels. Nothing leaves the site.

    weight = argmin_{0 ≤ w ≤ 0.8}  Σ_i (w e_i + (1 − w) e⁰_i)² + p s² (0.8 − w)²,        s² = mean (e⁰_i)²

e and e⁰ are the residuals of the joined model and of the model alone, each row left out in turn; the other sites' parts stay
fixed. The pull p counts labels: 2000/n² under the aim "mean" (20 at ten labels, which tell little, and 0.8 at fifty), 0 under
"safety". The slope of the labels on the others' predictions before training tells whether the sites mean the same target: more
than 1.5 standard errors below 0 the weight is 0. Where the slope is below 2 and the own model explains less than a tenth of the
labels' variance, neither the site's columns nor the others' predict them, as if they belonged to other rows. At 50 labels this
finds 94 % of shuffled sites, and 14 % of the others (docs/research/benefit.md). The rules were chosen on the first group of sets
of the benefit study.
Source: Breiman (1996), "Stacked regressions".
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.terms import BLEND, Aim
from coreg_core.kernels.leave_one_out import weigh
from coreg_core.numerics.arrays import Arr

_PULL: dict[Aim, float] = {"mean": 2000.0, "safety": 0.0}
_OPPOSED = -1.5  # standard errors of the slope
_EXPLAINED, _SUPPORTED = 0.1, 2.0  # share of the variance; standard errors of the slope
_LEAST_TO_TELL = 20  # labels


@dataclass(frozen=True)
class Blend:
    """``weight`` of the joined model in the own one; ``opposed``: the labels fall clearly where the others' predictions rise;
    ``unexplained``: neither these nor the own columns predict them."""

    weight: float
    opposed: bool = False
    unexplained: bool = False


def choose_blend(
    joined: Float64[Arr, " n"],
    alone: Float64[Arr, " n"],
    labels: Float64[Arr, " n"],
    slope: float,
    aim: Aim,
    roots: Float64[Arr, " n"] | None = None,
) -> Blend:
    """From the left-out residuals of both models, and the slope of the labels in its standard errors.

    ``roots``: √ω of weighted rows, whose residuals are times √ω.
    """
    if slope < _OPPOSED:
        return Blend(0.0, opposed=True)
    n = max(len(alone), 1)
    gain, pull = alone - joined, _PULL[aim] / n**2 * float(alone @ alone) / n
    curvature = float(gain @ gain) + pull
    if not curvature > 0.0:
        return Blend(BLEND)
    weight = min(max((float(alone @ gain) + pull * BLEND) / curvature, 0.0), BLEND)
    own = alone - weight * gain
    own_share = 1.0 / n if roots is None else roots * roots / float(roots @ roots)
    # The mean of the other labels, each label left out in turn.
    mean = weigh(labels, roots, centred=True) / np.maximum(1.0 - own_share, 1e-6)
    few = n < _LEAST_TO_TELL or slope >= _SUPPORTED
    return Blend(weight, unexplained=not few and float(own @ own) > (1.0 - _EXPLAINED) * float(mean @ mean))


def slope_on(
    predictions: Float64[Arr, " n"], labels: Float64[Arr, " n"], roots: Float64[Arr, " n"] | None = None
) -> float:
    """The slope of the labels on the predictions, in its standard errors; 0 where there is none."""
    x, y = weigh(predictions, roots, centred=True), weigh(labels, roots, centred=True)
    power, covariance = float(x @ x), float(x @ y)
    if len(y) < 3 or not power > 0.0:
        return 0.0
    residual = y - (covariance / power) * x
    error = float(np.sqrt(residual @ residual * power / (len(y) - 2)))
    return covariance / max(error, 1e-12 * abs(covariance)) if covariance else 0.0
