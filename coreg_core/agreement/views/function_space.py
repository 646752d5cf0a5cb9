r"""The exact span in function space: a Gaussian process's posterior on the shared instances, one factor for each weight."""

from collections import OrderedDict

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.linalg.blas import dtrsv

from coreg_core.agreement.views.view import BoundRule, KernelExpansion, Part, Solution
from coreg_core.errors import SingularSystem
from coreg_core.kernels.functions import Kernel
from coreg_core.numerics.arrays import Arr, Ints, block_rows

_EPS = float(np.finfo(float).eps)


def positive_factor(matrix: Arr, what: str, remedy: str) -> tuple[Arr, bool]:
    """The factor, in place. The matrix is positive definite in exact arithmetic; the code raises where rounding outweighs that.

    Raises
    ------
    SingularSystem
        it is not positive definite in floating point.
    """
    try:
        factor, lower = cho_factor(matrix, lower=True, check_finite=False, overwrite_a=True)
    except np.linalg.LinAlgError:
        raise SingularSystem(f"{what} is singular in floating point: {remedy}.") from None
    return factor, bool(lower)


def norm_bound(S: Float64[Arr, "k k"]) -> float:
    """At least the largest eigenvalue of a positive semi-definite matrix: the smallest of three norms, in O(k²)."""
    row_sum = max((float(np.abs(S[i : i + 256]).sum(axis=1).max()) for i in range(0, len(S), 256)), default=0.0)
    return max(0.0, min(row_sum, float(np.linalg.norm(S)), float(np.trace(S))))


class FunctionSpaceView:
    r"""The exact span in function space: a Gaussian process's posterior on Z, never K⁻¹.

    $m_0 = K_{ZX}(K_{XX} + \nu I)^{-1} y$, $\Sigma = K_{ZZ} - K_{ZX}(K_{XX} + \nu I)^{-1}K_{XZ}$,
    $B = I + (\mu/\nu)\Sigma$;  $\mathrm{respond}(t, \mu) = m_0 + (I - B^{-1})(t - m_0)$.

    Memory: Σ (m, m) and a Cholesky factor of B for each of ``n_weights`` μ in use. Set-up O(m² n + m³/3) per μ, a round O(m²) for
    each column. SingularSystem: rounding of K outweighs ν, or the identity in B, so no answer would have a bound.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
        *,
        n_weights: int = 1,
    ):
        self._kernel, self._X, self._y, self._Z, self.ridge = kernel, X, y, Z, ridge
        self.n_unlabelled = m = len(Z)
        self.rank = len(X) + m
        self._diagonal = kernel.diagonal(Z) if m else np.zeros(0)
        size, K_XX = float(kernel.diagonal(X).sum()), kernel(X, X)
        if not _EPS * size < 0.25 * ridge:
            raise SingularSystem(
                f"the labelled rows' kernel matrix at ridge={ridge:g} is singular in floating point: of size {size:.1e}, it "
                "leaves the ridge no digit; raise the ridge, rescale the features, or take form='semi-parametric'."
            )
        K_XX.flat[:: len(X) + 1] += ridge
        what = f"the labelled rows' kernel matrix at ridge={ridge:g}"
        self._L = positive_factor(K_XX, what, "raise the ridge")[0]
        # Σ = K_ZZ − HᵀH stays symmetric in rounding; through (K_XX + νI)⁻¹ m₀ would carry its rounding times ½√(‖K_ZZ‖/ν).
        self._H, self._whitened_y = self._forward(kernel(X, Z)), self._forward(y)
        self.posterior_mean: Arr = self._H.T @ self._whitened_y
        self.posterior_covariance, step = np.empty((m, m)), block_rows(m)
        for rows in (slice(start, start + step) for start in range(0, m, step)):
            np.subtract(kernel(Z[rows], Z), self._H[:, rows].T @ self._H, out=self.posterior_covariance[rows])
        self._factors: OrderedDict[float, tuple[Arr, bool]] = OrderedDict()
        self._most_factors = max(n_weights, 8_000_000 // max(1, m * m))  # about 64 MB, or all that a path needs

    def _forward(self, right: Arr) -> Arr:
        """L⁻¹ times it, with K_XX + νI = L Lᵀ."""
        return np.asarray(solve_triangular(self._L, right, lower=True, check_finite=False))

    def _backward(self, right: Arr) -> Arr:
        """L⁻ᵀ times it."""
        return np.asarray(solve_triangular(self._L, right, lower=True, trans="T", check_finite=False))

    def bound(self, rule: BoundRule = "tight") -> float:
        """The smallest of three norms of Σ, over ν, in O(m²); or m κ/ν."""
        if rule == "a-priori":
            return self.n_unlabelled * float(self._diagonal.max(initial=0.0)) / self.ridge
        return norm_bound(self.posterior_covariance) / self.ridge

    def factor(self, weight: float) -> tuple[Arr, bool]:
        """The Cholesky factor of B at this μ, of the last ones in use."""
        if weight in self._factors:
            self._factors.move_to_end(weight)
            return self._factors[weight]
        while len(self._factors) >= self._most_factors:
            self._factors.popitem(last=False)  # before the new one is made: two would not fit at m = 10⁴
        what = f"I + (μ/ν)Σ at μ={weight:g}, ν={self.ridge:g}"
        if not weight * _EPS * float(self._diagonal.sum()) / self.ridge < 0.25:
            raise SingularSystem(
                f"{what} is singular in floating point: rounding of K outweighs the identity; lower the coupling, or raise the "
                "ridge."
            )
        B = self.posterior_covariance.T.copy(order="F")  # LAPACK factors it in place
        B *= weight / self.ridge
        B.T.flat[:: self.n_unlabelled + 1] += 1.0
        self._factors[weight] = positive_factor(B, what, "lower the coupling, or raise the ridge")
        return self._factors[weight]

    def solve_B(self, weight: float, columns: Float64[Arr, "m k"]) -> Float64[Arr, "m k"]:
        """B⁻¹ columns, by the factor."""
        if weight == 0.0 or not self.n_unlabelled:
            return columns.copy()
        factor = self.factor(weight)
        if columns.shape[1] > 1:
            return np.asarray(cho_solve(factor, columns, check_finite=False))
        column = columns.reshape(-1).copy()
        for trans in (0, 1):  # at the memory's speed; LAPACK's potrs packs the factor anew for a single column
            column = dtrsv(factor[0], column, lower=1, trans=trans, overwrite_x=1)
        return column[:, None]

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """m₀ + (I − B⁻¹)(t − m₀) = t − B⁻¹(t − m₀); the linear part is t − B⁻¹ t, and zeros stay zeros."""
        answer, offset = targets.copy(), targets - self.posterior_mean[:, None] if part == "affine" else targets
        for weight in dict.fromkeys(weights.tolist()):  # columns that share a μ share a solve
            columns = weights == weight
            if part == "affine" or targets[:, columns].any():
                answer[:, columns] -= self.solve_B(weight, offset[:, columns])
        return answer

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals ν c_X, and G = ν L⁻ᵀ(I + (μ/ν) H B⁻¹ Hᵀ)L⁻¹, as [(K + D)⁻¹]_XX of the stacked system is by blocks."""
        scale = weight / self.ridge
        solved = self.solve_B(weight, np.column_stack([target - self.posterior_mean, self._H.T]))
        residual = self._backward(self._whitened_y - scale * (self._H @ solved[:, 0]))
        G = self._backward(self._backward(np.eye(len(self._X)) + scale * (self._H @ solved[:, 1:])).T)
        return self.ridge * residual[rows], self.ridge * G[rows][:, rows]

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """B⁻¹ K_ZX (K_XX + νI)⁻¹ = B⁻¹ Hᵀ L⁻¹; of some instances by the columns of B⁻¹ that are theirs."""
        if rows is None:
            return self._backward(self.solve_B(weight, self._H.T).T).T
        return self._backward(self._H @ self.solve_B(weight, np.eye(self.n_unlabelled)[:, rows])).T

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """c_Z = (μ/ν) B⁻¹(t − m₀), c_X = L⁻ᵀ(L⁻¹y − H c_Z): never through K⁻¹."""
        shrunk = self.solve_B(weight, (target - self.posterior_mean)[:, None])[:, 0]
        c_Z = (weight / self.ridge) * shrunk
        c_X = self._backward(self._whitened_y - self._H @ c_Z)
        prediction = target - shrunk
        residual = self.ridge * c_X  # y − f(X), since (K_XX + νI) c_X = y − K_XZ c_Z
        norm = c_X @ (self._y - residual) + c_Z @ prediction
        if weight == 0.0:  # coefficients on unlabelled points vanish: one RLSR solution on X alone
            function = KernelExpansion(self._kernel, self._X, c_X)
        else:
            function = KernelExpansion(self._kernel, np.concatenate([self._X, self._Z]), np.concatenate([c_X, c_Z]))
        return Solution(function, prediction, float(residual @ residual + self.ridge * norm))
