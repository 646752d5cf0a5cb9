r"""The span that a site's function ranges over, as an orthonormal feature map φ with f(x) = φ(x)·w and ‖f‖ = ‖w‖.

The exact span (X_v ∪ Z) needs no feature map: it is solved in function space (views/function_space.py), and its
`EveryPoint` stands here only so that the four spans are named in one place.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh

from coreg_core.errors import UsageError
from coreg_core.kernels.exact_ldl import FixedFactor, fixed_factor, is_exact
from coreg_core.kernels.functions import Kernel, Linear, entry_rounding
from coreg_core.kernels.precise import precise_diagonal, precise_kernel
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import DD_EPS, Pair, add, matmul, square, two_sum

# `orthonormal_basis`, for the estimators: rounding leaves eigenvalues of at most 1e-15 · λ_max where rows repeat (measured over
# kernels, n to 3 750, d to 40), so 1e-13 cuts every exactly repeated row with a hundredfold margin.
RANK_TOLERANCE = 1e-13
# `span_basis`, for the views: the least pivot, relative to the largest, whose function double-double features still hold.
SPAN_TOLERANCE = 1e-44
# Above this relative eigenvalue float64 entries with one correction in double-double are accurate enough.
_WELL_SPREAD = 1e-10
# Integers up to so many basis points (2 s), a double-double Gram matrix up to so many (2 s); beyond, float64.
_MOST_IN_INTEGERS = 200
_MOST_CORRECTED = 2000
_NO_DEFECT = 1e-13  # ‖Wᵀ K W − I‖ that needs no correction


@dataclass(frozen=True)
class EveryPoint:
    """Kernels at X_v ∪ Z: "exact", non-parametric coRLSR (Brefeld et al. 2006, Definition 3.1)."""


@dataclass(frozen=True)
class LabelledPoints:
    """Kernels at X_v: semi-parametric coRLSR (Brefeld et al. 2006, Definition 3.2)."""


@dataclass(frozen=True)
class Landmarks:
    """Kernels at ``count`` instances drawn from X_v ∪ Z without replacement (Nyström).

    The draw depends on ``seed`` and the number of instances alone, so a site that comes back draws the same ones.
    """

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"landmarks={self.count}: needs at least 1.")


@dataclass(frozen=True)
class LinearFeatures:
    """f(x) = w·x, with the raw features: rank d, no kernel, no labelled row in the model."""


Span: TypeAlias = EveryPoint | LabelledPoints | Landmarks | LinearFeatures


@dataclass(frozen=True, eq=False)
class Basis:
    r"""φ(x) = Wᵀ k(B, x): ``points`` B (p, d), ``transform`` W (p, r), with $W^\top K_{BB} W = I_r$.

    Parameters
    ----------
    kernel
        k.
    points
        B.
    transform
        W; its high part if ``transform_low`` is set.
    transform_low
        the low part of a W in double-double.
    defect
        at least ‖Wᵀ K_BB W − I‖₂ of the high part and the low one.
    narrow
        W is so large that only double-double features keep a digit, and only double-double coefficients.
    n_basis
        the dimension of the span, with ``rank`` directions in use; None: all of them.
    factor
        W in integers, which gives the features of a few rows to the last digit.
    """

    kernel: Kernel
    points: Float64[Arr, "p d"]
    transform: Float64[Arr, "p r"]
    transform_low: Float64[Arr, "p r"] | None = None
    defect: float = 0.0
    narrow: bool = False
    n_basis: int | None = None
    factor: FixedFactor | None = None

    @property
    def rank(self) -> int:
        """r: the directions that are in use."""
        return int(self.transform.shape[1])

    @property
    def is_cut(self) -> bool:
        """Whether a direction of the span was cut."""
        return self.n_basis is not None and self.n_basis > self.rank

    def features(self, A: Float64[Arr, "a d"], *, precisely: bool = False) -> Float64[Arr, "a r"]:
        """φ(A), all at once; use blocks for many rows. ``precisely``: in double-double, at 50 times the cost."""
        if self.narrow or precisely:
            return self.precise_features(A)[0]
        return self.kernel(A, self.points) @ self.transform

    @property
    def precise_transform(self) -> Pair:
        """W as a pair."""
        return self.transform, np.zeros_like(self.transform) if self.transform_low is None else self.transform_low

    def precise_features(self, A: Float64[Arr, "a d"]) -> Pair:
        """φ(A) as a pair of (a, r) arrays."""
        return matmul(precise_kernel(self.kernel, A, self.points), self.precise_transform)

    def _column_rounding(self, precisely: bool) -> Float64[Arr, " r"]:
        r"""$|\delta\varphi_j(x)| \le$ this · √k(x, x): of the entries of k(x, B), and of their product with W's column j."""
        p, d = self.points.shape
        entry, unit = (DD_EPS, DD_EPS) if precisely else (entry_rounding(self.kernel, d), 2.0**-53)
        # |k(x, b)| ≤ √k(x, x) √k(b, b); √p for p terms: rounding errors as independent ones (Higham and Mary 2019).
        size = float(np.sqrt(self.kernel.diagonal(self.points).sum()))
        rounding: Arr = np.linalg.norm(self.transform, axis=0) * size * (entry + np.sqrt(p) * unit)
        return rounding

    def feature_rounding(self, *, precisely: bool = False) -> float:
        """‖computed φ(x) − φ(x)‖₂ ≤ this · √k(x, x)."""
        return float(np.linalg.norm(self._column_rounding(self.narrow or precisely))) + 2.0**-52

    def orthonormality(self, *, precisely: bool = False) -> float:
        """At least ‖Wᵀ K_BB W − I‖₂: of W as a pair, or of its high part alone."""
        if self.narrow or precisely or self.transform_low is None:
            return float(self.defect)
        trace = float(np.sqrt(self.kernel.diagonal(self.points).sum()))
        return float(self.defect + 4.0 * 2.0**-53 * trace * float(np.linalg.norm(self.transform)))

    def tail(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """A bound on the reach of the directions left out: k(x, x) − ‖φ(x)‖² and its rounding; 0 if none is left out."""
        if not self.is_cut or not len(A):
            return np.zeros(len(A))
        diagonal = self.kernel.diagonal(A)
        if not self.narrow:
            phi = self.features(A)
            left: Arr = diagonal - np.einsum("ij,ij->i", phi, phi)
            unit = 2.0**-53
        else:
            pair = self.precise_features(A)
            phi, rest = pair[0], precise_diagonal(self.kernel, A)
            for j in range(self.rank):
                high, low = square((pair[0][:, j], pair[1][:, j]))
                rest = add(rest, (-high, -low))
            left, unit = rest[0], DD_EPS
        rounding = 2.0 * np.sqrt(diagonal) * (np.abs(phi) @ self._column_rounding(self.narrow))
        tail: Arr = np.maximum(left, 0.0) + rounding + 8 * (self.rank + 4) * unit * diagonal
        return tail


@dataclass(frozen=True, eq=False)
class FourierBasis:
    r"""$\varphi_j(x) = \sqrt{2/M} \cos(\omega_j^\top x + b_j)$: φ(x)·φ(x') is the gaussian kernel in expectation.

    Source: Rahimi and Recht (2007); the phase form, so that M features are M draws.
    """

    frequencies: Float64[Arr, "d p"]
    phases: Float64[Arr, " p"]

    def features(self, A: Float64[Arr, "a d"]) -> Float64[Arr, "a p"]:
        """φ(A)."""
        out = A @ self.frequencies
        out += self.phases
        np.cos(out, out=out)
        out *= np.sqrt(2.0 / len(self.phases))
        return out


def draw_fourier_basis(n_features: int, count: int, bandwidth: float, rng: np.random.Generator) -> FourierBasis:
    r"""For k(x, x') = exp(−‖x−x'‖²/σ): $\omega \sim N(0, \tfrac{2}{\sigma} I)$, b uniform on [0, 2π)."""
    frequencies = rng.normal(scale=np.sqrt(2.0 / bandwidth), size=(n_features, count))
    return FourierBasis(frequencies, rng.uniform(0.0, 2.0 * np.pi, size=count))


def make_basis(
    span: LabelledPoints | Landmarks | LinearFeatures,
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    Z: Float64[Arr, "m d"],
    rank_tolerance: float = SPAN_TOLERANCE,
) -> Basis:
    """The orthonormal feature map of a finite span, by `span_basis`. Cost O(p³), p the number of distinct basis points."""
    match span:
        case LabelledPoints():
            return span_basis(kernel, X, rank_tolerance)
        case Landmarks(count, seed):
            pool = len(X) + len(Z)
            if count > pool:
                raise UsageError(f"landmarks={count}: more than the {pool} instances they are drawn from.")
            drawn = np.sort(np.random.default_rng(seed).choice(pool, size=count, replace=False))
            labelled, unlabelled = drawn[drawn < len(X)], drawn[drawn >= len(X)] - len(X)
            return span_basis(kernel, np.concatenate([X[labelled], Z[unlabelled]]), rank_tolerance)
        case LinearFeatures():
            # k(x, e_j) = x_j: the unit vectors under the linear kernel are the features themselves.
            unit = np.eye(X.shape[1])
            return Basis(Linear(), unit, unit)


def orthonormal_basis(kernel: Kernel, points: Float64[Arr, "p d"], rank_tolerance: float = RANK_TOLERANCE) -> Basis:
    r"""$K_{BB} = E \,\mathrm{diag}(s)\, E^\top$, cut at $s_i > \tau s_{\max}$; $W = E \,\mathrm{diag}(s)^{-1/2}$.

    Raises
    ------
    UsageError
        the kernel is zero on every point (rank 0), so the span holds only the zero function.
    """
    s, E = eigh(kernel(points, points), driver="evd", check_finite=False)
    keep = s > rank_tolerance * max(s[-1], 0.0)
    if not keep.any():
        raise UsageError(
            "the kernel is zero on every basis point, so this span holds only the zero function; "
            "use another kernel, or give the rows a feature that is not constant."
        )
    return Basis(kernel, points, np.ascontiguousarray(E[:, keep] / np.sqrt(s[keep])))


def span_basis(kernel: Kernel, points: Float64[Arr, "p d"], rank_tolerance: float = SPAN_TOLERANCE) -> Basis:
    r"""The span of k(b, ·) over the points, complete where arithmetic allows. Repeated points count once, and then

    - eigenvalues all above 1e-10 of the largest: float64's W, made orthonormal in the true K_BB by one correction in
      double-double (`_corrected`);
    - otherwise, up to 200 points: pivots in integers, W and features in double-double (fixed_point.py), cut at
      ``rank_tolerance`` times the largest pivot;
    - otherwise: float64's W, cut where its eigenvalues are rounding.

    Cuts are reported: ``n_basis`` is the span's dimension, and ``tail`` bounds the reach of the directions left out.

    Raises
    ------
    UsageError
        the kernel is zero on every point (rank 0), so the span holds only the zero function.
    """
    _, first = np.unique(points, axis=0, return_index=True)
    points = np.ascontiguousarray(points[np.sort(first)])
    p, d = points.shape
    s, E = eigh(kernel(points, points), driver="evd", check_finite=False)
    largest = max(float(s[-1]), 0.0)
    if largest > 0.0 and s[0] > max(_WELL_SPREAD, rank_tolerance) * largest:
        return _corrected(kernel, points, E / np.sqrt(s), p)
    if is_exact(kernel) and p <= _MOST_IN_INTEGERS:
        factor = fixed_factor(kernel, points, rank_tolerance)
        high, low = factor.transform
        # W is rounded to a pair: Wᵀ K W moves by 2 ‖K^½ δW‖ ≤ 2 √λ_max ‖δW‖_F.
        defect = 2.0 * np.sqrt(_trace(kernel, points)) * float(np.linalg.norm(high)) * DD_EPS
        return Basis(kernel, points, high, low, defect, True, factor.rank if factor.exhausted else p, factor)
    if isinstance(kernel, Linear) and p > d and np.linalg.matrix_rank(points, tol=None) == d:
        return Basis(Linear(), np.eye(d), np.eye(d))  # the rows span every linear function
    # float64's own eigenvalues are rounding below p eps of the largest; the cut is at a hundred times that.
    keep = s > max(rank_tolerance, 100 * p * 2.0**-53) * largest
    if not keep.any():
        raise UsageError(
            "the kernel is zero on every basis point, so this span holds only the zero function; "
            "use another kernel, or give the rows a feature that is not constant."
        )
    return _corrected(kernel, points, E[:, keep] / np.sqrt(s[keep]), p)


def _trace(kernel: Kernel, points: Arr) -> float:
    return float(kernel.diagonal(points).sum())


def _corrected(kernel: Kernel, points: Arr, W: Arr, n_basis: int) -> Basis:
    r"""W made orthonormal in the true K_BB: $W^\top K_{BB} W = I + \Delta$ in double-double, then $W (I + \Delta)^{-1/2}$.

    Rounding K_BB's entries moves its small eigenvalues s by eps λ_max, so that float64's W has a defect ‖Δ‖ of about
    eps λ_max/s; after the correction it is ‖Δ‖³, and eps √(λ_max/s), the rounding of W itself, where its low part is not used.
    """
    p, d = points.shape
    noise = (entry_rounding(kernel, d) + 2 * np.sqrt(p) * 2.0**-53) * _trace(kernel, points)
    defect = noise * float(np.linalg.norm(W, 2)) ** 2
    if not is_exact(kernel) or p > _MOST_CORRECTED or defect < _NO_DEFECT:
        return Basis(kernel, points, np.ascontiguousarray(W), None, defect, False, n_basis)
    zero = np.zeros_like(W)
    KW = matmul(precise_kernel(kernel, points, points), (W, zero))
    high, low = matmul((np.ascontiguousarray(W.T), np.ascontiguousarray(zero.T)), KW)
    Delta = (high - np.eye(W.shape[1])) + low
    Delta = (Delta + Delta.T) / 2
    # (I + Δ)^(−½) = I − Δ/2 + 3Δ²/8 − …; the products are small beside W, so that float64 is precise enough for them.
    more = W @ (-0.5 * Delta + 0.375 * (Delta @ Delta))
    high, low = two_sum(W, more)
    size = float(np.linalg.norm(Delta))
    left = (
        size**3
        + 16 * 2.0**-53 * size
        + 2.0 * DD_EPS * float(np.sqrt(_trace(kernel, points))) * float(np.linalg.norm(W))
    )
    return Basis(kernel, points, np.ascontiguousarray(high), np.ascontiguousarray(low), left, False, n_basis)
