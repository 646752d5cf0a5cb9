r"""Real numbers as integers modulo 2⁶⁴: n = rint(x · 2ᵉ), one exponent e a column, from a *bound* on what is encoded.

    e = ⌊log₂(2⁶² / (M · bound))⌋, M and the bound rounded up to powers of two        |Σ_v n_v| < 2⁶³

A step 2⁻ᵉ that is fixed once and for all stagnates at strong couplings; taken from the bound it is about as fine as float64
itself up to m = 10⁶. Everything is a power of two, so that x · 2ᵉ and n · 2⁻ᵉ are exact, and rounding happens once.
"""

from collections.abc import Sequence
from math import frexp, ldexp

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError

LEAST_EXPONENT, MOST_EXPONENT = -1000, 1000  # 2ᵉ and 2⁻ᵉ are normal numbers
HEADROOM = 62
WORD = np.dtype("<u8")


def power_above(bound: float) -> int:
    """The least p with bound ≤ 2ᵖ; `LEAST_EXPONENT` for 0.

    Raises
    ------
    UsageError
        not finite, or negative.
    """
    if not 0.0 <= bound < float("inf"):
        raise UsageError(f"{bound!r} bounds nothing.")
    fraction, power = frexp(bound)
    if bound == 0.0:
        return LEAST_EXPONENT
    return max(LEAST_EXPONENT, power - (fraction == 0.5))


def exponent_for(bound: float, n_sites: int) -> int:
    """e for numbers of at most ``bound`` (in absolute value) from each of ``n_sites`` sites."""
    e = HEADROOM - power_above(float(n_sites)) - power_above(bound)
    return min(MOST_EXPONENT, max(LEAST_EXPONENT, e))


def step_error(n_numbers: int, bound: float, n_sites: int) -> float:
    r"""At least ‖mean of rounded answers − mean of answers‖₂ of so many numbers: √m · 2^{−(e+1)}, e for that bound."""
    return float(np.sqrt(n_numbers)) * ldexp(1.0, -(exponent_for(bound, n_sites) + 1))


def relative_step(n_numbers: int, n_sites: int) -> float:
    r"""`step_error` over the bound, at its worst: √m · M · 2⁻⁶¹, whatever the bound."""
    return float(np.sqrt(n_numbers)) * n_sites * 2.0**-61


def wraps(bound: float, exponent: int, n_sites: int) -> bool:
    """Whether numbers up to this bound, at this exponent, could add up to 2⁶³ or more over so many sites."""
    return power_above(bound) + exponent + power_above(float(n_sites)) > HEADROOM + 1


def encode(values: Float64[Arr, "m k"], exponents: Sequence[int], n_sites: int) -> UInt64[np.ndarray, " mk"]:
    """The integers, row by row.

    Parameters
    ----------
    values
        (m, k).
    exponents
        e of each column.
    n_sites
        how many such encodings are going to be added.

    Raises
    ------
    BadData
        a number is so large, or none, that the sum could wrap. It says no number.
    """
    scaled = _scaled(values, exponents)
    if not _within(scaled, n_sites):
        raise BadData("a number is beyond the bound that the sum was scaled by.")
    np.rint(scaled, out=scaled)
    return scaled.astype("<i8").view(WORD).ravel()


def fits(values: Float64[Arr, "m k"], exponents: Sequence[int], n_sites: int) -> bool:
    """Whether `encode` takes these numbers; no integer is made."""
    return _within(_scaled(values, exponents), n_sites)


def _scaled(values: Arr, exponents: Sequence[int]) -> Arr:
    with np.errstate(over="ignore", invalid="ignore"):
        return _times_power(values, np.asarray(exponents, dtype=np.int64))


def _within(scaled: Arr, n_sites: int) -> bool:
    """Whether the sum cannot wrap. The largest rounds to the largest of the rounded."""
    if not scaled.size:
        return True
    largest = max(float(scaled.max()), -float(scaled.min()))
    return bool(np.rint(largest) < ldexp(1.0, HEADROOM + 1 - power_above(float(n_sites))))


def decode(words: UInt64[np.ndarray, " mk"], shape: tuple[int, int], exponents: Sequence[int]) -> Float64[Arr, "m k"]:
    """Numbers of an encoding or of a sum of encodings; rounded once, to float64."""
    values = words.view("<i8").astype(np.float64).reshape(shape)
    return _times_power(values, -np.asarray(exponents, dtype=np.int64))


def _times_power(values: Arr, exponents: Int64[Ints, " k"]) -> Arr:
    """x · 2ᵉ, rounded as ldexp rounds it. A product with a normal power of two is the same number, at the memory's speed."""
    powers = np.ldexp(1.0, exponents)
    normal = bool(((exponents >= -1022) & (exponents <= 1023)).all())
    out: Arr = values * powers if normal else np.ldexp(values, exponents)
    return out


def on_the_grid(values: Float64[Arr, "m k"], exponents: Sequence[int], n_sites: int) -> Float64[Arr, "m k"]:
    """The numbers as they will be summed: what a site sends where it answers in the clear."""
    return decode(encode(values, exponents, n_sites), (values.shape[0], values.shape[1]), exponents)
