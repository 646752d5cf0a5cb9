"""The columns of each view of one table: slices, positions, booleans or names."""

from typing import Any

import numpy as np

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Ints


def columns_of(views: Any, n_features: int, names: Any = None) -> list[Ints]:
    """The positions of each view's columns; None is one view of all columns.

    Raises
    ------
    UsageError
        a view without a column, with one twice, or with one that the table does not have.
    """
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
