r"""A site's features for the additive objective: landmarks of standardised columns, centred over the shared instances.

Design, section 7.1: every site centres its features over Z (Z_vᵀ1 = 0, the same shift on the labelled rows), or two
readings of the smoother differ by deviations. Landmarks are the default at any m, since leave-one-out over Z costs
O(m³) without them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64

from coreg_core.kernels.bases import Basis, LinearFeatures, make_basis, orthonormal_basis
from coreg_core.kernels.functions import Linear, make_kernel
from coreg_core.kernels.leave_one_out import widths
from coreg_core.numerics.arrays import Arr, block_rows

# Columns are clipped at six deviations: a landmark kernel is flat out there, and one outlier would set the deviation of all.
CLIP = 6.0
# A direction of the landmarks' Gram matrix below 1e-7 of the largest changes no prediction (the smallest ridge shrinks it three
# hundredfold) and costs a column of length m in every pass.
FEATURE_RANK = 1e-7


@dataclass(frozen=True, eq=False)
class Standardiser:
    """(x − mean)/deviation of every column over a site's labelled and shared rows, clipped at ±6."""

    mean: Float64[Arr, " d"]
    deviation: Float64[Arr, " d"]

    @classmethod
    def of(cls, X: Float64[Arr, "n d"], Z: Float64[Arr, "m d"]) -> "Standardiser":
        """Of all rows; a column that does not vary is only centred."""
        rows = len(X) + len(Z)
        mean = (X.sum(axis=0) + Z.sum(axis=0)) / rows
        squares = ((X - mean) ** 2).sum(axis=0) + ((Z - mean) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / rows)
        rounding = 1e-12 * (1.0 + np.abs(mean))
        return cls(mean, np.where(deviation > rounding, deviation, 1.0))

    def __call__(self, A: Float64[Arr, "a d"]) -> Float64[Arr, "a d"]:
        """The rows in standard units."""
        return np.clip((A - self.mean) / self.deviation, -CLIP, CLIP)


@dataclass(frozen=True, eq=False)
class CentredFeatures:
    """φ(x) − shift, with shift the mean of φ over Z: f(x) = (φ(x) − shift)·w has ‖f‖ = ‖w‖ and Σ_Z f = 0."""

    basis: Basis
    shift: Float64[Arr, " r"]

    def __call__(self, A: Float64[Arr, "a d"]) -> Float64[Arr, "a r"]:
        """The features of rows in standard units, in blocks: the kernel block is never a × p."""
        out = np.empty((len(A), len(self.shift)))
        step = block_rows(len(self.basis.points))
        for start in range(0, len(A), step):
            rows = slice(start, start + step)
            np.subtract(self.basis.features(A[rows]), self.shift, out=out[rows])
        return out


@dataclass(frozen=True, eq=False)
class Candidate:
    """Centred features of one width, on the labelled rows and on the shared instances."""

    features: CentredFeatures
    labelled: Float64[Arr, "n r"]
    shared: Float64[Arr, "m r"]

    @cached_property
    def spectrum(self) -> tuple[Arr, Arr]:
        """Eigenvalues and eigenvectors of ZᵀZ, once: a smoother is chosen again in every fold, O(m r²) each time."""
        values, V = np.linalg.eigh(self.shared.T @ self.shared)
        return np.maximum(values, 0.0), V


def centred(basis: Basis, X: Float64[Arr, "n d"], Z: Float64[Arr, "m d"]) -> Candidate:
    """The basis's features, less their mean over Z (over X where m = 0: some shift is needed, and a absorbs it)."""
    raw = CentredFeatures(basis, np.zeros(basis.rank))
    shared = raw(Z)
    shift = shared.mean(axis=0) if len(Z) else raw(X).mean(axis=0)
    shared -= shift
    if len(Z):
        again = shared.mean(axis=0)  # the first mean is rounded; s and q have mean zero to the last digits
        shared -= again
        shift = shift + again
    features = CentredFeatures(basis, shift)
    return Candidate(features, features(X), shared)


def candidates(
    X: Float64[Arr, "n d"],
    Z: Float64[Arr, "m d"],
    *,
    kernel: str = "gaussian",
    landmarks: int = 100,
    seed: int = 0,
    bandwidth: float | None = None,
) -> list[Candidate]:
    """One candidate for each width of the rule "loo", or the one given; the same landmarks from X ∪ Z in each. Standard units.

    The linear kernel's features are the columns themselves. The draw depends on the seed and the number of rows alone.
    """
    if kernel == "linear":
        return [centred(make_basis(LinearFeatures(), Linear(), X, Z), X, Z)]
    pool = len(X) + len(Z)
    drawn = np.sort(np.random.default_rng(seed).choice(pool, size=min(landmarks, pool), replace=False))
    points = np.concatenate([X[drawn[drawn < len(X)]], Z[drawn[drawn >= len(X)] - len(X)]])
    points = np.unique(points, axis=0)  # repeated landmarks are only a singular Gram matrix
    return [
        centred(
            orthonormal_basis(make_kernel(kernel, bandwidth=sigma), points, FEATURE_RANK),
            X,
            Z,
        )
        for sigma in (widths(points, kernel) if bandwidth is None else (bandwidth,))
    ]


def with_intercept(
    features: Float64[Arr, "n d"], random_intercept: float, prior: float, level: Float64[Arr, " n"] | float = 1.0
) -> Float64[Arr, "n e"]:
    """A last feature √(κ/τ²) times ``level``, whose coefficient under the prior τ² is the random intercept."""
    last = np.broadcast_to(np.sqrt(random_intercept / prior) * level, len(features))
    return np.concatenate([features, last[:, None]], axis=1)
