"""Tables of any container as finite float64; a missing value is NaN."""

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted

from coreg_core.arrays import Arr
from coreg_core.errors import BadData

# Of numbers whose squares, and squares of their rounding, are to be normal numbers.
LARGEST = 1e150
SMALLEST = 1e-100


def as_array(values: Any) -> Any:
    """Any container as an array. A missing value stays missing: NaN, None or pandas.NA."""
    rows = values if isinstance(values, (list, tuple)) else [values]
    # Of a masked array numpy would read the values under the mask.
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
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
    dates = array.dtype.kind in "mM"
    if array.dtype.kind == "O":
        dates = any(isinstance(value, (np.datetime64, np.timedelta64)) for value in array.flat)
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
    if columns:
        return np.column_stack(columns)
    return np.empty((len(X), 0))


def read_table(X: Any, name: str = "X", *, gaps: bool = False, least: int = 1) -> Any:
    """A table (n, d) of any container as finite float64; with ``gaps`` a missing cell is NaN.

    BadData names a wrong cell.
    """
    if hasattr(X, "collect"):
        raise BadData(f"{name}: a lazy frame. Call .collect() first.")
    if hasattr(X, "columns"):
        values = _of_frame(X, name)
    elif issparse(X):
        values = X  # which check_array refuses
    else:
        values = numbers(X, name)
    table = check_array(
        values, dtype=np.float64, order="C", ensure_all_finite=False, ensure_min_samples=least,
        ensure_min_features=1,
        input_name=name,
    )  # fmt: skip
    bad = np.isinf(table) if gaps else ~np.isfinite(table)
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        what = "infinity"
        do = "Values must be finite."
        if np.isnan(table[row, column]):
            what = "NaN (a missing value)"
            do = "Fill missing values first, as sklearn.impute.SimpleImputer does."
        label = column + 1
        if hasattr(X, "columns"):
            label = repr(list(X.columns)[column])
        raise BadData(
            f"Input {name} contains {what} at row {row + 1}, column {label} (counted from 1). {do}"
        )
    _refuse_sizes(table, name, least=0.0)
    return table


def _refuse_sizes(values: Arr, name: str, *, least: float) -> None:
    low = float(np.nanmin(values, initial=0.0))
    high = float(np.nanmax(values, initial=0.0))
    size = max(-low, high)
    fault = f"{name}: values up to {size:.0e} are too"
    if size > LARGEST:
        raise BadData(f"{fault} large for their squares. Divide such columns by a constant.")
    if 0.0 < size < least:
        raise BadData(f"{fault} small for their squares. Multiply such columns by a constant.")


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
