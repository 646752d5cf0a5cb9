r"""Real numbers as integers modulo 2⁶⁴: n = rint(x · 2ᵉ), one exponent e a column, from a *bound*
on the encoded numbers.

    e = ⌊log₂(2⁶² / (M · bound))⌋, M and the bound rounded up to powers of two        |Σ_v n_v| <
    2⁶³

A constant step 2⁻ᵉ stagnates at strong couplings. From the bound the step is about as fine as
float64 itself up to m = 10⁶. All factors are powers of two, so x · 2ᵉ and n · 2⁻ᵉ are exact, and
rounding happens once.

The contribution of one site to a sum, as words of 64 bits: a vector in fixed point, then scalars in
full.

    [ m·k words: the vector, mod 2⁶⁴ ] [ 68 words a scalar: x · 2¹⁰⁷⁴ mod 2²¹⁷⁶, 32 bits in each ]

Words are only added, word by word, so the adding party needs no knowledge of them. A scalar (a
squared norm, a count) has no public bound, so it travels whole: 2176 bits hold every float64
exactly, and half of each word is left for carries. Sums are exact, and rounded once.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import frexp, isfinite, ldexp
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.shapes import SCALAR_WORDS

# 2ᵉ and 2⁻ᵉ are normal numbers.
LEAST_EXPONENT = -1000
MOST_EXPONENT = 1000
HEADROOM = 62
WORD = np.dtype("<u8")
_PIECE = 1 << 15  # numbers at a time: 256 KiB


def power_above(bound: float) -> int:
    """The least p with bound ≤ 2ᵖ; `LEAST_EXPONENT` for 0. UsageError: not finite, or negative."""
    if not 0.0 <= bound < float("inf"):
        raise UsageError(f"{bound!r} bounds nothing.")
    fraction, power = frexp(bound)
    if bound == 0.0:
        return LEAST_EXPONENT
    return max(LEAST_EXPONENT, power - (fraction == 0.5))


def exponents_for(bounds: Float64[Arr, " k"], n_sites: int) -> tuple[int, ...]:
    """e for numbers of at most these bounds (in absolute value) from each of ``n_sites`` sites."""
    powers = np.array(list(map(power_above, bounds.tolist())), dtype=np.int64)
    e = HEADROOM - power_above(float(n_sites)) - powers
    return tuple(np.clip(e, LEAST_EXPONENT, MOST_EXPONENT).tolist())


def encode(
    values: Float64[Arr, "m k"],
    exponents: Sequence[int],
    n_sites: int,
    out: UInt64[np.ndarray, " mk"],
) -> None:
    """The integers, row by row; BadData, without a number, where one is not finite or a sum of
    ``n_sites`` could wrap.
    """
    if not fits(values, exponents, n_sites):
        raise BadData("a number is beyond the bound that the sum was scaled by.")
    # Temporaries of a piece stay in the inner cache, and are smaller than the vector.
    length = max(1, _PIECE // max(1, values.shape[1]))
    powers = np.asarray(exponents, dtype=np.int64)
    rows = out.view("<i8").reshape(values.shape)
    room = np.empty((min(length, len(values)), values.shape[1]))
    for start in range(0, len(values), length):
        piece = slice(start, min(start + length, len(values)))
        scaled = _times_power(values[piece], powers, room[: piece.stop - start])
        np.copyto(rows[piece], np.rint(scaled, out=scaled), casting="unsafe")


def fits(values: Float64[Arr, "m k"], exponents: Sequence[int], n_sites: int) -> bool:
    """Whether `encode` accepts these numbers, without integers or temporaries of the size of
    ``values``.
    """
    if not values.size:
        return True
    powers = np.asarray(exponents, dtype=np.int64)
    limit = ldexp(1.0, HEADROOM + 1 - power_above(float(n_sites)))
    # A power of two keeps the order of numbers, and the largest rounds to the largest of the
    # rounded. Rows are contiguous numbers, side, which a search by columns takes one by one: it is
    # made only where the largest of all, at the largest power, is none.
    if (np.rint(_times_power(max(values.max(), -values.min()), powers)) < limit).all():
        return True
    largest = np.maximum(values.max(axis=0), -values.min(axis=0))
    return bool((np.rint(_times_power(largest, powers)) < limit).all())  # False where one is NaN


def decode(
    words: UInt64[np.ndarray, " mk"], shape: tuple[int, int], exponents: Sequence[int]
) -> Float64[Arr, "m k"]:
    """Numbers of an encoding or of a sum of encodings; rounded once, to float64."""
    return _times_power(words.view("<i8").reshape(shape), -np.asarray(exponents, dtype=np.int64))


def _times_power(values: Any, exponents: Int64[Ints, " k"], out: Arr | None = None) -> Arr:
    """x · 2ᵉ, as ldexp rounds it: a product with a normal power of two is the same number, at the
    memory's speed.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product: Arr = np.multiply(values, np.ldexp(1.0, exponents), out=out)
    return product


_SHIFT = 1074
_MODULUS = 1 << (32 * SCALAR_WORDS)
_LOW = np.uint64(0xFFFFFFFF)
Row: TypeAlias = UInt64[np.ndarray, " w"]


@dataclass(frozen=True, eq=False)
class Words:
    """Read-only, and equal to another by its bytes."""

    values: UInt64[np.ndarray, " w"]

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.dtype != WORD:
            shape = f"{self.values.dtype} {self.values.shape}"
            raise BadData(f"words are a row of uint64, not {shape}.")
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Words):
            return NotImplemented
        return bool(np.array_equal(self.values, other.values))

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def data(self) -> memoryview:
        """The bytes, little-endian."""
        if self.values.size:
            return self.values.data.cast("B")
        return memoryview(b"")

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Layout:
    """The number and the position of the numbers in a summand."""

    rows: int
    columns: int
    scalars: int

    @cached_property
    def plain(self) -> int:
        """Words of the vector."""
        return self.rows * self.columns

    @cached_property
    def size(self) -> int:
        """Words in all."""
        return self.plain + SCALAR_WORDS * self.scalars

    def scalar(self, j: int) -> slice:
        """The position of scalar j."""
        start = self.plain + SCALAR_WORDS * j
        return slice(start, start + SCALAR_WORDS)


def summand(
    layout: Layout,
    values: Float64[Arr, "m k"],
    scalars: Sequence[float],
    exponents: Sequence[int],
    n_sites: int,
) -> Row:
    """A site's words.

    BadData: a number is beyond its bound or not finite, or their count differs from the layout.
    """
    if values.size != layout.plain or len(scalars) != layout.scalars:
        raise BadData(
            f"{values.shape} numbers and {len(scalars)} scalars, where {layout} is summed."
        )
    words = np.zeros(layout.size, dtype=WORD)
    encode(values.reshape(layout.rows, layout.columns), exponents, n_sites, words[: layout.plain])
    for j, x in enumerate(scalars):
        if not isfinite(x):
            raise BadData("a scalar of the answer is not finite.")
        numerator, denominator = float(x).as_integer_ratio()
        number = numerator * ((1 << _SHIFT) // denominator) % _MODULUS
        words[layout.scalar(j)] = np.frombuffer(
            number.to_bytes(4 * SCALAR_WORDS, "little"), dtype="<u4"
        )
    return words


def opened(
    layout: Layout, words: Row, exponents: Sequence[int]
) -> tuple[Float64[Arr, "m k"], tuple[float, ...]]:
    """The numbers of a sum: vector and scalars."""
    values = decode(words[: layout.plain], (layout.rows, layout.columns), exponents)
    scalars = words[layout.plain :].reshape(layout.scalars, SCALAR_WORDS)
    return values, tuple(map(_float_of, scalars))


def _float_of(words: Row) -> float:
    number = _carried(words) % _MODULUS
    if number >= _MODULUS // 2:
        number -= _MODULUS
    try:
        return number / (1 << _SHIFT)  # rounded once, correctly
    except OverflowError:
        if number > 0:
            return float("inf")
        return float("-inf")


def _carried(words: Row) -> int:
    """The number Σ w_i 2³²ⁱ, in which words can be larger than 32 bits."""
    low = (words & _LOW).astype("<u4")
    high = (words >> np.uint64(32)).astype("<u4")
    return int.from_bytes(low.tobytes(), "little") + (
        int.from_bytes(high.tobytes(), "little") << 32
    )


# --- the tag of a sum -----------------------------------------------------------------------------
#
# An additive tag: the sites verify with it that the words of a sum are the sent words.
#
#     tag_v = Σ_i c_{v,i} rⁱ mod p,    p = 2¹³⁰ − 5
#     c_{v,i} = u_{2i} + 2⁶⁴ u_{2i+1} + 2¹²⁸,    u = n_v + 2⁶³
#
# is Poly1305 (RFC 8439) of the words n_v with the second half of its key zero, r a secret of the
# sites for this sum alone. It is linear in the words, so the tags' sum is the tag of the words' sum
# except for a public constant. The party that adds the words does not know r, and sees tags under
# masks only. To have a changed sum of L words accepted, it must guess a root of a polynomial of
# degree L/2 over p: at most one chance in 2¹⁰⁶/(8 L (3M + 4)) (Bernstein 2005, "The Poly1305-AES
# message-authentication code", theorem 3.3; the factor 3M + 4 comes from truncation to 128 bits).

_P = (1 << 130) - 5
_CLAMP = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
_OFFSET = np.uint64(1 << 63)


def message(words: Row) -> UInt64[np.ndarray, " p"]:
    """The input bytes of Poly1305: non-negative numbers, an even count of them."""
    padded = np.zeros(len(words) + len(words) % 2, dtype=words.dtype)
    padded[: len(words)] = words
    padded += _OFFSET
    return padded


def tag_words(tag: bytes) -> Row:
    """Poly1305's 16 bytes, to be added as words."""
    return np.frombuffer(tag, dtype="<u4").astype("<u8")


def is_sum(tag: bytes, tags: Row, r: bytes, n_words: int, n_sites: int) -> bool:
    """Whether the tag of a sum's words equals the sum of the sites' tags."""
    blocks = (n_words + 1) // 2
    root = int.from_bytes(r, "little") & _CLAMP
    total = _carried(tags)
    # Each site's blocks hold one offset and one 2¹²⁸; the sum has them once for every site, and its
    # own tag once.
    constant = (1 << 63) + (1 << 127) + (1 << 128)
    powers = (
        root * (pow(root, blocks, _P) - 1) * pow(root - 1, -1, _P) if root > 1 else blocks * root
    )
    missing = (int.from_bytes(tag, "little") + (n_sites - 1) * constant * powers - total) % _P
    # Tags are cut to 128 bits of 130: each can lose up to three times 2¹²⁸.
    return any((missing - (lost << 128)) % _P == 0 for lost in range(-3, 3 * n_sites + 1))
