r"""Leave-one-out in closed form: the rule "loo", which chooses a width and a ridge from a site's own labels.

Ridge regression with a free intercept on centred features Φ̃ = U diag(s) Vᵀ has

    ŷ = ȳ + U diag(s²/(s² + ν)) Uᵀ(y − ȳ)        h_i = 1/n + Σ_j U_ij² s_j²/(s_j² + ν)        e_i = (y_i − ŷ_i)/(1 − h_i)

for every ν by one factorisation (docs/research/mathematics.md, "Rules"). Without an intercept Φ and y are not centred, and the
term 1/n is absent: kernel ridge regression is the same with ΦΦᵀ = K.
"""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.linalg import svd as svd_of
from scipy.spatial.distance import pdist

from coreg_core.errors import UsageError
from coreg_core.kernels.functions import METRICS, make_kernel, resolve_bandwidth, resolve_ridge
from coreg_core.numerics.arrays import Arr, Ints

# Twelve ridges over five and a half decades: features have ‖φ(x)‖ ≤ 1 under the Gaussian kernel, so ν counts labels.
RIDGES: Arr = np.logspace(-2.5, 3.0, 12)
# Widths as multiples of the median squared distance; additive columns often need the second, wide one.
WIDTHS = (1.0, 6.0)
# Rules that compare all pairs of rows, or take each row out, look at so many of them, spread evenly over the table.
MANY = 2000
# A row whose fit is its own label alone (h = 1) has no left-out error; the floor keeps its quotient finite and large.
_LEAST_FREEDOM = 1e-6


def leave_one_out(
    Phi: Float64[Arr, "n d"], y: Float64[Arr, " n"], ridges: Float64[Arr, " g"] = RIDGES, *, intercept: bool = True
) -> Float64[Arr, "g n"]:
    """The residuals e_i of ridge regression, each row left out in turn, one row of the result for each ridge."""
    rows, targets = (Phi - Phi.mean(axis=0), y - y.mean()) if intercept else (Phi, y)
    U, s, _ = svd_of(rows, full_matrices=False, check_finite=False, lapack_driver="gesdd")
    return _left_out(U, s * s, targets, ridges, 1.0 / len(y) if intercept else 0.0)


def _left_out(U: Arr, squares: Arr, targets: Arr, ridges: Arr, level: float) -> Float64[Arr, "g n"]:
    """e of features with left singular vectors U and squared singular values."""
    shrink = squares / (squares + ridges[:, None])
    residual = targets - (shrink * (U.T @ targets)) @ U.T
    leverage = shrink @ (U * U).T + level
    errors: Arr = residual / np.maximum(1.0 - leverage, _LEAST_FREEDOM)
    return errors


def best_ridge(Phi: Float64[Arr, "n d"], y: Float64[Arr, " n"]) -> float:
    """The ridge of least mean squared leave-one-out error, without an intercept; UsageError for one row."""
    _require_rows(y)
    return float(RIDGES[int(np.mean(leave_one_out(Phi, y, intercept=False) ** 2, axis=1).argmin())])


def _require_rows(y: Arr) -> None:
    if len(y) < 2:
        raise UsageError(
            f'the rule "loo" has no value for {len(y)} labelled row (1 sample); give bandwidth= and ridge= explicitly.'
        )


def widths(points: Float64[Arr, "p d"], kernel: str) -> tuple[float, ...]:
    """`WIDTHS` times the median distance of distinct points (squared for the gaussian); 1 for kernels without a bandwidth.

    Distances of repeated rows are left out: with a binary column most pairs are repeated, and the median would be 0.
    """
    if kernel not in METRICS:
        return (1.0,)
    distances = pdist(points, METRICS[kernel])
    distances = distances[distances > 0.0]  # at any scale of the columns; repeated rows are at exactly 0
    median = float(np.median(distances)) if distances.size else 1.0
    return tuple(width * median for width in WIDTHS)


def some_rows(n: int) -> Ints:
    """At most `MANY` rows of n, spread evenly."""
    return np.arange(n) if n <= MANY else np.linspace(0, n - 1, MANY).astype(np.int64)


def kernel_rule(
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    kernel: str,
    bandwidth: str | float,
    ridge: str | float,
    *,
    degree: int = 3,
    offset: float = 1.0,
) -> tuple[float, float]:
    """(σ, ν) of kernel ridge regression on these labels, either or both by the rule "loo"; without an intercept."""
    some = X[some_rows(len(X))]
    in_pairs = bandwidth == "median" or kernel == "laplacian"
    sigmas = (
        widths(some, kernel) if bandwidth == "loo" else (resolve_bandwidth(bandwidth, some if in_pairs else X, kernel),)
    )
    ridges = RIDGES if ridge == "loo" else np.array([resolve_ridge(ridge, X)])
    if bandwidth != "loo" and ridge != "loo":
        return sigmas[0], float(ridges[0])
    _require_rows(y)
    errors = []
    for sigma in sigmas:  # K = E diag(s) Eᵀ: E and s are U and the squares of any features with this K
        s, E = eigh(make_kernel(kernel, bandwidth=sigma, degree=degree, offset=offset)(some, some), driver="evd")
        errors.append(np.mean(_left_out(E, np.maximum(s, 0.0), y[some_rows(len(X))], ridges, 0.0) ** 2, axis=1))
    candidate, best = np.unravel_index(int(np.argmin(errors)), np.shape(errors))
    return sigmas[int(candidate)], float(ridges[int(best)])
