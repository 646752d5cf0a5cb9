r"""What one site adds to a sum, as words of 64 bits: a vector in fixed point, scalars in full, and a check.

    [ m·k words: the vector, mod 2⁶⁴ ] [ 34 words a scalar: x · 2¹⁰⁷⁴, mod 2²¹⁷⁶ ] [ 2 words: 0 ]

A scalar has no bound that everybody knows (a squared norm, a count, an error), and it costs nothing to carry it whole: 2176
bits hold every float64 exactly, so sums of scalars are exact, and rounded once. The check is zero at every site, and masked
like the rest: where the masks of a sum do not cancel, it is not zero (but for one time in 2¹²⁸), and there is a refusal
instead of a wrong sum. Masks are bytes from outside (`Fill`), added by one of a pair and taken away by the other. Knows
words; no key, site or message.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64, UInt64

from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import WORD, decode, encode
from coreg_core.numerics.arrays import Arr

SCALAR_WORDS = 34
CHECK_WORDS = 2
_CHUNK = 1 << 17  # words of a mask at a time: 1 MiB, which stays in the cache
_SHIFT, _MODULUS = 1074, 1 << (64 * SCALAR_WORDS)
Words: TypeAlias = UInt64[np.ndarray, " w"]
Fill: TypeAlias = Callable[[Words], None]  # writes the next words of a pair's stream into the array


@dataclass(frozen=True)
class Layout:
    """How many numbers a summand has, and where they stand."""

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
        return self.plain + SCALAR_WORDS * self.scalars + CHECK_WORDS

    def scalar(self, j: int) -> slice:
        """Where scalar j stands."""
        start = self.plain + SCALAR_WORDS * j
        return slice(start, start + SCALAR_WORDS)


def summand(
    values: Float64[Arr, "m k"], scalars: Sequence[float], exponents: Sequence[int], n_sites: int
) -> tuple[Layout, Words]:
    """A site's words, not yet masked.

    Raises
    ------
    BadData
        a number is beyond its bound, or not finite.
    """
    layout = Layout(values.shape[0], values.shape[1], len(scalars))
    words = np.zeros(layout.size, dtype=WORD)
    add_summand(layout, words, values, scalars, exponents, n_sites)
    return layout, words


def add_summand(
    layout: Layout,
    words: Words,
    values: Float64[Arr, "m k"],
    scalars: Sequence[float],
    exponents: Sequence[int],
    n_sites: int,
) -> None:
    """Add a site's numbers to a sum, in place, as if they had come as words.

    Raises
    ------
    BadData
        a number is beyond its bound, or a scalar not finite; of a scalar, the sum is of no use any more.
    """
    encode(values, exponents, n_sites, onto=words[: layout.plain])
    for j, x in enumerate(scalars):
        if not isfinite(x):
            raise BadData("a scalar of the answer is not finite.")
        numerator, denominator = float(x).as_integer_ratio()
        into = words[layout.scalar(j)]
        into[:] = _words_of(_number_of(into) + numerator * ((1 << _SHIFT) // denominator))


def add_mask(layout: Layout, words: Words, fill: Fill, *, negative: bool) -> None:
    """Add one pair's mask, or take it away; in place, a piece at a time."""
    buffer = np.empty(min(_CHUNK, max(layout.plain, SCALAR_WORDS)), dtype=WORD)
    change = np.subtract if negative else np.add
    for start in range(0, layout.plain, _CHUNK):
        into = words[start : min(start + _CHUNK, layout.plain)]
        mask = buffer[: len(into)]
        fill(mask)
        change(into, mask, out=into)
    for j in range(layout.scalars):
        into, mask = words[layout.scalar(j)], buffer[:SCALAR_WORDS]
        fill(mask)
        number, taken = _number_of(into), _number_of(mask)
        into[:] = _words_of(number - taken if negative else number + taken)
    into, mask = words[-CHECK_WORDS:], buffer[:CHECK_WORDS]
    fill(mask)
    change(into, mask, out=into)


def total(layout: Layout, summands: Iterable[Words]) -> Words:
    """The sum, mod 2⁶⁴ and 2²¹⁷⁶. Integers: whatever the order, the same bits."""
    out = np.zeros(layout.size, dtype=WORD)
    for words in summands:
        add_words(layout, out, words)
    return out


def add_words(layout: Layout, words: Words, more: Words) -> None:
    """Add a summand, masked or not, to a sum in place."""
    for part in (slice(layout.plain), slice(layout.size - CHECK_WORDS, layout.size)):
        np.add(words[part], more[part], out=words[part])
    for j in range(layout.scalars):
        into = words[layout.scalar(j)]
        into[:] = _words_of(_number_of(into) + _number_of(more[layout.scalar(j)]))


def opened(layout: Layout, words: Words, exponents: Sequence[int]) -> tuple[Float64[Arr, "m k"], tuple[float, ...]]:
    """The numbers of a sum: vector and scalars.

    Raises
    ------
    BadData
        the masks do not cancel: sites answered to different questions, rosters or keys.
    """
    if words[-CHECK_WORDS:].any():
        raise BadData(
            "the masks do not cancel: the sites do not mean the same question, participants and keys. Nothing is learnt from "
            "such a sum, and nothing is computed with it."
        )
    values = decode(words[: layout.plain], (layout.rows, layout.columns), exponents)
    return values, tuple(_float_of(words[layout.scalar(j)]) for j in range(layout.scalars))


def _words_of(number: int) -> Words:
    return np.frombuffer((number % _MODULUS).to_bytes(8 * SCALAR_WORDS, "little"), dtype=WORD)


def _number_of(words: Words) -> int:
    return int.from_bytes(words.tobytes(), "little")


def _float_of(words: Words) -> float:
    number = _number_of(words)
    if number >= _MODULUS // 2:
        number -= _MODULUS
    try:
        return number / (1 << _SHIFT)  # rounded once, correctly
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
