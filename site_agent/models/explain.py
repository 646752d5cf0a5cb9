"""What a model makes of each own column.

A linear model is a sum over columns: f(x) = f(mean) + Σ_j (f(x) − f(x with column j at its mean)),
so each term is the exact Shapley value of its column. Of any other model, a column's importance is
what the error grows by when the column is permuted.
"""

from collections.abc import Mapping
from operator import itemgetter

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.site_model import SiteModel
from coreg_core.arrays import Arr, evenly
from coreg_core.errors import UsageError
from coreg_core.evaluation import brier_residuals
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import Table
from site_agent.models.figures import Values
from site_agent.models.file import Function, ModelFile, blocks

PERMUTATIONS = 5  # of each column
MOST_ROWS = 1000  # that are permuted


def contributions(model: ModelFile, table: Table) -> dict[str, Arr]:
    """Of each own column to each prediction, in the target's units: its deviation from the
    prediction at the column's mean.
    """
    if not is_linear(model):
        raise UsageError(
            'contributions of single records are for a linear model of numbers (kernel = "linear").'
            " `coreg-agent report` shows the importance of this model's columns."
        )
    X = model.features(table)
    values = _shapley(model.function, model.preprocessing, X) * model.divisor
    return dict(zip(model.preprocessing.sources, values.T, strict=True))


def own_columns(model: ModelFile, X: Float64[Arr, "n p"], y: Float64[Arr, " n"]) -> Values:
    """The importance of each own column on these labelled rows, in the target's units; empty below
    two rows.
    """
    if len(y) < 2:
        return {}
    some = evenly(len(y), MOST_ROWS)
    X = X[some]
    y = y[some]
    names = model.preprocessing.sources
    if is_linear(model):
        values = _shapley(model.function, model.preprocessing, X)
        sizes = np.abs(values).mean(0) * model.divisor
        return {"columns": dict(zip(names, sizes.tolist(), strict=True)), "columns_by": "shapley"}
    rng = np.random.default_rng(0)
    before = _error(model, X, y)
    growth = []
    for block in blocks(model.preprocessing):
        permuted = X.copy()
        errors = []
        for _ in range(PERMUTATIONS):
            permuted[:, block] = rng.permutation(X[:, block])
            errors.append(_error(model, permuted, y))
        growth.append(float(np.mean(errors)) - before)
    return {"columns": dict(zip(names, growth, strict=True)), "columns_by": "permutation"}


def _error(model: ModelFile, X: Arr, y: Arr) -> float:
    if model.classes:
        residuals = brier_residuals(model.predict_features(X), y)
    else:
        residuals = model.function.predict(X) * model.divisor + model.shift - y
    return float(np.sqrt(np.mean(residuals**2)))


def is_linear(model: ModelFile) -> bool:
    """Whether predictions are sums over columns, their clipping included."""
    function = model.function
    if model.probability is not None or not isinstance(function, SiteModel):
        return False
    if function.slopes() is None:
        return False
    local = function.local
    return local is None or (local.forest is None and not local.basis.width)


def _shapley(function: Function, preprocessing: Preprocessing, X: Arr) -> Float64[Arr, "n c"]:
    assert isinstance(function, SiteModel)
    whole = function.predict(X)
    out = []
    for block in blocks(preprocessing):
        without = X.copy()
        without[:, block] = function.features.basis.mean[block]
        out.append(whole - function.predict(without))
    return np.column_stack(out)


def lines(columns: Mapping[str, float], by: str | None, target: str) -> list[str]:
    """The importance of own columns as text, the largest first; none without any."""
    if not columns:
        return []
    heading = (
        f"importance of own columns: growth of the error of {target} if one is permuted (0 or less:"
        " no help)"
    )
    if by == "shapley":
        heading = (
            f"mean size of each own column's contribution to {target} in the joined model (exact:"
            " it is linear)"
        )
    wide = max(map(len, columns))
    ordered = sorted(columns.items(), key=itemgetter(1), reverse=True)
    rows = [f"{name:<{wide}} {value:>9.4g}" for name, value in ordered]
    return [heading, *rows]
