r"""Laplacian regularised least squares: neighbours on the manifold have similar values.

`ManifoldRLS` solves for any penalty P, a quadratic form of f's values on the rows. The function stays in one reproducing kernel
space, so that it has values elsewhere.
"""

from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import lu_factor, lu_solve
from sklearn.neighbors import NearestNeighbors

from coreg_core.agreement.views import KernelExpansion
from coreg_core.estimators._scores import KernelRegressor
from coreg_core.estimators._tables import COUNT, KERNELS, NOT_NEGATIVE, POSITIVE, RULES, fit_context, labelled_first
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


class LaplacianRLS(ManifoldRLS):
    r"""$\min_f \frac1n \sum_i (f(x_i) - y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2} f^\top L f$.

    f on the right is the vector of values on all N rows, labelled or not, and
    $f^\top L f = \frac12 \sum_{ij} w_{ij} (f_i - f_j)^2$ over a symmetric neighbourhood graph with gaussian weights, its
    width the mean squared distance to neighbours. At γ_I = 0 it is RLSR with ν = nγ_A. Cost O(N³), memory O(N²).

    Source: Belkin, Niyogi, Sindhwani (2006), section 4.2, as cited by Grabocka et al. (2014).

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    bandwidth
        σ: "paper" (mean squared distance over all rows), "median", or a positive number.
    ridge
        γ_A > 0.
    manifold
        γ_I ≥ 0.
    n_neighbours
        of the graph; fewer where there are fewer rows.
    fit_intercept
        subtract the target's labelled mean, and add it back.

    Attributes
    ----------
    function_
        the kernel expansion over all rows. intercept_, bandwidth_.
    predictions_unlabelled_
        (m,).

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> LaplacianRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0], np.nan)).predictions_unlabelled_.shape
    (90,)
    """

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: float = 1e-3,
        manifold: float = 1.0,
        n_neighbours: int = 10,
        fit_intercept: bool = True,
    ):
        self.kernel, self.bandwidth, self.ridge, self.manifold = kernel, bandwidth, ridge, manifold
        self.n_neighbours, self.fit_intercept = n_neighbours, fit_intercept

    def _penalty(self, rows: Arr, neighbours: Ints) -> Arr:
        return graph_laplacian(rows, neighbours)


def graph_laplacian(rows: Arr, neighbours: Ints) -> Arr:
    """L = D − W of the symmetric neighbourhood graph, (N, N)."""
    N = len(rows)
    squares = ((rows[neighbours] - rows[:, None, :]) ** 2).sum(axis=2)
    width = float(squares.mean()) or 1.0
    W = np.zeros((N, N))
    W[np.arange(N)[:, None], neighbours] = np.exp(-squares / width)
    W = np.maximum(W, W.T)
    L = -W
    L.flat[:: N + 1] = W.sum(axis=1)
    return L
