r"""Kernels k(A, B) and the spans of functions over them; the rules and left-out residuals that
choose a width and a ridge.

A kernel is a frozen value: calling it gives the Gram block of two sets of rows. Callers ask for
large sets in blocks (`expand`), so none holds an unwanted m x m array.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh
from scipy.spatial.distance import cdist, pdist

from coreg_core.arrays import Arr, block_rows, evenly
from coreg_core.errors import UsageError


@dataclass(frozen=True)
class Gaussian:
    r"""$k(x, x') = \exp(-\|x - x'\|^2 / \sigma)$, σ = ``bandwidth``: the paper's form.
    scikit-learn's ``gamma`` is 1/σ.
    """

    bandwidth: float

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "bandwidth")

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        K: Arr = cdist(A, B, "sqeuclidean") if A.shape[1] else np.zeros((len(A), len(B)))
        K *= -1.0 / self.bandwidth
        return np.exp(K, out=K)

    def diagonal(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """k(a_i, a_i), without the matrix."""
        return np.ones(len(A))


@dataclass(frozen=True)
class Linear:
    r"""$k(x, x') = \langle x, x' \rangle$: no intercept, so centre the targets or add a constant
    column.
    """

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        return A @ B.T

    def diagonal(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """k(a_i, a_i)."""
        diagonal: Arr = np.einsum("ij,ij->i", A, A)
        return diagonal


Kernel: TypeAlias = Gaussian | Linear


def make_kernel(name: str, *, bandwidth: float = 1.0) -> Kernel:
    """The kernel of that name; the linear one has no bandwidth."""
    match name:
        case "gaussian":
            return Gaussian(bandwidth)
        case "linear":
            return Linear()
        case _:
            raise UsageError(f"kernel={name!r}: choose one of 'gaussian', 'linear'.")


def expand(
    kernel: Kernel, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"], coef: Float64[Arr, "b k"]
) -> Float64[Arr, "a k"]:
    """k(A, B) @ coef, one block of A's rows at a time: memory is bounded for any a."""
    out = np.empty((len(A), coef.shape[1]))
    step = block_rows(len(B))
    for start in range(0, len(A), step):
        rows = slice(start, start + step)
        np.matmul(kernel(A[rows], B), coef, out=out[rows])
    return out


# --- the rules that choose ν and σ from the labelled rows -----------------------------------------


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
        return 1.0 if kernel == "linear" else rules[str(rule)](X)
    return _require_positive(rule, "bandwidth", "'paper', 'median' or ")


def resolve_ridge(rule: str | float, X: Float64[Arr, "n d"]) -> float:
    """By the rule "paper", or a given positive number; UsageError where the rule has no value for
    these rows.
    """
    return paper_ridge(X) if rule == "paper" else _require_positive(rule, "ridge", "'paper' or ")


def _require_positive(value: str | float, name: str, rules: str = "") -> float:
    if isinstance(value, str) or not (np.isfinite(value) and value > 0):
        raise UsageError(f"{name}={value!r}: needs {rules}a finite number above 0.")
    return float(value)


def _rule_value(value: float, X: Arr, rule: str, parameter: str, noise: float = 0.0) -> float:
    if not np.isfinite(value):
        raise UsageError(
            f"{rule} overflows on these rows; rescale the features or give {parameter}= explicitly."
        )
    if value <= noise:
        plural = "1 row (1 sample)" if len(X) == 1 else f"{len(X)} rows that do not differ"
        raise UsageError(f"{rule} has no value for {plural}; give {parameter}= explicitly.")
    return value


# --- the span of a site's function ----------------------------------------------------------------
#
# As an orthonormal feature map φ: f(x) = φ(x)·w with ‖f‖ = ‖w‖.

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
    rank_tolerance: float = SPAN_TOLERANCE,
) -> Basis:
    """The orthonormal feature map of a finite span, by `span_basis`.

    Cost O(p³), p the number of distinct basis points.
    """
    match span:
        case LabelledPoints():
            return span_basis(kernel, X, rank_tolerance)
        case Landmarks(count, seed):
            pool = len(X) + len(Z)
            if count > pool:
                raise UsageError(
                    f"landmarks={count}: more than the {pool} instances they are drawn from."
                )
            drawn = np.sort(np.random.default_rng(seed).choice(pool, size=count, replace=False))
            labelled = drawn[drawn < len(X)]
            unlabelled = drawn[drawn >= len(X)] - len(X)
            return span_basis(kernel, np.concatenate([X[labelled], Z[unlabelled]]), rank_tolerance)
        case LinearFeatures():
            # k(x, e_j) = x_j: the unit vectors under the linear kernel are the features themselves.
            unit = np.eye(X.shape[1])
            return Basis(Linear(), unit, unit)


def orthonormal_basis(
    kernel: Kernel, points: Float64[Arr, "p d"], rank_tolerance: float = RANK_TOLERANCE
) -> Basis:
    r"""$K_{BB} = E \,\mathrm{diag}(s)\, E^\top$, cut at $s_i > \tau s_{\max}$; $W = E
    \,\mathrm{diag}(s)^{-1/2}$.
    """
    s, E = np.linalg.eigh(kernel(points, points))
    keep = s > rank_tolerance * max(s[-1], 0.0)
    if not keep.any():
        raise UsageError(
            "the kernel is zero on every basis point, so this span holds only the zero function; "
            "use another kernel, or give the rows a feature that is not constant."
        )
    return Basis(kernel, points, np.ascontiguousarray(E[:, keep] / np.sqrt(s[keep])))


def span_basis(
    kernel: Kernel, points: Float64[Arr, "p d"], rank_tolerance: float = SPAN_TOLERANCE
) -> Basis:
    """`orthonormal_basis` over the distinct points; the features themselves where these span every
    linear function.
    """
    _, first = np.unique(points, axis=0, return_index=True)
    points = np.ascontiguousarray(points[np.sort(first)])
    d = points.shape[1]
    if isinstance(kernel, Linear) and len(points) > d and np.linalg.matrix_rank(points) == d:
        return Basis(Linear(), np.eye(d), np.eye(d))
    return orthonormal_basis(kernel, points, rank_tolerance)


# --- leave-one-out in closed form -----------------------------------------------------------------
#
# The rule "loo" chooses a width and a ridge from a site's own labels.
# Kernel ridge regression with K = U diag(s²) Uᵀ has
#
#     ŷ = U diag(s²/(s² + ν)) Uᵀ y    h_i = Σ_j U_ij² s_j²/(s_j² + ν)    e_i = (y_i − ŷ_i)/(1 − h_i)
#
# for every ν by one factorisation (docs/research/mathematics.md, "Rules").

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


def left_out(U: Arr, squares: Arr, targets: Arr, ridges: Arr) -> Float64[Arr, "g n"]:
    """The residuals e_i of K = U diag(squares) Uᵀ, each row left out in turn, one row of the result
    for each ridge.
    """
    shrink = squares / (squares + ridges[:, None])
    residual = targets - (shrink * (U.T @ targets)) @ U.T
    leverage = shrink @ (U * U).T
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
