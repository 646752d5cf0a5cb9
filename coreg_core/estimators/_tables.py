"""Tables and targets of any container as float64; a missing value is NaN, and is never read as a number."""

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr

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
    """A table (n, d) of any container as finite float64; with ``gaps`` a missing cell is NaN.

    Raises
    ------
    BadData
        a cell that is missing, infinite or no number; the message names it. scikit-learn's own errors for other shapes.
    """
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
    """y (N,) as floats, NaN where it is missing; all can be missing if ``least`` is 0.

    Raises
    ------
    BadData
        no y, another length, a text, a date, infinity, or all missing.
    """
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
