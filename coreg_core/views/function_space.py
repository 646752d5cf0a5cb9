r"""The exact span in function space: a Gaussian process's posterior on the shared instances, one factor for each weight.

Knows one site's arrays and its kernel; nothing of other sites, of rounds, of messages or of files.
"""

from collections import OrderedDict
from functools import cached_property

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from coreg_core.arrays import Arr, block_rows
from coreg_core.errors import SingularSystem
from coreg_core.kernels import Kernel
from coreg_core.views.view import ROUND_UP, BoundRule, KernelExpansion, Part, Solution


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
        return max(0.0, largest) / self._ridge * ROUND_UP

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
