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
from typing import TypeAlias

import numpy as np
from scipy.spatial.distance import pdist

from coreg_core.additive.model.features import Standardiser
from coreg_core.additive.model.terms import NOISE_GRID, PRIOR_GRID, Additive, tries_grid
from coreg_core.errors import UsageError
from coreg_core.kernels.functions import Linear, resolve_ridge
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement
from site_agent.machine.site_data import PrivateData

Trained: TypeAlias = Agreement | Additive

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000


@dataclass(frozen=True)
class Scaled:
    """A plan's numbers in the site's units; None if a rule decides or the kernel has no such number.

    ``bandwidth`` is in median distances, ``ridge`` the smallest ridge in labels, ``of_all`` the largest in all labels together.
    """

    bandwidth: float | None
    ridge: float | None
    of_all: float | None


def scaled(terms: Trained, data: PrivateData) -> Scaled:
    """The plan's bandwidth and ridge in units of this site's labelled rows (without labels: of its shared rows)."""
    kernel, rows = kernel_of(terms), data.X if len(data.X) else data.Z
    if isinstance(terms, Additive):
        standard = Standardiser.of(data.X, data.Z)
        rows, others = standard(rows), standard(data.Z)
    else:
        others = data.Z
    bandwidth = None
    if kernel in ("gaussian", "laplacian") and not isinstance(terms.bandwidth, str):
        unit = _distance(rows, kernel) or _distance(np.concatenate([rows, others]), kernel)
        bandwidth = None if unit is None else terms.bandwidth / unit
    if isinstance(terms.ridge, str):
        return Scaled(bandwidth, None, None)
    try:
        least, most = _ridges(terms, rows)
        size = float(Linear().diagonal(rows).sum()) if kernel == "linear" else float(len(rows))
    except UsageError:  # factoring reports the fault of such rows
        return Scaled(bandwidth, None, None)
    if not (np.isfinite(size) and size > 0.0):
        return Scaled(bandwidth, None, None)
    return Scaled(bandwidth, least * len(rows) / size, most / size)


def kernel_of(terms: Trained) -> str:
    """The kernel in use: form="linear" always has the linear one."""
    return "linear" if isinstance(terms, Agreement) and terms.form == "linear" else terms.kernel


def _distance(rows: Arr, kernel: str) -> float | None:
    """The median over pairs of different rows; None without such a pair."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean") if kernel == "gaussian" else pdist(some, "cityblock")
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size and np.isfinite(apart).all() else None


def _ridges(terms: Trained, rows: Arr) -> tuple[float, float]:
    """The smallest and the largest ridge that the training can choose, from every grid point."""
    least = most = resolve_ridge(terms.ridge, rows)
    if isinstance(terms, Additive) and tries_grid(terms):  # σ²/τ² times every noise over every prior
        return least * min(NOISE_GRID) / max(PRIOR_GRID), most * max(NOISE_GRID) / min(PRIOR_GRID)
    return least, most
