"""What the experiments with two random views share: the split of the attributes, and the rules for σ and ν on small folds."""

from dataclasses import replace
from typing import Any

import numpy as np

from coreg_core.errors import UsageError
from coreg_core.kernels.functions import resolve_bandwidth, resolve_ridge
from coreg_core.numerics.arrays import Arr
from coreg_sim.papers.pool import DataSet


def random_views(data: DataSet, rng: np.random.Generator) -> list[Any]:
    """The columns of two views: a random half of the attributes each (to one), an attribute's columns together."""
    order = rng.permutation(len(data.attributes))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return [np.array([c for a in sorted(half) for c in data.attributes[a]]) for half in halves]


def level_numbers(data: DataSet) -> DataSet:
    """The same set with every nominal attribute as one column: the number of its level, in alphabetical order."""
    columns, names = [], []
    for attribute in data.attributes:
        block, first = data.X[:, list(attribute)], data.columns[attribute[0]]
        nominal = len(attribute) > 1
        columns.append(block @ np.arange(len(attribute)) if nominal else block[:, 0])
        names.append(first.split("=")[0] if nominal else first)
    each = tuple((j,) for j in range(len(columns)))
    return replace(data, X=np.ascontiguousarray(np.column_stack(columns)), columns=tuple(names), attributes=each)


def paper_rules(X: Arr, Z: Arr) -> tuple[float, float]:
    """σ and ν by the paper's rules on the labelled rows X; where those have no value (one row, identical rows), on all rows.

    The fallback is ours: inputs of unlabelled rows are known, and a view that is constant on every row gets 1.
    """

    def value(rule: Any, *more: str) -> float:
        for rows in (X, np.vstack([X, Z])):
            try:
                return float(rule("paper", rows, *more))
            except UsageError:
                continue
        return 1.0

    return value(resolve_bandwidth, "gaussian"), value(resolve_ridge)
