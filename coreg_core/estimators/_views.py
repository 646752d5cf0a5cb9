"""Views of one table: the columns of each view, the shared rows, and the visible labels.

scikit-learn's tools (Pipeline, GridSearchCV) pass one table, so the methods over views take one as well: ``views=[columns, …]``,
rows whose target is missing (NaN) are the shared instances, and a mask (rows × views) defines which view sees which label.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True, eq=False)
class Dealt:
    """One table, split: a table of labelled rows, a target vector and a table of shared rows for each view."""

    X: list[Arr]
    y: list[Arr]
    Z: list[Arr]
    rows: list[Ints]  # the table's row of each view's labels
    shared: Ints


def columns_of(views: Any, n_features: int, names: Any = None) -> list[Ints]:
    """The column positions of every view, from slices, positions, booleans or names; None is one view of all columns.

    Raises
    ------
    UsageError
        a view without a column, or with one that the table does not have.
    """
    if views is None:
        return [np.arange(n_features)]
    if isinstance(views, (str, bytes)) or not isinstance(views, Sequence) or not len(views):
        raise UsageError(
            f"views={views!r}: give a list with the columns of each view, as slices, positions, booleans or names."
        )
    out = []
    everything = np.arange(n_features)
    for v, view in enumerate(views):
        try:
            chosen = view if isinstance(view, slice) else _positions(view, names)
            columns = np.asarray(everything[chosen]).ravel()
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise UsageError(f"views[{v}]={view!r}: not columns of a table of {n_features} ({error}).") from None
        if not len(columns):
            raise UsageError(f"views[{v}]={view!r}: no column of the {n_features} in the table.")
        out.append(columns)
    return out


def _positions(view: Any, names: Any) -> Any:
    wanted = [view] if isinstance(view, (str, int, np.integer)) else list(view)
    if any(isinstance(name, str) for name in wanted):
        if names is None:
            raise KeyError("the table has no column names")
        order = {name: j for j, name in enumerate(names)}
        return [order[name] for name in wanted]
    return np.array(wanted) if wanted else np.zeros(0, np.int64)


def checked_targets(y: Any, n_rows: int, estimator: Any) -> Arr:
    """y (N,) as floats, NaN where it is missing.

    Raises
    ------
    BadData
        no y, another length, infinite, not numeric, or missing everywhere.
    """
    name = type(estimator).__name__
    if y is None:
        raise BadData(f"This {name} estimator requires y to be passed, but the target y is None.")
    try:
        targets = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
        check_consistent_length(targets, np.zeros(n_rows))
    except (TypeError, ValueError) as error:
        raise BadData(f"y: {error}") from None
    if np.isinf(targets).any():
        raise BadData("Input y contains infinity or a value too large; leave a target that is not known missing (NaN).")
    if np.isnan(targets).all():
        raise BadData(
            "Input y contains NaN alone: every target is missing, and some rows need one. In GridSearchCV and "
            "cross_val_score, set cv to LabelledFolds."
        )
    return targets


def of_views(X: Any, views: Any) -> Any:
    """A data frame with the columns that some view names, in the frame's order: an id may be text. Other tables do not change."""
    columns = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
    if not columns or not isinstance(views, Sequence) or isinstance(views, str):
        return X
    lists = [[view] if isinstance(view, str) else view for view in views]
    if not all(isinstance(view, Sequence) and all(isinstance(name, str) for name in view) for view in lists):
        return X
    used = {name for view in lists for name in view}
    return X[[name for name in columns if name in used]] if used <= set(columns) else X


def _refuse_texts_and_gaps(X: Any) -> None:
    """Name the columns of a data frame that are no numbers; raises `BadData`. An array has no names to say."""
    texts, gaps = list[str](), list[str]()
    for name in getattr(X, "columns", ()):
        try:
            values = np.asarray(X[name], dtype=np.float64)
        except (TypeError, ValueError):
            texts.append(repr(name))
            continue
        if np.isnan(values).any():
            gaps.append(repr(name))
    if texts:
        raise BadData(
            f"not numeric: {', '.join(texts)}. Encode texts as 0/1 columns and dates as numbers, or drop the columns."
        )
    if gaps:
        raise BadData(f"empty cells: {', '.join(gaps)}. Fill them first, for example with the column's mean.")


def deal(
    estimator: Any, X: Any, y: Any, views: Any, label_mask: Any = None, *, all_shared: bool | None = False
) -> Dealt:
    """One table cut into views.

    Parameters
    ----------
    estimator
        whose ``n_features_in_`` and ``feature_names_in_`` are set.
    X
        the table (N, p).
    y
        targets (N,), NaN where missing.
    views
        columns of each view.
    label_mask
        (N, M) booleans: whether view v sees the label of row i. None: every view sees every label.
    all_shared
        labelled rows are shared instances as well; None: where no target is missing.

    Raises
    ------
    BadData
        a table, targets or a mask of inconsistent shapes.
    """
    X = of_views(X, views)
    _refuse_texts_and_gaps(X)
    table = validate_data(estimator, X, dtype=np.float64, order="C", ensure_min_samples=1)
    targets = checked_targets(y, len(table), estimator)
    columns = columns_of(views, table.shape[1], getattr(estimator, "feature_names_in_", None))
    mask = np.ones((len(table), len(columns)), dtype=bool)
    if label_mask is not None:
        mask = np.asarray(label_mask)
        if mask.shape != (len(table), len(columns)) or not np.isin(mask, (0, 1)).all():
            one = " views=None is one view of all columns." if views is None else ""
            raise BadData(
                f"label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {(len(table), len(columns))}, rows by "
                f"views.{one}"
            )
        mask = mask.astype(bool)
    known = ~np.isnan(targets)
    if all_shared is None:
        all_shared = bool(known.all())
    shared = np.arange(len(table)) if all_shared else np.flatnonzero(~known)
    rows = [np.flatnonzero(known & mask[:, v]) for v in range(len(columns))]
    if not any(len(r) for r in rows):
        raise BadData("label_mask: no view may see a label.")
    if hidden := int((known & ~mask.any(axis=1)).sum()):
        warnings.warn(f"label_mask: {hidden} rows have a label that no view may see.", UserWarning, stacklevel=3)
    return Dealt(
        [np.ascontiguousarray(table[r][:, c]) for r, c in zip(rows, columns, strict=True)],
        [targets[r] for r in rows],
        [np.ascontiguousarray(table[shared][:, c]) for c in columns],
        rows,
        shared,
    )


class ViewTables:
    """One table or a list of views for predictions."""

    views: Any

    def _tables(self, X: Any) -> list[Any]:
        """X as one table a view, as the model was fitted."""
        if not getattr(self, "one_table_", False):
            return list(X)
        table = validate_data(self, of_views(X, self.views), dtype=np.float64, order="C", reset=False)
        columns = columns_of(self.views, table.shape[1], getattr(self, "feature_names_in_", None))
        return [np.ascontiguousarray(table[:, c]) for c in columns]


class ViewsRegressor(ViewTables, RegressorMixin):  # type: ignore[misc]  # scikit-learn ships no types
    """`score` over rows with a target."""

    predict: Any

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` over the rows whose target is not missing; NaN where none is known.

        `predict` of the additive estimator is the joint score, which ``aim`` does not change. For GridSearchCV with missing
        targets see examples/grid_search_unlabelled_rows.py.
        """
        targets = np.asarray(y, dtype=np.float64)
        known = ~np.isnan(targets)
        if not known.any():
            return float("nan")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(r2_score(targets[known], self.predict(X)[known], sample_weight=weight))
