r"""Q, the disagreement, and the two certificates that every schedule states.

    Q(f) = Σ_v [ ‖y_v − f_v(X_v)‖² + ν_v ‖f_v‖² ] + λ Σ_{u,v} ‖f_u(Z) − f_v(Z)‖²      (ordered pairs)

Source: Brefeld et al. (2006), equation 2; certificates: docs/research/mathematics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr

# The schedules that minimise Q.
# The residual behind a certificate is itself rounded. A site's answer carries a relative error of a few eps for each
# of its two passes (measured: 2 to 6 eps on the golden cases); 16 eps of the subtracted vectors is added to its norm, so
# that a certificate near machine precision covers rounding.
ROUNDING = 16 * float(np.finfo(np.float64).eps)
# Predictions that are certified to this, in units of `typical_size`, are as good as exact.
GOOD_END = 1e-3


@dataclass(frozen=True)
class Certificate:
    """Upper bounds on the distance of the models from the optimum."""

    gap: float  # at least Q − Q*
    prediction_bound: float  # at least ‖ŷ_v − ŷ_v*‖₂ for every v
    own_gap: float = math.inf  # the part of the schedule, which further rounds lower; the rest is rounding
    own_bound: float = math.inf


def typical_size(squares: float, n_labels: float, n_unlabelled: int) -> float:
    """√m labels of typical size, √(Σ‖y_v‖²/Σn_v); where all labels are 0, one absolute unit for each instance."""
    return math.sqrt(n_unlabelled) * (math.sqrt(squares / n_labels) if squares > 0.0 else 1.0)


def disagreement(predictions: Float64[Arr, "M m"]) -> float:
    """Σ_{u,v} ‖ŷ_u − ŷ_v‖² = 2M Σ_v ‖ŷ_v − ȳ‖², over all ordered pairs (docs/research/mathematics.md)."""
    centred = predictions - predictions.mean(axis=0)
    return 2.0 * len(predictions) * float(np.einsum("vm,vm->", centred, centred))


def objective(local_objectives: Sequence[float], predictions: Float64[Arr, "M m"], coupling: float) -> float:
    """Q, from each view's ‖y − f(X)‖² + ν‖f‖² and the predictions on Z."""
    return float(sum(local_objectives)) + coupling * disagreement(predictions)


def sweep_weight(coupling: float, n_views: int) -> float:
    """μ = 2λ(M−1), Algorithm 1's weight (Brefeld et al. 2006, Proposition 4.1)."""
    return 2.0 * coupling * (n_views - 1)


def consensus_weight(coupling: float, n_views: int) -> float:
    """μ = 2λM, the weight of every schedule on a common z; 0 for one view, which has no other view to agree with."""
    return 2.0 * coupling * n_views if n_views > 1 else 0.0


def certificate(gradient: Float64[Arr, "M m"], bounds: Float64[Arr, " M"]) -> Certificate:
    """Q − Q* ≤ ¼ Σ_v b_v ‖g_v‖² = gap, and ‖ŷ_v − ŷ_v*‖ ≤ √(b_v · gap), the largest over v."""
    gap = 0.25 * float(bounds @ np.einsum("vm,vm->v", gradient, gradient))
    return Certificate(gap, float(np.sqrt(bounds.max() * gap)))


def consensus_certificate(
    residual_norm: float,
    scale: float,
    weight: float,
    bounds: Float64[Arr, " M"],
    response_error: float = 0.0,
    shift: float = 0.0,
    step: float = 0.0,
    stays: float | None = None,
) -> Certificate:
    r"""A sharper certificate for answers at a common z: r = mean answer − z, $x_v = \mu b_v$, errors of answers included.

    $\mathrm{gap} = \mu M \lVert r\rVert^2 \frac{\sum_v x_v/(1 + x_v)}{\sum_v 1/(1 + x_v)}$,
    $\lVert\hat y_v - \hat y_v^*\rVert \le \lVert z - z^*\rVert\,\frac{x_v}{1 + x_v}$,
    $\lVert z - z^*\rVert \le \frac{M \lVert r\rVert}{\sum_v 1/(1 + x_v)}$ (docs/research/mathematics.md). The gap is at most
    $\mu^2\lVert r\rVert^2\sum_v b_v$, and much less where one site's b_v is far above the others'.

    Parameters
    ----------
    residual_norm
        ‖r‖₂ as computed.
    scale
        ‖z‖₂ + ‖mean answer‖₂, the sizes in the subtraction: its rounding is added to ‖r‖.
    weight
        μ = 2λM.
    bounds
        b_v (M,).
    response_error
        ρ, the largest of the views' `response_error`.
    shift
        at least ρ_v √F_v over the views, √Σ(·)²; ρ √Q(0) if no more is known.
    step
        bound on the error of the mean answer by summing in fixed point, ‖·‖₂.
    stays
        Σ 1/(1 + x_v), if it is known and the single b_v are not. Then ``bounds`` must have the largest b_v, or more.
    """
    noise = ROUNDING * scale + step
    factors = consensus_factors(weight, bounds, stays)
    root, apart = (factor * (residual_norm + noise) for factor in factors)
    own_root, own_bound = (factor * residual_norm for factor in factors)
    stated = with_response_error(root, noise, bounds, response_error, shift, apart)
    return replace(stated, own_gap=own_root * own_root, own_bound=own_bound)


def stays(bound: float, weights: Sequence[float]) -> tuple[float, ...]:
    """1/(1 + μ b) of one site at each weight: sites sum it instead of disclosing b_v."""
    return tuple(1.0 / (1.0 + mu * bound) for mu in weights)


# Whose eighth power is a normal number, and a sum of 10⁴ of them finite.
LEAST_POWERED, MOST_POWERED = 1e-36, 1e37


def powered(x: float) -> float:
    """x⁸, for `largest`: of at least `LEAST_POWERED`, so that no bound is lost to underflow.

    Raises
    ------
    UsageError
        x is above `MOST_POWERED`.
    """
    if not x <= MOST_POWERED:
        raise UsageError("a bound of this site is too large to be summed. Scale the features, or raise the ridge.")
    return max(float(x), LEAST_POWERED) ** 8


def largest(total: float) -> float:
    """At least the largest and at most M^⅛ times the largest of the x whose `powered` values have this sum."""
    return float(total ** (1.0 / 8.0)) * (1.0 + 1e-12)  # rounding of the powers, of their sum and of the root


def consensus_factors(weight: float, bounds: Float64[Arr, " M"], stays: float | None = None) -> tuple[float, float]:
    """√gap and the farthest prediction, for a residual of norm 1: the factors of `consensus_certificate`."""
    x = weight * bounds
    follows, M = x / (1.0 + x), len(x)
    if stays is None:
        stays, moves = math.fsum(1.0 / (1.0 + x)), math.fsum(follows)
    else:  # Σ x/(1 + x) = M − Σ 1/(1 + x), with the rounding of that sum
        moves = max(0.0, M - stays) + ROUNDING * M
    root = float(np.sqrt(weight * M * (moves / stays)))
    return root, float(follows.max()) * M / stays


def with_response_error(
    root: float,
    noise: float,
    bounds: Float64[Arr, " M"],
    response_error: float,
    shift: float,
    apart: float = math.inf,
) -> Certificate:
    r"""Certificates of the true views, from √gap of the computed ones.

    Computed answers are exact for a nearby problem, moved by rounding and by a cut of the span. Its optimum is within
    $\sqrt{\sum_v ρ_v^2 F_v}$ of the true one in the norm √(Q − Q*), F_v view v's share of Q there
    (docs/research/mathematics.md), and that
    norm itself differs by a factor of at most 1 + ρ. Both count twice, for an answer from two queries. A
    view's predictions are √b_v times as far from the optimum's.

    Parameters
    ----------
    root
        √gap by the computed answers.
    noise
        rounding of the predictions themselves, ‖·‖₂.
    bounds
        b_v (M,).
    response_error
        ρ.
    shift
        √Σ ρ_v² F_v, or more.
    apart
        distance of the predictions from the optimum's by the computed answers, if known besides √(b_v) √gap.
    """
    reach, grown = float(np.sqrt(bounds.max())), 1.0 + 4.0 * response_error
    root, apart = grown * root + 2.0 * shift, grown * apart + 2.0 * shift * reach
    return Certificate(root * root, min(reach * root, apart) + noise)
