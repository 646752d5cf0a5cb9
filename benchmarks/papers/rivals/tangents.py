"""Tangent spaces of rows near a surface, by local principal directions."""

import numpy as np

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr, Ints


def tangents(rows: Arr, neighbours: Ints, dimension: int) -> Arr:
    """An orthonormal basis of each row's tangent space, (N, d, dimension): local principal directions, by SVD."""
    local = rows[neighbours] - rows[:, None, :]
    local -= local.mean(axis=1, keepdims=True)
    _, _, directions = np.linalg.svd(local, full_matrices=False)
    basis: Arr = np.swapaxes(directions[:, :dimension, :], 1, 2)
    return basis


def check_dimension(dimension: int | None, d: int, n_neighbours: int, most: int) -> int:
    """The tangent spaces' dimension: as given, or as large as ``most``, the features and the neighbours allow.

    Raises
    ------
    UsageError
        it does not fit.
    """
    allowed = max(1, min(d, n_neighbours - 1))
    if dimension is None:
        return min(most, allowed)
    if not 1 <= dimension <= allowed:
        raise UsageError(
            f"dimension={dimension}: choose 1 to {allowed}, or raise n_neighbours ({n_neighbours}; {d} features)."
        )
    return dimension
