r"""Cross products Yᵀ W of two sites' columns from one message of each site, by learning with errors
modulo q = 2⁶⁴.

    all          A uniform (N + p, 3328), from a public seed by AES-256-CTR
    owner of W   B = A S + E + [W; 0]          S uniform, E Gaussian of deviation 2¹²
    ("encrypted": Regev 2005)
    owner of Y   H = [Y; R]ᵀ A                 R uniform in [−2¹⁵, 2¹⁵), p rows
    ("projected")
    shares       [Y; R]ᵀ B  and  −H S          their sum is Yᵀ W + [Y; R]ᵀ E  (mod q)

Y and W are integers in fixed point. One B serves all other sites, and so does one H. A share is
rounded to its highest 32 bits before it leaves. Whole shares of a hostile H would disclose
coordinates of E exactly, and from them S (tests/core/test_cross_products.py). H alone is uniform
within 2⁻¹²⁸ by the leftover hash lemma, for any B. So opened words disclose at most their own
number of bits of a column of Y. B hides W under LWE with 32 bits of hints for each of at most
`MOST_PROJECTED` columns: core-SVP 254 for outsiders, 126 with all hints. No proof is known for an H
that is chosen after A and B. S, E and R are fresh in each attempt. Never use them for the same A
again.

Every array of the right shape is a valid message: no range, key or modulus needs a proof.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from jaxtyping import Float64, Int64, UInt64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from coreg_core.secure.sums import HEADROOM, WORD

SECRET_ROWS = 3328
DEVIATION = 4096.0
# Columns of all other sites together that one site meets.
MOST_PROJECTED = 448
MOST_ENCRYPTED = 1024
SHARE_BITS = 32
_R_BITS = 16  # of an entry of R
_Y_BITS = 16  # binary places of Y
_ROWS = 1024  # at a time
# The entropy of a column of R covers its row of H, all words of it that can be opened, and 2 · 128
# bits.
RANDOM_ROWS = -(-(64 * SECRET_ROWS + SHARE_BITS * MOST_ENCRYPTED + 256) // _R_BITS)

WordMatrix = UInt64[np.ndarray, "_ _"]
AnyWords = UInt64[np.ndarray, "..."]
RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, eq=False)
class Message:
    """A site's message to all others: B for its columns of W, H for its columns of Y."""

    encrypted: WordMatrix
    projected: WordMatrix


@dataclass(frozen=True, eq=False)
class Secret:
    """The secret of a site for one attempt."""

    S: WordMatrix
    rows: Int64[Ints, "_ _"]  # [Y; R]

    def share_of_own_projection(self, encrypted: WordMatrix) -> WordMatrix:
        """[Y; R]ᵀ B, with another site's B."""
        return _product(self.rows, encrypted)

    def share_of_own_encryption(self, projected: WordMatrix) -> WordMatrix:
        """−H S, with another site's H."""
        return np.asarray(np.uint64(0) - projected @ np.asfortranarray(self.S))


def exponents(n_rows: int) -> tuple[int, int]:
    """Binary places of W and of Y: a sum of products of rows of norm at most 1 stays below 2⁶²."""
    return HEADROOM - _Y_BITS - max(1, n_rows - 1).bit_length(), _Y_BITS


def fixed(values: Float64[Arr, "n c"], exponent: int) -> Int64[Ints, "n c"]:
    """Integers of values in [−1, 1]. BadData: a value is not finite, or beyond 1."""
    if not (np.isfinite(values).all() and np.abs(values).max(initial=0.0) <= 1.0):
        raise BadData("columns of cross products are at most 1 in absolute value.")
    return np.asarray(np.rint(np.ldexp(values, exponent)), dtype=np.int64)


def announce(
    seed: bytes, W: Int64[Ints, "n k"], Y: Int64[Ints, "n c"], random_bytes: RandomBytes
) -> tuple[Secret, Message]:
    """A site's secret and its message; ``seed`` (32 bytes) is the attempt's.

    A column of Y is below 2²³ in absolute value.
    """
    if len(seed) != 32 or len(W) != len(Y) or np.abs(Y).max(initial=0) >= 1 << 23:
        raise ValueError(
            "a seed of 32 bytes, columns of equally many rows, and Y below 2²³ are needed."
        )
    S = np.frombuffer(random_bytes(8 * SECRET_ROWS * W.shape[1]), WORD).reshape(SECRET_ROWS, -1)
    R = (
        np.frombuffer(random_bytes(2 * RANDOM_ROWS * Y.shape[1]), "<u2")
        .astype(np.int64)
        .reshape(RANDOM_ROWS, -1)
    )
    rows = np.concatenate([Y, R - (1 << 15)])
    S_digits = _digits(S)
    B = np.empty((len(rows), W.shape[1]), dtype=WORD)
    H = np.zeros((Y.shape[1], SECRET_ROWS), dtype=WORD)
    for block, A in _public(seed, len(rows)):
        digits = _digits(A)
        error = np.rint(DEVIATION * normal((len(A), W.shape[1]), random_bytes)).astype(np.int64)
        B[block] = _times(digits, S_digits) + error.view(WORD)
        H += _times_small(rows[block], digits)
    B[: len(W)] += W.view(WORD)
    return Secret(S, rows), Message(B, H)


def rounded(share: AnyWords) -> AnyWords:
    """A share as it leaves: its highest 32 bits, in words of 64, so that sums of words do not
    wrap.
    """
    return np.asarray((share + np.uint64(1 << (SHARE_BITS - 1))) >> np.uint64(SHARE_BITS))


def opened(total: AnyWords, exponent: int) -> Float64[Arr, "..."]:
    """Values of a sum of rounded shares; ``exponent`` is that of W and Y together."""
    low = (total & np.uint64((1 << SHARE_BITS) - 1)).astype(np.uint32).view(np.int32)
    return np.ldexp(low.astype(np.float64), SHARE_BITS - exponent)


def _public(seed: bytes, n_rows: int) -> Iterator[tuple[slice, WordMatrix]]:
    """Blocks of rows of A, which depend on their place alone."""
    for first in range(0, n_rows, _ROWS):
        A = np.empty((min(_ROWS, n_rows - first), SECRET_ROWS), dtype=WORD)
        block = first * SECRET_ROWS // 2  # of the cipher: two words
        counter = block.to_bytes(16, "big")
        stream = Cipher(algorithms.AES256(seed), modes.CTR(counter)).encryptor()
        stream.update_into(bytes(A.nbytes), A.view(np.uint8).reshape(-1).data)
        yield slice(first, first + len(A)), A


def normal(shape: tuple[int, ...], random_bytes: RandomBytes) -> Float64[Arr, "..."]:
    """Standard normal numbers of secret bytes, by Box and Muller."""
    u = (
        np.frombuffer(random_bytes(16 * prod(shape)), WORD).reshape(2, *shape) >> np.uint64(11)
    ) * 2.0**-53
    return np.asarray(np.sqrt(-2.0 * np.log1p(-u[0])) * np.cos(2.0 * np.pi * u[1]))


def _product(
    small: Int64[Ints, "n a"], wide: UInt64[np.ndarray, "n c"]
) -> UInt64[np.ndarray, "a c"]:
    """smallᵀ wide mod 2⁶⁴ for |small| < 2²³."""
    total = np.zeros((small.shape[1], wide.shape[1]), dtype=WORD)
    for first in range(0, len(small), _ROWS):
        total += _times_small(small[first : first + _ROWS], _digits(wide[first : first + _ROWS]))
    return total


# Words are split into four digits of 16 bits. Their products in float64 are exact, because sums
# stay below 2⁵³.


def _digits(words: UInt64[np.ndarray, "r c"]) -> Float64[Arr, "4 r c"]:
    """The lowest digit first."""
    apart = np.ascontiguousarray(words).view("<u2").reshape(*words.shape, 4)
    return np.ascontiguousarray(np.moveaxis(apart, 2, 0)).astype(np.float64)


def _times_small(
    small: Int64[Ints, "n a"], digits: Float64[Arr, "4 n c"]
) -> UInt64[np.ndarray, "a c"]:
    parts = small.T.astype(np.float64) @ digits
    shifted = [
        part.astype(np.int64).view(WORD) << np.uint64(16 * i) for i, part in enumerate(parts)
    ]
    return np.asarray(np.sum(shifted, axis=0, dtype=WORD))


def _times(left: Float64[Arr, "4 r c"], right: Float64[Arr, "4 c k"]) -> UInt64[np.ndarray, "r k"]:
    """The product mod 2⁶⁴: digit i of the left meets the digits of the right that are not shifted
    out.
    """
    k = right.shape[2]
    total = np.zeros((left.shape[1], right.shape[2]), dtype=WORD)
    for i in range(4):
        parts = (left[i] @ np.concatenate(right[: 4 - i], axis=1)).astype(np.int64).view(WORD)
        for j in range(4 - i):
            total += parts[:, j * k : (j + 1) * k] << np.uint64(16 * (i + j))
    return total
