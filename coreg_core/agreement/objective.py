r"""Q, the disagreement, and the two certificates that every solver states.

    Q(f) = Σ_v [ ‖y_v − f_v(X_v)‖² + ν_v ‖f_v‖² ] + λ Σ_{u,v} ‖f_u(Z) − f_v(Z)‖²      (ordered
    pairs)

Source: Brefeld et al. (2006), equation 2; certificates: docs/research/mathematics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.errors import UsageError

# The residual behind a certificate is itself rounded: a few eps of the subtracted vectors
# (measured: 2 to 6 on the golden cases).
ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Certificate:
    """Upper bounds on the distance of the models from the optimum."""

    gap: float  # at least Q − Q*
    prediction_bound: float  # at least ‖ŷ_v − ŷ_v*‖₂ for every v


@dataclass(frozen=True)
class CoupledColumn:
    """One column of a question: its coupling λ, and the weight μ of this question."""

    coupling: Annotated[float, Ge(0)]
    weight: Annotated[float, Ge(0)]


def typical_size(squares: float, n_labels: float, n_unlabelled: int) -> float:
    """√m labels of typical size, √(Σ‖y_v‖²/Σn_v); where all labels are 0, one absolute unit for
    each instance.
    """
    return math.sqrt(n_unlabelled) * (math.sqrt(squares / n_labels) if squares > 0.0 else 1.0)


def disagreement(predictions: Float64[Arr, "M m"]) -> float:
    """Σ_{u,v} ‖ŷ_u − ŷ_v‖² = 2M Σ_v ‖ŷ_v − ȳ‖², over all ordered pairs
    (docs/research/mathematics.md).
    """
    centred = predictions - predictions.mean(axis=0)
    return 2.0 * len(predictions) * float(np.einsum("vm,vm->", centred, centred))


def objective(
    local_objectives: Sequence[float], predictions: Float64[Arr, "M m"], coupling: float
) -> float:
    """Q, from each view's ‖y − f(X)‖² + ν‖f‖² and the predictions on Z."""
    return float(sum(local_objectives)) + coupling * disagreement(predictions)


def sweep_weight(coupling: float, n_views: int) -> float:
    """μ = 2λ(M−1), Algorithm 1's weight (Brefeld et al. 2006, Proposition 4.1)."""
    return 2.0 * coupling * (n_views - 1)


def consensus_weight(coupling: float, n_views: int) -> float:
    """μ = 2λM, the weight of every solver on a common z; 0 for one view, which has no other view
    to agree with.
    """
    if n_views > 1:
        return 2.0 * coupling * n_views
    return 0.0


def weight_of(solver: str, coupling: float, n_views: int) -> float:
    """μ at which the solver of that name asks a column of coupling λ, where M sites take part."""
    return (sweep_weight if solver == "block-coordinate-descent" else consensus_weight)(
        coupling, n_views
    )


def consensus_certificate(
    residual_norm: float,
    scale: float,
    weight: float,
    bounds: Float64[Arr, " M"],
    stays: float | None = None,
) -> Certificate:
    r"""A sharper certificate for answers at a common z: r = mean answer − z, $x_v = \mu b_v$
    (docs/research/mathematics.md).
    """
    x = weight * bounds
    follows = x / (1.0 + x)
    M = len(x)
    if stays is None:
        stays = math.fsum(1.0 / (1.0 + x))
        moves = math.fsum(follows)
    else:  # Σ x/(1 + x) = M − Σ 1/(1 + x), with the rounding of that sum
        moves = max(0.0, M - stays) + ROUNDING * M
    norm = residual_norm + ROUNDING * scale
    root = float(np.sqrt(weight * M * (moves / stays))) * norm
    return Certificate(root * root, float(follows.max()) * M / stays * norm)


def stays(bound: float, weights: Sequence[float]) -> tuple[float, ...]:
    """1/(1 + μ b) of one site at each weight: sites sum it instead of disclosing b_v."""
    return tuple(1.0 / (1.0 + mu * bound) for mu in weights)


# Whose eighth power is a normal number, and a sum of 10⁴ of them finite.
LEAST_POWERED = 1e-36
MOST_POWERED = 1e37


def powered(x: float) -> float:
    """x⁸, for `largest`: of at least `LEAST_POWERED`, so that no bound is lost to underflow."""
    if not x <= MOST_POWERED:
        raise UsageError(
            "a bound of this site is too large to be summed. Scale the features, or raise the"
            " ridge."
        )
    return max(float(x), LEAST_POWERED) ** 8


def largest(total: float) -> float:
    """At least the largest and at most M^⅛ times the largest of the x whose `powered` values have
    this sum.
    """
    root = math.sqrt(math.sqrt(math.sqrt(total)))  # the same bits on every machine, unlike a power
    return root * (1.0 + 1e-12)  # rounding of the powers, of their sum and of the roots
