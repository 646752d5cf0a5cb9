r"""The share of one label in a sum at one instance, measured on this site's rows before it accepts a plan.

    share(z, i) = H_zi² / (Σ_j H_zj² + (M − 1) h),   H = ∂ respond(t, μ) / ∂y,   h = the median of Σ_j H_zj² over z,

is the r² with which the sum of M sites' answers at z predicts label i. It assumes that labels have the same variance at
every site, and that the other sites' labels weigh as much at z as this site's labels do at its median instance. The share
is near 1 if an instance has the features of a labelled row and the plan is sharp: a narrow kernel, a small ridge, or a
strong coupling, which holds the answer to the target 0 at 0 except at labelled rows. Masks cannot hide such a label,
because the other sites add almost nothing there.
"""

from collections.abc import Iterable

import numpy as np

from coreg_core.agreement.views import View
from coreg_core.numerics.arrays import Arr, Ints
from site_agent.site_data import PrivateData

# The most entries of H that are computed in full. A larger H is reduced to instances equal to a labelled row and OTHERS more.
MOST_ENTRIES = 4_000_000
OTHERS = 500
LABEL_SHARE_MAX = 0.95  # above it, every agent refuses the plan


def share_of_one_label(view: View, data: PrivateData, weights: Iterable[float], n_sites: int) -> float:
    """The largest share over instances, labels and weights."""
    m = len(data.Z)
    if m == 0 or len(data.y) == 0:
        return 0.0
    rows = None if m * len(data.y) <= MOST_ENTRIES else _some(data)
    step = max(1, MOST_ENTRIES // len(data.y))
    blocks = [rows] if rows is None else [rows[start : start + step] for start in range(0, len(rows), step)]
    return max(_largest((view.label_map(weight, block) for block in blocks), n_sites) for weight in set(weights))


def _largest(blocks: Iterable[Arr], n_sites: int) -> float:
    sizes, largest = [], []
    for H in blocks:
        squares = np.multiply(H, H, out=H)  # in place: no one else uses H
        sizes.append(squares.sum(axis=1))
        largest.append(squares.max(axis=1))
    size = np.concatenate(sizes)
    hidden = size + (n_sites - 1) * float(np.median(size))
    share: Arr = np.divide(np.concatenate(largest), hidden, out=np.zeros(len(size)), where=hidden > 0.0)
    return float(share.max())


def _some(data: PrivateData) -> Ints:
    """Instances equal to a labelled row, and others spread evenly over the list."""
    labelled = {row.tobytes() for row in np.ascontiguousarray(data.X) + 0.0}  # + 0.0 turns -0.0 into 0.0
    alike = [i for i, row in enumerate(np.ascontiguousarray(data.Z) + 0.0) if row.tobytes() in labelled]
    others = np.linspace(0, len(data.Z) - 1, OTHERS).astype(np.int64)
    return np.unique(np.concatenate([np.array(alike[: 4 * OTHERS], np.int64), others]))
