r"""Errors of several models on one labelled table, with bootstrap intervals: the same resampled rows for every model.

Percentile intervals of the root mean squared error of each, and of the relative change between each and the first,
whose pairing is kept by drawing rows and not residuals (Efron and Tibshirani 1993, 13.3). Rows count as independent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr

DRAWS = 2000
# Rows drawn at once: memory stays at some tens of MB for any length of the table.
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A value, and the interval that holds it at the stated confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Compared:
    """A model's error, and its relative change beside the first model (None for the first itself)."""

    rmse: Interval
    change: Interval | None


def paired_bootstrap(
    residuals: Mapping[str, Float64[Arr, " n"]], *, draws: int = DRAWS, confidence: float = 0.95, seed: int = 0
) -> dict[str, Compared]:
    """Every model by name, in their order; the first is the baseline.

    Parameters
    ----------
    residuals
        y − prediction of the same rows, a vector a model.
    draws
        of n rows with replacement.
    confidence
        between 0 and 1.
    seed
        of the draws.

    Raises
    ------
    UsageError
        no model, fewer than two rows, different rows, or an invalid confidence.
    """
    if not residuals or not 0.0 < confidence < 1.0 or draws < 1:
        raise UsageError(
            f"{len(residuals)} models, confidence={confidence}, draws={draws}: needs a model, 0 to 1, a draw."
        )
    lengths = {len(each) for each in residuals.values()}
    if len(lengths) != 1 or min(lengths) < 2:
        raise UsageError(f"residuals of {sorted(lengths)} rows: models are compared on the same rows, at least two.")
    n = lengths.pop()
    squares = np.array([each**2 for each in residuals.values()])
    rng = np.random.default_rng(seed)
    means = []
    left = draws
    while left:
        k = min(left, max(1, _AT_ONCE // n))
        # A mean needs only the number of draws of each row.
        means.append(rng.multinomial(n, np.full(n, 1.0 / n), size=k) @ squares.T / n)
        left -= k
    drawn = np.sqrt(np.concatenate(means))
    rmse = np.sqrt(squares.mean(axis=1))
    tail = 50.0 * (1.0 - confidence)

    def interval(value: float, values: Arr) -> Interval:
        low, high = np.percentile(values, [tail, 100.0 - tail]).tolist()
        return Interval(value, low, high)

    out = {}
    for j, name in enumerate(residuals):
        change = None
        if j and rmse[0] > 0.0 and np.all(drawn[:, 0] > 0.0):
            change = interval(float(rmse[j] / rmse[0] - 1.0), drawn[:, j] / drawn[:, 0] - 1.0)
        out[name] = Compared(interval(float(rmse[j]), drawn[:, j]), change)
    return out
