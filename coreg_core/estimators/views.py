"""The columns of each view in one table, and which labels a view sees."""

import warnings
from typing import Any, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators.tables import numbers, own_table, read_table


def columns_of(views: Any, n_features: int, names: Any = None) -> list[Ints]:
    """The positions of each view's columns, None: one view of all; UsageError for a view that the
    table cannot give.
    """
    if views is not None and not len(views):
        raise UsageError(
            "views=[]: give the columns of each view, as slices, positions, booleans or names."
        )
    if views is None:
        views = [np.arange(n_features)]
    out = []
    for v, view in enumerate(views):
        try:
            columns = _columns_of_view(view, n_features, names)
            if len(columns) == 0:
                raise IndexError("no column")
            if len(np.unique(columns)) < len(columns):
                raise IndexError("a column twice")
        except (IndexError, ValueError, TypeError) as error:
            shown = ""
            if names is not None:
                shown = f" The columns are {', '.join(map(repr, map(str, names)))}."
            why = str(error).replace(" is not in list", " is no column")
            raise UsageError(
                f"views[{v}]={view!r}: not columns of a table of {n_features} ({why}).{shown}"
            ) from None
        out.append(columns)
    return out


def _entries(view: Any) -> list[Any]:
    """The positions, booleans or names of a view; a single one, or a slice, as a list of one."""
    if np.ndim(view) == 0:
        return [view]
    return list(view)


def _columns_of_view(view: Any, n_features: int, names: Any) -> Ints:
    """The positions of a view's columns; IndexError, ValueError, TypeError: the table has none."""
    everything = np.arange(n_features)
    if isinstance(view, slice):
        if max(abs(view.start or 0), abs(view.stop or 0)) > n_features:
            raise IndexError("the slice ends beyond the last column")
        return everything[view]
    entries = _entries(view)
    if names is None and any(isinstance(entry, str) for entry in entries):
        raise ValueError("it has no column names. Use positions, or a data frame, as by set_output")
    order = [] if names is None else list(names)
    positions = [order.index(entry) if isinstance(entry, str) else entry for entry in entries]
    return everything[positions]


def _by_name(views: Any) -> bool:
    """Whether views consist of names of columns."""
    entries = list[Any]()
    for view in views or ():
        entries += _entries(view)
    return bool(views) and all(isinstance(name, str) for name in entries)


def named(X: Any, views: Any, fitted: Any = None) -> Any:
    """A data frame with the columns that views name, in its order or in that of the fit; other
    tables do not change.
    """
    if not _by_name(views) or hasattr(X, "collect"):
        return X
    names = list(getattr(X, "columns", ()))
    if not names:
        return X
    if fitted is None:
        used = np.unique(np.concatenate(columns_of(views, len(names), names)))
        return X[[names[j] for j in used]]
    lacking = [str(name) for name in fitted if name not in names]
    if lacking:
        raise BadData(
            f"X: no column {lacking[0]!r}. The views were fitted with"
            f" {', '.join(map(str, fitted))}."
        )
    return X[list(fitted)]


# Labelled rows, targets and shared rows of each view.
Dealt: TypeAlias = tuple[list[Arr], list[Arr], list[Arr]]


def read_mask(label_mask: Any, shape: tuple[int, int]) -> Any:
    """(N, M) booleans: whether view v sees the label of row i; None: every view sees every
    label.
    """
    if label_mask is None:
        return np.ones(shape, dtype=bool)
    mask = numbers(label_mask, "label_mask")
    if mask.shape != shape or not np.isin(mask, (0, 1)).all():
        one = ""
        if shape[1] == 1:
            one = "views is missing: give the columns of each view. "
        raise BadData(
            f"{one}label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {shape}, rows"
            " by views."
        )
    if not mask.any():
        raise BadData("label_mask: no view may see a label.")
    return mask.astype(bool)


def warn_of_rows(views: Any, has_target: Any, hidden: Any) -> None:
    """Warn of rows without a target where all columns are one view, and of rows with a target that
    no view sees.
    """
    if views is None and not has_target.all():
        count = int((~has_target).sum())
        warnings.warn(
            f"views is not given, so all columns are one view, and the {count} rows without a"
            " target have almost no effect. Give the columns of each view.",
            stacklevel=5,
        )
    count = int(hidden.sum())
    if count:
        rows = "1 row" if count == 1 else f"{count} rows"
        warnings.warn(
            f"label_mask: no view sees the label of {rows}, first of row"
            f" {int(np.argmax(hidden)) + 1} (counted from 1).",
            stacklevel=5,
        )


class MultiView:
    """One table with columns of several views, for the fit and for predictions; sets ``columns_``,
    those of each view.
    """

    views: Any
    _targets: Any
    columns_: list[Ints]

    def _one_table(self, X: Any, *, reset: bool = False, **how: Any) -> list[Any]:
        """One table as a table for each view."""
        if isinstance(X, (list, tuple)) and all(np.ndim(table) == 2 for table in X):
            raise UsageError(
                "X: a list of tables. Give one table, and in `views` the columns of each view."
            )
        fitted = None
        if not reset:
            fitted = getattr(self, "feature_names_in_", None)
        table = own_table(self, named(X, self.views, fitted), reset=reset, **how)
        if reset:
            names = getattr(self, "feature_names_in_", None)
            self.columns_ = columns_of(self.views, table.shape[1], names)
            different = {np.sort(columns).tobytes() for columns in self.columns_}
            if len(different) < len(self.columns_):
                text = (
                    "two views have the same columns. views lists the columns of each view, not"
                    " their numbers."
                )
                warnings.warn(f"views={self.views!r}: {text}", stacklevel=6)
        return [np.ascontiguousarray(table[:, columns]) for columns in self.columns_]

    def _dealt(self, X: Any, y: Any, label_mask: Any = None) -> Dealt:
        """Labelled rows and targets of each view, and shared rows: those without a target."""
        tables = self._one_table(X, reset=True)
        N = tables[0].shape[0]
        M = len(tables)
        targets = self._targets(y, N)
        has_target = ~np.isnan(targets)
        mask = read_mask(label_mask, (N, M))
        if M > 1 and has_target.all():
            raise UsageError(
                "no row is shared: each target is known. Add rows with y = NaN, also where no view"
                " may see the label."
            )
        warn_of_rows(self.views, has_target, has_target & ~mask.any(axis=1))
        labelled = []
        labels = []
        for table, seen in zip(tables, mask.T, strict=True):
            mine = has_target & seen
            labelled.append(table[mine])
            labels.append(targets[mine])
        return labelled, labels, [table[~has_target] for table in tables]

    def _of_view(self, view: Any, X: Any) -> Any:
        """One view's own columns as they were fitted: an array, or a data frame that has them by
        name.
        """
        check_is_fitted(self)
        if not isinstance(view, int | np.integer) or not 0 <= view < len(self.columns_):
            raise UsageError(
                f"view: needs a number from 0 to {len(self.columns_) - 1}, before the table:"
                " predict_view(0, X)."
            )
        columns = self.columns_[view]
        fitted = getattr(self, "feature_names_in_", None)
        names = None
        if fitted is not None:
            names = fitted[columns].tolist()
        if names:
            X = named(X, [names], names)
        table = read_table(X, least=0)
        if table.shape[1] != len(columns):
            raise BadData(f"X: {table.shape[1]} columns; view {view} has {len(columns)}.")
        return table
