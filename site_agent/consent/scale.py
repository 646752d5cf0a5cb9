r"""A plan's numbers in units of this site's own rows.

A number can be harmless at one site and interpolate at another, so the ranges are multiples of this
site's own:

    bandwidth / median distance of two labelled rows     squared for the gaussian; other rows only
    ridge / mean k(x, x) over the labelled rows          how many labels the penalty is worth
    ridge / Σ k(x, x)                                    how many times all labels together

No operator chooses these ranges: a plan that needs other numbers can use a rule.
"""

from collections.abc import Iterator

import numpy as np
from scipy.spatial.distance import pdist

from coreg_core.arrays import Arr, evenly
from coreg_core.kernels import Linear
from coreg_core.objectives.agreement import Agreement
from site_agent.consent.objection import Objection
from site_agent.site_data import PrivateData

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000
BANDWIDTH_MIN = 0.5
BANDWIDTH_MAX = 10.0
RIDGE_MIN = 0.01
RIDGE_MAX = 1.0


def faults_of_scale(terms: Agreement, data: PrivateData) -> Iterator[Objection]:
    """Each broken limit: the reason, which leaves the site and so has no figure of the rows."""
    kernel = "linear" if terms.form == "linear" else terms.kernel
    rows = data.X if len(data.X) else data.Z
    if kernel != "linear" and not isinstance(terms.bandwidth, str):
        unit = _distance(rows) or _distance(np.concatenate([rows, data.Z]))
        if unit is not None:
            yield from _of_bandwidth(terms.bandwidth, terms.bandwidth / unit)
    if not isinstance(terms.ridge, str):
        size = float(Linear().diagonal(rows).sum()) if kernel == "linear" else float(len(rows))
        if np.isfinite(size) and size > 0.0:
            yield from _of_ridge(terms.ridge, terms.ridge * len(rows) / size, terms.ridge / size)


def _of_bandwidth(bandwidth: float, scaled: float) -> Iterator[Objection]:
    stated = f"bandwidth = {bandwidth:g}"
    if scaled < BANDWIDTH_MIN:
        yield _outside(
            f"{stated} is below {BANDWIDTH_MIN:g} times the median distance of",
            "answers would reveal the label of each labelled row that is similar to a shared "
            "instance, and the other sites' parts of the sum could not hide it",
            f"{scaled:.3g} times that distance",
        )
    if scaled > BANDWIDTH_MAX:
        yield _outside(
            f"{stated} is above {BANDWIDTH_MAX:g} times the median distance of",
            "the kernel would be linear in the distance: answers would reveal the distances of "
            "the shared rows",
            f"{scaled:.3g} times that distance",
        )


def _of_ridge(ridge: float, of_mean: float, of_sum: float) -> Iterator[Objection]:
    """``of_mean``, ``of_sum``: the ridge in units of the kernel's over the labelled rows."""
    stated = f"ridge = {ridge:g}"
    if of_mean < RIDGE_MIN:
        yield _outside(
            f"{stated} is below {RIDGE_MIN:g} times the kernel's mean over",
            "the model would pass through the labels, and answers would reveal those of rows "
            "similar to shared instances",
            f"{of_mean:.3g} times that mean",
        )
    if of_sum > RIDGE_MAX:
        yield _outside(
            f"{stated} is above {RIDGE_MAX:g} times the kernel's sum over",
            "the model would learn nothing from labels: answers would reveal the Gram matrix of "
            "the shared rows",
            f"{of_sum:.3g} times that sum",
        )


def _outside(limit: str, reveals: str, here: str) -> Objection:
    reason = f"the plan's {limit} this site's labelled rows: {reveals}"
    return Objection(reason, here=f"here it is {here}")


def sends_counts(data: PrivateData, least_columns: int) -> bool:
    """Whether sums of these columns would be counts: few, or none with more than two values."""
    if data.Z.shape[1] < least_columns:
        return True
    columns = (np.concatenate(pair) for pair in zip(data.X.T, data.Z.T, strict=True))
    return all(len(np.unique(column)) <= 2 for column in columns)


def _distance(rows: Arr) -> float | None:
    """The median squared distance over pairs of different rows; None without such a pair."""
    some = rows[evenly(len(rows), MOST_ROWS)]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean")
    apart = apart[apart > 0.0]
    if apart.size and np.isfinite(apart).all():
        return float(np.median(apart))
    return None
