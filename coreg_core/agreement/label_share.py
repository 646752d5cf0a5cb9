r"""The share of one label in a sum at one instance: what masks cannot hide.

    share(z, i) = H_zi² / (Σ_j H_zj² + (M − 1) h)
    H = ∂ respond(t, μ) / ∂y,     h = the median of Σ_j H_zj² over z

is the r² with which the sum of M sites' answers at z predicts label i. It assumes that labels have
the same variance at every site, and that the other sites' labels weigh as much at z as this site's
labels do at its median instance. The share is near 1 if an instance has the features of a labelled
row and the plan is sharp: a narrow kernel, a small ridge, or a strong coupling, which holds the
answer to the target 0 at 0 except at labelled rows. The other sites add almost nothing there.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.views import View
from coreg_core.arrays import Arr, Ints

# The most entries of H that are computed in full. A larger H is reduced to instances equal to a
# labelled row, and OTHERS more.
MOST_ENTRIES = 4_000_000
OTHERS = 500


def share_of_one_label(
    view: View,
    X: Float64[Arr, "n d"],
    Z: Float64[Arr, "m d"],
    weights: Iterable[float],
    n_sites: int,
) -> float:
    """The largest share over instances, labels and weights μ; X: labelled rows, Z: shared rows."""
    n = len(X)
    m = len(Z)
    if m == 0 or n == 0:
        return 0.0
    blocks: list[Ints | None] = [None]
    if m * n > MOST_ENTRIES:
        rows = some_instances(X, Z)
        step = max(1, MOST_ENTRIES // n)
        blocks = [rows[start : start + step] for start in range(0, len(rows), step)]
    return max(
        _largest((view.label_map(weight, block) for block in blocks), n_sites)
        for weight in set(weights)
    )


def _largest(blocks: Iterable[Arr], n_sites: int) -> float:
    sizes = list[Arr]()
    largest = list[Arr]()
    for H in blocks:
        squares = np.multiply(H, H, out=H)  # in place: no one else uses H
        sizes.append(squares.sum(axis=1))
        largest.append(squares.max(axis=1))
    size = np.concatenate(sizes)
    hidden = size + (n_sites - 1) * float(np.median(size))
    tops = np.concatenate(largest)
    share: Arr = np.divide(tops, hidden, out=np.zeros(len(size)), where=hidden > 0.0)
    return float(share.max())


def some_instances(X: Float64[Arr, "n d"], Z: Float64[Arr, "m d"]) -> Ints:
    """Instances equal to a labelled row, and others spread evenly over the list."""
    # + 0.0 turns -0.0 into 0.0
    labelled = {row.tobytes() for row in np.ascontiguousarray(X) + 0.0}
    rows = enumerate(np.ascontiguousarray(Z) + 0.0)
    alike = [i for i, row in rows if row.tobytes() in labelled]
    others = np.linspace(0, len(Z) - 1, OTHERS).astype(np.int64)
    return np.unique(np.concatenate([np.array(alike[: 4 * OTHERS], np.int64), others]))
