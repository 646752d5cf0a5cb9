r"""How far a function is from the best one of its span at its target: a residual that needs no condition number.

    e² = L(f) − min L,     L(f) = ‖y − f(X)‖² + ν‖f‖² + μ‖t − f(Z)‖²

With Φ = [k(X); √μ k(Z)], e is half the gradient in the norm of (νI + Φ*Φ)⁻¹. `optimality` bounds it for expansions over
X ∪ Z, `optimality_in_span` for finite spans. `optimality_certificate` turns the sum of the sites' e² into bounds
(docs/research/mathematics.md).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import qr, solve_triangular

from coreg_core.agreement.objective import Certificate, consensus_factors
from coreg_core.agreement.views.distance import values_precisely
from coreg_core.agreement.views.spectral import SpectralView
from coreg_core.agreement.views.view import ROUND_UP, UNIT, KernelExpansion, View
from coreg_core.kernels.bases import Basis
from coreg_core.kernels.exact_ldl import is_exact
from coreg_core.kernels.precise import precise_kernel
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import DD_EPS, add, matmul, multiply, two_product

_MOST_ENTRIES = 5_000_000  # kernel entries in double-double: 2 s, and 15 s with their features
_BLOCK = 500_000  # … of them at a time


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
    r"""e of a function over the rows of X, or of X and then Z; None for others.

    Half the gradient is −Φ*a, and ‖a‖ is at least e: f is evaluated in double-double in

        ‖a‖² = ‖y − f(X) − ν c_X‖² + μ ‖t − f(Z) − (ν/μ) c_Z‖²,     f = Σ c_i k(x_i, ·)
    """
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


def optimality_in_span(
    f: KernelExpansion,
    basis: Basis,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    target: Float64[Arr, " m"],
    ridge: float,
    weight: float,
) -> Optimality | None:
    r"""e of a function of a finite span; None if directions of the span were cut, or f is not over the basis points.

    Half the gradient in the coordinates of the basis, in double-double, and in the dual of the norm of Q:

        g = Φ_Xᵀ(y − f(X)) + μ Φ_Zᵀ(t − f(Z)) − ν Wᵀ f(B),     e = ‖R⁻ᵀ g‖,     [Φ_X; √μ Φ_Z; √ν I] = Q R

    No kernel matrix is inverted, so a small ridge costs no digit.
    """
    defect = basis.orthonormality(precisely=True)
    if basis.is_cut or not is_exact(basis.kernel) or not defect < 0.5 or not np.array_equal(f.points, basis.points):
        return None
    kernel, n, r = basis.kernel, len(X), basis.rank
    rows, W = np.concatenate([X, Z]), basis.precise_transform
    low = np.zeros_like(f.coef) if f.coef_low is None else f.coef_low
    coef = f.coef[:, None], low[:, None]
    diagonal, at_points = kernel.diagonal(rows), kernel.diagonal(f.points)
    trace = float(np.sqrt(at_points.sum()))
    entry = len(f.coef) * DD_EPS * float(np.abs(f.coef) @ np.sqrt(at_points))  # of f(x), times √k(x, x)
    values, on_points = values_precisely(f, rows), matmul(precise_kernel(kernel, f.points, f.points), coef)
    gap = np.concatenate([y, target]) - values
    # Errors of f(rows) and of the differences pass through Φ*, whose norm in the dual of Q's is at most 1.
    off = UNIT * np.abs(values) + entry * np.sqrt(diagonal) + UNIT * np.abs(gap)
    weights = np.repeat([1.0, weight], [n, len(Z)])
    passed = float(np.sqrt(weights @ (off * off)))
    pull = two_product(weights, gap)
    R, through = np.eye(r) * np.sqrt(ridge), (np.zeros((r, 1)), np.zeros((r, 1)))
    blocks = range(0, len(rows), max(r, _BLOCK // len(f.coef)))
    for start in blocks:
        at = slice(start, start + blocks.step)
        phi = basis.precise_features(rows[at])
        through = add(through, matmul((phi[0].T, phi[1].T), (pull[0][at, None], pull[1][at, None])))
        [R] = qr(np.concatenate([R, phi[0] * np.sqrt(weights[at])[:, None]]), mode="r", check_finite=False)
        R = R[:r]
    back = matmul((W[0].T, W[1].T), on_points)
    ridged = multiply(back, (np.full_like(back[0], ridge), np.zeros_like(back[0])))
    g = add(through, (-ridged[0], -ridged[1]))[0][:, 0]
    noise = UNIT * float(np.linalg.norm(g))
    noise += basis.feature_rounding(precisely=True) * float(np.abs(pull[0]) @ np.sqrt(diagonal))
    noise += 8 * len(rows) * DD_EPS * float(np.sqrt(diagonal.sum()) * np.linalg.norm(pull[0]))
    size_W = float(np.linalg.norm(W[0]))
    noise += ridge * size_W * trace * (entry + 4 * len(f.coef) * DD_EPS * float(np.abs(on_points[0]).max(initial=0.0)))
    least = float(np.sqrt(ridge * (1.0 - defect)))
    # A factor of size ‖R‖ is off by its rounding, and a solve by as much; the ridge bounds what that does to e.
    rounding = 8 * r * len(blocks) * UNIT * float(np.linalg.norm(R))
    factor = 1.0 + (rounding + float(np.sqrt(ridge)) * defect) / least
    solved = float(np.linalg.norm(solve_triangular(R, g, trans="T", check_finite=False)))
    e = (factor * solved + noise / least + passed) * ROUND_UP
    return Optimality(e, values[n:], float(np.linalg.norm(off[n:]))) if np.isfinite(e) else None


def optimality_of(
    view: View, f: KernelExpansion, X: Float64[Arr, "n d"], y: Float64[Arr, " n"], Z: Arr, target: Arr, weight: float
) -> Optimality | None:
    """e of a view's function; None where it would cost more than seconds, or where neither method applies."""
    if (len(X) + len(Z) + len(f.coef)) * len(f.coef) > _MOST_ENTRIES:
        return None
    if isinstance(view, SpectralView):
        return optimality_in_span(f, view.basis, X, y, Z, target, view.ridge, weight)
    return optimality(f, X, y, Z, target, view.ridge, weight)


def optimality_certificate(
    energy: float,
    largest: float,
    off: float,
    weight: float,
    bounds: Float64[Arr, " M"],
    stays: float | None = None,
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
    stays
        Σ 1/(1 + x_v), if it is known and the single b_v are not.
    """
    M, reach = len(bounds), float(np.sqrt(bounds.max()))
    _, d = consensus_factors(weight, bounds, stays)
    stays = math.fsum(1.0 / (1.0 + weight * bounds)) if stays is None else stays
    c = min(reach, 1.0 / math.sqrt(weight)) if weight > 0.0 else reach
    root = math.sqrt(energy) + math.sqrt(M * weight) * off
    gap = root * root * M / stays
    bound = c * largest + d * (off + c * math.sqrt(energy / M))
    return Certificate(ROUND_UP * gap, ROUND_UP * bound)
