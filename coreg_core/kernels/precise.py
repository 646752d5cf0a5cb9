r"""The kernels in double-double arithmetic: k(A, B) with 31 digits, from the float64 rows as exact numbers.

For the rows of narrow views (fixed_point.py): their coefficients reach 1e20 and cancel, so that each entry must be known far
below 1e-16. About 0.4 µs an entry, 50 times a float64 entry; use blocks for many rows.
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.kernels.functions import Gaussian, Kernel, Laplacian, Linear, Polynomial
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import (
    Pair,
    add,
    divide,
    exp,
    matmul,
    multiply,
    square,
    two_product,
    two_sum,
)

_ENTRIES = 32_768  # of one pass: about 40 temporaries of this size stay in the outer cache


def precise_kernel(kernel: Kernel, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Pair:
    """k(A, B) as a pair of (a, b) arrays.

    Raises
    ------
    UsageError
        the kernel is none of `coreg_core.kernels.functions`.
    """
    high, low = np.empty((len(A), len(B))), np.empty((len(A), len(B)))
    step = max(1, _ENTRIES // max(1, len(B)))
    for start in range(0, len(A), step):
        rows = slice(start, start + step)
        high[rows], low[rows] = _block(kernel, A[rows], B)
    return high, low


def precise_diagonal(kernel: Kernel, A: Float64[Arr, "a d"]) -> Pair:
    """k(a_i, a_i) as a pair of (a,) arrays."""
    if isinstance(kernel, Gaussian | Laplacian):
        return np.ones(len(A)), np.zeros(len(A))
    return _of_products(kernel, _inner(A, A))


def expand_precisely(
    kernel: Kernel,
    A: Float64[Arr, "a d"],
    B: Float64[Arr, "b d"],
    coef: tuple[Float64[Arr, "b k"], Float64[Arr, "b k"]],
) -> Float64[Arr, "a k"]:
    """k(A, B) coef, for coefficients that are pairs and may cancel; rounded once, at the end."""
    out = np.empty((len(A), coef[0].shape[1]))
    step = max(1, _ENTRIES * 16 // max(1, len(B)))
    for start in range(0, len(A), step):
        rows = slice(start, start + step)
        out[rows] = matmul(precise_kernel(kernel, A[rows], B), coef)[0]
    return out


def _block(kernel: Kernel, A: Arr, B: Arr) -> Pair:
    shape = (len(A), len(B))
    total: Pair = (np.zeros(shape), np.zeros(shape))
    match kernel:
        case Gaussian(bandwidth):
            for j in range(A.shape[1]):
                total = add(total, square(two_sum(*np.broadcast_arrays(A[:, [j]], -B[:, j]))))
            return exp(_minus(divide(total, bandwidth)))
        case Laplacian(bandwidth):
            for j in range(A.shape[1]):
                high, low = two_sum(*np.broadcast_arrays(A[:, [j]], -B[:, j]))
                sign = np.where(high < 0, -1.0, 1.0)
                total = add(total, (sign * high, sign * low))
            return exp(_minus(divide(total, bandwidth)))
        case _:
            for j in range(A.shape[1]):
                total = add(total, two_product(*np.broadcast_arrays(A[:, [j]], B[:, j])))
            return _of_products(kernel, total)


def _inner(A: Arr, B: Arr) -> Pair:
    total: Pair = (np.zeros(len(A)), np.zeros(len(A)))
    for j in range(A.shape[1]):
        total = add(total, two_product(A[:, j], B[:, j]))
    return total


def _of_products(kernel: Kernel, products: Pair) -> Pair:
    match kernel:
        case Linear():
            return products
        case Polynomial(degree, offset, bandwidth):
            shift = np.full_like(products[0], offset), np.zeros_like(products[0])
            base = power = add(divide(products, bandwidth), shift)
            for _ in range(degree - 1):
                power = multiply(power, base)
            return power
        case _:
            raise UsageError(f"{kernel!r}: no double-double arithmetic for this kernel.")


def _minus(a: Pair) -> Pair:
    return -a[0], -a[1]
