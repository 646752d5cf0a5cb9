"""A table of nine attributes for the tests of the benefit study."""

import numpy as np

from coreg_sim.benefit.partition import AttributeTable


def table(rows=900, attributes=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, attributes))
    y = np.sin(X[:, 0]) + X[:, 3] + 0.5 * X[:, 5] ** 2 + 0.1 * rng.normal(size=rows)
    return AttributeTable(tuple(X[:, [j]] for j in range(attributes)), y)
