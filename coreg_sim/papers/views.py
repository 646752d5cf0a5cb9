"""What the experiments with two random views share: the split of the attributes, and the rules for σ and ν on small folds."""

from typing import Any

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.kernels import resolve_bandwidth, resolve_ridge
from coreg_sim.papers.pool import DataSet


def random_views(data: DataSet, rng: np.random.Generator) -> list[Any]:
    """The columns of two views: a random half of the attributes each (to one), an attribute's columns together."""
    order = rng.permutation(len(data.attributes))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    return [np.array([c for a in sorted(half) for c in data.attributes[a]]) for half in halves]


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
