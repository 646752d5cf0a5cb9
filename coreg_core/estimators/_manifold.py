r"""Regression with a penalty that lives on a neighbourhood graph of all rows: three penalties, one solver.

Laplacian, Hessian and parallel field regularisation differ in P, the quadratic form of f's values on the rows that says how far
f is from smooth along the manifold. The function stays in one reproducing kernel space, so that it has values elsewhere.
"""

from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import lu_factor, lu_solve
from sklearn.neighbors import NearestNeighbors

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import UsageError
from coreg_core.estimators._parameters import COUNT, KERNELS, NOT_NEGATIVE, POSITIVE, RULES, fit_context
from coreg_core.estimators._scores import KernelRegressor
from coreg_core.estimators._tables import labelled_first
from coreg_core.kernels.functions import make_kernel, resolve_bandwidth
from coreg_core.numerics.arrays import Arr, Ints


class ManifoldRLS(KernelRegressor):
    """The base; see `LaplacianRLS` for the parameters that all have."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [KERNELS], "bandwidth": [RULES, POSITIVE], "ridge": [POSITIVE], "manifold": [NOT_NEGATIVE],
        "n_neighbours": [COUNT], "fit_intercept": ["boolean"],
    }  # fmt: skip
    kernel: str
    bandwidth: str | float
    ridge: float
    manifold: float
    n_neighbours: int
    fit_intercept: bool

    def _penalty(self, rows: Arr, neighbours: Ints) -> Arr:
        raise NotImplementedError

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y)
        rows = np.concatenate([X, more])
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, rows, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        n, N = len(y), len(rows)
        K = kernel(rows, rows)
        # The representer's α solves (JK + nγ_A I + n γ_I/N² P K) α = y, J the labelled rows' indicator: not symmetric, and
        # no part of it is inverted first.
        system = np.zeros((N, N))
        if self.manifold > 0 and N > 1:
            neighbours = nearest(rows, min(self.n_neighbours, N - 1))
            np.matmul(self._penalty(rows, neighbours), K, out=system)
            system *= n * self.manifold / N**2
        system[:n] += K[:n]
        system.flat[:: N + 1] += n * self.ridge
        target = np.concatenate([y - self.intercept_, np.zeros(N - n)])
        alpha = lu_solve(lu_factor(system, overwrite_a=True, check_finite=False), target, check_finite=False)
        self.function_ = KernelExpansion(kernel, rows, alpha)
        self.predictions_unlabelled_ = K[n:] @ alpha + self.intercept_
        return self


def nearest(rows: Arr, count: int) -> Ints:
    """For each row the numbers of its nearest others, (N, count)."""
    found = NearestNeighbors(n_neighbors=count).fit(rows).kneighbors(return_distance=False)
    return np.asarray(found, dtype=np.int64)


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
