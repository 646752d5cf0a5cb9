r"""The exact span in function space: a Gaussian process's posterior on the shared instances, one factor for each weight."""

from collections import OrderedDict
from functools import cached_property

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


class FunctionSpaceView:
    r"""The exact span in function space: a Gaussian process's posterior on Z, never K⁻¹.

    $m_0 = K_{ZX}(K_{XX} + \nu I)^{-1} y$, $\Sigma = K_{ZZ} - K_{ZX}(K_{XX} + \nu I)^{-1}K_{XZ}$,
    $B = I + (\mu/\nu)\Sigma$;  $\mathrm{respond}(t, \mu) = m_0 + (I - B^{-1})(t - m_0)$.

    Memory: Σ (m, m) and one Cholesky factor for each of ``n_weights`` μ in use. Set-up O(m² n + m³/3) per μ, a round O(m²)
    for each column that has changed since it was asked last; a column of zeros costs nothing in the linear part.

    Raises
    ------
    SingularSystem
        rounding of K outweighs ν, or the identity in B, so no answer would have a bound.
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
        self._kernel, self._X, self._y, self._Z, self._ridge = kernel, X, y, Z, ridge
        diagonal_Z = kernel.diagonal(Z) if len(Z) else np.zeros(0)
        self._diagonal_bound, self._trace = float(diagonal_Z.max(initial=0.0)), float(diagonal_Z.sum())
        K_XX, size = kernel(X, X), float(kernel.diagonal(X).sum())
        if not _EPS * size < 0.25 * ridge:
            raise SingularSystem(
                f"the labelled rows' kernel matrix at ridge={ridge:g} is singular in floating point: of size {size:.1e}, it "
                "leaves the ridge no digit; raise the ridge, rescale the features, or take form='semi-parametric'."
            )
        K_XX.flat[:: len(X) + 1] += ridge
        self._factor_X = positive_factor(
            K_XX, f"the labelled rows' kernel matrix at ridge={ridge:g}", "raise the ridge"
        )
        m = len(Z)
        # H = L⁻¹ K_XZ with K_XX + νI = L Lᵀ: Σ = K_ZZ − HᵀH is symmetric by construction, and stays so in rounding.
        # m₀ and c_X go through the same H, as in one Cholesky factor of all rows: through (K_XX + νI)⁻¹ they would carry its
        # rounding times ½√(‖K_ZZ‖/ν).
        H = solve_triangular(self._factor_X[0], kernel(X, Z), lower=True, check_finite=False)
        self._H, self._whitened_y = H, solve_triangular(self._factor_X[0], y, lower=True, check_finite=False)
        self.posterior_covariance: Arr = np.empty((m, m))
        step = block_rows(m)
        for start in range(0, m, step):
            rows = slice(start, start + step)
            block = kernel(Z[rows], Z)
            block -= H[:, rows].T @ H
            self.posterior_covariance[rows] = block
        self.posterior_mean: Arr = H.T @ self._whitened_y
        # The weights in use, or about 64 MB of factors if those are fewer: a cache with one entry too few misses every time.
        self._factors: OrderedDict[float, tuple[Arr, bool]] = OrderedDict()
        self._most_factors = max(n_weights, 8_000_000 // max(1, m * m))
        # The last target and answer at each weight: a column of a path that has stopped is verified again with the rest.
        self._answered: OrderedDict[tuple[float, Part], tuple[Arr, Arr]] = OrderedDict()

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
        # λ_max(Σ) is at most the largest absolute row sum, the Frobenius norm and the trace; the smallest of the three
        # costs O(m²), where an eigenvalue would cost more than the factor and Lanczos would bound from below.
        S = self.posterior_covariance
        row_sum = max((float(np.abs(S[i : i + 256]).sum(axis=1).max()) for i in range(0, len(S), 256)), default=0.0)
        return max(0.0, min(row_sum, float(np.linalg.norm(S)), float(np.trace(S)))) / self._ridge

    def bound(self, rule: BoundRule = "tight") -> float:
        """The smallest of three norms of Σ, over ν; or m κ/ν."""
        if rule == "a-priori":
            return self.n_unlabelled * self._diagonal_bound / self._ridge
        return self._tight_bound

    def factor(self, weight: float) -> tuple[Arr, bool]:
        """The Cholesky factor of B at this μ, from the cache if present."""
        if weight in self._factors:
            self._factors.move_to_end(weight)
            return self._factors[weight]
        while len(self._factors) >= self._most_factors:
            self._factors.popitem(last=False)  # before the new one is made: two would not fit at m = 10⁴
        if not weight * _EPS * self._trace / self._ridge < 0.25:
            raise SingularSystem(
                f"I + (μ/ν)Σ at μ={weight:g}, ν={self._ridge:g} is singular in floating point: rounding of K outweighs the "
                "identity; lower the coupling, or raise the ridge."
            )
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
        factor = self.factor(weight)
        if columns.shape[1] == 1:
            # Two dtrsv read the factor at the memory's speed; LAPACK's potrs packs it anew for a single column.
            column = columns.reshape(-1).copy()
            for trans in (0, 1):
                column = dtrsv(factor[0], column, lower=1, trans=trans, overwrite_x=1)
            return column[:, None]
        solved: Arr = cho_solve(factor, columns, check_finite=False)
        return solved

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """m₀ + (I − B⁻¹)(t − m₀) = t − B⁻¹(t − m₀); the linear part is t − B⁻¹ t."""
        answer = np.empty_like(targets)
        for weight in dict.fromkeys(weights.tolist()):  # columns that share a μ share a solve
            columns = weights == weight
            answer[:, columns] = self._respond_at(weight, targets[:, columns], part)
        return answer

    def _respond_at(self, weight: float, targets: Arr, part: Part) -> Arr:
        if part == "linear" and not targets.any():
            return np.zeros_like(targets)
        known = self._answered.get((weight, part))
        if known is not None and np.array_equal(known[0], targets):
            return known[1]
        offset = targets - self.posterior_mean[:, None] if part == "affine" else targets
        answer: Arr = targets - self.solve_B(weight, offset)
        self._answered[weight, part] = targets, answer
        while len(self._answered) > 2 * self._most_factors:
            self._answered.popitem(last=False)
        return answer

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals ν c_X, and G = ν L⁻ᵀ(I + (μ/ν) H B⁻¹ Hᵀ)L⁻¹, as [(K + D)⁻¹]_XX of the stacked system is by blocks."""
        n, scale = len(self._X), weight / self._ridge
        columns = np.column_stack([target - self.posterior_mean, self._H.T])
        solved = self.solve_B(weight, columns)
        whitened = self._whitened_y - scale * (self._H @ solved[:, 0])
        inner = np.eye(n) + scale * (self._H @ solved[:, 1:])
        back = solve_triangular(
            self._factor_X[0], np.column_stack([whitened, inner]), lower=True, trans="T", check_finite=False
        )
        G = solve_triangular(self._factor_X[0], back[:, 1:].T, lower=True, trans="T", check_finite=False)
        return self._ridge * back[rows, 0], self._ridge * G[rows][:, rows]

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """B⁻¹ K_ZX (K_XX + νI)⁻¹ = B⁻¹ Hᵀ L⁻¹; of some instances by the columns of B⁻¹ that are theirs."""
        if rows is None:
            half = self.solve_B(weight, np.ascontiguousarray(self._H.T))
        else:
            chosen = np.zeros((self.n_unlabelled, len(rows)))
            chosen[rows, np.arange(len(rows))] = 1.0
            half = self.solve_B(weight, chosen).T @ self._H.T
        out: Arr = solve_triangular(self._factor_X[0], half.T, lower=True, trans="T", check_finite=False).T
        return out

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """c_Z = (μ/ν) B⁻¹(t − m₀), c_X = L⁻ᵀ(L⁻¹y − H c_Z): never through K⁻¹."""
        shrunk = self.solve_B(weight, (target - self.posterior_mean)[:, None])[:, 0]
        c_Z = (weight / self._ridge) * shrunk
        whitened = self._whitened_y - self._H @ c_Z
        c_X: Arr = solve_triangular(self._factor_X[0], whitened, lower=True, trans="T", check_finite=False)
        prediction = target - shrunk
        fitted = self._y - self._ridge * c_X  # f(X), since (K_XX + νI) c_X = y − K_XZ c_Z
        residual = self._ridge * c_X
        norm = c_X @ fitted + c_Z @ prediction
        if weight == 0.0:  # coefficients on unlabelled points vanish: one RLSR solution on X alone
            function = KernelExpansion(self._kernel, self._X, c_X)
        else:
            function = KernelExpansion(self._kernel, np.concatenate([self._X, self._Z]), np.concatenate([c_X, c_Z]))
        return Solution(function, prediction, float(residual @ residual + self._ridge * norm))
