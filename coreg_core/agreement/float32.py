r"""Search directions in float32: rounded once, by whoever asks and whoever answers, before a message is made of them.

    question   s₃₂ = fl₃₂(p/‖p‖∞)          answer   d = fl₃₂(s₃₂ − R s₃₂),   so that   R s₃₂ ≈ s₃₂ − d

The schedule moves along the s₃₂ that was asked, so rounding p costs no exactness, and little conjugacy. Of the answer
the difference is told: H s = mean d is what conjugate gradients want, and where R is strong it is by far smaller than
s. With 0 ≺ I − R ⪯ I, ‖d‖² ≤ sᵀd, so the curvature sᵀHs is off by at most 2⁻²⁴ √(1 + μb) of itself, and not by 2⁻²⁴ (1
+ μb) (docs/mathematics.md).
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr

UNIT = 2.0**-24  # the largest relative error of a number rounded to float32, 2⁻¹⁴⁹ and less apart


def survives(values: Float64[Arr, "m k"]) -> bool:
    """Whether float32 holds each of these numbers; infinities and what is no number it does not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.array_equal(values.astype(np.float32), values) and np.isfinite(values).all())


def rounded(values: Float64[Arr, "m k"]) -> Float64[Arr, "m k"]:
    """The nearest numbers of float32, in float64.

    Raises
    ------
    BadData
        a number is beyond float32, or none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        single = values.astype(np.float32)
    if not np.isfinite(single).all():
        raise BadData("a number is beyond what float32 holds.")
    return single.astype(np.float64)


def as_told(targets: Float64[Arr, "m k"], answers: Float64[Arr, "m k"]) -> Float64[Arr, "m k"]:
    """R s as it is known to whoever was told fl₃₂(s − R s)."""
    return targets - rounded(targets - answers)
