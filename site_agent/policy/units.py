r"""A plan's bandwidth and ridge in units of this site's own rows.

The same number can be harmless at one site and interpolate at another with wider columns. Therefore the ranges of a policy
are multiples of the site's own scale:

    bandwidth / median distance of two labelled rows (squared for the gaussian), pairs that coincide left out
    ridge / mean k(x, x) over the labelled rows: how many labels the penalty is worth
    ridge / Σ k(x, x): how many times all labels together

Rules ("paper", "median", "loo") are evaluated on the site's own rows. They cannot be chosen against the site and are not
checked.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from coreg_core.kernels.functions import Linear
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement
from site_agent.machine.site_data import PrivateData

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000


@dataclass(frozen=True)
class Scaled:
    """A plan's numbers in the site's units; None if a rule decides or the kernel has no such number.

    ``bandwidth`` is in median distances, ``ridge`` in labels, ``of_all`` is the ridge in all labels together.
    """

    bandwidth: float | None
    ridge: float | None
    of_all: float | None


def scaled(terms: Agreement, data: PrivateData) -> Scaled:
    """The plan's bandwidth and ridge in units of this site's labelled rows (without labels: of its shared rows)."""
    kernel, rows = kernel_of(terms), data.X if len(data.X) else data.Z
    bandwidth = None
    if kernel in ("gaussian", "laplacian") and not isinstance(terms.bandwidth, str):
        unit = _distance(rows, kernel) or _distance(np.concatenate([rows, data.Z]), kernel)
        bandwidth = None if unit is None else terms.bandwidth / unit
    if isinstance(terms.ridge, str):
        return Scaled(bandwidth, None, None)
    size = float(Linear().diagonal(rows).sum()) if kernel == "linear" else float(len(rows))
    if not (np.isfinite(size) and size > 0.0):
        return Scaled(bandwidth, None, None)
    return Scaled(bandwidth, terms.ridge * len(rows) / size, terms.ridge / size)


def kernel_of(terms: Agreement) -> str:
    """The kernel in use: form="linear" always has the linear one."""
    return "linear" if terms.form == "linear" else terms.kernel


def _distance(rows: Arr, kernel: str) -> float | None:
    """The median over pairs of different rows; None without such a pair."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean") if kernel == "gaussian" else pdist(some, "cityblock")
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size and np.isfinite(apart).all() else None
