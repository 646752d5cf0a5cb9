"""Tables of views: one table with the columns of each view, or a list of tables.

scikit-learn's tools (Pipeline, GridSearchCV) pass one table, so the methods over views take one as well: ``views=[columns, …]``,
rows whose target is missing (NaN) are the shared instances, and a mask (rows × views) defines which view sees which label.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._columns import columns_of, of_views, warn_of_equal
from coreg_core.estimators._inputs import Regressor, checked_targets, refuse_texts_and_gaps, warn
from coreg_core.numerics.arrays import Arr, Ints, as_matrix, as_vector

_KNOWN = "no row is shared: each target is known. Set the targets of shared rows to NaN, also where no view may see the label."


@dataclass(frozen=True, eq=False)
class Dealt:
    """For each view a table of labelled rows, a target vector and a table of shared rows."""

    X: list[Any]
    y: list[Arr]
    Z: list[Any]
    rows: list[Ints] | None = None  # of one table: the row of each view's labels


def deal(tables: list[Any], targets: Arr, label_mask: Any = None, *, all_shared: bool | None = False) -> Dealt:
    """Tables of the same rows, split by their targets.

    Parameters
    ----------
    tables
        of each view, (N, d_v).
    targets
        (N,), NaN where missing.
    label_mask
        (N, M) booleans: whether view v sees the label of row i. None: every view sees every label.
    all_shared
        labelled rows are shared instances as well; None: where no target is missing, and every view sees every label.

    Raises
    ------
    BadData
        a mask of another shape, or no visible label.
    UsageError
        a mask without a missing target.
    """
    N, M = len(targets), len(tables)
    mask = np.ones((N, M), dtype=bool)
    if label_mask is not None:
        mask = np.asarray(label_mask)
        if mask.shape != (N, M) or not np.isin(mask, (0, 1)).all():
            one = "views is missing: give the columns of each view. " if M == 1 and mask.shape[1:] != (1,) else ""
            raise BadData(
                f"{one}label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {(N, M)}, rows by views."
            )
        mask = mask.astype(bool)
    known = ~np.isnan(targets)
    if all_shared is None:
        all_shared = bool(known.all()) and bool(mask.all())  # a mask that is all true has the meaning of none
        if known.all() and not all_shared:
            raise UsageError(_KNOWN)
    shared = np.arange(N) if all_shared else np.flatnonzero(~known)
    rows = [np.flatnonzero(known & mask[:, v]) for v in range(M)]
    if label_mask is not None and not any(len(r) for r in rows):
        raise BadData("label_mask: no view may see a label.")
    if not all_shared and (hidden := np.flatnonzero(known & ~mask.any(axis=1))).size:
        warn(
            f"label_mask: no view sees the label of {len(hidden)} row{'s' * (len(hidden) > 1)}, first of row {hidden[0] + 1} "
            "(counted from 1). Such rows are not used. Set their targets to NaN to share them."
        )
    labelled = [_rows(table, r) for table, r in zip(tables, rows, strict=True)]
    return Dealt(labelled, [targets[r] for r in rows], [_rows(table, shared) for table in tables], rows)


def _rows(table: Any, rows: Any) -> Any:
    """Dense or CSR; ``rows`` can be a pair of rows and columns."""
    chosen = table[rows]
    return chosen if issparse(chosen) else np.ascontiguousarray(chosen)


def several(X: Any) -> bool:
    """Whether X is a list of tables."""
    return isinstance(X, (list, tuple)) and len(X) > 0 and all(np.ndim(table) == 2 for table in X)


def describes(views: Any, tables: Any) -> bool:
    """Whether ``views`` divides the columns of one table into these tables, by their names or their widths."""
    lists, widths = [view if isinstance(view, list) else [view] for view in views], [np.shape(t)[1] for t in tables]
    if any(isinstance(name, str) for view in lists for name in view):
        return [sorted(map(str, view)) for view in lists] == [sorted(names_of(table) or []) for table in tables]
    try:
        return [len(columns) for columns in columns_of(views, sum(widths))] == widths
    except UsageError:
        return False


def names_of(table: Any) -> list[str] | None:
    """The column names of a data frame, if all are text."""
    names = list(getattr(table, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


class ViewTables:
    """One table or a list of views, for the fit and for predictions.

    Sets ``one_table_``, ``n_views_``, ``n_features_in_views_`` and, of data frames, ``feature_names_in_views_``.
    """

    views: Any
    _sparse: Any = False  # what `check_array` accepts
    _optional = False  # whether a list of views can be without shared rows
    n_views_: int
    n_features_in_views_: list[int]

    def _split(
        self,
        X: Any,
        y: Any,
        Z: Any,
        label_mask: Any = None,
        *,
        all_shared: bool | None = False,
        least: int = 1,
        reset: bool = True,
    ) -> Dealt:
        """The tables of the fit. Without ``Z``, rows with a missing target are the shared ones.

        Raises
        ------
        BadData
            tables, targets or a mask of inconsistent shapes, or values that are not finite; the message names the view.
        """
        if isinstance(X, (list, tuple)) and not X:
            raise BadData("X_views: no view; give at least one table.")
        if type(X) is dict:  # a sparse dok_array is one too
            raise BadData("X: a dictionary of tables. Give a list of them, in the order of the views.")
        if self.views is not None and several(X) and not describes(self.views, X):
            raise UsageError(
                f"views={self.views!r} does not describe the {len(X)} tables of the list X. Leave views out, or give one table."
            )
        if Z is not None and (label_mask is not None or (not isinstance(X, (list, tuple)) and np.ndim(X) == 2)):
            raise UsageError(
                "Z_views needs a list of tables, one for each view, and no label_mask: give each view its own targets instead."
            )
        one = Z is None and not several(X)
        if Z is None:
            dealt = self._same_rows(X, y, label_mask, all_shared=all_shared, least=least, reset=reset)
        else:
            dealt = self._lists(X, y, Z, least)
        if reset:
            self.one_table_, self.n_views_ = one, len(dealt.X)
            self.n_features_in_views_ = [table.shape[1] for table in dealt.X]
            names = [None] * self.n_views_ if one else [names_of(table) for table in X]
            if any(names):
                self.feature_names_in_views_ = names
            elif hasattr(self, "feature_names_in_views_"):
                del self.feature_names_in_views_  # of an earlier fit
        return dealt

    def _same_rows(self, X: Any, y: Any, label_mask: Any, *, all_shared: bool | None, least: int, reset: bool) -> Dealt:
        """One table, or tables of the same rows: missing targets mark the shared ones."""
        if several(X):
            tables = self._list(X, "X", least)
            if len({table.shape[0] for table in tables}) > 1:
                raise BadData(
                    f"X: tables of {[table.shape[0] for table in tables]} rows. Without Z_views all tables hold the same rows, "
                    "and a missing target (NaN) marks a shared one. With Z_views, X_views holds the labelled rows only."
                )
            if isinstance(y, (list, tuple)) and any(np.ndim(each) for each in y):
                raise UsageError("several target vectors need Z_views, the tables of the shared rows.")
        else:
            if isinstance(X, (list, tuple)) and any(getattr(table, "ndim", 0) == 1 for table in X):
                raise BadData(
                    "X: a list of vectors; each view needs a table of two dimensions (2D), also with one column."
                )
            X = of_views(X, self.views)
            refuse_texts_and_gaps(X)
            checks = {"dtype": np.float64, "order": "C", "accept_sparse": self._sparse, "ensure_min_samples": least}
            table = validate_data(self, X, reset=reset, **checks)
            tables = self._columns(table)
            if reset:
                warn_of_equal(columns_of(self.views, table.shape[1], getattr(self, "feature_names_in_", None)))
        targets = checked_targets(y, tables[0].shape[0], self, least)
        alone = reset and self.views is None and label_mask is None and len(tables) == 1
        if alone and (unused := int(np.isnan(targets).sum())):
            warn(
                f"views is not given, so all columns are one view, and the {unused} rows without a target have no effect. Give "
                "the columns of each view."
            )
        if len(tables) > 1 and all_shared is False and not (self._optional or np.isnan(targets).any()):
            todo = (
                "no row is shared. Add rows whose target is not known, with y = NaN; or give lists of tables, and Z_views with "
                "the tables of the unlabelled rows. Without such rows use RLSR."
            )
            raise UsageError(todo if label_mask is None else _KNOWN)
        return deal(tables, targets, label_mask, all_shared=all_shared)

    def _lists(self, X: Any, y: Any, Z: Any, least: int) -> Dealt:
        M = len(X)
        if M == 0 or len(Z) != M:
            raise BadData(f"{M} labelled and {len(Z)} unlabelled tables: one of each a view, at least one.")
        Xs, Zs = self._list(X, "X_views", 0), self._list(Z, "Z_views", 0)
        vectors = _targets(y, M)
        for v, each in enumerate(vectors):
            known = np.asarray(each)
            if known.dtype.kind == "f" and (gaps := np.flatnonzero(np.isnan(known))).size:
                raise BadData(
                    f"y_views[{v}]: no target (NaN) at row {gaps[0] + 1} (counted from 1), and Z_views is given. Leave such rows "
                    "out, or leave out Z_views."
                )
        ys = [as_vector(each, f"y_views[{v}]") for v, each in enumerate(vectors)]
        for v, (table, targets, shared) in enumerate(zip(Xs, ys, Zs, strict=True)):
            if table.shape[0] < least or table.shape[0] != len(targets):
                raise BadData(
                    f"view {v}: {table.shape[0]} labelled rows and {len(targets)} targets; needs as many, at least {least}."
                )
            if table.shape[1] != shared.shape[1] or table.shape[1] == 0:
                raise BadData(
                    f"view {v}: {table.shape[1]} features in X, {shared.shape[1]} in Z; needs as many, at least 1."
                )
            if shared.shape[0] != Zs[0].shape[0]:
                raise BadData(
                    f"view {v}: {shared.shape[0]} unlabelled instances, view 0 has {Zs[0].shape[0]}; all views share the same."
                )
            if None not in (names := [names_of(X[v]), names_of(Z[v])]) and names[0] != names[1]:
                raise BadData(
                    f"Z_views[{v}]: the columns {names[1]}, X_views[{v}] has {names[0]}; give the same order."
                )
        return Dealt(Xs, ys, Zs)

    def _list(self, tables: Any, name: str, least: int) -> list[Any]:
        """Each table checked; the message names it."""
        out = []
        for v, table in enumerate(tables):
            where = f"{name}[{v}]"
            refuse_texts_and_gaps(table, f"{where}: ")
            if issparse(table) and self._sparse:
                checks = {"dtype": np.float64, "accept_sparse": self._sparse, "ensure_min_samples": least}
                out.append(check_array(table, input_name=where, **checks))
            else:
                out.append(as_matrix(table, where))
            if out[-1].shape[0] < least:
                raise BadData(f"{where}: no row.")
        return out

    def _of_view(self, view: Any, X: Any) -> Any:
        """One view's own columns as they were fitted: an array, or a data frame that has them by name.

        Raises
        ------
        BadData
            no such view, a column is missing, or another number of columns.
        """
        check_is_fitted(self)
        if not isinstance(view, (int, np.integer)):
            raise UsageError(
                f"view: needs a number, not {type(view).__name__}. The view stands first: predict_view(0, X)."
            )
        if not 0 <= view < self.n_views_:
            raise BadData(f"view {view}: the model has views 0 to {self.n_views_ - 1}.")
        names = getattr(self, "feature_names_in_views_", [None] * self.n_views_)[view]
        if self.one_table_ and (known := getattr(self, "feature_names_in_", None)) is not None:
            names = [str(known[j]) for j in columns_of(self.views, len(known), known)[view]]
        if names is not None and hasattr(X, "columns"):
            if missing := [name for name in names if name not in list(X.columns)]:
                raise BadData(f"view {view}: no column {missing[0]!r}. The view was fitted with {names}.")
            X = X[names]
        table = self._list([X], "X", 0)[0]
        if table.shape[1] != self.n_features_in_views_[view]:
            raise BadData(
                f"X: {table.shape[1]} columns; view {view} was fitted with {self.n_features_in_views_[view]}."
            )
        return table

    def _require_named(self, X: Any) -> None:
        """Name the columns that a table lacks if the views were fitted by names."""
        known = getattr(self, "feature_names_in_", None)
        if known is None:
            return
        if not hasattr(X, "columns") and np.ndim(X) == 2 and np.shape(X)[1] != len(known):
            raise BadData(
                f"X: {np.shape(X)[1]} columns without names. The views were fitted by names: give a data frame, or these "
                f"{len(known)} columns in their order: {', '.join(map(str, known))}."
            )
        if missing := [str(name) for name in known if name not in list(getattr(X, "columns", known))]:
            raise BadData(f"X: no column {missing[0]!r}. The views were fitted with {', '.join(map(str, known))}.")

    def _columns(self, table: Any) -> list[Any]:
        columns = columns_of(self.views, table.shape[1], getattr(self, "feature_names_in_", None))
        return [_rows(table, (slice(None), c)) for c in columns]

    def _tables(self, X: Any) -> list[Any]:
        """X as one table a view, as the model was fitted, checked.

        Raises
        ------
        BadData
            another number of views, other columns or another order of them, or tables of different rows.
        """
        check_is_fitted(self)
        if several(X) if self.one_table_ else not isinstance(X, (list, tuple)) and np.ndim(X) == 2:
            given, fitted = (
                ("a list of", "one table") if self.one_table_ else ("one", f"a list of {self.n_views_} tables")
            )
            raise BadData(f"X: {given} table{'s' * self.one_table_}; the model was fitted with {fitted}.")
        if self.one_table_:
            self._require_named(X)
            X = of_views(X, self.views, getattr(self, "feature_names_in_", None))
            refuse_texts_and_gaps(X)
            checks = {"dtype": np.float64, "order": "C", "accept_sparse": self._sparse}
            return self._columns(validate_data(self, X, reset=False, **checks))
        if len(X) != self.n_views_:
            raise BadData(f"X_views: {len(X)} views, the model was fitted with {self.n_views_}.")
        tables = self._list(X, "X_views", 0)
        names = getattr(self, "feature_names_in_views_", [None] * self.n_views_)
        for v, (given, table, d, known) in enumerate(zip(X, tables, self.n_features_in_views_, names, strict=True)):
            if table.shape[1] != d:
                raise BadData(f"X_views[{v}]: {table.shape[1]} features, the view was fitted with {d}.")
            if None not in (shown := [names_of(given), known]) and shown[0] != known:
                raise BadData(f"X_views[{v}]: the columns {shown[0]}, the view was fitted with {known} in this order.")
        if len({table.shape[0] for table in tables}) > 1:
            raise BadData(
                f"X_views: views of {[table.shape[0] for table in tables]} instances; every view needs the same."
            )
        return tables


def _targets(y_views: Any, n_views: int) -> list[Any]:
    if not hasattr(y_views, "__len__"):
        raise BadData(f"y_views: {y_views!r} is no target vector; give one for all views, or one each.")
    # One vector of numbers holds for every view; a list of vectors has one a view.
    if all(np.ndim(y) == 0 for y in y_views):
        return [y_views] * n_views
    if len(y_views) != n_views:
        raise BadData(f"y_views: {len(y_views)} target vectors for {n_views} views; give one for all, or one each.")
    return list(y_views)


class ViewsRegressor(ViewTables, Regressor):
    """A regressor over views."""
