r"""Arrays of double-double numbers: pairs (high, low) of float64 arrays whose exact sum is the value, about 31 digits.

Every operation takes whole arrays and returns a normalised pair (|low| at most half an ulp of high). Relative errors
are a few times 2⁻¹⁰⁶; measured over kernels and products, at most 2⁻¹⁰⁷ of the summands' sizes.

Source: Dekker (1971) for the exact sum and product; Hida, Li and Bailey (2001), "Library for double-double and
quad-double arithmetic", for the rest; Ozaki, Ogita, Oishi and Rump (2012) for the product of matrices by error-free
slices.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.numerics.arrays import Arr

Pair: TypeAlias = tuple[Arr, Arr]

DD_EPS = 2.0**-104  # 5e-32: the unit of error bounds, 8 times the measured error
_SPLITTER = 2.0**27 + 1.0
_LN2 = (0.6931471805599453, 2.3190468138462996e-17)
# 1/k! for k = 2 … 5 as pairs; from k = 6 on a float64 is enough, since the argument is at most ln 2 / 1024.
_INVERSE_FACTORIALS = (
    (0.5, 0.0),
    (1 / 6, 9.25185853854297e-18),
    (1 / 24, 2.3129646346357427e-18),
    (1 / 120, 1.1564823173178714e-19),
)
_HALVINGS = 9


def two_sum(a: Arr, b: Arr) -> Pair:
    """a + b as a pair, exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def quick_two_sum(a: Arr, b: Arr) -> Pair:
    """a + b as a pair, exactly, where |a| ≥ |b|."""
    s = a + b
    return s, b - (s - a)


def _split(a: Arr) -> Pair:
    t = _SPLITTER * a
    high = t - (t - a)
    return high, a - high


def two_product(a: Arr, b: Arr) -> Pair:
    """a · b as a pair, exactly (below 1e300: Dekker's splitting has to fit)."""
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def add(a: Pair, b: Pair) -> Pair:
    """a + b."""
    s, e = two_sum(a[0], b[0])
    t, f = two_sum(a[1], b[1])
    s, e = quick_two_sum(s, e + t)
    return quick_two_sum(s, e + f)


def multiply(a: Pair, b: Pair) -> Pair:
    """a · b."""
    p, e = two_product(a[0], b[0])
    return quick_two_sum(p, e + (a[0] * b[1] + a[1] * b[0]))


def square(a: Pair) -> Pair:
    """a²."""
    p = a[0] * a[0]
    h, low = _split(a[0])
    e = ((h * h - p) + 2.0 * (h * low)) + low * low
    return quick_two_sum(p, e + 2.0 * (a[0] * a[1]))


def divide(a: Pair, b: float) -> Pair:
    """a / b for one float b: a quotient, and one correction by the exact remainder."""
    q = a[0] / b
    p, e = two_product(q, np.full_like(q, b))
    return quick_two_sum(q, ((a[0] - p) - e + a[1]) / b)


def exp(a: Pair) -> Pair:
    """exp(a) for a ≤ 0: a = k ln 2 + 512 r, exp(r) − 1 by its series, squared nine times as (1 + q)² − 1 = 2q + q²."""
    a = np.maximum(a[0], -745.0), np.where(a[0] < -745.0, 0.0, a[1])
    k = np.rint(a[0] / _LN2[0])
    r = add(a, multiply((-k, np.zeros_like(k)), (np.full_like(k, _LN2[0]), np.full_like(k, _LN2[1]))))
    scale = 2.0**-_HALVINGS
    r = r[0] * scale, r[1] * scale
    x = r[0]
    tail = (1 / 720) * (1.0 + x / 7.0 * (1.0 + x / 8.0 * (1.0 + x / 9.0)))
    q: Pair = (tail, np.zeros_like(tail))
    for high, low in reversed(_INVERSE_FACTORIALS):
        q = add(multiply(q, r), (np.full_like(x, high), np.full_like(x, low)))
    q = add(multiply(square(r), q), r)
    for _ in range(_HALVINGS):
        s = square(q)
        q = add((2.0 * q[0], 2.0 * q[1]), s)
    one = np.ones_like(x)
    q = add((one, np.zeros_like(one)), q)
    power = k.astype(np.int64)
    return np.ldexp(q[0], power), np.ldexp(q[1], power)


def matmul(
    a: tuple[Float64[Arr, "n p"], Float64[Arr, "n p"]], b: tuple[Float64[Arr, "p k"], Float64[Arr, "p k"]]
) -> Pair:
    """A B, to p · 2⁻¹⁰⁴ times the largest |a| of the row and |b| of the column.

    Each factor is cut into slices so short that float64 products of slices, summed over p, are exact: BLAS does the work.
    """
    p = a[0].shape[1]
    bits = (53 - max(1, int(np.ceil(np.log2(max(p, 2)))))) // 2
    count = -(-106 // bits)
    left, right = _slices(a, bits, count, axis=1), _slices(b, bits, count, axis=0)
    total: Pair = (np.zeros((len(a[0]), b[0].shape[1])), np.zeros((len(a[0]), b[0].shape[1])))
    for order in range(count - 1, -1, -1):  # the small products first
        for i in range(order + 1):
            product = left[i] @ right[order - i]
            total = add(total, (product, np.zeros_like(product)))
    return total


def _slices(a: Pair, bits: int, count: int, axis: int) -> list[Arr]:
    high, low = a
    largest = np.abs(high).max(axis=axis, keepdims=True, initial=0.0)
    exponent = np.frexp(largest)[1].astype(np.int64)
    out = []
    for _ in range(count):
        # (x + σ) − σ with σ = ¾ · 2^(e + 53 − bits) keeps the first `bits` bits below 2^e.
        sigma = np.ldexp(0.75, exponent + 53 - bits)
        part = (high + sigma) - sigma
        out.append(part)
        high, low = two_sum(high - part, low)
        exponent = exponent - bits
    return out
