"""Shared by experiments: scaling, the split of the attributes into two views, and the rules for σ
and ν on small folds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.papers.pool import NumericDataSet
from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.selection import resolve_bandwidth, resolve_ridge


def scaled(values: Arr, by: Arr, low: float = -1.0, high: float = 1.0) -> Arr:
    """Values scaled linearly so that ``by`` fills [low, high]; a constant becomes the middle."""
    smallest = by.min(axis=0)
    extent = np.ptp(by, axis=0)
    ends = low + (high - low) * (values - smallest) / np.where(extent > 0, extent, 1)
    out: Arr = np.where(extent > 0, ends, 0.5 * (low + high))
    return out


def standardised(X: Arr, rows: Any) -> Arr:
    """Every column minus its mean over the rows, divided by its deviation there; a constant is only
    centred.
    """
    mean = X[rows].mean(axis=0)
    deviation = X[rows].std(axis=0)
    deviation[deviation <= 1e-12 * (1.0 + np.abs(mean))] = 1.0
    out: Arr = (X - mean) / deviation
    return out


def rough(y: Arr) -> float:
    """An error of predictions that no figure of a table shows."""
    return 1e-4 * float(np.abs(y).max())


def mean_of(runs: Sequence[Mapping[str, float]], method: str) -> float:
    return float(np.mean([run[method] for run in runs]))


def with_deviation(values: Sequence[float] | Arr) -> str:
    """The mean and the standard deviation (n − 1) of the values, as one cell of a table."""
    deviation = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{deviation}"


def random_views(data: NumericDataSet, rng: np.random.Generator) -> list[Any]:
    """The columns of two views: a random half of the attributes each (to one), an attribute's
    columns together.
    """
    order = rng.permutation(len(data.attributes))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return [np.array([c for a in sorted(half) for c in data.attributes[a]]) for half in halves]


def without_identifiers(data: NumericDataSet) -> NumericDataSet:
    """The same set without nominal attributes that have another level on each row: a name, a
    key.
    """
    kept = [attribute for attribute in data.attributes if len(attribute) < len(data.y)]
    columns = [j for attribute in kept for j in attribute]
    starts = np.cumsum([0, *map(len, kept)])
    attributes = tuple(tuple(range(a, b)) for a, b in pairwise(starts))
    X = np.ascontiguousarray(data.X[:, columns])
    return replace(
        data, X=X, columns=tuple(data.columns[j] for j in columns), attributes=attributes
    )


def level_numbers(data: NumericDataSet) -> NumericDataSet:
    """The same set with every nominal attribute as one column: the number of its level, in
    alphabetical order.
    """
    columns = []
    names = []
    for attribute in data.attributes:
        block = data.X[:, list(attribute)]
        first = data.columns[attribute[0]]
        nominal = len(attribute) > 1
        columns.append(block @ np.arange(len(attribute)) if nominal else block[:, 0])
        names.append(first.split("=")[0] if nominal else first)
    each = tuple((j,) for j in range(len(columns)))
    return replace(
        data,
        X=np.ascontiguousarray(np.column_stack(columns)),
        columns=tuple(names),
        attributes=each,
    )


def paper_rules(X: Arr, Z: Arr) -> tuple[float, float]:
    """σ and ν by the paper's rules on the labelled rows X, or on all rows if they have no value
    (one row, identical rows).

    The fallback is ours: inputs of unlabelled rows are known, and a view that is constant on all
    rows gets 1.
    """

    def value(rule: Any, *more: str) -> float:
        for rows in (X, np.vstack([X, Z])):
            try:
                return float(rule("paper", rows, *more))
            except UsageError:
                continue
        return 1.0

    return value(resolve_bandwidth, "gaussian"), value(resolve_ridge)
