r"""Kernels k(A, B), their bounds, and the rules that choose a bandwidth and a ridge from the labelled rows.

A kernel is a frozen value: calling it gives the Gram block of two sets of rows. Callers ask for large sets in blocks
(`expand`), so none holds an unwanted m x m array.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy.spatial.distance import cdist, pdist

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr, block_rows

Metric: TypeAlias = Literal["sqeuclidean", "cityblock"]
METRICS: dict[str, Metric] = {"gaussian": "sqeuclidean", "laplacian": "cityblock"}  # of kernels with a bandwidth


@dataclass(frozen=True)
class _Stationary:
    """exp(−‖x − x'‖/σ) of a norm."""

    bandwidth: float

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "bandwidth")

    def _of(self, A: Arr, B: Arr, metric: Metric) -> Arr:
        K: Arr = cdist(A, B, metric) if A.shape[1] else np.zeros((len(A), len(B)))
        K *= -1.0 / self.bandwidth
        return np.exp(K, out=K)

    def diagonal(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """k(a_i, a_i), without the matrix."""
        return np.ones(len(A))


@dataclass(frozen=True)
class Gaussian(_Stationary):
    r"""$k(x, x') = \exp(-\|x - x'\|^2 / \sigma)$, with σ = ``bandwidth``: the paper's form, no factor 2, no square.

    Source: Brefeld et al. (2006), section 5. scikit-learn's ``gamma`` is 1/σ.
    """

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        return self._of(A, B, "sqeuclidean")


@dataclass(frozen=True)
class Laplacian(_Stationary):
    r"""$k(x, x') = \exp(-\|x - x'\|_1 / \sigma)$, with σ = ``bandwidth``; scikit-learn's ``gamma`` is 1/σ."""

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        return self._of(A, B, "cityblock")


@dataclass(frozen=True)
class Polynomial:
    r"""$k(x, x') = (\langle x, x'\rangle / \sigma + c)^{p}$ with p = ``degree``, c = ``offset`` ≥ 0, σ = ``bandwidth``."""

    degree: int = 3
    offset: float = 1.0
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        _require_positive(self.bandwidth, "bandwidth")
        if self.degree < 1 or self.offset < 0 or not np.isfinite(self.offset):
            raise UsageError(
                f"polynomial kernel: degree={self.degree}, offset={self.offset}; needs a degree of at least 1 "
                "and a finite offset of at least 0, or the kernel is not positive semi-definite."
            )

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        K: Arr = A @ B.T
        K /= self.bandwidth
        K += self.offset
        return np.power(K, self.degree, out=K)

    def diagonal(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """k(a_i, a_i)."""
        diagonal: Arr = (np.einsum("ij,ij->i", A, A) / self.bandwidth + self.offset) ** self.degree
        return diagonal


@dataclass(frozen=True)
class Linear:
    r"""$k(x, x') = \langle x, x' \rangle$: no intercept, so centre the targets or add a constant column."""

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        return A @ B.T

    def diagonal(self, A: Float64[Arr, "a d"]) -> Float64[Arr, " a"]:
        """k(a_i, a_i)."""
        diagonal: Arr = np.einsum("ij,ij->i", A, A)
        return diagonal


Kernel: TypeAlias = Gaussian | Laplacian | Polynomial | Linear


def make_kernel(name: str, *, bandwidth: float = 1.0, degree: int = 3, offset: float = 1.0) -> Kernel:
    """The kernel of that name; parameters that it does not have are ignored, as in scikit-learn."""
    match name:
        case "gaussian":
            return Gaussian(bandwidth)
        case "laplacian":
            return Laplacian(bandwidth)
        case "polynomial":
            return Polynomial(degree, offset, bandwidth)
        case "linear":
            return Linear()
        case _:
            raise UsageError(f"kernel={name!r}: choose one of 'gaussian', 'laplacian', 'polynomial', 'linear'.")


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


# --- the rules that choose ν and σ from the labelled rows ---------------------------------------------------------


def paper_bandwidth(X: Float64[Arr, "n d"], kernel: str = "gaussian") -> float:
    r"""$\sigma = \frac{1}{n^2} \sum_{i,j} \|x_i - x_j\|^2$, over all n² pairs, i = j included.

    Computed as twice the total variance, $\frac{2}{n}\sum_i \|x_i - \bar x\|^2$, which is the same number in O(nd). The
    laplacian uses the same rule with the 1-norm (ours: the paper has only the gaussian). Kernels without
    a bandwidth get 1.

    Source: Brefeld et al. (2006), section 5.
    """
    if kernel not in METRICS:
        return 1.0
    rule = "the paper's rule for the bandwidth (mean squared distance)"
    if kernel == "laplacian":
        sigma = 2.0 * float(pdist(X, "cityblock").sum()) / len(X) ** 2 if len(X) > 1 else 0.0
        return _rule_value(sigma, X, rule, "bandwidth")
    centred = X - X.mean(axis=0)
    sigma = 2.0 * float(np.einsum("ij,ij->", centred, centred)) / len(X)
    # The mean is rounded: below its rounding error the number measures rounding, and rows count as identical.
    noise = (8 * np.finfo(float).eps * float(np.abs(X).max(initial=0.0))) ** 2 * X.shape[1]
    return _rule_value(sigma, X, rule, "bandwidth", noise)


def median_bandwidth(X: Float64[Arr, "n d"], kernel: str = "gaussian") -> float:
    r"""$\sigma = \mathrm{median}_{i<j} \|x_i - x_j\|^2$ (the 1-norm, not squared, for the laplacian)."""
    if kernel not in METRICS:
        return 1.0
    sigma = float(np.median(pdist(X, METRICS[kernel]))) if len(X) > 1 else 0.0
    return _rule_value(sigma, X, "the median rule for the bandwidth", "bandwidth")


def paper_ridge(X: Float64[Arr, "n d"]) -> float:
    r"""$\nu = \left(\frac{1}{n} \sum_i \|x_i\|\right)^{-1}$, the inverse of the mean input norm.

    Source: Brefeld et al. (2006), section 5.
    """
    mean_norm = float(np.linalg.norm(X, axis=1).mean())
    return 1.0 / _rule_value(mean_norm, X, "the paper's rule for the ridge (inverse mean norm)", "ridge")


def resolve_bandwidth(rule: str | float, X: Float64[Arr, "n d"], kernel: str) -> float:
    """By the rule "paper" or "median", or a positive number; UsageError where the rule has no value for these rows."""
    match rule:
        case "paper":
            return paper_bandwidth(X, kernel)
        case "median":
            return median_bandwidth(X, kernel)
        case str():
            raise UsageError(f"bandwidth={rule!r}: choose 'paper', 'median' or a positive number.")
        case _:
            return _require_positive(float(rule), "bandwidth")


def resolve_ridge(rule: str | float, X: Float64[Arr, "n d"]) -> float:
    """By the rule "paper", or a given positive number; UsageError where the rule has no value for these rows."""
    match rule:
        case "paper":
            return paper_ridge(X)
        case str():
            raise UsageError(f"ridge={rule!r}: choose 'paper' or a positive number.")
        case _:
            return _require_positive(float(rule), "ridge")


def _require_positive(value: float, name: str) -> float:
    if not (np.isfinite(value) and value > 0):
        raise UsageError(f"{name}={value!r}: needs a finite number above 0.")
    return value


def _rule_value(value: float, X: Arr, rule: str, parameter: str, noise: float = 0.0) -> float:
    if not np.isfinite(value):
        raise UsageError(f"{rule} overflows on these rows; rescale the features or give {parameter}= explicitly.")
    if value <= noise:
        plural = "1 row (1 sample)" if len(X) == 1 else f"{len(X)} rows that do not differ"
        raise UsageError(f"{rule} has no value for {plural}; give {parameter}= explicitly.")
    return value
