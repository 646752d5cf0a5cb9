r"""Parallel field regularisation: the gradient of f is close to a vector field that hardly turns along the manifold."""

from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from benchmarks.papers.rivals.tangents import check_dimension, tangents
from coreg_core.estimators._tables import COUNT, POSITIVE
from coreg_core.estimators.laplacian_rls import ManifoldRLS
from coreg_core.numerics.arrays import Arr, Ints


class ParallelFieldRLS(ManifoldRLS):
    r"""$\min_{f, V} \frac1n\sum_i (f(x_i)-y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2}[R_1(f, V) + \rho R_2(V)]$.

    $R_1 = \sum_{i \sim j} ((x_j - x_i)^\top T_i v_i - f_j + f_i)^2$: V is f's gradient;
    $R_2 = \sum_{i\sim j} \|T_i^\top T_j v_j - v_i\|^2$: V is parallel. The v_i are coordinates in tangent bases T_i, from local
    principal directions; j runs over the neighbours of i. V is eliminated in closed form, which leaves a quadratic form of f.

    Source: Lin, Zhang, He (2011), equations 4 to 9. Departure: f is in a kernel space with a small ridge, as in `LaplacianRLS`,
    so that it has values at new rows.

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
    parallel
        ρ > 0, the weight of R₂ against R₁.
    n_neighbours
        k.
    dimension
        of the tangent spaces; None: the most that k and the features allow, up to 3.
    fit_intercept
        subtract the target's labelled mean, and add it back.

    Attributes
    ----------
    function_, intercept_, bandwidth_, predictions_unlabelled_
        as of `LaplacianRLS`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> ParallelFieldRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0], np.nan)).predictions_unlabelled_.shape
    (90,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **ManifoldRLS._parameter_constraints, "parallel": [POSITIVE], "dimension": [COUNT, None],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: float = 1e-3,
        manifold: float = 1.0,
        parallel: float = 1.0,
        n_neighbours: int = 10,
        dimension: int | None = None,
        fit_intercept: bool = True,
    ):
        self.kernel, self.bandwidth, self.ridge, self.manifold = kernel, bandwidth, ridge, manifold
        self.parallel, self.n_neighbours, self.dimension = parallel, n_neighbours, dimension
        self.fit_intercept = fit_intercept

    def _penalty(self, rows: Arr, neighbours: Ints) -> Arr:
        q = check_dimension(self.dimension, rows.shape[1], neighbours.shape[1] + 1, 3)
        return parallel_field_energy(rows, neighbours, q, self.parallel)


def parallel_field_energy(rows: Arr, neighbours: Ints, dimension: int, parallel: float) -> Arr:
    """The quadratic form min_V R₁(f, V) + ρ R₂(V) of f's values on the rows, (N, N)."""
    N, k = neighbours.shape
    q, T = dimension, tangents(rows, neighbours, dimension)
    u = np.einsum("nkd,ndq->nkq", rows[neighbours] - rows[:, None, :], T)
    # R₁ = Σ (u·v_i − f_j + f_i)², R₂ = Σ ‖Q_ij v_j − v_i‖²: A of f, C of f and v, D of v.
    A, C, D = np.zeros((N, N)), np.zeros((N, N * q)), np.zeros((N, N, q, q))
    each = np.arange(N)
    for a in range(k):
        j, step = neighbours[:, a], u[:, a, :]
        np.add.at(A, (each, each), 1.0)
        np.add.at(A, (j, j), 1.0)
        np.add.at(A, (each, j), -1.0)
        np.add.at(A, (j, each), -1.0)
        columns = each[:, None] * q + np.arange(q)
        np.add.at(C, (each[:, None], columns), step)
        np.add.at(C, (j[:, None], columns), -step)
        turn = np.einsum("ndp,ndq->npq", T, T[j])
        back = np.swapaxes(turn, 1, 2)
        np.add.at(D, (each, each), step[:, :, None] * step[:, None, :] + parallel * np.eye(q))
        np.add.at(D, (j, j), parallel * (back @ turn))
        np.add.at(D, (each, j), -parallel * turn)
        np.add.at(D, (j, each), -parallel * back)
    of_v = np.swapaxes(D, 1, 2).reshape(N * q, N * q)
    # Where rows repeat, a direction of V can be without effect on R₁ and R₂: its value is arbitrary, and 1e-12 of the mean
    # curvature decides it. f's energy, a minimum over V, moves by no more than that share.
    of_v.flat[:: N * q + 1] += 1e-12 * np.trace(of_v) / (N * q)
    return A - C @ cho_solve(
        cho_factor(of_v, lower=True, overwrite_a=True, check_finite=False), C.T, check_finite=False
    )
