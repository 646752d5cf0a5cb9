r"""Laplacian regularised least squares: neighbours on the manifold have similar values."""

import numpy as np

from coreg_core.estimators._manifold import ManifoldRLS
from coreg_core.numerics.arrays import Arr, Ints


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
