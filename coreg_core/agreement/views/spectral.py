r"""A finite span, factored once: one site's answers in coordinates where they are diagonal.

RᵀR = ΦᵀΦ + νI,   P = Φ_Z R⁻¹,   PᵀP = V diag(s²) Vᵀ,   C = P V,   β = Vᵀ R⁻ᵀ Φᵀ y

a(t, μ) = (β + μ Cᵀt)/(1 + μ s²),   respond(t, μ) = C a,   w = R⁻¹ V a,   ‖f‖ = ‖w‖           (docs/research/mathematics.md)
"""

import numpy as np
from jaxtyping import Float64, Int64
from scipy.linalg import qr, solve_triangular

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
        # Held as its transpose, so that C is column-major: a round's two products read one column after another.
        T = np.empty((r, len(Z)))
        for start in range(0, len(Z), step):
            rows = slice(start, start + step)
            T[:, rows] = solve_triangular(self._R, basis.features(Z[rows]).T, trans="T", check_finite=False)
        values, self._V = np.linalg.eigh(T @ T.T)
        self.spectrum: Arr = np.maximum(values, 0.0)  # s²
        for start in range(0, len(Z), step):
            T[:, start : start + step] = self._V.T @ T[:, start : start + step]
        self.prediction_map: Arr = T.T  # C
        self.label_coordinates: Arr = self._V.T @ on_labels  # β
        self._R_inverse_V = solve_triangular(self._R, self._V, check_finite=False)
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
        """max s², or m κ/ν."""
        return (
            float(self.spectrum.max(initial=0.0))
            if rule == "tight"
            else self.n_unlabelled * self._diagonal / self.ridge
        )

    def _coordinates(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part
    ) -> Float64[Arr, "r k"]:
        a: Arr = self.prediction_map.T @ targets
        a *= weights
        if part == "affine":
            a += self.label_coordinates[:, None]
        a /= 1.0 + self.spectrum[:, None] * weights
        return a

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """C a(t, μ); without β for the linear part."""
        return self.prediction_map @ self._coordinates(targets, weights, part)

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """W w are the coefficients on the basis points."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        w = solve_triangular(self._R, self._V @ a, check_finite=False)
        residual = self._y - self._Phi @ w
        function = KernelExpansion(self.basis.kernel, self.basis.points, self.basis.transform @ w)
        return Solution(function, self.prediction_map @ a, float(residual @ residual + self.ridge * (w @ w)))

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals y − E a, and G = I − E diag(1/(1 + μ s²)) Eᵀ with E = Φ R⁻¹ V."""
        a = self._coordinates(target[:, None], np.array([weight]), "affine")[:, 0]
        E = self._Phi[rows] @ self._R_inverse_V
        return self._y[rows] - E @ a, np.eye(len(E)) - (E / (1.0 + weight * self.spectrum)) @ E.T

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """C diag(1/(1 + μ s²)) Eᵀ, since β = Eᵀ y."""
        C = self.prediction_map if rows is None else self.prediction_map[rows]
        out: Arr = ((C / (1.0 + weight * self.spectrum)) @ self._R_inverse_V.T) @ self._Phi.T
        return out
