r"""The rules that choose a width σ and a ridge ν from labelled rows.

The rule "loo" compares left-out labels. Kernel ridge regression with K = U diag(s²) Uᵀ has

    ŷ = U diag(s²/(s² + ν)) Uᵀ y    h_i = Σ_j U_ij² s_j²/(s_j² + ν)    e_i = (y_i − ŷ_i)/(1 − h_i)

for every ν by one factorisation (docs/research/mathematics.md, "Rules"). With an intercept y is
centred, the columns of U are orthogonal to 1, and h_i has 1/n more.
"""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from coreg_core.arrays import Arr, evenly
from coreg_core.errors import UsageError
from coreg_core.kernels import make_kernel, require_positive


def paper_bandwidth(X: Float64[Arr, "n d"]) -> float:
    r"""$\sigma = \frac{1}{n^2} \sum_{i,j} \|x_i - x_j\|^2 = \frac{2}{n}\sum_i \|x_i - \bar x\|^2$
    (the paper, section 5).
    """
    rule = "the paper's rule for the bandwidth (mean squared distance)"
    centred = X - X.mean(axis=0)
    sigma = 2.0 * float(np.einsum("ij,ij->", centred, centred)) / len(X)
    # The mean is rounded: below its rounding error the number measures rounding, and rows count as
    # identical.
    noise = (8 * np.finfo(float).eps * float(np.abs(X).max(initial=0.0))) ** 2 * X.shape[1]
    return _rule_value(sigma, X, rule, "bandwidth", noise)


def median_bandwidth(X: Float64[Arr, "n d"]) -> float:
    r"""$\sigma = \mathrm{median}_{i<j} \|x_i - x_j\|^2$."""
    sigma = float(np.median(pdist(X, "sqeuclidean"))) if len(X) > 1 else 0.0
    return _rule_value(sigma, X, "the median rule for the bandwidth", "bandwidth")


def paper_ridge(X: Float64[Arr, "n d"]) -> float:
    r"""$\nu = \left(\frac{1}{n} \sum_i \|x_i\|\right)^{-1}$, of the mean input norm (Brefeld et
    al., 2006, section 5).
    """
    mean_norm = float(np.linalg.norm(X, axis=1).mean())
    return 1.0 / _rule_value(
        mean_norm, X, "the paper's rule for the ridge (inverse mean norm)", "ridge"
    )


def resolve_bandwidth(rule: str | float, X: Float64[Arr, "n d"], kernel: str) -> float:
    """By the rule "paper" or "median", or a positive number; 1 for the linear kernel.

    UsageError without a value.
    """
    rules = {"paper": paper_bandwidth, "median": median_bandwidth}
    if rule in rules:
        if kernel == "linear":
            return 1.0
        return rules[str(rule)](X)
    return require_positive(rule, "bandwidth", "'paper', 'median' or ")


def resolve_ridge(rule: str | float, X: Float64[Arr, "n d"]) -> float:
    """By the rule "paper", or a given positive number; UsageError where the rule has no value for
    these rows.
    """
    if rule == "paper":
        return paper_ridge(X)
    return require_positive(rule, "ridge", "'paper' or ")


def _rule_value(value: float, X: Arr, rule: str, parameter: str, noise: float = 0.0) -> float:
    if not np.isfinite(value):
        raise UsageError(
            f"{rule} overflows on these rows; rescale the features or give {parameter}= explicitly."
        )
    if value <= noise:
        plural = "1 row (1 sample)" if len(X) == 1 else f"{len(X)} rows that do not differ"
        raise UsageError(f"{rule} has no value for {plural}; give {parameter}= explicitly.")
    return value


# Twelve ridges over five and a half decades: features have ‖φ(x)‖ ≤ 1 under the Gaussian kernel, so
# ν counts labels.
RIDGES: Arr = np.logspace(-2.5, 3.0, 12)


# Widths as multiples of the median squared distance; additive columns often need the second, wide
# one.
WIDTHS = (1.0, 6.0)


# Rules that compare all pairs of rows, or take each row out, look at so many of them, spread evenly
# over the table.
MANY = 2000


# A row whose fit is its own label alone (h = 1) has no left-out error; the floor keeps its quotient
# finite and large.
_LEAST_FREEDOM = 1e-6


def left_out(
    U: Arr, squares: Arr, targets: Arr, ridges: Arr, *, intercept: bool = False
) -> Float64[Arr, "g n"]:
    """The residuals e_i of K = U diag(squares) Uᵀ, each row left out in turn, one row of the result
    for each ridge. ``intercept``: targets and features are centred.
    """
    shrink = squares / (squares + ridges[:, None])
    residual = targets - (shrink * (U.T @ targets)) @ U.T
    leverage = shrink @ (U * U).T + (1.0 / len(targets) if intercept else 0.0)
    errors: Arr = residual / np.maximum(1.0 - leverage, _LEAST_FREEDOM)
    return errors


def require_rows(y: Arr) -> None:
    """UsageError for a single row, which cannot be left out."""
    if len(y) < 2:
        raise UsageError(
            f'the rule "loo" has no value for {len(y)} labelled row (1 sample); give bandwidth= and'
            " ridge= explicitly."
        )


def widths(points: Float64[Arr, "p d"], kernel: str) -> tuple[float, ...]:
    """`WIDTHS` times the median squared distance of distinct points; 1 for the linear kernel."""
    if kernel == "linear":
        return (1.0,)
    distances = pdist(points, "sqeuclidean")
    distances = distances[
        distances > 0.0
    ]  # at any scale of the columns; repeated rows are at exactly 0
    median = float(np.median(distances)) if distances.size else 1.0
    return tuple(width * median for width in WIDTHS)


def kernel_rule(
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    kernel: str,
    bandwidth: str | float,
    ridge: str | float,
) -> tuple[float, float]:
    """(σ, ν) of kernel ridge regression on these labels, either or both by the rule "loo"; without
    an intercept.
    """
    kept = evenly(len(X), MANY)
    some = X[kept]
    rows = some if bandwidth == "median" else X
    sigmas = (
        widths(some, kernel)
        if bandwidth == "loo"
        else (resolve_bandwidth(bandwidth, rows, kernel),)
    )
    ridges = RIDGES if ridge == "loo" else np.array([resolve_ridge(ridge, X)])
    if bandwidth != "loo" and ridge != "loo":
        return sigmas[0], float(ridges[0])
    require_rows(y)
    errors = []
    for (
        sigma
    ) in sigmas:  # K = E diag(s) Eᵀ: E and s are U and the squares of any features with this K
        s, E = eigh(make_kernel(kernel, bandwidth=sigma)(some, some), driver="evd")
        errors.append(np.mean(left_out(E, np.maximum(s, 0.0), y[kept], ridges) ** 2, axis=1))
    candidate, best = np.unravel_index(int(np.argmin(errors)), np.shape(errors))
    return sigmas[int(candidate)], float(ridges[int(best)])
