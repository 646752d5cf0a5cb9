r"""How much of a sum at one instance is one label: measured on this site's rows before its plan is accepted.

    share(z, i) = H_zi² / (Σ_j H_zj² + (M − 1) h)        H = ∂ respond(t, μ) / ∂y,  h the median of Σ_j H_zj² over the instances

is the r² with which the sum of M sites' answers at z tells label i, where labels differ by as much at every site and
the others' labels say as much at z as this one's do at an instance in the middle. It is near 1 where an instance has a
labelled row's features and the plan is sharp: a narrow kernel, a small ridge, or a strong coupling, at which the answer
to the target 0 is held to 0 everywhere but where a label stands. Then masks hide nothing: nobody else says anything
there.
"""

from collections.abc import Iterable

import numpy as np

from coreg_core.agreement.views import View
from coreg_core.numerics.arrays import Arr, Ints
from site_agent.machine.site_data import PrivateData

# Entries of H that are looked at; beyond, the instances that coincide with a labelled row, and so many others.
MOST_ENTRIES = 4_000_000
OTHERS = 500


def share_of_one_label(view: View, data: PrivateData, weights: Iterable[float], n_sites: int) -> float:
    """The largest share over instances, labels and weights."""
    m = len(data.Z)
    if m == 0 or len(data.y) == 0:
        return 0.0
    rows = None if m * len(data.y) <= MOST_ENTRIES else _some(data)
    return max(_largest(view.label_map(weight, rows), n_sites) for weight in set(weights))


def _largest(H: Arr, n_sites: int) -> float:
    squares = np.multiply(H, H, out=H)  # of the size of what is factored; nobody else has it
    sizes = squares.sum(axis=1)
    hidden = sizes + (n_sites - 1) * float(np.median(sizes))
    share: Arr = np.divide(squares.max(axis=1), hidden, out=np.zeros(len(H)), where=hidden > 0.0)
    return float(share.max())


def _some(data: PrivateData) -> Ints:
    """Instances like a labelled row, and others evenly over the list."""
    labelled = {row.tobytes() for row in np.ascontiguousarray(data.X) + 0.0}  # one zero, not two
    alike = [i for i, row in enumerate(np.ascontiguousarray(data.Z) + 0.0) if row.tobytes() in labelled]
    others = np.linspace(0, len(data.Z) - 1, OTHERS).astype(np.int64)
    return np.unique(np.concatenate([np.array(alike[: 4 * OTHERS], np.int64), others]))
