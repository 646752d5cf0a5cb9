r"""Kernels k(A, B).

A kernel is a frozen value: calling it gives the Gram block of two sets of rows. Callers ask for
large sets in blocks (`expand`), so none holds an unwanted m x m array.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy.spatial.distance import cdist

from coreg_core.arrays import Arr, block_rows
from coreg_core.errors import UsageError


@dataclass(frozen=True)
class Gaussian:
    r"""$k(x, x') = \exp(-\|x - x'\|^2 / \sigma)$, σ = ``bandwidth``: the paper's form.
    scikit-learn's ``gamma`` is 1/σ.
    """

    bandwidth: float

    def __post_init__(self) -> None:
        require_positive(self.bandwidth, "bandwidth")

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


def require_positive(value: str | float, name: str, rules: str = "") -> float:
    """The number; UsageError for another value, with the ``rules`` that could stand for one."""
    if isinstance(value, str) or not (np.isfinite(value) and value > 0):
        raise UsageError(f"{name}={value!r}: needs {rules}a finite number above 0.")
    return float(value)
