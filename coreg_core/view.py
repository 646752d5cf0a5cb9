r"""One site's algebra: factor once, then answer respond(t, μ) for any target and weight, and predict anywhere.

    respond(t, μ) = f(Z),   f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²            (docs/mathematics.md)

Knows one site's arrays; nothing of other sites, of rounds, of messages or of files. Two forms: `SpectralView` for a
finite span (semi-parametric, landmarks, linear), and `FunctionSpaceView` for the exact one. `make_view` chooses.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh, solve_triangular

from coreg_core.arrays import Arr, block_rows
from coreg_core.bases import RANK_TOLERANCE, Basis, EveryPoint, Span, make_basis
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.kernels import Kernel, expand

Part: TypeAlias = Literal["affine", "linear"]
# b_v of the certificates: the sharp value known to the site, or m κ / ν, which tells less of the data.
BoundRule: TypeAlias = Literal["tight", "a-priori"]

# A computed bound must never fall below the true one: rounding of an eigenvalue or a norm is a few n · eps.
_ROUND_UP = 1.0 + 1e-10


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = k(x, B) c: what a site owns at the end, and all that its model file needs to hold."""

    kernel: Kernel
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X), in blocks: memory does not grow with n × p."""
        return expand(self.kernel, X, self.points, self.coef[:, None])[:, 0]


@dataclass(frozen=True)
class Solution:
    """The function that answers one (t, μ), with what the objective needs of it."""

    function: KernelExpansion
    prediction: Float64[Arr, " m"]
    local_objective: float  # ‖y − f(X)‖² + ν‖f‖²

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X)."""
        return self.function.predict(X)


@runtime_checkable
class View(Protocol):
    """What every schedule, estimator and site needs of a view, and nothing else."""

    @property
    def n_unlabelled(self) -> int:
        """m."""
        ...

    @property
    def rank(self) -> int:
        """Dimension of the span that is really used."""
        ...

    def bound(self, rule: BoundRule = "tight") -> float:
        """b_v: at least the largest s² of this view, for the certificates of docs/mathematics.md."""
        ...

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """f(Z) for every column; with part="linear" only R t, in which no label appears."""
        ...

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """The function behind respond(target, weight)."""
        ...


def make_view(
    span: Span,
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    ridge: float,
    *,
    rank_tolerance: float = RANK_TOLERANCE,
) -> View:
    """Factor a site's data once.

    Args:
        span: what f_v ranges over; ``EveryPoint`` is the exact form.
        kernel: k_v.
        X: labelled instances (n, d).
        y: targets (n,).
        Z: unlabelled instances (m, d), m = 0 allowed.
        ridge: ν_v > 0.
        rank_tolerance: relative eigenvalue below which a direction of a finite span is cut.
    """
    if not (np.isfinite(ridge) and ridge > 0):
        raise UsageError(f"ridge={ridge!r}: needs a finite number above 0.")
    if isinstance(span, EveryPoint):
        return FunctionSpaceView(kernel, X, y, Z, ridge)
    return SpectralView(make_basis(span, kernel, X, Z, rank_tolerance), X, y, Z, ridge)


class SpectralView:
    r"""A finite span in the spectral form of docs/mathematics.md: every (t, μ) costs two passes over C, O(m r).

    $A = \Phi_X^\top\Phi_X + \nu I = R^\top R$, $P = \Phi_Z R^{-1}$, $P^\top P = V \mathrm{diag}(s^2) V^\top$,
    $C = P V$, $\beta = V^\top R^{-\top} \Phi_X^\top y$;
    $a(t, \mu) = (\beta + \mu C^\top t) / (1 + \mu s^2)$, $\mathrm{respond}(t, \mu) = C\,a(t, \mu)$.

    Memory: one (m, r) array and blocks. Set-up: O(n r² + m r² + m p r).
    """

    def __init__(
        self,
        basis: Basis,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
    ):
        self._basis, self._y, self._ridge = basis, y, ridge
        self._diagonal_bound = float(basis.kernel.diagonal(Z).max(initial=0.0)) if len(Z) else 0.0
        Phi_X = basis.kernel(X, basis.points) @ basis.transform
        R = cholesky(Phi_X.T @ Phi_X + ridge * np.eye(basis.rank), check_finite=False)
        # W R⁻¹ once (p, r), so that a block of Z costs one kernel block and one product.
        W_Rinv = solve_triangular(R, basis.transform.T, trans="T", check_finite=False).T
        P = np.empty((len(Z), basis.rank))
        PtP = np.zeros((basis.rank, basis.rank))
        step = block_rows(len(basis.points))
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            np.matmul(basis.kernel(Z[rows], basis.points), W_Rinv, out=P[rows])
            PtP += P[rows].T @ P[rows]
        # The eigenvectors of PᵀP, not an SVD of P: this serves m < r and rank-deficient bases too.
        s2, V = eigh(PtP, driver="evd", check_finite=False)
        self._s2 = np.maximum(s2, 0.0)
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            P[rows] = P[rows] @ V
        self._C = P
        self._W_Rinv_V = W_Rinv @ V
        self._features_X = Phi_X
        self._R_inverse_V = solve_triangular(R, V, check_finite=False)
        self._beta = self._R_inverse_V.T @ (Phi_X.T @ y)

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self._C)

    @property
    def rank(self) -> int:
        """r."""
        return self._basis.rank

    @property
    def prediction_map(self) -> Float64[Arr, "m r"]:
        """C: f(Z) = C a. For closed_form.py."""
        return self._C

    @property
    def label_coordinates(self) -> Float64[Arr, " r"]:
        """β: the coordinates a of the site's function alone (μ = 0). For closed_form.py."""
        return self._beta

    def bound(self, rule: BoundRule = "tight") -> float:
        """max s², or trace(K_ZZ)/ν ≤ m κ/ν."""
        if rule == "a-priori":
            return self.n_unlabelled * self._diagonal_bound / self._ridge
        return float(self._s2.max(initial=0.0)) * _ROUND_UP

    def _coordinates(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part
    ) -> Float64[Arr, "r k"]:
        a: Arr = self._C.T @ targets
        a *= weights
        if part == "affine":
            a += self._beta[:, None]
        a /= 1.0 + self._s2[:, None] * weights
        return a

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """C a(t, μ); without β for the linear part."""
        return self._C @ self._coordinates(targets, weights, part)

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """W R⁻¹ V a are the coefficients on the basis points; w = R⁻¹ V a is orthonormal, so ‖f‖² = ‖w‖²."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        w = self._R_inverse_V @ a
        residual = self._y - self._features_X @ w
        return Solution(
            KernelExpansion(self._basis.kernel, self._basis.points, self._W_Rinv_V @ a),
            self._C @ a,
            float(residual @ residual + self._ridge * (w @ w)),
        )


def positive_factor(matrix: Arr, what: str, remedy: str) -> tuple[Arr, bool]:
    """The factor, in place; positive definite in exact arithmetic, and where rounding outweighs that it is said.

    Raises:
        SingularSystem: it is not positive definite in floating point.
    """
    try:
        factor, lower = cho_factor(matrix, lower=True, check_finite=False, overwrite_a=True)
    except np.linalg.LinAlgError:
        raise SingularSystem(f"{what} is singular in floating point: {remedy}.") from None
    return factor, bool(lower)


class FunctionSpaceView:
    r"""The exact span in function space: a Gaussian process's posterior on Z, never K⁻¹.

    $m_0 = K_{ZX}(K_{XX} + \nu I)^{-1} y$, $\Sigma = K_{ZZ} - K_{ZX}(K_{XX} + \nu I)^{-1}K_{XZ}$,
    $B = I + (\mu/\nu)\Sigma$;  $\mathrm{respond}(t, \mu) = m_0 + (I - B^{-1})(t - m_0)$.

    Memory: Σ (m, m) and one Cholesky factor per μ in use. Set-up O(m² n + m³/3) per μ, a round O(m²).
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
    ):
        self._kernel, self._X, self._y, self._Z, self._ridge = kernel, X, y, Z, ridge
        self._diagonal_bound = float(kernel.diagonal(Z).max(initial=0.0)) if len(Z) else 0.0
        K_XX = kernel(X, X)
        K_XX.flat[:: len(X) + 1] += ridge
        self._factor_X = positive_factor(
            K_XX, f"the labelled rows' kernel matrix at ridge={ridge:g}", "raise the ridge"
        )
        self._K_XZ = kernel(X, Z)
        m = len(Z)
        # H = L⁻¹ K_XZ with K_XX + νI = L Lᵀ: Σ = K_ZZ − HᵀH is symmetric by construction, and stays so in rounding.
        H = solve_triangular(self._factor_X[0], self._K_XZ, lower=True, check_finite=False)
        self.posterior_covariance: Arr = np.empty((m, m))
        step = block_rows(m)
        for start in range(0, m, step):
            rows = slice(start, start + step)
            block = kernel(Z[rows], Z)
            block -= H[:, rows].T @ H
            self.posterior_covariance[rows] = block
        self.posterior_mean: Arr = self._K_XZ.T @ cho_solve(self._factor_X, y, check_finite=False)
        # About 64 MB of factors: a whole λ path where m is small, the one μ in use where it is large.
        self._factors: OrderedDict[float, tuple[Arr, bool]] = OrderedDict()
        self._most_factors = max(1, 8_000_000 // max(1, m * m))

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self._Z)

    @property
    def rank(self) -> int:
        """n + m: the exact span is never cut."""
        return len(self._X) + len(self._Z)

    @property
    def ridge(self) -> float:
        """ν."""
        return self._ridge

    @cached_property
    def _tight_bound(self) -> float:
        # λ_max(Σ) is at most the largest absolute row sum, the Frobenius norm and the trace; the least of the three
        # costs O(m²), where an eigenvalue would cost more than the factor and Lanczos would bound from below.
        S = self.posterior_covariance
        row_sum = max((float(np.abs(S[i : i + 256]).sum(axis=1).max()) for i in range(0, len(S), 256)), default=0.0)
        largest = min(row_sum, float(np.linalg.norm(S)), float(np.trace(S)) + 1e-14 * len(S) * row_sum)
        return max(0.0, largest) / self._ridge * _ROUND_UP

    def bound(self, rule: BoundRule = "tight") -> float:
        """The least of three norms of Σ, over ν; or m κ/ν."""
        if rule == "a-priori":
            return self.n_unlabelled * self._diagonal_bound / self._ridge
        return self._tight_bound

    def factor(self, weight: float) -> tuple[Arr, bool]:
        """The Cholesky factor of B at this μ, from the cache where it is there."""
        if weight in self._factors:
            self._factors.move_to_end(weight)
            return self._factors[weight]
        while len(self._factors) >= self._most_factors:
            self._factors.popitem(last=False)  # before the new one is made: two would not fit at m = 10⁴
        # Column-major from the start: LAPACK then factors in place, and no third m x m array is made. Σ is symmetric
        # to the last bit only within a block, so the lower triangle of its transpose is as good as its own.
        B = self.posterior_covariance.T.copy(order="F") if self.n_unlabelled else np.zeros((0, 0), order="F")
        B *= weight / self._ridge
        B.T.flat[:: self.n_unlabelled + 1] += 1.0
        if self.n_unlabelled:
            what = f"I + (μ/ν)Σ at μ={weight:g}, ν={self._ridge:g}"
            self._factors[weight] = positive_factor(B, what, "lower the coupling, or raise the ridge")
        else:
            self._factors[weight] = (B, True)
        return self._factors[weight]

    def solve_B(self, weight: float, columns: Float64[Arr, "m k"]) -> Float64[Arr, "m k"]:
        """B⁻¹ columns, by the factor."""
        if weight == 0.0 or not self.n_unlabelled:
            return columns.copy()
        solved: Arr = cho_solve(self.factor(weight), columns, check_finite=False)
        return solved

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """m₀ + (I − B⁻¹)(t − m₀) = t − B⁻¹(t − m₀); the linear part is t − B⁻¹ t."""
        offset = targets - self.posterior_mean[:, None] if part == "affine" else targets
        answer = np.empty_like(targets)
        for weight in dict.fromkeys(weights.tolist()):  # columns that share a μ share a solve
            columns = weights == weight
            answer[:, columns] = targets[:, columns] - self.solve_B(weight, offset[:, columns])
        return answer

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """c_Z = (μ/ν) B⁻¹(t − m₀), c_X = (K_XX + νI)⁻¹(y − K_XZ c_Z): never through K⁻¹."""
        shrunk = self.solve_B(weight, (target - self.posterior_mean)[:, None])[:, 0]
        c_Z = (weight / self._ridge) * shrunk
        c_X: Arr = cho_solve(self._factor_X, self._y - self._K_XZ @ c_Z, check_finite=False)
        prediction = target - shrunk
        fitted = self._y - self._ridge * c_X  # f(X), since (K_XX + νI) c_X = y − K_XZ c_Z
        residual = self._ridge * c_X
        norm = c_X @ fitted + c_Z @ prediction
        if weight == 0.0:  # coefficients on unlabelled points vanish: one RLSR solution on X alone
            function = KernelExpansion(self._kernel, self._X, c_X)
        else:
            function = KernelExpansion(self._kernel, np.concatenate([self._X, self._Z]), np.concatenate([c_X, c_Z]))
        return Solution(function, prediction, float(residual @ residual + self._ridge * norm))
