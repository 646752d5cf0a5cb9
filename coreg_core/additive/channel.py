r"""How an exchange forms sums of all sites' numbers and products of two sites' columns.

`SiteExchange` is the method: it says which numbers enter a sum, and what follows from a sum. A
channel is how they travel. The method has no other knowledge of it.

| channel | a number is | product of two sites' columns | who learns a summand |
|---|---|---|---|
| `ExactSums` | a float64 | one site computes it | whoever runs it: all sites in one process |
| `SealedSums` | a word modulo 2⁶⁴ | a share at each of the two sites | its site alone |

Numbers of one exponent add up in both. A sum of sealed words is opened after the masks of all sites
have cancelled (`coreg_core.secure.sums`).
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64, Shaped

from coreg_core.arrays import Arr
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import WORD

Numbers: TypeAlias = Shaped[np.ndarray, "..."]  # words, or float64
SiteNumbers: TypeAlias = dict[str, Numbers]  # what a site adds to each sum, by its name


class SealedSums:
    """Words modulo 2⁶⁴ in fixed point, and cross products by learning with errors."""

    def __init__(self, random_bytes: cross.RandomBytes):
        self._random = random_bytes

    def announce(
        self, W: Float64[Arr, "n k"], Y: Float64[Arr, "n c"], places: tuple[int, int], seed: bytes
    ) -> cross.Message:
        """The message from which each other site forms its share of products.

        ``places``: binary places of W and Y; ``seed``: 32 bytes, the digest of the attempt's chain.
        """
        e, f = places
        self._secret, message = cross.announce(
            seed, cross.fixed(W, e), cross.fixed(Y, f), self._random
        )
        return message

    def shares(self, message: cross.Message) -> tuple[Numbers, Numbers]:
        """Of Yᵀ W with the other site's W, and of Yᵀ W with the other site's Y."""
        of_own_projection = self._secret.share_of_own_projection(message.encrypted)
        of_own_encryption = self._secret.share_of_own_encryption(message.projected)
        return of_own_projection, of_own_encryption

    def number(self, values: Arr, exponent: int) -> Numbers:
        """Words of numbers, of which multiples of 2 to minus the exponent are kept."""
        return np.asarray(np.rint(np.ldexp(values, exponent)), dtype=np.int64).view(WORD)

    def value(self, total: Numbers, exponent: int) -> Arr:
        """Numbers of words, in two's complement."""
        return np.asarray(np.ldexp(total.view(np.int64).astype(np.float64), -exponent))

    def short(self, numbers: Numbers) -> Numbers:
        """Numbers as they enter a sum of many entries: the highest 32 bits of each."""
        return cross.rounded(numbers)

    def of_short(self, total: Numbers, exponent: int) -> Arr:
        """The values of a sum of `short`."""
        return cross.opened(total, exponent)

    def halves(self, numbers: Numbers) -> Numbers:
        """Numbers as they enter a sum without rounding: two words of 32 bits for each."""
        return np.stack([numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32)])

    def of_halves(self, total: Numbers, exponent: int) -> Arr:
        """The values of a sum of `halves`."""
        return self.value(total[0] + (total[1] << np.uint64(32)), exponent)


class ExactSums:
    """Float64, for sites in one process; of each pair the owner of Y computes the product."""

    def announce(
        self,
        W: Float64[Arr, "n k"],
        Y: Float64[Arr, "n c"],
        places: tuple[int, int],  # noqa: ARG002
        seed: bytes,  # noqa: ARG002
    ) -> tuple[Arr, Arr]:
        """The columns themselves."""
        self._W = W
        self._Y = Y
        return W, Y

    def shares(self, message: tuple[Arr, Arr]) -> tuple[Numbers, Numbers]:
        """The product with the own Y, and zeros."""
        W, Y = message
        return self._Y.T @ W, np.zeros((Y.shape[1], self._W.shape[1]))

    def number(self, values: Arr, exponent: int) -> Numbers:  # noqa: ARG002
        """The values."""
        return values

    def short(self, numbers: Numbers) -> Numbers:
        """The numbers."""
        return numbers

    halves = short
    value = number
    of_short = number
    of_halves = number


Channel: TypeAlias = ExactSums | SealedSums


def total(answers: Sequence[SiteNumbers]) -> SiteNumbers:
    """The sums of all sites' numbers, by name."""
    return {
        name: np.asarray(np.sum([numbers[name] for numbers in answers], axis=0))
        for name in answers[0]
    }
