"""One site's algebra: factor once, then answer respond(t, μ) for any target and weight, and predict anywhere.

`SpectralView` serves a finite span (semi-parametric, linear), `FunctionSpaceView` the exact one; `make_view`
chooses.
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.views.function_space import FunctionSpaceView, positive_factor
from coreg_core.agreement.views.spectral import SpectralView
from coreg_core.agreement.views.view import BoundRule, KernelExpansion, Part, Solution, View
from coreg_core.errors import UsageError
from coreg_core.kernels.bases import SPAN_TOLERANCE, EveryPoint, LinearFeatures, Span, make_basis
from coreg_core.kernels.functions import Kernel, Linear
from coreg_core.numerics.arrays import Arr

__all__ = [
    "BoundRule",
    "FunctionSpaceView",
    "KernelExpansion",
    "Part",
    "Solution",
    "SpectralView",
    "View",
    "make_view",
    "positive_factor",
]


_HALF_OF_THE_DIGITS = 1e8


def make_view(
    span: Span,
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    ridge: float,
    *,
    rank_tolerance: float = SPAN_TOLERANCE,
    n_weights: int = 1,
) -> View:
    """Factor a site's data once.

    Parameters
    ----------
    span
        the span of f_v; ``EveryPoint`` is the exact form.
    kernel
        k_v.
    X
        labelled instances (n, d).
    y
        targets (n,).
    Z
        unlabelled instances (m, d), m = 0 allowed.
    ridge
        ν_v > 0.
    rank_tolerance
        τ: the finite span keeps the eigenvectors of K_BB with s_i > τ s_max.
    n_weights
        number of weights in turn (a λ path): the exact form keeps a factor of (m, m) for each.
    """
    if not (np.isfinite(ridge) and ridge > 0):
        raise UsageError(f"ridge={ridge!r}: needs a finite number above 0.")
    if not isinstance(span, EveryPoint):
        return SpectralView(make_basis(span, kernel, X, Z, rank_tolerance), X, y, Z, ridge)
    size = float(kernel.diagonal(X).sum() + kernel.diagonal(Z).sum()) if isinstance(kernel, Linear) else 0.0
    if size > _HALF_OF_THE_DIGITS * ridge:
        # Every linear function is in the exact span, so that d coordinates hold the same optimum. K of size Σ‖x‖² loses a
        # small ridge where features do not: they are used where K would leave fewer than half of the digits.
        basis = make_basis(LinearFeatures(), kernel, X, Z)
        return SpectralView(basis, X, y, Z, ridge, exact_span=True)
    return FunctionSpaceView(kernel, X, y, Z, ridge, n_weights=n_weights)
