r"""Additive views: sites or views with different columns learn parts that add up, by second moments and in closed form."""

from typing import Any, Self

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._columns import columns_of, of_views, warn_of_equal
from coreg_core.estimators._inputs import (
    LARGEST,
    Estimator,
    all_or_nothing,
    checked_targets,
    generator,
    refuse_texts_and_gaps,
    warn,
)
from coreg_core.estimators._parameters import check_parameters
from coreg_core.estimators._views import ViewsRegressor, ViewTables, describes, names_of, several
from coreg_core.estimators.additive_training import Rules, SiteRows, Trained, train
from coreg_core.numerics.arrays import Arr, Ints


class AdditiveViews(ViewTables, Estimator):
    """The parameters, the fit and the predictions of both estimators below."""

    kernels = frozenset({"gaussian", "linear"})
    trained_: Trained

    def __init__(
        self, *, views: Any = None, kernel: str = "gaussian", rows_per_feature: int = 8, random_state: Any = 0
    ):
        self.views, self.kernel = views, kernel
        self.rows_per_feature, self.random_state = rows_per_feature, random_state

    @all_or_nothing
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:
        """Fit one table, or a list of tables of the same rows.

        Parameters
        ----------
        X
            one table (N, p), or M tables (N, d_v). Cells of a row that a view does not have are NaN, all of them.
        y
            targets (N,), NaN where unknown.
        label_mask
            (N, M) booleans: whether view v owns the label of row i. None: one owner has all labels. To estimate what a
            federation would bring, give each site its own labels.
        """
        check_parameters(self)
        tables, present = self._read(X, reset=True)
        targets = checked_targets(y, len(present), self)
        self._train(tables, present, targets, label_mask)
        return self

    def _train(self, tables: list[Arr], present: Arr, targets: Arr, label_mask: Any) -> None:
        known, common, one_owner = ~np.isnan(targets), present.all(axis=1), label_mask is None
        if one_owner and (odd := np.flatnonzero(known & ~common)).size:
            raise BadData(
                f"row {odd[0] + 1} (counted from 1) has a target, and a view does not have the row. Give label_mask, so that the "
                "label has an owner."
            )
        owns = known[:, None] & present & (np.ones(present.shape, bool) if one_owner else _mask(label_mask, present))
        if not owns.any():
            raise BadData("label_mask: no view may see a label.")
        if hidden := int((known & ~owns.any(axis=1)).sum()):
            warn(f"label_mask: no view sees the label of {hidden} row{'s' * (hidden > 1)}, which counts as unlabelled.")
        places = np.flatnonzero(common)
        if not len(places):
            raise BadData("no row has the columns of every view. At least one is needed, and some hundreds are better.")
        at = np.full(len(present), -1)
        at[places] = np.arange(len(places))
        sites = []
        for table, mine in zip(tables, owns.T, strict=True):
            inner, private = np.flatnonzero(mine & common), np.flatnonzero(mine & ~common)
            own: Ints = np.concatenate([at[inner], len(places) + np.arange(len(private))])
            sites.append(
                SiteRows(table[np.concatenate([places, private])], own, targets[np.concatenate([inner, private])])
            )
        self.trained_ = train(
            sites,
            len(places),
            seed=int(generator(self.random_state).integers(2**31 - 1)),
            kernel=self.kernel,  # type: ignore[arg-type]  # checked by `check_parameters`
            rules=Rules(self.rows_per_feature),
            one_owner=one_owner,
        )
        self.labels_ = [site.y for site in sites]
        self.verdicts_ = [site.verdict for site in self.trained_.sites]

    def _read(self, X: Any, *, reset: bool) -> tuple[list[Arr], Any]:
        """Tables of all views (N, d_v), and which view has which row (N, M)."""
        one = not several(X)
        if not reset:
            check_is_fitted(self)
            if one != self.one_table_:
                raise BadData(f"X: the model was fitted with {'one table' if self.one_table_ else 'a list of tables'}.")
        tables = self._columns(self._whole(X, reset)) if one else self._listed(X, reset)
        if reset:
            self.one_table_, self.n_views_ = one, len(tables)
            self.n_features_in_views_ = [table.shape[1] for table in tables]
        elif [table.shape[1] for table in tables] != self.n_features_in_views_:
            raise BadData(f"X: the views were fitted with {self.n_features_in_views_} columns each.")
        present = np.ones((len(tables[0]), len(tables)), dtype=bool)
        for v, table in enumerate(tables):
            missing = np.isnan(table)
            present[:, v] = ~missing.all(axis=1) if table.size else True
            if (odd := np.argwhere(missing & present[:, v, None])).size:
                row, column = odd[0].tolist()
                raise BadData(
                    f"{_named_gap(self, X, v, column)}view {v}, row {row + 1} (counted from 1): a part of its cells is NaN. Fill "
                    "missing values first, for example with sklearn.impute.SimpleImputer. A view that does not have a row has "
                    "NaN in all its columns."
                )
            if (largest := float(np.nanmax(np.abs(table), initial=0.0))) > LARGEST:
                raise BadData(
                    f"X: values up to {largest:.0e} are too large for their squares. Divide such columns by a constant."
                )
        return tables, present

    def _whole(self, X: Any, reset: bool) -> Arr:
        if not reset:
            self._require_named(X)
        X = of_views(X, self.views, None if reset else getattr(self, "feature_names_in_", None))
        refuse_texts_and_gaps(X, gaps=False)
        table: Arr = validate_data(self, X, reset=reset, dtype=np.float64, order="C", ensure_all_finite="allow-nan")
        if reset:
            warn_of_equal(columns_of(self.views, table.shape[1], getattr(self, "feature_names_in_", None)))
        return table

    def _listed(self, X: Any, reset: bool) -> list[Arr]:
        if self.views is not None and not describes(self.views, X):
            raise UsageError(f"views={self.views!r} does not describe the {len(X)} tables of the list X.")
        names = [names_of(table) for table in X]
        if reset:
            self.__dict__.pop("feature_names_in_views_", None)  # of an earlier fit
            if any(names):
                self.feature_names_in_views_ = names
        known = getattr(self, "feature_names_in_views_", names)
        for v, (shown, fitted) in enumerate(zip(names, known, strict=False)):
            if None not in (shown, fitted) and shown != fitted:
                raise BadData(f"X_views[{v}]: the columns {shown}, the view was fitted with {fitted} in this order.")
        for v, table in enumerate(X):
            refuse_texts_and_gaps(table, f"X[{v}]: ", gaps=False)
        tables = [
            check_array(table, dtype=np.float64, order="C", ensure_all_finite="allow-nan", input_name=f"X[{v}]")
            for v, table in enumerate(X)
        ]
        if len({len(table) for table in tables}) > 1:
            raise BadData(
                f"X: tables of {[len(t) for t in tables]} rows. All views need the same rows; NaN where one has none."
            )
        return tables

    def _joint(self, X: Any) -> Arr:
        """The score of each row, from the views that have it."""
        tables, present = self._read(X, reset=False)
        out = np.empty(len(present))
        patterns, which = np.unique(present, axis=0, return_inverse=True)
        for j, pattern in enumerate(patterns):
            if not pattern.any():
                raise BadData(f"row {int(np.flatnonzero(which == j)[0]) + 1} (counted from 1): no view has it.")
            rows = np.flatnonzero(which.reshape(-1) == j)
            seen = [
                at.prepared(table[rows]) if has else None
                for at, table, has in zip(self.trained_.sites, tables, pattern, strict=True)
            ]
            out[rows] = self.trained_.score(seen)
        return out

    def _own(self, X: Any) -> Arr:
        tables, present = self._read(X, reset=False)
        out = np.full((len(tables), len(present)), np.nan)
        for v, (table, rows) in enumerate(zip(tables, present.T, strict=True)):
            if rows.any():
                out[v, rows] = self.trained_.joined(v, self.trained_.sites[v].prepared(table[rows]))
        return out


def _mask(label_mask: Any, present: Arr) -> Any:
    mask = np.asarray(label_mask)
    if mask.shape != present.shape or not np.isin(mask, (0, 1)).all():
        one = "views is missing: give the columns of each view. " if present.shape[1] == 1 else ""
        raise BadData(
            f"{one}label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {present.shape}, rows by views."
        )
    return mask.astype(bool)


def _named_gap(model: AdditiveViews, X: Any, view: int, column: int) -> str:
    """The name of a column with a gap, where the table has names."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or not hasattr(X, "columns"):
        return ""
    return f"empty cells: {str(names[columns_of(model.views, len(names), names)[view][column]])!r}. "


class AdditiveRegressor(ViewsRegressor, AdditiveViews):
    r"""Several sites or views with different columns train one model: the target is the sum of their parts.

    $y = a + \mathrm{offset}_{owner} + \sum_v \varphi_v(x_v)\cdot\beta_v + \varepsilon$ with $\beta_v \sim N(0, \tau_v I)$. Each
    view has d features φ_v of its columns: kernel principal components, with the functions of its local model as two more
    directions. The fit needs second moments of the features only: ΦᵀΦ and Φᵀy over labelled rows, and the mean of φφᵀ over all
    rows that every view has. Variances are chosen by the evidence; everything is in closed form.

    `predict` scores together, from the columns of all views. Where a view has no record of a row (NaN in all its columns), the
    score is the expected one given the other views. `predict_views` has each view's joined model, which needs its own columns
    only: its part, and what its columns say of the others' parts, blended with its local model by its own left-out labels.

    Source: docs/research/mathematics.md, "Second moments". What to expect: docs/research/benefit.md.

    Parameters
    ----------
    views
        columns of each view (slices, positions, booleans or names) of one table; None: all columns are one view. A name or a
        position alone is a view of one column. Columns in no view are not used, and with names not read.
    kernel
        "gaussian", on columns that are standardised and clipped at ±4, or "linear": ridge regression on all columns.
    rows_per_feature
        labelled rows for each of the d features of a view; d is at most 30.
    random_state
        seed of the landmarks and the forests.

    Attributes
    ----------
    trained_
        the fit, and each view's features, local model, joined model and verdict.
    verdicts_
        for each view: ``recommended`` ("local", "joined" or "score"), ``gains`` with the forecast change of the error and its
        standard error, ``slope`` (not 1: the labels may have another unit or sign) and left-out residuals.
    labels_
        each view's labels, in the order of these residuals.

    Raises
    ------
    BadData
        (a ValueError) tables of inconsistent shapes, a row with a part of its cells missing, or fewer than two labels.
    UsageError
        (a ValueError) a parameter out of range.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 4))
    >>> y = np.sin(X[:, 0]) + X[:, 3] ** 2
    >>> y[40:] = np.nan  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((120, 2), dtype=bool)
    >>> mask[:20, 0] = mask[20:40, 1] = True  # each view has twenty labels of its own
    >>> model = AdditiveRegressor(views=[slice(0, 2), slice(2, 4)], random_state=0).fit(X, y, label_mask=mask)
    >>> model.predict(X).shape, model.predict_views(X).shape
    ((120,), (2, 120))
    """

    def predict(self, X: Any) -> Any:
        """The score, (n,), from the columns of the views that have the row; offsets count by their labels."""
        return self._joint(X)

    def predict_view(self, view: int, X: Any) -> Arr:
        """The joined model of a view, from its columns alone, (n,). ``X``: an array or a data frame."""
        table = self._of_view(view, X)
        return self.trained_.joined(view, self.trained_.sites[view].prepared(table))

    def predict_views(self, X: Any) -> Any:
        """Each view's joined model, (M, n); NaN where the view does not have the row."""
        return self._own(X)
