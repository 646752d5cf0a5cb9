r"""A plan's numbers in the units of this site's own rows: what a bandwidth and a ridge of the plan are *here*.

A number that is harmless at one site interpolates at another whose columns are wider, so that a policy's ranges are
multiples of the site's own scale:

    bandwidth / median distance of two labelled rows (squared for the gaussian), pairs that coincide left out
    ridge / mean k(x, x) over the labelled rows: how many labels the penalty is worth
    ridge / Σ k(x, x): how many times all labels together

Rules ("paper", "median", "loo") are evaluated on the site's own rows, so nobody can aim them; they are not judged.
Under the polynomial kernel they are: its diagonal grows with the features' norm to the power of its degree, and the
rules' ridge does not.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.spatial.distance import pdist

from coreg_core.additive.model.features import Standardiser
from coreg_core.additive.model.terms import NOISE_GRID, PRIOR_GRID, Additive, tries_grid
from coreg_core.errors import UsageError
from coreg_core.kernels.functions import Linear, Polynomial, resolve_ridge
from coreg_core.kernels.leave_one_out import RIDGES
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement
from site_agent.machine.site_data import PrivateData

Trained: TypeAlias = Agreement | Additive

# Rows that the median distance is taken of, evenly over the table: two million pairs, 0.05 s.
MOST_ROWS = 2000


@dataclass(frozen=True)
class Scaled:
    """What a plan asks, in the site's own units; None where a rule of the site's own rows decides, or a kernel has none.

    ``bandwidth`` of the median distance, ``ridge`` the least of it in labels, ``of_all`` the most of it in all labels.
    """

    bandwidth: float | None
    ridge: float | None
    of_all: float | None


def scaled(terms: Trained, data: PrivateData) -> Scaled:
    """The plan's bandwidth and ridge in the units of this site's labelled rows (of its shared rows, where it has no label)."""
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
    if isinstance(terms.ridge, str) and kernel != "polynomial":
        return Scaled(bandwidth, None, None)
    try:
        least, most = _ridges(terms, rows)
        size = float(_diagonal(terms, kernel, rows).sum())
    except UsageError:  # factoring says what is wrong with such rows
        return Scaled(bandwidth, None, None)
    if not (np.isfinite(size) and size > 0.0):
        return Scaled(bandwidth, None, None)
    return Scaled(bandwidth, least * len(rows) / size, most / size)


def kernel_of(terms: Trained) -> str:
    """The kernel that is computed: form="linear" has its own, whatever the plan names."""
    return "linear" if isinstance(terms, Agreement) and terms.form == "linear" else terms.kernel


def _distance(rows: Arr, kernel: str) -> float | None:
    """The median over pairs that differ; None where none does."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean") if kernel == "gaussian" else pdist(some, "cityblock")
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size and np.isfinite(apart).all() else None


def _ridges(terms: Trained, rows: Arr) -> tuple[float, float]:
    """The least and the most that the training may take, of a rule's candidates and of a grid every one."""
    if terms.ridge == "loo":
        least, most = float(RIDGES.min()), float(RIDGES.max())
    else:
        least = most = resolve_ridge(terms.ridge, rows)
    if isinstance(terms, Additive) and tries_grid(terms):  # σ²/τ² times every noise over every prior
        return least * min(NOISE_GRID) / max(PRIOR_GRID), most * max(NOISE_GRID) / min(PRIOR_GRID)
    return least, most


def _diagonal(terms: Trained, kernel: str, rows: Arr) -> Arr:
    if kernel == "linear":
        return Linear().diagonal(rows)
    if kernel != "polynomial":
        return np.ones(len(rows))
    sigma = 1.0 if isinstance(terms.bandwidth, str) else terms.bandwidth
    with np.errstate(over="ignore"):
        return Polynomial(terms.degree, terms.offset, sigma).diagonal(rows)
