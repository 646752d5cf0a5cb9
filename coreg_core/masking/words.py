r"""The contribution of one site to a sum, as words of 64 bits: a vector in fixed point, then scalars in full.

    [ m·k words: the vector, mod 2⁶⁴ ] [ 68 words a scalar: x · 2¹⁰⁷⁴ mod 2²¹⁷⁶, 32 bits in each ]

Words are only added, word by word, so the adding party needs no knowledge of them. A scalar (a squared norm, a count) has
no public bound, so it travels whole: 2176 bits hold every float64 exactly, and half of each
word is left for carries. Sums are exact, and rounded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64, UInt64

from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import WORD, decode, encode
from coreg_core.names import SCALAR_WORDS
from coreg_core.numerics.arrays import Arr

_SHIFT, _MODULUS = 1074, 1 << (32 * SCALAR_WORDS)
Words: TypeAlias = UInt64[np.ndarray, " w"]


@dataclass(frozen=True)
class Layout:
    """The number and the position of the numbers in a summand."""

    rows: int
    columns: int
    scalars: int

    @property
    def plain(self) -> int:
        """Words of the vector."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Words in all."""
        return self.plain + SCALAR_WORDS * self.scalars

    def scalar(self, j: int) -> slice:
        """The position of scalar j."""
        start = self.plain + SCALAR_WORDS * j
        return slice(start, start + SCALAR_WORDS)


def summand(
    layout: Layout, values: Float64[Arr, "m k"], scalars: Sequence[float], exponents: Sequence[int], n_sites: int
) -> Words:
    """A site's words.

    Raises
    ------
    BadData
        a number is beyond its bound or not finite, or their count differs from the layout.
    """
    if values.size != layout.plain or len(scalars) != layout.scalars:
        raise BadData(f"{values.shape} numbers and {len(scalars)} scalars, where {layout} is summed.")
    words = np.zeros(layout.size, dtype=WORD)
    encode(values.reshape(layout.rows, layout.columns), exponents, n_sites, onto=words[: layout.plain])
    for j, x in enumerate(scalars):
        if not isfinite(x):
            raise BadData("a scalar of the answer is not finite.")
        numerator, denominator = float(x).as_integer_ratio()
        number = numerator * ((1 << _SHIFT) // denominator) % _MODULUS
        words[layout.scalar(j)] = np.frombuffer(number.to_bytes(4 * SCALAR_WORDS, "little"), dtype="<u4")
    return words


def opened(layout: Layout, words: Words, exponents: Sequence[int]) -> tuple[Float64[Arr, "m k"], tuple[float, ...]]:
    """The numbers of a sum: vector and scalars."""
    values = decode(words[: layout.plain], (layout.rows, layout.columns), exponents)
    return values, tuple(_float_of(words[layout.scalar(j)]) for j in range(layout.scalars))


def _float_of(words: Words) -> float:
    number: int = sum(word << (32 * i) for i, word in enumerate(words.tolist())) % _MODULUS
    if number >= _MODULUS // 2:
        number -= _MODULUS
    try:
        return number / (1 << _SHIFT)  # rounded once, correctly
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
