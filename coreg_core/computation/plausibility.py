"""What a sum of honest answers cannot be, whatever the data: not finite, or longer than the question allows.

A sum cannot show which site sent a false answer, and a lie of the size of an honest answer is not found.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.sums import norms

SLACK = 1e-6  # relative: far above the rounding of an honest answer
SOME_SITE = "the sum of the answers {}: some site sends false answers, and a sum does not show which one."


def scalar_fault(scalars: Sequence[float], *, negative: bool = False) -> str | None:
    """The reason why honest sites cannot give these scalars, of which sizes and counts are not ``negative``; None if they can."""
    if not np.isfinite(scalars).all():
        return "has a scalar that is not finite"
    return None if negative or all(x >= 0.0 for x in scalars) else "has a size below zero"


def norm_fault(targets: Float64[Arr, "m k"], total: Float64[Arr, "m k"], gain: float) -> str | None:
    """The reason why ``total`` is no sum of linear answers to these columns, of at most ``gain`` times their norms in all."""
    if (norms(total) <= gain * (1.0 + SLACK) * norms(targets)).all():  # a NaN is not
        return None
    return "is longer than the question allows"
