r"""A pivoted LDLᵀ of a Gram matrix in fixed-point integers, for bases whose spectrum float64 cannot hold.

    K_BB = L D Lᵀ over the pivots,     W = L⁻ᵀ D^(−1/2):  φ(x) = Wᵀ k(B, x),  Wᵀ K_BB W = I

Rounding the *entries* of K to float64 destroys every eigenvalue below 1e-16 of the largest, and functions that are tiny
on the basis points are not tiny on rows that reach further. Here an entry has `BITS` bits, computed from the float64
rows as exact numbers. Python's own integers: about 0.4 µs for each of p³/3 steps and 15 µs for each of
p²/2 entries, so 0.1 s at p = 60 and 2.5 s at p = 256.
"""

from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.kernels.functions import Gaussian, Kernel, Laplacian, Linear, Polynomial
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.double_double import Pair

BITS = 384
_GUARD = 64
# A pivot of this many bits below the largest is rounding. The kernels with finitely many features are 0 there.
_NOISE = 2.0 ** -(BITS - _GUARD)


@dataclass(frozen=True, eq=False)
class FixedFactor:
    """``transform`` W (p, r), a pair; ``exhausted``: the whole span is in use. The rest are integers, for `features`."""

    kernel: Kernel
    points: Float64[Arr, "r d"]
    transform: Pair
    exhausted: bool
    inverse: Any
    pivots: list[int]
    bits: int

    @property
    def rank(self) -> int:
        """r."""
        return len(self.pivots)

    def features(self, A: Float64[Arr, "a d"]) -> tuple[Float64[Arr, "a r"], Float64[Arr, " a"]]:
        """φ(A), and k(a, a) − ‖φ(a)‖², both to float64's last digit. About 15 µs for each row and point."""
        phi, tail = np.zeros((len(A), self.rank)), np.zeros(len(A))
        rows, scale = _integers(np.concatenate([self.points, A]))
        centres, roots = rows[: self.rank], [isqrt(d << 2 * _GUARD) for d in self.pivots]
        for i, x in enumerate(rows[self.rank :]):
            k = np.array([_shift(_entry(self.kernel, x, c, scale), self.bits) for c in centres], dtype=object)
            values = [int(v) >> BITS for v in self.inverse @ k]
            shift = self.bits - _GUARD - self.bits // 2
            phi[i] = [_quotient(v, shift, root)[0] for v, root in zip(values, roots, strict=True)]
            left = _shift(_entry(self.kernel, x, x, scale), self.bits)
            left -= sum(v * v // d for v, d in zip(values, self.pivots, strict=True))
            tail[i] = max(0.0, _quotient(left, self.bits)[0])
        return phi, tail


def is_exact(kernel: Kernel) -> bool:
    """Whether this module supports the kernel."""
    return isinstance(kernel, Gaussian | Laplacian | Polynomial | Linear)


def fixed_factor(kernel: Kernel, points: Float64[Arr, "p d"], tolerance: float) -> FixedFactor:
    """Pivots in descending order until one is at most ``tolerance`` times the largest, or none is left.

    Raises
    ------
    UsageError
        the kernel is zero on every point, or is none of `coreg_core.kernels.functions`.
    """
    K, bits = _gram(kernel, points)
    p = len(points)
    A = np.empty((p, p), dtype=object)
    for i in range(p):
        A[i, :] = K[i]
    left, order, pivots, columns = list(range(p)), [], [], []
    largest = max(A[i, i] for i in left)
    stop, noise = _times(largest, max(tolerance, _NOISE)), _times(largest, _NOISE)
    while left:
        best = max(left, key=lambda i: A[i, i])
        pivot = A[best, best]
        if pivot <= stop:
            break
        left.remove(best)
        column = np.zeros(p, dtype=object)
        column[best] = 1 << BITS
        if left:
            rest = np.array(left)
            factors = (A[rest, best] << BITS) // pivot
            column[rest] = factors
            A[np.ix_(rest, rest)] -= np.multiply.outer(factors, A[best, rest]) >> BITS
        order.append(best)
        pivots.append(pivot)
        columns.append(column)
    finite = isinstance(kernel, Polynomial | Linear)
    exhausted = not left or (finite and max(A[i, i] for i in left) <= noise)
    transform, inverse = _transform(p, order, pivots, columns, bits)
    return FixedFactor(kernel, points[order], transform, exhausted, inverse, pivots, bits)


def _transform(p: int, order: list[int], pivots: list[int], columns: list[Any], bits: int) -> tuple[Pair, Any]:
    r = len(order)
    roots = [isqrt(d << 2 * _GUARD) for d in pivots]  # √D_int · 2^GUARD; D = D_int / 2^bits, bits even
    inverse = np.zeros((r, r), dtype=object)
    high, low = np.zeros((p, r)), np.zeros((p, r))
    for k in range(r):
        row = np.zeros(r, dtype=object)
        for j in range(k):
            row[: j + 1] -= columns[j][order[k]] * inverse[j, : j + 1]
        row >>= BITS
        row[k] = 1 << BITS
        inverse[k] = row
        for j in range(k + 1):
            # L⁻¹ / √D as one quotient of integers: 2^(bits/2 + GUARD − BITS) row / root.
            pair = _quotient(row[j], BITS - _GUARD - bits // 2, roots[k])
            high[order[j], k], low[order[j], k] = pair
    return (high, low), inverse


def _quotient(numerator: int, shift: int, denominator: int = 1) -> tuple[float, float]:
    """numerator / (denominator · 2^shift), rounded to a pair."""
    if shift >= 0:
        denominator <<= shift
    else:
        numerator <<= -shift
    high = numerator / denominator
    a, b = high.as_integer_ratio()
    return high, (numerator * b - a * denominator) / (denominator * b)


def _times(value: int, factor: float) -> int:
    a, b = _ratio(factor)
    return value * a // b


def _ratio(x: float) -> tuple[int, int]:
    return float(x).as_integer_ratio()


def _gram(kernel: Kernel, points: Float64[Arr, "p d"]) -> tuple[list[list[int]], int]:
    """K_BB · 2^bits as integers, bits even and such that the largest entry has about BITS of them."""
    rows, scale = _integers(points)
    p = len(rows)
    K: list[list[int]] = [[0] * p for _ in range(p)]
    for i in range(p):
        for j in range(i + 1):
            K[i][j] = K[j][i] = _entry(kernel, rows[i], rows[j], scale)
    largest = max((K[i][i] for i in range(p)), default=0)
    if largest <= 0:
        raise UsageError(
            "the kernel is zero on every basis point, so this span holds only the zero function; "
            "use another kernel, or give the rows a feature that is not constant."
        )
    bits = _GUARD + 2 * BITS - largest.bit_length()
    bits += bits % 2
    return [[_shift(entry, bits) for entry in row] for row in K], bits


def _shift(entry: int, bits: int) -> int:
    """From BITS + GUARD bits after the point to ``bits``."""
    more = bits - BITS - _GUARD
    return entry << more if more >= 0 else entry >> -more


def _integers(points: Float64[Arr, "p d"]) -> tuple[list[list[int]], int]:
    ratios = [[x.as_integer_ratio() for x in row] for row in points.tolist()]
    scale = max((b.bit_length() - 1 for row in ratios for _, b in row), default=0)
    return [[a << (scale - b.bit_length() + 1) for a, b in row] for row in ratios], scale


def _entry(kernel: Kernel, x: list[int], y: list[int], scale: int) -> int:
    """k(x, y) · 2^(BITS + GUARD)."""
    one = BITS + _GUARD
    match kernel:
        case Gaussian(bandwidth):
            return _exp_minus(_fixed(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)), bandwidth, 2 * scale))
        case Laplacian(bandwidth):
            return _exp_minus(_fixed(sum(abs(a - b) for a, b in zip(x, y, strict=True)), bandwidth, scale))
        case Linear():
            return _fixed(sum(a * b for a, b in zip(x, y, strict=True)), 1.0, 2 * scale)
        case Polynomial(degree, offset, bandwidth):
            base = _fixed(sum(a * b for a, b in zip(x, y, strict=True)), bandwidth, 2 * scale)
            a, b = _ratio(offset)
            base += (a << one) // b
            power = base
            for _ in range(degree - 1):
                power = (power * base) >> one
            return power
        case _:
            raise UsageError(f"{kernel!r}: no integer arithmetic for this kernel.")


def _fixed(value: int, divisor: float, scale: int) -> int:
    """value / (2^scale · divisor) with BITS + GUARD bits after the point."""
    a, b = _ratio(divisor)
    shift = BITS + _GUARD - scale
    return ((value * b) << shift) // a if shift >= 0 else (value * b) // (a << -shift)


def _exp_minus(q: int) -> int:
    """exp(−q) in the same fixed point: q = k ln 2 + 2⁸ r, the series of exp(−r), eight squarings."""
    one = BITS + _GUARD
    k, r = divmod(q, _ln2())
    if k > one:
        return 0
    extra = 16  # eight squarings double an error 256-fold
    r = (r << extra) >> 8
    wide = one + extra
    total = term = 1 << wide
    i = 1
    while term:
        term = -(term * r >> wide) // i
        total += term
        i += 1
        if -2 < term < 2:
            break
    for _ in range(8):
        total = total * total >> wide
    return total >> (extra + k)


@cache
def _ln2() -> int:
    """ln 2 = Σ 1 / (k 2^k)."""
    one = BITS + _GUARD
    return sum((1 << (one + 32 - k)) // k for k in range(1, one + 33)) >> 32
