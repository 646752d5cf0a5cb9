r"""How far a function over X ∪ Z is from the best one at its target: a residual that needs no condition number.

    e² = ‖y − f(X) − ν c_X‖² + μ ‖t − f(Z) − (ν/μ) c_Z‖²,     f = Σ c_i k(x_i, ·)

Half the gradient of ‖y − f(X)‖² + ν‖f‖² + μ‖t − f(Z)‖² is −Φ*e with Φ = [k(X); √μ k(Z)], and ‖Φ*e‖ in the dual of the
energy norm is at most ‖e‖. So f is within e of the best function, in the norm √(Q − Q*). `optimality_certificate` turns the
sum of the sites' e² into bounds (docs/research/mathematics.md).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import Certificate, consensus_factors
from coreg_core.agreement.views.distance import values_precisely
from coreg_core.agreement.views.view import ROUND_UP, UNIT, KernelExpansion
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import DD_EPS


@dataclass(frozen=True)
class Optimality:
    """``residual`` is at least e. ``values`` are f(Z), off by at most ``values_error``, ‖·‖₂."""

    residual: float
    values: Float64[Arr, " m"]
    values_error: float


def optimality(
    f: KernelExpansion,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    target: Float64[Arr, " m"],
    ridge: float,
    weight: float,
) -> Optimality | None:
    """e, with f evaluated in double-double; None if f is not over the rows of X, or of X and then Z."""
    n, m = len(X), len(Z)
    if len(f.points) not in (n, n + m) or f.coef_low is not None or not np.array_equal(f.points[:n], X):
        return None
    if len(f.points) == n + m and not np.array_equal(f.points[n:], Z):
        return None
    c_X, c_Z = f.coef[:n], f.coef[n:] if len(f.coef) > n else np.zeros(m)
    if weight == 0.0 and c_Z.any():
        return None
    diagonal_X, diagonal_Z = f.kernel.diagonal(X), f.kernel.diagonal(Z) if m else np.zeros(0)
    reach = float(np.abs(f.coef) @ np.sqrt(np.concatenate([diagonal_X, diagonal_Z])[: len(f.coef)]))
    at_X, at_Z = values_precisely(f, X), values_precisely(f, Z) if m else np.zeros(0)

    def error(values: Arr, diagonal: Arr) -> float:
        entries = len(f.coef) * DD_EPS * reach * float(np.sqrt(diagonal.sum()))
        return UNIT * float(np.linalg.norm(values)) + entries

    off_X, off_Z = error(at_X, diagonal_X), error(at_Z, diagonal_Z)
    pull = ridge * c_X
    a = y - at_X - pull
    sizes = [y, at_X, pull]
    noise = 3.0 * UNIT * sum(float(np.linalg.norm(part)) for part in sizes) + off_X
    total = float(np.linalg.norm(a)) + noise
    if weight > 0.0 and m:
        root = float(np.sqrt(weight))
        pull = (ridge / weight) * c_Z
        b = target - at_Z - pull
        noise = 3.0 * UNIT * sum(float(np.linalg.norm(part)) for part in (target, at_Z, pull)) + off_Z
        total = float(np.hypot(total, root * (float(np.linalg.norm(b)) + noise)))
    return Optimality(total * ROUND_UP, at_Z, off_Z)


def optimality_certificate(
    energy: float, largest: float, off: float, weight: float, bounds: Float64[Arr, " M"]
) -> Certificate:
    r"""Certificates of functions at a common target z, from how far each is from the best one at z.

    $Q - Q^* \le \frac{M}{S}(\sqrt E + \sqrt{M\mu}\,\delta)^2$ and
    $\lVert\hat y_v - \hat y_v^*\rVert \le c\,e_v + d(\delta + c\sqrt{E/M})$ with $S = \sum_v 1/(1 + x_v)$,
    $c = \min(\sqrt b, 1/\sqrt\mu)$ and d of `objective.consensus_factors` (docs/research/mathematics.md). No ρ enters.

    Parameters
    ----------
    energy, largest
        E = Σ e_v² of `optimality`, and the largest e_v.
    off
        δ, at least ‖z − mean f_v(Z)‖₂.
    weight, bounds
        μ = 2λM, and b_v (M,).
    """
    M, reach = len(bounds), float(np.sqrt(bounds.max()))
    _, d = consensus_factors(weight, bounds)
    c = min(reach, 1.0 / math.sqrt(weight)) if weight > 0.0 else reach
    root = math.sqrt(energy) + math.sqrt(M * weight) * off
    gap = root * root * M / math.fsum(1.0 / (1.0 + weight * bounds))
    bound = c * largest + d * (off + c * math.sqrt(energy / M))
    return Certificate(ROUND_UP * gap, ROUND_UP * bound)
