r"""The posterior deviation of a label at a row under a site's own model, before calibration.

    y_v = a + Φ_v w_v + S_v Σ_{u≠v} h_u(Z) + ε,   ε ~ N(0, σ²I),  w_v ~ N(0, τ²I)        (design, 7.1, the others held fixed)
    d(x)² = σ² + φ(x)ᵀ (ΦᵀΦ/σ² + I/τ²)⁻¹ φ(x),   φ with a last feature √κ/τ for the random intercept

The covariance of w_v given the site's own labels: with the others' parts fixed they move no variance, and Ψ_v w_v + S_v
Z_v w_v = Φ_v w_v is all of w_v that own labels see. σ² holds the noise and the part of the others' contribution that own
columns cannot predict. The uncertainty of the others' parts is missing. A factor from own folds
(`coreg_core.evaluation.intervals`) corrects for it, so only the shape of d matters.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import solve_triangular

from coreg_core.additive.model.features import CentredFeatures, Standardiser, with_intercept
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.kernels.functions import Kernel
from coreg_core.numerics.arrays import Arr, block_rows


@dataclass(frozen=True, eq=False)
class Spread:
    """d(x)² = noise + ‖k(x, B) map − shift‖²: arrays and a kernel, so that a model file can hold it.

    ``factor`` is the deviation of a label unit: d is in those units.
    """

    standardiser: Standardiser
    kernel: Kernel
    points: Float64[Arr, "p d"]
    map: Float64[Arr, "p r"]
    shift: Float64[Arr, " r"]
    noise: float
    factor: float = 1.0

    @classmethod
    def of(
        cls,
        standardiser: Standardiser,
        features: CentredFeatures,
        view: AdditiveView,
        hyper: Hyper,
    ) -> "Spread":
        """From the features Φ of the view's labelled rows, its κ, and the site's σ² and τ²; one QR of (n + r + 1, r + 1)."""
        last = float(np.sqrt(view.random_intercept / hyper.prior))
        labelled = with_intercept(view.labelled, view.random_intercept, hyper.prior, view.level)
        r = labelled.shape[1]
        stacked = np.concatenate([labelled / np.sqrt(hyper.noise), np.eye(r) / np.sqrt(hyper.prior)])
        R = np.linalg.qr(stacked, mode="r")
        inverse = solve_triangular(R, np.eye(r), check_finite=False)  # triangular, condition at most ‖Φ‖τ/σ
        basis, of_kernels, of_last = features.basis, inverse[:-1], inverse[-1]
        shift = features.shift @ of_kernels - last * of_last
        return cls(standardiser, basis.kernel, basis.points, basis.transform @ of_kernels, shift, hyper.noise)

    def scaled(self, factor: float) -> "Spread":
        """In other units."""
        return Spread(
            self.standardiser, self.kernel, self.points, self.map, self.shift, self.noise, factor * self.factor
        )

    def deviations(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """d at rows in their own units, in blocks."""
        rows, out = self.standardiser(X), np.empty(len(X))
        step = block_rows(len(self.points))
        for start in range(0, len(X), step):
            at = slice(start, start + step)
            moved = self.kernel(rows[at], self.points) @ self.map - self.shift
            out[at] = self.noise + np.einsum("ij,ij->i", moved, moved)
        deviations: Arr = self.factor * np.sqrt(out)
        return deviations
