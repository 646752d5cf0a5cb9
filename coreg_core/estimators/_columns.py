"""The columns of each view of one table: slices, positions, booleans or names."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._inputs import warn
from coreg_core.numerics.arrays import Ints


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
    out: list[Ints] = []
    everything = np.arange(n_features)
    for v, view in enumerate(views):
        try:
            if isinstance(view, slice) and {type(view.start), type(view.stop)} & {str}:
                raise IndexError("a slice has positions; list the names instead")
            if isinstance(view, slice) and max(abs(end or 0) for end in (view.start, view.stop)) > n_features:
                raise IndexError("the slice ends beyond the last column")
            chosen = view if isinstance(view, slice) else _positions(view, names)
            columns = np.asarray(everything[chosen]).ravel()
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise UsageError(f"views[{v}]={view!r}: not columns of a table of {n_features}: {error}.") from None
        if not len(columns):
            raise UsageError(f"views[{v}]={view!r}: no column of the {n_features} in the table.")
        if len(np.unique(columns)) < len(columns):
            raise UsageError(
                f"views[{v}]={view!r}: a column twice. A column can be in several views, and in each of them once."
            )
        out.append(columns)
    return out


def warn_of_equal(views: list[Ints]) -> None:
    """Warn of a view with the columns of an earlier one, as in views=[4, 3, 3] where numbers of columns are meant."""
    seen: dict[bytes, int] = {}
    for v, columns in enumerate(views):
        if (same := seen.setdefault(np.sort(columns).tobytes(), v)) != v:
            warn(
                f"views[{same}] and views[{v}] are the same columns. views lists the columns of each view, not their numbers."
            )


def _positions(view: Any, names: Any) -> Any:
    wanted = [view] if isinstance(view, (str, int, np.integer)) else list(view)
    if any(isinstance(name, str) for name in wanted):
        if names is None:
            raise ValueError("it has no column names. Use positions, or a data frame (a transformer's set_output)")
        order = {name: j for j, name in enumerate(names)}
        if missing := [name for name in wanted if name not in order]:
            close = get_close_matches(str(missing[0]), map(str, names), 1)
            asked = f"Did you mean {close[0]!r}? " if close else ""
            raise ValueError(
                f"no column {missing[0]!r}. {asked}The columns are {', '.join(map(repr, map(str, names)))}"
            )
        return [order[name] for name in wanted]
    return np.array(wanted) if wanted else np.zeros(0, np.int64)


def named_by(views: Any) -> set[str] | None:
    """The columns of views that are lists of names; None for other views."""
    if not isinstance(views, Sequence) or isinstance(views, str) or not views:
        return None
    lists = [[view] if isinstance(view, str) or not hasattr(view, "__iter__") else list(view) for view in views]
    names = [name for view in lists for name in view]
    return {str(name) for name in names} if all(isinstance(name, str) for name in names) else None


def of_views(X: Any, views: Any, order: Any = None) -> Any:
    """A data frame with the columns that some view names: an id may be text. Other tables do not change.

    The columns are in the frame's order, or in ``order``, that of the fit.

    Raises
    ------
    BadData
        two columns have one name.
    UsageError
        `columns_of`: before a fault of a column that no view has.
    """
    if hasattr(X, "collect"):
        return X  # a lazy frame is refused below
    columns = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise BadData(f"X: {columns.count(twice)} columns have the name {twice!r}. Give each column a name of its own.")
    if not columns or views is None or len(columns) < len(X.columns):
        return X
    columns_of(views, len(columns), columns)
    used = named_by(views)
    return X if used is None else X[[name for name in (columns if order is None else order) if name in used]]
