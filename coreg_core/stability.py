r"""How far values moved from those of the training: the population stability index.

    PSI = Σ_k (q_k − p_k) log(q_k/p_k)

p_k is the share of the training's rows in range k and q_k that of the new rows. The index is the
sum of both Kullback-Leibler divergences. Without a change its mean is (K − 1)(1/n + 1/m), with
K ranges, n and m rows. Credit scoring calls less than 0.1 stable and more than 0.25 a change.
Sources: Siddiqi (2006), Credit Risk Scorecards; Yurdakul and Naranjo (2020) for the mean.

A training keeps the ranges and how many of its rows are in each: no row, and no cell. The ranges
are tenths of the training's values, whose ends are moved up to the next tenth of a deviation, and
each holds `LEAST_ROWS` rows or more.
"""

from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr

# The ends of ranges, and the training's rows in each: range k is above end k − 1, at most end k.
Shares: TypeAlias = tuple[list[float], list[int]]
LEAST_ROWS = 5  # of the training in a range
_STEP = 0.1  # of the ends of ranges, in deviations
_EMPTY = 0.5  # rows that a range without new rows counts as; else the index would be infinite


def tenths_of(values: Float64[Arr, " n"]) -> Float64[Arr, " e"]:
    """The ends of tenths of the values, each moved up to the next of mean + 0.1 k deviations."""
    centre = values.mean()
    step = _STEP * values.std()
    if not step:
        return np.zeros(0)
    ends = np.quantile(values, np.arange(1, 10) / 10)
    return np.unique(centre + step * np.ceil((ends - centre) / step))


def shares(values: Float64[Arr, " n"], ends: Float64[Arr, " e"]) -> Shares:
    """The rows in the ranges between these ends; an end that would leave fewer than `LEAST_ROWS` on
    one side is left out.
    """
    edges = list[float]()
    counts = list[int]()
    for end in ends.tolist():
        below = int((values <= end).sum())
        inside = below - sum(counts)
        if min(inside, len(values) - below) >= LEAST_ROWS:
            edges.append(end)
            counts.append(inside)
    return edges, [*counts, len(values) - sum(counts)]


def stability(training: Shares, values: Float64[Arr, " m"]) -> float:
    """The population stability index of new values, at least one."""
    edges, counts = training
    new = np.bincount(np.searchsorted(edges, values), minlength=len(counts))
    q = np.maximum(new, _EMPTY)
    q /= q.sum()
    p = np.array(counts) / sum(counts)
    return float((q - p) @ np.log(q / p))


def by_chance(training: Shares, rows: int) -> float:
    """The mean index of so many new rows, if nothing changed: (K − 1)(1/n + 1/m)."""
    _, counts = training
    return (len(counts) - 1) * (1.0 / sum(counts) + 1.0 / rows)
