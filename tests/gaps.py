"""One table of labelled rows and rows without a target, as the estimators take it."""

import numpy as np


def one_table(X, y, U):
    """(X above U, targets that are missing on U)."""
    y = np.asarray(y)
    missing = np.full(len(U), np.nan if y.dtype.kind == "f" else None)
    return np.concatenate([X, U]), np.concatenate([y, missing])
