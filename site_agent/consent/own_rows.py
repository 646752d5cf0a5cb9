r"""A plan's numbers in units of this site's own rows: whether its bandwidth, its ridge or its noise would disclose them.

The same number can be harmless at one site and interpolate at another with wider columns. Therefore every agent has
ranges in multiples of the site's own scale:

    bandwidth / median distance of two labelled rows (squared for the gaussian), pairs that coincide left out
    ridge / mean k(x, x) over the labelled rows: how many labels the penalty is worth
    ridge / Σ k(x, x): how many times all labels together

Rules ("paper", "median", "loo") are evaluated on the site's own rows. They cannot be chosen against the site and are not
checked.
"""

import numpy as np
from scipy.spatial.distance import pdist

from coreg_core.kernels.functions import Linear
from coreg_core.numerics.arrays import Arr
from coreg_core.objectives.agreement import Agreement
from site_agent.site_data import PrivateData

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000
# No operator chooses these ranges: a plan that needs other numbers can use a rule.
BANDWIDTH_MIN, BANDWIDTH_MAX = 0.5, 10.0
RIDGE_MIN, RIDGE_MAX = 0.01, 1.0


def faults_of_scale(terms: Agreement, data: PrivateData) -> list[tuple[str, str]]:
    """Each broken limit: the reason, which leaves the site and so holds no figure of the rows, and this site's figure."""
    kernel, rows = "linear" if terms.form == "linear" else terms.kernel, data.X if len(data.X) else data.Z
    found = list[tuple[str, str]]()
    if kernel in ("gaussian", "laplacian") and not isinstance(terms.bandwidth, str):
        unit = _distance(rows, kernel) or _distance(np.concatenate([rows, data.Z]), kernel)
        scaled = 1.0 if unit is None else terms.bandwidth / unit
        named, here = f"the plan's bandwidth = {terms.bandwidth:g}", f"here it is {scaled:.3g} times that distance"
        distance = "times the median distance of this site's labelled rows"
        if scaled < BANDWIDTH_MIN:
            what = "answers would reveal the label of each labelled row that is similar to a shared instance"
            masks = ", and the other sites' parts of the sum could not hide it"
            found.append((f"{named} is below {BANDWIDTH_MIN:g} {distance}: {what}{masks}", here))
        if scaled > BANDWIDTH_MAX:
            what = (
                "the kernel would be linear in the distance, and answers would reveal the distances of the shared rows"
            )
            found.append((f"{named} is above {BANDWIDTH_MAX:g} {distance}: {what}", here))
    if not isinstance(terms.ridge, str):
        size = float(Linear().diagonal(rows).sum()) if kernel == "linear" else float(len(rows))
        if not (np.isfinite(size) and size > 0.0):
            return found
        each, of_all, named = terms.ridge * len(rows) / size, terms.ridge / size, f"the plan's ridge = {terms.ridge:g}"
        if each < RIDGE_MIN:
            what = "the model would pass through the labels, and answers would reveal those of rows similar to shared instances"
            limit = f"below {RIDGE_MIN:g} times the kernel's mean over this site's labelled rows"
            found.append((f"{named} is {limit}: {what}", f"here it is {each:.3g} times that mean"))
        if of_all > RIDGE_MAX:
            what = (
                "the model would learn nothing from labels, and answers would reveal the Gram matrix of the shared rows"
            )
            limit = f"above {RIDGE_MAX:g} times the kernel's sum over this site's labelled rows"
            found.append((f"{named} is {limit}: {what}", f"here it is {of_all:.3g} times that sum"))
    return found


def sends_counts(data: PrivateData, least_columns: int) -> bool:
    """Whether sums of these columns would be counts: few columns, or none with more than two values."""
    pairs = zip(data.X.T, data.Z.T, strict=True)
    return data.Z.shape[1] < least_columns or all(len(np.unique(np.concatenate(pair))) <= 2 for pair in pairs)


def _distance(rows: Arr, kernel: str) -> float | None:
    """The median over pairs of different rows; None without such a pair."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean") if kernel == "gaussian" else pdist(some, "cityblock")
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size and np.isfinite(apart).all() else None
