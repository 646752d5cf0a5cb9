"""The one table of the estimators, from a table of labelled rows and a table of shared rows for
each view.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.linalg import block_diag


def one_table(
    Xs: Sequence[np.ndarray], y: np.ndarray | Sequence[np.ndarray], Zs: Sequence[np.ndarray]
) -> tuple[list[slice], dict[str, Any]]:
    """The `views`, and the arguments of `fit`: the labelled rows, then the shared ones.

    ``y``: targets of rows that all views have, or a list of the targets of each view's own rows.
    Such a row has zeros in the columns of the other views, which do not see its label.
    """
    views = [slice(*ends) for ends in pairwise(np.cumsum([0, *(X.shape[1] for X in Xs)]).tolist())]
    Z = np.hstack(Zs)
    own = isinstance(y, list)
    mask = None
    if own:
        sizes = [len(X) for X in Xs]
        mask = np.repeat(np.eye(len(Xs) + 1, len(Xs), dtype=bool), [*sizes, len(Z)], axis=0)
    X = np.concatenate([block_diag(*Xs) if own else np.hstack(Xs), Z])
    targets = np.concatenate([*y, np.full(len(Z), np.nan)] if own else [y, np.full(len(Z), np.nan)])
    return views, {"X": X, "y": targets, "label_mask": mask}
