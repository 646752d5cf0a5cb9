"""What estimators share: limits of parameters, and tables of any container as float64, where a missing value is NaN."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import issparse
from sklearn.base import _fit_context
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.numerics.threads import one_thread

F = TypeVar("F", bound=Callable[..., Any])

POSITIVE, NOT_NEGATIVE = Interval(Real, 0, None, closed="neither"), Interval(Real, 0, None, closed="left")
COUNT, COUNT_OR_0 = Interval(Integral, 1, None, closed="left"), Interval(Integral, 0, None, closed="left")
KERNELS = StrOptions({"gaussian", "laplacian", "polynomial", "linear"})
RULES = StrOptions({"paper", "median"})  # of a bandwidth
VIEWS = [list, tuple, None]
SMALL = 1000
"""Rows up to which a fit has one BLAS thread. More save it less than a second, and on busy cores cost a factor of 20."""
_PRESETS = {"loo": ("loo", "loo", True), "paper": ("paper", "paper", False)}


def fit_context(fit: F) -> F:
    """scikit-learn's check of the parameters before a fit; a fit of at most `SMALL` rows has one BLAS thread."""

    @wraps(fit)
    def limited(self: Any, *given: Any, **named: Any) -> Any:
        X = next(iter((*given, *named.values())), ())
        tables = X if isinstance(X, (list, tuple)) else [X]
        small = fit.__name__ == "fit" and all((getattr(table, "shape", ()) or (0,))[0] <= SMALL for table in tables)
        with one_thread() if small else nullcontext():
            return fit(self, *given, **named)

    checked: F = _fit_context(prefer_skip_nested_validation=True)(limited)
    return checked


def by_preset(estimator: Any) -> tuple[Any, Any, bool]:
    """Bandwidth, ridge and whether there is an intercept: the given values, and the preset's where they are None."""
    given = (estimator.bandwidth, estimator.ridge, estimator.fit_intercept)
    bandwidth, ridge, intercept = (
        default if value is None else value for value, default in zip(given, _PRESETS[estimator.preset], strict=True)
    )
    return bandwidth, ridge, bool(intercept)


def polynomial(estimator: Any) -> dict[str, Any]:
    """The parameters of a polynomial kernel."""
    return {"degree": estimator.degree, "offset": estimator.offset}


def one_a_view(value: Any, n_views: int, name: str) -> list[Any]:
    """One value for all views, or one each; raises `UsageError` for another number of them."""
    if isinstance(value, str) or np.ndim(value) == 0:
        return [value] * n_views
    if len(value) != n_views:
        raise UsageError(f"{name}: {len(value)} values for {n_views} views; give one for all, or one each.")
    return list(value)


def generator(random_state: Any) -> np.random.Generator:
    """numpy's Generator from scikit-learn's convention: an int gives the same draws, None fresh ones."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))


def columns_of(views: Any, n_features: int, names: Any = None) -> list[Ints]:
    """The positions of each view's columns, None: one view of all; UsageError for a view that the table cannot give."""
    everything, out = np.arange(n_features), []
    if views is not None and not len(views):
        raise UsageError("views=[]: give the columns of each view, as slices, positions, booleans or names.")
    for v, view in enumerate([everything] if views is None else views):
        try:
            if isinstance(view, slice):
                if max(abs(end or 0) for end in (view.start, view.stop)) > n_features:
                    raise IndexError("the slice ends beyond the last column")
                columns = everything[view]
            else:
                wanted = [view] if isinstance(view, str) or np.ndim(view) == 0 else list(view)
                if names is None and any(isinstance(each, str) for each in wanted):
                    raise ValueError("it has no column names. Use positions, or a data frame, as by set_output")
                order = [] if names is None else list(names)
                columns = everything[[order.index(each) if isinstance(each, str) else each for each in wanted]]
            if len(columns) == 0 or len(np.unique(columns)) < len(columns):
                raise IndexError("no column" if len(columns) == 0 else "a column twice")
        except (IndexError, ValueError, TypeError) as error:
            shown = "" if names is None else f" The columns are {', '.join(map(repr, map(str, names)))}."
            raise UsageError(f"views[{v}]={view!r}: not columns of a table of {n_features} ({error}).{shown}") from None
        out.append(columns)
    return out


def named(X: Any, views: Any, fitted: Any = None) -> Any:
    """A data frame with the columns that views name, in its order or in that of the fit; other tables do not change."""
    lists = [[view] if isinstance(view, (str, slice)) or np.ndim(view) == 0 else list(view) for view in views or ()]
    by_name = bool(lists) and all(isinstance(name, str) for view in lists for name in view)
    if not by_name or hasattr(X, "collect") or not (names := list(getattr(X, "columns", ()))):
        return X
    if fitted is None:
        used = np.unique(np.concatenate(columns_of(views, len(names), names)))
        return X[[names[j] for j in used]]
    if lacking := [str(name) for name in fitted if name not in names]:
        raise BadData(f"X: no column {lacking[0]!r}. The views were fitted with {', '.join(map(str, fitted))}.")
    return X[list(fitted)]


LARGEST, SMALLEST = 1e150, 1e-100  # of numbers whose squares, and squares of their rounding, are to be normal numbers


def as_array(values: Any) -> Any:
    """Any container as an array. A missing value stays missing: NaN, None or pandas.NA."""
    if isinstance(values, (list, tuple)):
        if any(isinstance(value, str) for value in values):
            return np.array(values, dtype=object)  # numpy would write NaN among texts as the text "nan"
        if any(isinstance(row, np.ma.MaskedArray) for row in values):
            values = np.ma.array(values)
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    array = np.array(values.data, dtype=object)
    array[np.ma.getmaskarray(values)] = None
    return array


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
    """An array with NaN for missing values, to be converted to float64; dates and complex numbers are refused."""
    array = as_array(values)
    if array.dtype.kind == "O":
        array = array.copy()
        array[missing_in(array)] = np.nan
    dates = array.dtype.kind in "mM" or (
        array.dtype.kind == "O" and any(isinstance(value, (np.datetime64, np.timedelta64)) for value in array.flat)
    )
    if dates:  # numpy would count nanoseconds
        raise BadData(f"{name}: dates or durations. Convert them to numbers first, for example to days.")
    if array.dtype.kind == "c":
        raise BadData(f"{name}: Complex data not supported.")
    return array


def _of_frame(X: Any, name: str) -> Any:
    """The columns of a data frame side by side; raises `BadData` that names the columns that are not numeric."""
    columns, odd, names = [], [], list(X.columns)
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise BadData(f"{name}: {names.count(twice)} columns have the name {twice!r}. Give each a name of its own.")
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
            f"{name}: not numeric: {', '.join(odd)}. Encode texts as 0/1 columns and dates as numbers, or drop the columns. "
            "If `views` has names, columns in no view are not read."
        )
    return np.column_stack(columns) if columns else np.empty((len(X), 0))


def read_table(X: Any, name: str = "X", *, gaps: bool = False, sparse: Any = False, least: int = 1) -> Any:
    """A table (n, d) of any container as finite float64; with ``gaps`` a missing cell is NaN. BadData names a wrong cell."""
    if hasattr(X, "collect"):
        raise BadData(f"{name}: a lazy frame. Call .collect() first.")
    values = X if issparse(X) else _of_frame(X, name) if hasattr(X, "columns") else numbers(X, name)
    table = check_array(
        values, dtype=np.float64, order="C", accept_sparse=sparse, ensure_all_finite=False, ensure_min_samples=least,
        ensure_min_features=1, input_name=name,
    )  # fmt: skip
    cells: Any = getattr(table, "data", None) if issparse(table) else table
    if (bad := np.isinf(cells) if gaps else ~np.isfinite(cells)).any():
        place, first = tuple(np.argwhere(bad)[0].tolist()), float(cells[bad][0])
        what = "NaN (a missing value)" if np.isnan(first) else "infinity"
        if not issparse(table):
            label = repr(list(X.columns)[place[1]]) if hasattr(X, "columns") else place[1] + 1
            what += f" at row {place[0] + 1}, column {label} (counted from 1)"
        raise BadData(
            f"Input {name} contains {what}. Fill missing values first, for example with sklearn.impute.SimpleImputer."
        )
    _refuse_sizes(cells, name, least=0.0)
    return table


def _refuse_sizes(values: Arr, name: str, *, least: float) -> None:
    size = max(-float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0)))
    if size > LARGEST or 0.0 < size < least:
        raise BadData(
            f"{name}: values up to {size:.0e} are too {'large' if size > LARGEST else 'small'} for their squares. "
            f"{'Divide' if size > LARGEST else 'Multiply'} such columns by a constant."
        )


def own_table(estimator: Any, X: Any, *, reset: bool = False, **how: Any) -> Any:
    """`read_table` of an estimator's table; its columns are noted (``reset``) or compared with those of the fit."""
    if not reset:
        check_is_fitted(estimator)
    table = read_table(X, **how)
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, table, reset=reset)
    return table


def read_targets(y: Any, n_rows: int, estimator: Any, least: int = 1) -> Arr:
    """y (N,) as floats, NaN where it is missing; all can be missing if ``least`` is 0."""
    y = given_targets(y, n_rows, estimator)
    try:
        targets: Arr = numbers(y, "y").astype(np.float64)
    except (TypeError, ValueError) as error:
        raise BadData(
            f"y: {error}. For a target of two classes use a classifier, for example AdditiveClassifier."
        ) from None
    if np.isinf(targets).any():
        raise BadData("Input y contains infinity or a value too large; leave a target that is not known missing (NaN).")
    _refuse_sizes(targets, "y", least=SMALLEST)
    if least and np.isnan(targets).all():
        raise BadData(
            "All targets are NaN. Some rows need a target. In GridSearchCV and cross_val_score, set cv to LabelledFolds."
        )
    return targets


def given_targets(y: Any, n_rows: int, estimator: Any) -> Any:
    """y as a vector of that length, of any dtype."""
    if y is None:
        raise BadData(f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None.")
    y = column_or_1d(as_array(y), warn=True)
    check_consistent_length(np.empty((n_rows, 0)), y)
    return y


def labelled_first(estimator: Any, X: Any, y: Any, *, least: int = 1) -> tuple[Arr, Arr, Arr]:
    """Labelled rows (n, d), their targets (n,) (of a classifier −1 and 1), and the rows without a target (m, d)."""
    table = own_table(estimator, X, reset=True, least=least)
    targets = estimator._targets(y, len(table))
    unknown = np.isnan(targets)
    return table[~unknown], targets[~unknown], table[unknown]
