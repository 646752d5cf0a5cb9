r"""What no honest site answers, whatever its data: invariants of respond(t, μ), held to each answer in the clear, and to sums.

The linear part R of a site is symmetric with 0 ⪯ R ≺ I, and no larger than its b_v allows, so for every direction t

    0 ≤ tᵀRt ≤ ‖t‖² x/(1 + x),   ‖Rt‖ ≤ ‖t‖,        x = μ b_v

and over M sites 0 ≤ tᵀ(ΣR)t ≤ ‖t‖² (M − Σ 1/(1 + x_v)), ‖ΣRt‖ ≤ M ‖t‖. Rounding is allowed `SLACK`. Knows numbers; whose
they are is somebody
else's business.
"""

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr

SLACK = (
    1e-6  # of ‖t‖²: far above what rounding does to an honest answer, far below what a false one has to do to matter
)


def linear_fault(
    targets: Float64[Arr, "m k"], answers: Float64[Arr, "m k"], most: Float64[Arr, " k"], n_sites: int
) -> str | None:
    """Why these are no answers, or no sum of answers, of so many honest sites to linear questions; None where they may be.

    Parameters
    ----------
    targets
        t, a column each.
    answers
        Rt, or ΣRt.
    most
        x/(1 + x) of each column, or its sum over the sites.
    n_sites
        how many answers were added.
    """
    size = np.einsum("mk,mk->k", targets, targets)
    along = np.einsum("mk,mk->k", targets, answers)
    length = np.sqrt(np.einsum("mk,mk->k", answers, answers))
    if (along < -SLACK * n_sites * size).any():
        return "points away from the direction that was asked, and a site's response never does"
    if (along > (most + SLACK * n_sites) * size).any():
        return "goes farther along the direction that was asked than the stated bound b_v allows"
    if (length > n_sites * (1.0 + SLACK) * np.sqrt(size)).any():
        return "is longer than the direction that was asked, and a site's response never is"
    return None
