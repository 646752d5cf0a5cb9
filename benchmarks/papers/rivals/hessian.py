r"""Hessian energy regularisation: functions that are linear along the manifold cost nothing."""

from typing import Any, ClassVar

import numpy as np

from benchmarks.papers.rivals.tangents import check_dimension, tangents
from coreg_core.errors import UsageError
from coreg_core.estimators._tables import COUNT
from coreg_core.estimators.laplacian_rls import ManifoldRLS
from coreg_core.numerics.arrays import Arr, Ints


class HessianRLS(ManifoldRLS):
    r"""$\min_f \frac1n \sum_i (f(x_i) - y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2} \sum_i \|\nabla^2 f(x_i)\|_F^2$.

    The Hessian at a row is that of the quadratic which fits f's values on its neighbours best, in coordinates of its tangent
    space (local principal directions).

    Source: Kim, Steinke, Hein (2009), section 3. Departure: f is in a kernel space with a small ridge, as in `LaplacianRLS`, so
    that it has values at new rows; theirs is defined on the given ones.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    bandwidth
        σ: "paper", "median", or a positive number.
    ridge
        γ_A > 0.
    manifold
        γ_I ≥ 0.
    n_neighbours
        k; at least the 1, 2, 5, 9 … coefficients q(q+3)/2 of a quadratic in q tangent coordinates.
    dimension
        q of the tangent spaces; None: the most that k and the features allow, up to 3.
    fit_intercept
        subtract the target's labelled mean, and add it back.

    Attributes
    ----------
    function_, intercept_, bandwidth_, predictions_unlabelled_
        as of `LaplacianRLS`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> HessianRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0], np.nan)).predictions_unlabelled_.shape
    (90,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **ManifoldRLS._parameter_constraints, "dimension": [COUNT, None],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: float = 1e-3,
        manifold: float = 1.0,
        n_neighbours: int = 15,
        dimension: int | None = None,
        fit_intercept: bool = True,
    ):
        self.kernel, self.bandwidth, self.ridge, self.manifold = kernel, bandwidth, ridge, manifold
        self.n_neighbours, self.dimension, self.fit_intercept = n_neighbours, dimension, fit_intercept

    def _penalty(self, rows: Arr, neighbours: Ints) -> Arr:
        k = neighbours.shape[1]
        most = max((q for q in (1, 2, 3) if q * (q + 3) // 2 <= k), default=0)
        if most == 0:  # two rows: a quadratic and a line fit alike
            return np.zeros((len(rows), len(rows)))
        q = check_dimension(self.dimension, rows.shape[1], k, most)
        if q * (q + 3) // 2 > k:
            raise UsageError(
                f"n_neighbours={k}: a quadratic in dimension={q} has {q * (q + 3) // 2} coefficients; give more neighbours."
            )
        return hessian_energy(rows, neighbours, q)


def hessian_energy(rows: Arr, neighbours: Ints, dimension: int) -> Arr:
    """The quadratic form Σ_i ‖∇²f(x_i)‖_F² of f's values on the rows, (N, N)."""
    N = len(rows)
    u = np.einsum("nkd,ndq->nkq", rows[neighbours] - rows[:, None, :], tangents(rows, neighbours, dimension))
    first, second = np.triu_indices(dimension)
    # f(x_j) − f(x_i) ≈ g·u + ½ uᵀHu: columns for g, for H's diagonal and for its upper half (which counts twice).
    halves = np.where(first == second, 0.5, 1.0)
    design = np.concatenate([u, u[:, :, first] * u[:, :, second] * halves], axis=2)
    # Neighbours that lie in fewer dimensions leave columns without a value: a relative cut of the singular values.
    fits = np.linalg.pinv(design, rcond=1e-6)[:, dimension:, :]  # (N, entries of H, k)
    fits *= np.where(first == second, 1.0, np.sqrt(2.0))[None, :, None]
    P = np.zeros((N, N))
    operator = np.concatenate([-fits.sum(axis=2, keepdims=True), fits], axis=2)
    where = np.concatenate([np.arange(N)[:, None], neighbours], axis=1)
    np.add.at(P, (where[:, :, None], where[:, None, :]), np.swapaxes(operator, 1, 2) @ operator)
    return P
