r"""An upper bound on the distance of a point from the optimum, without a label, in three exchanges (design, 7.2).

With ρ = T(x) − x, D = Σ σ_v⁻²S_vᵀS_v ρ_s, e = Σ σ_v⁻²1ᵀS_v ρ_s and δ = ρ_q − D, the point (w(x), a) has the gradient

    g_u = 2(σ_u⁻²Ψ_uᵀS_u ρ_s − Z_uᵀδ)        g_a = 2(e − ρ_a/c)
    J − J* ≤ ¼(Σ τ_u²‖g_u‖² + c g_a²) =: gap        Σ‖w_u − w_u*‖²/τ_u² + (a − a*)²/c ≤ gap        ‖s̃ − s*‖₂ ≤ √(gap Σ
    τ_u²‖Z_u‖₂²)

s̃ = Σ Z_u w_u(x) is the sum of the sites' models there. Both bounds hold because J is strongly convex with modulus 2 in the
prior's own metric. 16 eps times the norms of the subtracted vectors is added throughout, so that a certificate covers rounding.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.question_types import split
from coreg_core.agreement.objective import ROUNDING
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.reproducible import norm


@dataclass(frozen=True)
class AdditiveCertificate:
    """``gap`` ≥ J − J*, in the federation's units; ``score_bound`` ≥ ‖s̃ − s*‖₂; ``intercept_bound`` ≥ \\|a − a*\\|."""

    gap: float
    score_bound: float
    intercept_bound: float


@dataclass(frozen=True)
class Residual:
    """ρ of one column, with the norms that bound its rounding."""

    rho: Float64[Arr, " r"]
    rounding_s: float
    rounding_q: float
    rounding_a: float


def residual_of(
    x: Float64[Arr, " r"], affine: Float64[Arr, " r"], rho: Float64[Arr, " r"], step: float = 0.0
) -> Residual:
    """ρ = T(x₀) + T_lin(x − x₀) − x, from the stored affine sum T(x₀) and one linear question.

    ``step`` bounds the error of summing both in fixed point, ‖·‖₂.
    """

    def rounding(part: int) -> float:
        terms = (x, affine, rho - affine + x)
        return ROUNDING * sum(norm(np.atleast_1d(split(v[:, None])[part]).ravel()) for v in terms) + step

    return Residual(rho, rounding(0), rounding(1), rounding(2))


def gradient_question(
    residual: Residual, smoothed: Float64[Arr, " l"], weight: float, step: float = 0.0
) -> tuple[Arr, tuple[float, float]]:
    """(ρ_s, δ) as two columns, with a bound on the rounding of each.

    ``weight`` = Σ σ⁻²‖S‖²; ``step`` bounds the error of summing D in fixed point.
    """
    rho_s, rho_q, _ = split(residual.rho[:, None])
    D = smoothed[:-1]
    rounding_delta = residual.rounding_q + ROUNDING * norm(D) + weight * residual.rounding_s + step
    return np.concatenate([rho_s, rho_q - D[:, None]], axis=1), (residual.rounding_s, rounding_delta)


def certify(
    residual: Residual,
    smoothed: Float64[Arr, " l"],
    sizes: tuple[float, float],
    gradients: float,
    reach: float,
    intercept_prior: float = 1.0,
    step: float = 0.0,
) -> AdditiveCertificate:
    """All three bounds.

    Parameters
    ----------
    residual
        ρ.
    smoothed
        (D, e), summed.
    sizes
        Σ σ⁻²‖S‖² and Σ σ⁻²‖S‖√n, summed.
    gradients
        Σ τ²‖g‖², summed.
    reach
        Σ τ²‖Z‖₂², summed.
    intercept_prior
        c.
    step
        bound on the error of summing (D, e) in fixed point.
    """
    c, e, rho_a = intercept_prior, float(smoothed[-1]), float(residual.rho[-1])
    slack = residual.rounding_a / c + ROUNDING * abs(e) + sizes[1] * residual.rounding_s + step
    g_a = 2.0 * (abs(e - rho_a / c) + slack)
    gap = 0.25 * (gradients + c * g_a * g_a)
    return AdditiveCertificate(gap, float(np.sqrt(gap * reach)), float(np.sqrt(gap * c)))
