r"""A finite span (semi-parametric, landmarks, linear) in spectral form: one factorisation answers every target and weight.

Knows one site's arrays and its basis; nothing of other sites, of rounds, of messages or of files.
"""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cholesky, eigh, solve_triangular

from coreg_core.arrays import Arr, block_rows
from coreg_core.bases import Basis
from coreg_core.views.view import ROUND_UP, BoundRule, KernelExpansion, Part, Solution


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
        return float(self._s2.max(initial=0.0)) * ROUND_UP

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
