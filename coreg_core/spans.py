r"""The span of a site's function, as an orthonormal feature map φ: f(x) = φ(x)·w with ‖f‖ = ‖w‖."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.kernels import Kernel, Linear

# `orthonormal_basis`, for the estimators: rounding leaves eigenvalues of at most 1e-15 · λ_max
# where rows repeat (measured over kernels, n to 3 750, d to 40), so 1e-13 cuts every exactly
# repeated row with a hundredfold margin.
RANK_TOLERANCE = 1e-13


# The finite span of a view is defined as what float64 resolves: eigenvectors of K_BB with s_i > τ
# s_max.
SPAN_TOLERANCE = 1e-10


@dataclass(frozen=True)
class EveryPoint:
    """Kernels at X_v ∪ Z: "exact", non-parametric coRLSR (Brefeld et al. 2006, Definition 3.1)."""


@dataclass(frozen=True)
class LabelledPoints:
    """Kernels at X_v: semi-parametric coRLSR (Brefeld et al. 2006, Definition 3.2)."""


@dataclass(frozen=True)
class Landmarks:
    """Kernels at ``count`` instances drawn from X_v ∪ Z without replacement, by ``seed`` and their
    number alone.
    """

    count: int
    seed: int = 0


@dataclass(frozen=True)
class LinearFeatures:
    """f(x) = w·x, with the raw features: rank d, no kernel, no labelled row in the model."""


Span: TypeAlias = EveryPoint | LabelledPoints | Landmarks | LinearFeatures


@dataclass(frozen=True, eq=False)
class Basis:
    r"""φ(x) = Wᵀ k(B, x): ``points`` B (p, d), ``transform`` W (p, r), with $W^\top K_{BB} W =
    I_r$.
    """

    kernel: Kernel
    points: Float64[Arr, "p d"]
    transform: Float64[Arr, "p r"]

    @property
    def rank(self) -> int:
        """r."""
        return int(self.transform.shape[1])

    def features(self, A: Float64[Arr, "a d"]) -> Float64[Arr, "a r"]:
        """φ(A), all at once; use blocks for many rows."""
        return self.kernel(A, self.points) @ self.transform


def make_basis(
    span: LabelledPoints | Landmarks | LinearFeatures,
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    Z: Float64[Arr, "m d"],
) -> Basis:
    """The orthonormal feature map of a finite span, by `span_basis`.

    Cost O(p³), p the number of distinct basis points.
    """
    match span:
        case LabelledPoints():
            return span_basis(kernel, X)
        case Landmarks(count, seed):
            pool = len(X) + len(Z)
            if count > pool:
                raise UsageError(
                    f"landmarks={count}: more than the {pool} instances they are drawn from."
                )
            drawn = np.sort(np.random.default_rng(seed).choice(pool, size=count, replace=False))
            labelled = drawn[drawn < len(X)]
            unlabelled = drawn[drawn >= len(X)] - len(X)
            return span_basis(kernel, np.concatenate([X[labelled], Z[unlabelled]]))
        case LinearFeatures():
            # k(x, e_j) = x_j: the unit vectors under the linear kernel are the features themselves.
            unit = np.eye(X.shape[1])
            return Basis(Linear(), unit, unit)


def orthonormal_basis(
    kernel: Kernel, points: Float64[Arr, "p d"], tolerance: float = RANK_TOLERANCE
) -> Basis:
    r"""$K_{BB} = E \,\mathrm{diag}(s)\, E^\top$, cut at $s_i > \tau s_{\max}$; $W = E
    \,\mathrm{diag}(s)^{-1/2}$.
    """
    s, E = np.linalg.eigh(kernel(points, points))
    keep = s > tolerance * max(s[-1], 0.0)
    if not keep.any():
        raise UsageError(
            "the kernel is zero on every basis point, so this span holds only the zero function; "
            "use another kernel, or give the rows a feature that is not constant."
        )
    return Basis(kernel, points, np.ascontiguousarray(E[:, keep] / np.sqrt(s[keep])))


def span_basis(kernel: Kernel, points: Float64[Arr, "p d"]) -> Basis:
    """`orthonormal_basis` over the distinct points; the features themselves where these span every
    linear function.
    """
    _, first = np.unique(points, axis=0, return_index=True)
    points = np.ascontiguousarray(points[np.sort(first)])
    d = points.shape[1]
    if isinstance(kernel, Linear) and len(points) > d and np.linalg.matrix_rank(points) == d:
        return Basis(Linear(), np.eye(d), np.eye(d))
    return orthonormal_basis(kernel, points, SPAN_TOLERANCE)
