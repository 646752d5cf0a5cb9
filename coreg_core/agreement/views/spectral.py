r"""A finite span, factored once: one site's answers by products with one matrix.

RᵀR = ΦᵀΦ + νI,   P = Φ_Z R⁻¹,   β = R⁻ᵀ Φᵀ y

a(t, μ) = (I + μ PᵀP)⁻¹(β + μ Pᵀt),   respond(t, μ) = P a,   w = R⁻¹ a,   ‖f‖ = ‖w‖ (docs/research/mathematics.md)
"""

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import cho_solve, qr, solve_triangular

from coreg_core.agreement.views.function_space import norm_bound, positive_factor
from coreg_core.agreement.views.view import BoundRule, KernelExpansion, Part, Solution
from coreg_core.errors import SingularSystem
from coreg_core.kernels.bases import Basis
from coreg_core.numerics.arrays import Arr, Ints, block_rows


class SpectralView:
    """`View` over the span of a basis. Set-up O((n + m) p r), a round O(m r); memory O((n + m) r).

    Raises
    ------
    SingularSystem
        the features are so large that float64 loses the ridge beside them.
    """

    def __init__(
        self,
        basis: Basis,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        ridge: float,
        *,
        exact_span: bool = False,
    ):
        self.basis, self.ridge = basis, ridge
        self.exact_span = exact_span  # the same optimum as over X ∪ Z: the closed form mixes it with exact views
        r = basis.rank
        self._y, self._Phi, step = y, np.empty((len(X), r)), max(block_rows(len(basis.points)), 8 * r)
        upper: Arr = np.eye(r, r + 1) * np.sqrt(ridge)
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            self._Phi[rows] = basis.features(X[rows])
            # QR, not a Cholesky factor of ΦᵀΦ + νI: squaring would lose the ridge beside large features.
            below = np.column_stack([self._Phi[rows], y[rows]])
            [upper] = qr(np.concatenate([upper[:r], below]), overwrite_a=True, mode="r", check_finite=False)
        self._R, on_labels = np.asfortranarray(upper[:r, :r]), upper[:r, r]
        size = float(np.linalg.norm(self._R))
        if not np.finfo(float).eps * size <= 0.25 * np.sqrt(ridge):
            raise SingularSystem(
                f"the labelled rows' features, of size {size:.1e}, leave no digit of ridge={ridge:g}: raise the ridge, or "
                "rescale the features."
            )
        onto = solve_triangular(self._R, basis.transform.T, trans="T", check_finite=False).T  # (p, r): W R⁻¹
        self.prediction_map: Arr = np.empty((len(Z), r))  # P
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            np.matmul(basis.kernel(Z[rows], basis.points), onto, out=self.prediction_map[rows])
        self.gram: Arr = self.prediction_map.T @ self.prediction_map
        self._factors: dict[float, Arr] = {}
        self.label_coordinates: Arr = on_labels  # β
        self._diagonal = float(basis.kernel.diagonal(Z).max(initial=0.0)) if len(Z) else 0.0

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self.prediction_map)

    @property
    def rank(self) -> int:
        """r."""
        return self.basis.rank

    def bound(self, rule: BoundRule = "tight") -> float:
        """The smallest of three norms of PᵀP, or m κ/ν."""
        return norm_bound(self.gram) if rule == "tight" else self.n_unlabelled * self._diagonal / self.ridge

    def _coordinates(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part
    ) -> Float64[Arr, "r k"]:
        a: Arr = self.prediction_map.T @ targets
        a *= weights
        if part == "affine":
            a += self.label_coordinates[:, None]
        return self._shrunk(a, weights)

    def precision(self, weight: float) -> Float64[Arr, "m m"]:
        """B⁻¹ = I − μ P (I + μ PᵀP)⁻¹ Pᵀ."""
        half = solve_triangular(self._factor(weight), self.prediction_map.T, lower=True, check_finite=False)
        return np.asarray(np.eye(self.n_unlabelled) - weight * (half.T @ half))

    def _factor(self, weight: float) -> Float64[Arr, "r r"]:
        """The Cholesky factor of I + μ PᵀP, of every weight in use: those of a path."""
        if weight not in self._factors:
            matrix = weight * self.gram
            matrix.flat[:: len(matrix) + 1] += 1.0
            what = f"I + μPᵀP at μ={weight:g}, ν={self.ridge:g}"
            self._factors[weight] = positive_factor(matrix.T, what, "lower the coupling, or raise the ridge")[0]
        return self._factors[weight]

    def _shrunk(self, a: Float64[Arr, "r k"], weights: Float64[Arr, " k"] | float) -> Float64[Arr, "r k"]:
        """(I + μ PᵀP)⁻¹ a."""
        out = np.empty_like(a)
        for weight in np.unique(weights):
            columns = np.broadcast_to(weights == weight, a.shape[1:])
            out[:, columns] = cho_solve((self._factor(float(weight)), True), a[:, columns], check_finite=False)
        return out

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """P a(t, μ); without β for the linear part."""
        return self.prediction_map @ self._coordinates(targets, weights, part)

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """W w are the coefficients on the basis points."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        w = solve_triangular(self._R, a, check_finite=False)
        residual = self._y - self._Phi @ w
        function = KernelExpansion(self.basis.kernel, self.basis.points, self.basis.transform @ w)
        return Solution(function, self.prediction_map @ a, float(residual @ residual + self.ridge * (w @ w)))

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals y − E a, and G = I − E (I + μ PᵀP)⁻¹ Eᵀ with E = Φ R⁻¹."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        E = self._on_labelled(rows)
        return self._y[rows] - E @ a, np.eye(len(E)) - E @ self._shrunk(E.T, weight)

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """P (I + μ PᵀP)⁻¹ Eᵀ, since β = Eᵀ y."""
        P = self.prediction_map if rows is None else self.prediction_map[rows]
        return np.asarray(P @ self._shrunk(self._on_labelled(slice(None)).T, weight))

    def _on_labelled(self, rows: Int64[Ints, " k"] | slice) -> Float64[Arr, "k r"]:
        """E = Φ R⁻¹, of these rows."""
        E: Arr = solve_triangular(self._R, self._Phi[rows].T, trans="T", check_finite=False).T
        return E
