"""Tables of several views: one table with the columns of each view, or, as in the paper, a list of tables."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_is_fitted

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._scores import Regressor
from coreg_core.estimators._tables import (
    as_array,
    by_preset,
    columns_of,
    named,
    numbers,
    one_a_view,
    own_table,
    polynomial,
    read_table,
)
from coreg_core.kernels.functions import Kernel, make_kernel
from coreg_core.kernels.leave_one_out import kernel_rule
from coreg_core.numerics.arrays import Arr, Ints


class Dealt(NamedTuple):
    """For each view a table of labelled rows, a target vector and a table of shared rows."""

    X: list[Any]
    y: list[Arr]
    Z: list[Any]


def deal(tables: list[Any], targets: Arr, mask: Any) -> Dealt:
    """Tables of the same rows by their targets: rows without one are shared, labels are of the views that the mask names."""
    known = ~np.isnan(targets)
    rows = [np.flatnonzero(known & seen) for seen in mask.T]
    labelled = [_take(table[r]) for table, r in zip(tables, rows, strict=True)]
    return Dealt(labelled, [targets[r] for r in rows], [_take(table[~known]) for table in tables])


def several(X: Any) -> bool:
    """Whether X is a list of tables."""
    return isinstance(X, (list, tuple)) and all(np.ndim(table) == 2 for table in X)


def read_mask(label_mask: Any, shape: tuple[int, int]) -> Any:
    """(N, M) booleans: whether view v sees the label of row i; None: every view sees every label."""
    if label_mask is None:
        return np.ones(shape, dtype=bool)
    mask = numbers(label_mask, "label_mask")
    if mask.shape != shape or not np.isin(mask, (0, 1)).all():
        one = "views is missing: give the columns of each view. " if shape[1] == 1 else ""
        raise BadData(f"{one}label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {shape}, rows by views.")
    if not mask.any():
        raise BadData("label_mask: no view may see a label.")
    return mask.astype(bool)


def warn_of_hidden(hidden: Any) -> None:
    """Warn of rows with a target that no view sees."""
    if count := int(hidden.sum()):
        rows = "1 row" if count == 1 else f"{count} rows"
        warnings.warn(
            f"label_mask: no view sees the label of {rows}, first of row {int(np.argmax(hidden)) + 1} (counted from 1).",
            stacklevel=5,
        )


class MultiView:
    """One table or a list of views, for the fit and for predictions.

    Sets ``columns_`` (of each view of one table; None for a list), ``n_views_``, ``n_features_in_views_`` and, of a list of
    data frames, ``feature_names_in_views_``.
    """

    views: Any
    _sparse: Any = False  # what `check_array` accepts
    _optional = False  # whether shared rows are optional
    _targets: Any
    columns_: list[Ints] | Any  # None for a list
    n_views_: int
    n_features_in_views_: list[int]
    feature_names_in_views_: list[list[str] | None]

    def _split(
        self, X: Any, y: Any, Z: Any = None, label_mask: Any = None, *, least: int = 1, reset: bool = True
    ) -> Dealt:
        """Labelled rows, targets and shared rows: of one table by its missing targets, or of lists."""
        if not several(X):
            if Z is not None:
                raise UsageError("Z_views needs X_views, a list of tables, one for each view.")
            return self._divide(self._one_table(X, reset=reset, least=least), y, label_mask, least, reset)
        if label_mask is not None or self.views is not None:
            raise UsageError(
                "views and label_mask are of one table. A list of tables has a table and targets for each view."
            )
        if Z is None and not self._optional:
            raise UsageError(
                "X_views is a list: Z_views is missing, the tables of the unlabelled rows. Or give one table with `views`, and "
                "y = NaN on these rows."
            )
        return self._lists(X, y, Z, least, reset)

    def _one_table(self, X: Any, *, reset: bool = False, **how: Any) -> list[Any]:
        """One table as a table for each view."""
        if several(X):
            raise UsageError("X: a list of tables. Give one table, and in `views` the columns of each view.")
        if not reset and hasattr(self, "columns_") and self.columns_ is None:
            raise BadData(f"X: one table, the model was fitted with a list of {self.n_views_} tables.")
        X = named(X, self.views, None if reset else getattr(self, "feature_names_in_", None))
        table = own_table(self, X, reset=reset, sparse=self._sparse, **how)
        if reset:
            self.columns_ = columns_of(self.views, table.shape[1], getattr(self, "feature_names_in_", None))
            self.n_views_, self.n_features_in_views_ = len(self.columns_), [len(columns) for columns in self.columns_]
            if len({columns.tobytes() for columns in map(np.sort, self.columns_)}) < self.n_views_:
                text = "two views have the same columns. views lists the columns of each view, not their numbers."
                warnings.warn(f"views={self.views!r}: {text}", stacklevel=6)
        return [_take(table[:, columns]) for columns in self.columns_]

    def _divide(self, tables: list[Any], y: Any, label_mask: Any, least: int, reset: bool) -> Dealt:
        """Tables of the same rows by their targets: rows without one are shared."""
        N, M = tables[0].shape[0], len(tables)
        targets = self._targets(y, N, least)
        known, mask = ~np.isnan(targets), read_mask(label_mask, (N, M))
        if M > 1 and known.all() and not self._optional:
            raise UsageError(
                "no row is shared: each target is known. Add rows with y = NaN, also where no view may see the label. Without "
                "such rows use RLSR."
            )
        if M == 1 and self.views is None and reset and not known.all():
            warnings.warn(
                f"views is not given, so all columns are one view, and the {int((~known).sum())} rows without a target have no "
                "effect. Give the columns of each view.",
                stacklevel=6,
            )
        warn_of_hidden(known & ~mask.any(axis=1))
        return deal(tables, targets, mask)

    def _lists(self, X: Any, y: Any, Z: Any, least: int, reset: bool) -> Dealt:
        """A table of labelled rows for each view, one of the shared rows, and targets: of each view, or one vector for all."""
        if not X or (Z is not None and len(Z) != len(X)):
            raise BadData(f"{len(X)} tables in X_views, {len(Z or ())} in Z_views: one for each view, at least one.")
        known = None if reset else getattr(self, "feature_names_in_views_", None)
        Xs, names = _read_list(X, "X_views", self._sparse, known)
        Zs = [table[:0] for table in Xs] if Z is None else _read_list(Z, "Z_views", self._sparse, names)[0]
        widths = [table.shape[1] for table in Xs]
        expected = widths if reset else self.n_features_in_views_
        _require_columns("X_views", Xs, expected)
        _require_columns("Z_views", Zs, expected)
        _require_same_rows("Z_views", Zs)
        ys = self._targets_of([table.shape[0] for table in Xs], y, least)
        if reset:
            self.columns_, self.n_views_, self.n_features_in_views_ = None, len(Xs), widths
            self.feature_names_in_views_ = names
        return Dealt(Xs, ys, Zs)

    def _targets_of(self, sizes: list[int], y: Any, least: int) -> list[Arr]:
        one = y is None or all(np.ndim(each) == 0 for each in y)
        vectors = [y] * len(sizes) if one else list(y)
        if len(vectors) != len(sizes):
            raise BadData(f"y: {len(vectors)} target vectors for {len(sizes)} views; give one for all, or one each.")
        for v, (each, size) in enumerate(zip(vectors, sizes, strict=True)):
            if each is not None and len(each) != size:
                raise BadData(f"view {v}: {size} labelled rows and {len(each)} targets; needs as many.")
        targets = self._targets(
            y if one else np.concatenate([as_array(each) for each in vectors]), sizes[0] if one else sum(sizes), least
        )
        if min(sizes) < least or np.isnan(targets).any():
            raise BadData("y: each view needs a labelled row, and with a list of tables no target is missing (NaN).")
        return [targets] * len(sizes) if one else np.split(targets, np.cumsum(sizes)[:-1])

    def _tables(self, X: Any) -> list[Any]:
        """X as one table for each view, as the model was fitted, checked."""
        check_is_fitted(self)
        if not several(X) or self.columns_ is not None:
            return self._one_table(X)
        if len(X) != self.n_views_:
            raise BadData(f"X_views: {len(X)} tables, the model was fitted with a list of {self.n_views_} tables.")
        tables, _ = _read_list(X, "X_views", self._sparse, self.feature_names_in_views_)
        _require_columns("X_views", tables, self.n_features_in_views_)
        _require_same_rows("X_views", tables)
        return tables

    def _of_view(self, view: Any, X: Any) -> Any:
        """One view's own columns as they were fitted: an array, or a data frame that has them by name."""
        check_is_fitted(self)
        if not isinstance(view, int | np.integer) or not 0 <= view < self.n_views_:
            raise UsageError(
                f"view: needs a number from 0 to {self.n_views_ - 1}, before the table: predict_view(0, X)."
            )
        if self.columns_ is None:
            names = self.feature_names_in_views_[view]
        else:
            fitted = getattr(self, "feature_names_in_", None)
            names = None if fitted is None else fitted[self.columns_[view]].tolist()
        table = read_table(named(X, [names], names) if names else X, least=0)
        if table.shape[1] != self.n_features_in_views_[view]:
            raise BadData(f"X: {table.shape[1]} columns; view {view} has {self.n_features_in_views_[view]}.")
        return table


class ExpansionViews(MultiView, Regressor):
    """Kernel expansions of the views, f_v, plus an intercept."""

    functions_: list[KernelExpansion]
    intercept_: float

    def predict_views(self, X_views: Any) -> Any:
        """Every view's prediction, (M, n)."""
        tables = self._tables(X_views)
        return self.intercept_ + np.array([f.predict(X) for f, X in zip(self.functions_, tables, strict=True)])

    def predict_view(self, view: int, X: Any) -> Any:
        """The view's own prediction, from the view's columns alone, (n,). ``X``: an array or a data frame."""
        table = self._of_view(view, X)
        return self.intercept_ + self.functions_[view].predict(table)

    def predict(self, X_views: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X_views).mean(axis=0)

    def _rules(self: Any, Xs: list[Arr], ys: list[Arr]) -> tuple[list[Kernel], list[float]]:
        """Each view's kernel and ridge by the parameters; sets ``bandwidth_``."""
        bandwidth, ridge, _ = by_preset(self)
        given = one_a_view(bandwidth, len(Xs), "bandwidth"), one_a_view(ridge, len(Xs), "ridge")
        rules = [
            kernel_rule(X, y, self.kernel, *each, **polynomial(self))
            for X, y, *each in zip(Xs, ys, *given, strict=True)
        ]
        self.bandwidth_ = np.array([sigma for sigma, _ in rules])
        kernels = [make_kernel(self.kernel, bandwidth=sigma, **polynomial(self)) for sigma, _ in rules]
        return kernels, [nu for _, nu in rules]


def _take(chosen: Any) -> Any:
    """Chosen rows or columns, dense or CSR."""
    return chosen if issparse(chosen) else np.ascontiguousarray(chosen)


def _require_columns(name: str, tables: list[Any], expected: list[int]) -> None:
    if (found := [table.shape[1] for table in tables]) != expected:
        raise BadData(f"{name}: tables of {found} columns; the views have {expected}.")


def _require_same_rows(name: str, tables: list[Any]) -> None:
    if len(set(found := [table.shape[0] for table in tables])) > 1:
        raise BadData(f"{name}: tables of {found} rows; every view needs the same.")


def _read_list(tables: Any, name: str, sparse: Any, fitted: Any) -> tuple[list[Any], list[list[str] | None]]:
    """Each table checked, and its column names, which are to be those of the fit."""
    read = [read_table(table, f"{name}[{v}]", sparse=sparse, least=0) for v, table in enumerate(tables)]
    names = [list(table.columns) if hasattr(table, "columns") else None for table in tables]
    for v, (found, known) in enumerate(zip(names, fitted or [None] * len(names), strict=False)):
        if found and known and found != known:
            raise BadData(f"{name}[{v}]: the columns {found}, the view was fitted with {known} in this order.")
    return read, names
