"""What the estimators read: parameters, tables and targets of any container as float64.

A missing value is NaN. A row without a target is a shared row, and does not count in a score.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from numbers import Integral, Real
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.threads import one_thread

F = TypeVar("F", bound=Callable[..., Any])

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
COUNT = Interval(Integral, 1, None, closed="left")
KERNELS = StrOptions({"gaussian", "linear"})
VIEWS = [list, tuple, None]
SMALL = 1000
"""Rows up to which a fit has one BLAS thread.

More save it less than a second, and on busy cores cost a factor of 20.
"""


def fit_context(fit: F) -> F:
    """scikit-learn's check of the parameters before a fit; a fit of at most `SMALL` rows has one
    BLAS thread.
    """

    @wraps(fit)
    def limited(self: Any, *given: Any, **named: Any) -> Any:
        _refuse_weights(self, named)
        X = next(iter((*given, *named.values())), ())
        small = fit.__name__ == "fit" and (getattr(X, "shape", ()) or (0,))[0] <= SMALL
        with one_thread() if small else nullcontext():
            return fit(self, *given, **named)

    checked: F = _fit_context(prefer_skip_nested_validation=True)(limited)
    return checked


def _refuse_weights(estimator: Any, named: dict[str, Any]) -> None:
    """Some of scikit-learn's tools pass sample_weight=None, which asks for nothing."""
    if named.pop("sample_weight", None) is not None:
        raise UsageError(
            f"sample_weight: {type(estimator).__name__} cannot weight rows; each row with a target"
            " counts once. Leave sample_weight out of fit. `score` takes it."
        )


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each; raises `UsageError` for another number of them."""
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(
            f"{name}: {len(value)} values for {n_views} views; give one for all, or one each."
        )
    return list(value)


def generator(random_state: Any) -> np.random.Generator:
    """numpy's Generator from scikit-learn's convention: an int gives the same draws, None fresh
    ones.
    """
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))


def columns_of(views: Any, n_features: int, names: Any = None) -> list[Ints]:
    """The positions of each view's columns, None: one view of all; UsageError for a view that the
    table cannot give.
    """
    if views is not None and not len(views):
        raise UsageError(
            "views=[]: give the columns of each view, as slices, positions, booleans or names."
        )
    out = []
    for v, view in enumerate([np.arange(n_features)] if views is None else views):
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
    return [view] if np.ndim(view) == 0 else list(view)


def _columns_of_view(view: Any, n_features: int, names: Any) -> Ints:
    """The positions of a view's columns; IndexError, ValueError, TypeError: the table has none."""
    everything = np.arange(n_features)
    if isinstance(view, slice):
        if max(abs(end or 0) for end in (view.start, view.stop)) > n_features:
            raise IndexError("the slice ends beyond the last column")
        return everything[view]
    entries = _entries(view)
    if names is None and any(isinstance(entry, str) for entry in entries):
        raise ValueError("it has no column names. Use positions, or a data frame, as by set_output")
    order = [] if names is None else list(names)
    return everything[
        [order.index(entry) if isinstance(entry, str) else entry for entry in entries]
    ]


def _by_name(views: Any) -> bool:
    """Whether views consist of names of columns."""
    lists = [_entries(view) for view in views or ()]
    return bool(lists) and all(isinstance(name, str) for view in lists for name in view)


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
    if lacking := [str(name) for name in fitted if name not in names]:
        raise BadData(
            f"X: no column {lacking[0]!r}. The views were fitted with"
            f" {', '.join(map(str, fitted))}."
        )
    return X[list(fitted)]


# Of numbers whose squares, and squares of their rounding, are to be normal numbers.
LARGEST = 1e150
SMALLEST = 1e-100


def as_array(values: Any) -> Any:
    """Any container as an array. A missing value stays missing: NaN, None or pandas.NA."""
    rows = values if isinstance(values, (list, tuple)) else [values]
    if any(
        isinstance(row, np.ma.MaskedArray) for row in rows
    ):  # numpy would read the values under the mask
        raise BadData(
            "a masked array. Give an array with NaN for the masked values:"
            " .astype(float).filled(np.nan)."
        )
    if rows is values and any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object)  # numpy would write NaN among texts as the text "nan"
    return np.asarray(values)


def missing_in(array: Any) -> Any:
    """Which values of an array are missing: NaN, NaT, None or pandas.NA."""
    if array.dtype.kind != "O":
        return array != array
    return np.frompyfunc(_absent, 1, 1)(array).astype(bool)


def _absent(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # NaN is not itself
    except (TypeError, ValueError):  # pandas.NA is neither; a cell can be an array
        return np.ndim(value) == 0


def numbers(values: Any, name: str) -> Any:
    """An array with NaN for missing values, to be converted to float64; dates and complex numbers
    are refused.
    """
    array = as_array(values)
    if array.dtype.kind == "O":
        array = array.copy()
        array[missing_in(array)] = np.nan
    dates = array.dtype.kind in "mM" or (
        array.dtype.kind == "O"
        and any(isinstance(value, (np.datetime64, np.timedelta64)) for value in array.flat)
    )
    if dates:  # numpy would count nanoseconds
        raise BadData(
            f"{name}: dates or durations. Convert them to numbers first, for example to days."
        )
    if array.dtype.kind == "c":
        raise BadData(f"{name}: Complex data not supported.")
    return array


def _of_frame(X: Any, name: str) -> Any:
    """The columns of a data frame side by side; raises `BadData` that names the columns that are
    not numeric.
    """
    columns = []
    odd = []
    names = list(X.columns)
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise BadData(
            f"{name}: {names.count(twice)} columns have the name {twice!r}. Give each a name of its"
            " own."
        )
    for column in names:
        try:
            values = numbers(X[column], name)
            if values.ndim != 1:
                raise ValueError("a column of arrays")
            columns.append(values.astype(np.float64))
        except (TypeError, ValueError):
            odd.append(repr(column))
    if odd:
        raise BadData(
            f"{name}: not numeric: {', '.join(odd)}. Encode texts as 0/1 columns and dates as"
            " numbers, or drop the columns. If `views` has names, columns in no view are not read."
        )
    return np.column_stack(columns) if columns else np.empty((len(X), 0))


def read_table(X: Any, name: str = "X", *, gaps: bool = False, least: int = 1) -> Any:
    """A table (n, d) of any container as finite float64; with ``gaps`` a missing cell is NaN.

    BadData names a wrong cell.
    """
    if hasattr(X, "collect"):
        raise BadData(f"{name}: a lazy frame. Call .collect() first.")
    table = check_array(
        X if issparse(X) else _of_frame(X, name) if hasattr(X, "columns") else numbers(X, name),
        dtype=np.float64, order="C", ensure_all_finite=False, ensure_min_samples=least,
        ensure_min_features=1,
        input_name=name,
    )  # fmt: skip
    if (bad := np.isinf(table) if gaps else ~np.isfinite(table)).any():
        row, column = np.argwhere(bad)[0].tolist()
        what = "infinity"
        do = "Values must be finite."
        if np.isnan(table[row, column]):
            what = "NaN (a missing value)"
            do = "Fill missing values first, as sklearn.impute.SimpleImputer does."
        label = repr(list(X.columns)[column]) if hasattr(X, "columns") else column + 1
        raise BadData(
            f"Input {name} contains {what} at row {row + 1}, column {label} (counted from 1). {do}"
        )
    _refuse_sizes(table, name, least=0.0)
    return table


def _refuse_sizes(values: Arr, name: str, *, least: float) -> None:
    size = max(-float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0)))
    if size > LARGEST or 0.0 < size < least:
        raise BadData(
            f"{name}: values up to {size:.0e} are too {'large' if size > LARGEST else 'small'} for"
            f" their squares. {'Divide' if size > LARGEST else 'Multiply'} such columns by a"
            " constant."
        )


def own_table(estimator: Any, X: Any, *, reset: bool = False, **how: Any) -> Any:
    """`read_table` of an estimator's table; its columns are noted (``reset``) or compared with
    those of the fit.
    """
    if not reset:
        check_is_fitted(estimator)
    table = read_table(X, **how)
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, table, reset=reset)
    return table


def given_targets(y: Any, n_rows: int, estimator: Any) -> Any:
    """y as a vector of that length, of any dtype."""
    if y is None:
        raise BadData(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y"
            " is None."
        )
    y = column_or_1d(as_array(y), warn=True)
    check_consistent_length(np.empty((n_rows, 0)), y)
    return y


def _score(metric: Any, y: Any, predict: Any, X: Any, sample_weight: Any) -> float:
    """The metric over the rows with a target; NaN where none is known."""
    y = np.ravel(as_array(y))
    known = ~missing_in(y)
    if not known.any():
        text = (
            "No row has a target, so the score is NaN. In a search or a cross-validation give"
            " cv=LabelledFolds()."
        )
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
        return float("nan")
    weight = None if sample_weight is None else np.asarray(sample_weight)[known]
    return float(metric(np.array(y[known].tolist()), predict(X)[known], sample_weight=weight))


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Targets are numbers."""

    predict: Any

    def _targets(self, y: Any, n_rows: int) -> Arr:
        """y (N,) as floats, NaN where it is missing."""
        y = given_targets(y, n_rows, self)
        try:
            targets: Arr = numbers(y, "y").astype(np.float64)
        except BadData:  # it says what to do
            raise
        except (TypeError, ValueError) as error:
            raise BadData(
                f"y: {error}. For a target of two classes use a classifier, for example"
                " AdditiveClassifier."
            ) from None
        if np.isinf(targets).any():
            raise BadData(
                "Input y contains infinity or a value too large; leave a target that is not known"
                " missing (NaN)."
            )
        _refuse_sizes(targets, "y", least=SMALLEST)
        if np.isnan(targets).all():
            raise BadData(
                "All targets are NaN. Some rows need a target. In GridSearchCV and cross_val_score,"
                " set cv to LabelledFolds."
            )
        return targets

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` over the rows whose target is not missing; NaN where none is known."""
        return _score(r2_score, y, self.predict, X, sample_weight)


class ViewsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Two classes as 0 and 1, with probabilities: `_joint` is the score of all views, `_own` that
    of each view, (M, n). If ``_several`` there can be more, as their places: `_joint` and `_own`
    then have a last axis for the classes.
    """

    _several: ClassVar[bool] = False

    classes_: Any
    probability_: Any
    probabilities_: list[Any]
    _joint: Any
    _own: Any

    def _targets(self, y: Any, n_rows: int) -> Arr:
        """y as places among ``classes_``, which it sets, sorted; NaN where it is missing."""
        y = given_targets(y, n_rows, self)
        missing = missing_in(y)
        out = np.full(len(y), np.nan)
        known = np.array(y[~missing].tolist()) if y.dtype == object else y[~missing]
        if known.dtype.kind == "f" and np.isinf(known).any():
            raise BadData("Input y contains infinity or a value too large; classes are finite.")
        if not len(known):
            raise BadData("All targets are NaN, so no class is known.")
        check_classification_targets(known)
        classes = np.unique(known)
        if len(classes) > 2 and not self._several:
            raise BadData(
                "Only binary classification is supported. The type of the target is"
                f" {type_of_target(known)}: {len(classes)} classes. A row without a label has y ="
                " NaN, not -1. For a numeric target use a regressor."
            )
        if len(classes) < 2:
            raise BadData(
                f"y: one class ({classes.tolist()[0]!r}) and a classifier needs two; label rows of"
                " the other."
            )
        self.classes_ = classes
        out[~missing] = np.searchsorted(classes, known)
        return out

    def decision_function(self, X: Any) -> Any:
        """Log odds of the second class by the joint score, (n,); of several classes the logarithm
        of each probability, (n, K).
        """
        scores = self._joint(X)
        return self.probability_.log_odds(scores)

    def predict(self, X: Any) -> Any:
        """The class of each row, (n,)."""
        odds = self.decision_function(X)
        place = odds.argmax(axis=1) if odds.ndim > 1 else (odds > 0).astype(int)
        return self.classes_[place]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes by the joint score, (n, K), from the columns of every
        view.
        """
        scores = self._joint(X)
        positive = self.probability_.of(scores)
        if positive.ndim > 1:
            return positive
        return np.column_stack([1.0 - positive, positive])

    def predict_proba_views(self, X: Any) -> Any:
        """Probability of the second class by each view's own model, (M, n); of several classes
        of each, (M, n, K).
        """
        scores = self._own(X)
        return np.array([p.of(s) for p, s in zip(self.probabilities_, scores, strict=True)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` over the rows whose target is not missing; NaN where none is
        known.
        """
        return _score(accuracy_score, y, self.predict, X, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._several
        return tags


Dealt: TypeAlias = tuple[
    list[Arr], list[Arr], list[Arr]
]  # labelled rows, targets and shared rows of each view


def read_mask(label_mask: Any, shape: tuple[int, int]) -> Any:
    """(N, M) booleans: whether view v sees the label of row i; None: every view sees every
    label.
    """
    if label_mask is None:
        return np.ones(shape, dtype=bool)
    mask = numbers(label_mask, "label_mask")
    if mask.shape != shape or not np.isin(mask, (0, 1)).all():
        one = "views is missing: give the columns of each view. " if shape[1] == 1 else ""
        raise BadData(
            f"{one}label_mask: {mask.shape} of {mask.dtype}; needs booleans of shape {shape}, rows"
            " by views."
        )
    if not mask.any():
        raise BadData("label_mask: no view may see a label.")
    return mask.astype(bool)


def warn_of_rows(views: Any, known: Any, hidden: Any) -> None:
    """Warn of rows without a target where all columns are one view, and of rows with a target that
    no view sees.
    """
    if views is None and not known.all():
        warnings.warn(
            f"views is not given, so all columns are one view, and the {int((~known).sum())} rows"
            " without a target have almost no effect. Give the columns of each view.",
            stacklevel=5,
        )
    if count := int(hidden.sum()):
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
        X = named(X, self.views, None if reset else getattr(self, "feature_names_in_", None))
        table = own_table(self, X, reset=reset, **how)
        if reset:
            self.columns_ = columns_of(
                self.views, table.shape[1], getattr(self, "feature_names_in_", None)
            )
            if len({columns.tobytes() for columns in map(np.sort, self.columns_)}) < len(
                self.columns_
            ):
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
        known = ~np.isnan(targets)
        mask = read_mask(label_mask, (N, M))
        if M > 1 and known.all():
            raise UsageError(
                "no row is shared: each target is known. Add rows with y = NaN, also where no view"
                " may see the label."
            )
        warn_of_rows(self.views, known, known & ~mask.any(axis=1))
        rows = [np.flatnonzero(known & seen) for seen in mask.T]
        labelled = [table[mine] for table, mine in zip(tables, rows, strict=True)]
        return labelled, [targets[mine] for mine in rows], [table[~known] for table in tables]

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
        names = None if fitted is None else fitted[columns].tolist()
        table = read_table(named(X, [names], names) if names else X, least=0)
        if table.shape[1] != len(columns):
            raise BadData(f"X: {table.shape[1]} columns; view {view} has {len(columns)}.")
        return table
