"""Ranges of a training's columns and predictions, and how far new rows moved from them
(`coreg_core.stability`).
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr, evenly
from coreg_core.stability import Shares, by_chance, shares, stability, tenths_of
from site_agent.models.figures import Values
from site_agent.models.file import ModelFile, blocks

MOST_ROWS = 10_000  # of a training that are counted, evenly spaced


def training_shares(model: ModelFile, X: Float64[Arr, "n d"]) -> list[Shares]:
    """How many of the training's rows are in each range of each column, and of the predictions."""
    X = X[evenly(len(X), MOST_ROWS)]
    out = []
    for values, levels in _values(model, X, model.predict_features(X)):
        ends = tenths_of(values)
        if levels:
            ends = np.arange(0.5, levels)
        out.append(shares(values, ends))
    return out


def moved(
    model: ModelFile, X: Float64[Arr, "m d"], predictions: Float64[Arr, "m *t"]
) -> Values | None:
    """The stability index of each column and of the predictions, and what chance alone gives the
    predictions; None of a file that keeps no ranges.
    """
    if model.shares is None:
        return None
    indices = []
    for training, (values, _) in zip(model.shares, _values(model, X, predictions), strict=True):
        indices.append(stability(training, values))
    *columns, last = indices
    return {
        "columns": dict(zip(model.preprocessing.sources, columns, strict=True)),
        "predictions": last,
        "by_chance": by_chance(model.shares[-1], len(X)),
    }


def _values(model: ModelFile, X: Arr, predictions: Arr) -> Iterator[tuple[Arr, int]]:
    """Of each column the place of the level from 1 (0: none of them) and how many there are, or the
    encoded number (a missing cell is the mean) and 0; then the predictions.
    """
    for column, block in zip(model.preprocessing.columns, blocks(model.preprocessing), strict=True):
        n = len(column.levels)
        own = X[:, block]
        values = own[:, 0]
        if n:
            values = own[:, :n] @ np.arange(1.0, n + 1.0)
        yield values, n
    if predictions.ndim > 1:  # of several classes: the probability of the most probable one
        predictions = predictions.max(axis=1)
    yield predictions, 0
