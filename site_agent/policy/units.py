r"""A plan's bandwidth and ridge in units of this site's own rows.

The same number can be harmless at one site and interpolate at another with wider columns. Therefore every agent has
ranges in multiples of the site's own scale:

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
from coreg_wire.files.toml_file import toml
from site_agent.machine.site_data import PrivateData

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000
# No operator chooses these ranges: a plan that needs other numbers can use a rule.
BANDWIDTH_MIN, BANDWIDTH_MAX = 0.5, 10.0
RIDGE_MIN, RIDGE_MAX = 0.01, 1.0


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
    kernel, rows = _kernel_of(terms), data.X if len(data.X) else data.Z
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


def faults_of_scale(terms: Agreement, data: PrivateData) -> list[tuple[bool, str]]:
    """Whether each limit is broken, with the reason. The reasons leave the site, so they hold no figure of the rows."""
    here = scaled(terms, data)
    bandwidth, ridge = f"bandwidth = {toml(terms.bandwidth)}", f"ridge = {toml(terms.ridge)}"
    distance = "times the median distance of this site's labelled rows"
    return [
        (
            here.bandwidth is not None and here.bandwidth < BANDWIDTH_MIN,
            f"{bandwidth} is below {BANDWIDTH_MIN:g} {distance}: answers would reveal the label of each labelled row that is "
            "similar to a shared instance, and the other sites' parts of the sum could not hide it",
        ),
        (
            here.bandwidth is not None and here.bandwidth > BANDWIDTH_MAX,
            f"{bandwidth} is above {BANDWIDTH_MAX:g} {distance}: the kernel would be linear in the distance, and answers would "
            "reveal the distances of the shared rows",
        ),
        (
            here.ridge is not None and here.ridge < RIDGE_MIN,
            f"{ridge} is below {RIDGE_MIN:g} times the kernel's mean over this site's labelled rows: the model would pass "
            "through the labels, and answers would reveal those of rows similar to shared instances",
        ),
        (
            here.of_all is not None and here.of_all > RIDGE_MAX,
            f"{ridge} is above {RIDGE_MAX:g} times the kernel's sum over this site's labelled rows: the model would learn "
            "nothing from labels, and answers would reveal the Gram matrix of the shared rows",
        ),
    ]


def _kernel_of(terms: Agreement) -> str:
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
