r"""Sums and products with the same bits on every machine, for any BLAS, vector instructions and number of threads.

Every site of a federation steps the same schedule on the same sums, and a state that differs by one bit at one site ends
the run. Addition, multiplication, division and square root of single numbers are the same everywhere (IEEE 754); the
order in which a library adds is not. Two devices suffice:

- a *halving tree*, x[:h] + x[h:] again and again, whose order depends on the length alone; before it, the products of a
  long `dot` are added in at most 16 pieces, so that they stay in the cache;
- *exact products*: each factor is split into slices of so few bits that BLAS adds their products without rounding. Exact
  sums do not depend on the order (Ozaki et al. 2012, "Error-free transformations of matrix multiplication").

Do not use exp, log, pow, LAPACK or numpy's own reductions along contiguous numbers beside these. Shapes are in the
docstrings only, because checks would be too slow for functions that are called a thousand times a round.
"""

from math import ceil, log2

import numpy as np

from coreg_core.numerics.arrays import Arr

_PIECE, _MOST_PIECES = 1 << 13, 16  # numbers of a dot product at a time
_CHUNK = 1024  # rows of a product at a time: its slices stay in the cache
FULL = 3  # slices of a number: 3 x 20 bits are more than its 53


def tree_sum(values: Arr) -> Arr:
    """Σ over the first axis of (n, ...) by halving."""
    return _halved(np.array(values, order="C"))


def _halved(rest: Arr) -> Arr:
    """`tree_sum` in place."""
    left = len(rest)
    while left > 1:
        half = (left + 1) // 2
        np.add(rest[: left - half], rest[half:left], out=rest[: left - half])
        left = half
    return np.asarray(rest[0]) if len(rest) else np.zeros(rest.shape[1:])


def dot(a: Arr, b: Arr) -> float:
    """aᵀb of two (n,). A temporary of their length would cost three times as much as its sum."""
    width = max(_PIECE, 1 << (len(a) // _MOST_PIECES).bit_length())
    total = np.multiply(a[:width], b[:width])
    room = np.empty(width if len(a) > width else 0)
    for start in range(width, len(a), width):
        rows = slice(start, start + width)
        piece = np.multiply(a[rows], b[rows], out=room[: len(a) - start])
        total[: len(piece)] += piece
    return float(_halved(total))


def norm(a: Arr) -> float:
    """‖a‖₂ of (n,)."""
    return float(np.sqrt(dot(a, a)))


def column_norms(columns: Arr) -> Arr:
    """‖·‖₂ of every column of (n, k); its bits do not depend on its neighbours."""
    return np.array([norm(column) for column in columns.T])


def inner(A: Arr, B: Arr, slices: int = FULL) -> Arr:
    """AᵀB (p, q) of (n, p) and (n, q).

    Off by 2⁻⁵² (two slices: 2⁻⁴⁰, one: 2⁻²⁰) of the product of the columns' largest entries, for each row.
    """
    total = np.zeros((A.shape[1], B.shape[1]))
    if not total.size:
        return total
    bits = _bits(min(len(A), _CHUNK))
    for start in range(0, len(A), _CHUNK):
        rows = slice(start, start + _CHUNK)
        a, b = _sliced(A[rows], bits, slices, axis=0), _sliced(B[rows], bits, slices, axis=0)
        for i, high in enumerate(a):  # exact, and added in this order everywhere
            for product in _split(high.T @ np.concatenate(b[: slices - i], axis=1), B.shape[1]):
                total += product
    return total


def outer(A: Arr, B: Arr, slices: int = FULL) -> Arr:
    """AB (n, q) of a tall A (n, p) and (p, q); off as `inner` is, for each term."""
    out = np.zeros((A.shape[0], B.shape[1]))
    if not (out.size and A.shape[1]):
        return out
    bits = _bits(A.shape[1])
    b = _sliced(B, bits, slices, axis=0)
    low = [np.concatenate(b[: slices - i], axis=1) for i in range(slices)]
    for start in range(0, len(A), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for i, high in enumerate(_sliced(A[rows], bits, slices, axis=1)):
            for product in _split(high @ low[i], B.shape[1]):
                out[rows] += product
    return out


def _split(products: Arr, width: int) -> list[Arr]:
    return [products[:, at : at + width] for at in range(0, products.shape[1], width)]


def _bits(terms: int) -> int:
    """Bits of a slice, such that so many products of two slices add up below 2⁵³."""
    return (53 - ceil(log2(max(terms, 2)))) // 2 - 1


def _sliced(A: Arr, bits: int, count: int, axis: int) -> list[Arr]:
    """A, nearly, as a sum of so many matrices; along ``axis`` each one's entries are so many bits times one power of two."""
    largest = np.maximum(A.max(axis=axis, keepdims=True), -A.min(axis=axis, keepdims=True))
    powers, rest, slices = np.frexp(largest)[1], A, []
    for s in range(1, count + 1):
        carrier = np.ldexp(1.5, 52 + powers - s * bits)  # adding it rounds to a multiple of 2^(power - s bits)
        slices.append((rest + carrier) - carrier)
        if s < count:
            rest = rest - slices[-1]
    return slices


# --- small systems ------------------------------------------------------------------------------------------------


def orthonormal(W: Arr, least: float) -> tuple[Arr, Arr]:
    r"""(Q, R), (n, r) and (r, k), with W = QR up to directions shorter than ``least``, which are dropped; QᵀQ = I.

    Cholesky factors of Gram matrices, with pivoting: the columns that keep most of their length come first. The
    others follow once their components along those are removed.
    """
    Q, rest = np.zeros((len(W), 0)), W
    least = max(least, 2.0**-50 * float(column_norms(W).max(initial=0.0)))
    for _ in range(8):  # each pass divides the rest by a million or ends
        G = inner(rest, rest)
        if not (taken := well_apart(G, least)):
            break
        R = _cholesky(G[np.ix_(taken, taken)])
        block, again = _apart(rest[:, taken], R, Q)
        if len(taken) == W.shape[1]:
            return block, outer(again, R)
        Q = np.concatenate([Q, block], axis=1)
        rest = W - outer(Q, inner(Q, W))
        rest = rest - outer(Q, inner(Q, rest))
    return Q, inner(Q, W)


def _apart(block: Arr, R: Arr, Q: Arr) -> tuple[Arr, Arr]:
    """Orthonormal columns of block R⁻¹, which are nearly orthonormal already, and the correcting factor."""
    block = outer(block, _inverse_of_upper(R))
    if Q.shape[1]:
        block = block - outer(Q, inner(Q, block))
    again = _cholesky(inner(block, block))
    return outer(block, _inverse_of_upper(again)), again


def well_apart(G: Arr, least: float) -> list[int]:
    """Columns by pivoted Cholesky on a Gram matrix: at least ``least`` long, and 10⁻⁶ of the longest, after those before."""
    G, taken = G.copy(), list[int]()
    lengths = np.sqrt(np.maximum(G.diagonal(), 0.0))
    bound = max(least, 1e-6 * float(lengths.max(initial=0.0)))
    while len(taken) < len(G):
        free = [j for j in range(len(G)) if j not in taken]
        j = max(free, key=lambda j: (G[j, j], -j))
        if not G[j, j] > 0.0 or float(np.sqrt(G[j, j])) < bound or float(np.sqrt(G[j, j])) < 1e-6 * lengths[j]:
            break
        taken.append(j)
        G -= np.multiply.outer(G[:, j] / G[j, j], G[j])
    return sorted(taken)


def _cholesky(G: Arr) -> Arr:
    """R upper with RᵀR = G."""
    R = np.zeros_like(G)
    rest = G.copy()
    for j in range(len(G)):
        R[j, j:] = rest[j, j:] / np.sqrt(rest[j, j])
        rest -= np.multiply.outer(R[j], R[j])
    return R


def _inverse_of_upper(R: Arr) -> Arr:
    """R⁻¹ of an upper triangle, row by row from below."""
    inverse = np.zeros_like(R)
    for i in range(len(R) - 1, -1, -1):
        row = -tree_sum(R[i, i + 1 :, None] * inverse[i + 1 :]) if i + 1 < len(R) else np.zeros(len(R))
        row[i] += 1.0
        inverse[i] = row / R[i, i]
    return inverse


def solve_upper(R: Arr, right: Arr) -> Arr:
    """R⁻¹ right by substitution."""
    out = np.array(right)
    for j in range(len(R) - 1, -1, -1):
        out[j] = out[j] / R[j, j]
        out[:j] -= np.multiply.outer(R[:j, j], out[j])
    return out


def householder(A: Arr) -> tuple[Arr, Arr]:
    """(Q, R) of a small matrix: A = QR, Q orthogonal, R upper."""
    R, Q = np.array(A), np.eye(len(A))
    for j in range(min(R.shape[1], len(R) - 1)):
        v = R[j:, j].copy()
        length = norm(v)
        if length == 0.0:
            continue
        v[0] += length if v[0] >= 0.0 else -length
        scale = 2.0 / dot(v, v)
        R[j:] -= np.multiply.outer(scale * v, tree_sum(v[:, None] * R[j:]))
        Q[:, j:] -= np.multiply.outer(tree_sum(v[:, None] * Q[:, j:].T), scale * v)
        R[j + 1 :, j] = 0.0
    return Q, R
