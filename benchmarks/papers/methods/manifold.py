r"""Regularisation along a manifold: neighbours have similar values, a small Hessian, or parallel
gradients.

`ManifoldRLS` solves for any penalty P, a quadratic form of f's values on the rows. The function
stays in one reproducing kernel space, so that it has values elsewhere.
"""

from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lu_factor, lu_solve
from sklearn.neighbors import NearestNeighbors

from benchmarks.papers.methods.inputs import RULES, KernelRegressor, labelled_first
from coreg_core.agreement.views import KernelExpansion
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_core.estimators.parameters import COUNT, KERNELS, NOT_NEGATIVE, POSITIVE, fit_context
from coreg_core.kernels import make_kernel
from coreg_core.selection import resolve_bandwidth


class ManifoldRLS(KernelRegressor):
    """The base; see `LaplacianRLS` for the parameters that all have."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [KERNELS], "bandwidth": [RULES, POSITIVE], "ridge": [POSITIVE],
        "manifold": [NOT_NEGATIVE],
        "n_neighbours": [COUNT], "fit_intercept": ["boolean"],
    }  # fmt: skip
    kernel: str
    bandwidth: str | float
    ridge: float
    manifold: float
    n_neighbours: int
    fit_intercept: bool

    def _penalty(self, rows: Arr) -> Arr:
        return self._energy(rows, nearest(rows, min(self.n_neighbours, len(rows) - 1)))

    def _energy(self, rows: Arr, neighbours: Ints) -> Arr:
        raise NotImplementedError

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y)
        rows = np.concatenate([X, more])
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, rows, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        n = len(y)
        N = len(rows)
        K = kernel(rows, rows)
        # The representer's α solves (JK + nγ_A I + n γ_I/N² P K) α = y, J the labelled rows'
        # indicator: not symmetric, and no part of it is inverted first.
        system = np.zeros((N, N))
        if self.manifold > 0 and N > 1:
            np.matmul(self._penalty(rows), K, out=system)
            system *= n * self.manifold / N**2
        system[:n] += K[:n]
        system.flat[:: N + 1] += n * self.ridge
        target = np.concatenate([y - self.intercept_, np.zeros(N - n)])
        alpha = lu_solve(
            lu_factor(system, overwrite_a=True, check_finite=False), target, check_finite=False
        )
        self.function_ = KernelExpansion(kernel, rows, alpha)
        self.predictions_unlabelled_ = K[n:] @ alpha + self.intercept_
        return self


def nearest(rows: Arr, count: int) -> Ints:
    """For each row the numbers of its nearest others, (N, count)."""
    found = NearestNeighbors(n_neighbors=count).fit(rows).kneighbors(return_distance=False)
    return np.asarray(found, dtype=np.int64)


class LaplacianRLS(ManifoldRLS):
    r"""$\min_f \frac1n \sum_i (f(x_i) - y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2} f^\top L
    f$.

    f on the right is the vector of values on all N rows, labelled or not, and $f^\top L f = \frac12
    \sum_{ij} w_{ij} (f_i - f_j)^2$ over a symmetric neighbourhood graph with gaussian weights, its
    width the mean squared distance to neighbours. At γ_I = 0 it is RLSR with ν = nγ_A. Cost O(N³),
    memory O(N²).

    Source: Belkin, Niyogi, Sindhwani (2006), section 4.2, as cited by Grabocka et al. (2014).

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
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
    >>> LaplacianRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0],
        np.nan)).predictions_unlabelled_.shape
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
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.manifold = manifold
        self.n_neighbours = n_neighbours
        self.fit_intercept = fit_intercept

    def _energy(self, rows: Arr, neighbours: Ints) -> Arr:
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


def tangents(rows: Arr, neighbours: Ints, dimension: int) -> Arr:
    """An orthonormal basis of each row's tangent space, (N, d, dimension): local principal
    directions, by SVD.
    """
    local = rows[neighbours] - rows[:, None, :]
    local -= local.mean(axis=1, keepdims=True)
    _, _, directions = np.linalg.svd(local, full_matrices=False)
    basis: Arr = np.swapaxes(directions[:, :dimension, :], 1, 2)
    return basis


def check_dimension(dimension: int | None, d: int, n_neighbours: int, most: int) -> int:
    """The tangent spaces' dimension: as given, or as large as ``most``, the features and the
    neighbours allow.

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
            f"dimension={dimension}: choose 1 to {allowed}, or raise n_neighbours ({n_neighbours};"
            f" {d} features)."
        )
    return dimension


class HessianRLS(ManifoldRLS):
    r"""$\min_f \frac1n \sum_i (f(x_i) - y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2} \sum_i
    \|\nabla^2 f(x_i)\|_F^2$.

    The Hessian at a row is that of the quadratic which fits f's values on its neighbours best, in
    coordinates of its tangent space (local principal directions).

    Source: Kim, Steinke, Hein (2009), section 3. Departure: f is in a kernel space with a small
    ridge, as in `LaplacianRLS`, so that it has values at new rows; theirs is defined on the given
    ones.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
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
    >>> HessianRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0],
        np.nan)).predictions_unlabelled_.shape
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
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.manifold = manifold
        self.n_neighbours = n_neighbours
        self.dimension = dimension
        self.fit_intercept = fit_intercept

    def _energy(self, rows: Arr, neighbours: Ints) -> Arr:
        k = neighbours.shape[1]
        most = max((q for q in (1, 2, 3) if q * (q + 3) // 2 <= k), default=0)
        if most == 0:  # two rows: a quadratic and a line fit alike
            return np.zeros((len(rows), len(rows)))
        q = check_dimension(self.dimension, rows.shape[1], k, most)
        if q * (q + 3) // 2 > k:
            raise UsageError(
                f"n_neighbours={k}: a quadratic in dimension={q} has {q * (q + 3) // 2}"
                " coefficients; give more neighbours."
            )
        return hessian_energy(rows, neighbours, q)


def hessian_energy(rows: Arr, neighbours: Ints, dimension: int) -> Arr:
    """The quadratic form Σ_i ‖∇²f(x_i)‖_F² of f's values on the rows, (N, N)."""
    N = len(rows)
    u = np.einsum(
        "nkd,ndq->nkq", rows[neighbours] - rows[:, None, :], tangents(rows, neighbours, dimension)
    )
    first, second = np.triu_indices(dimension)
    # f(x_j) − f(x_i) ≈ g·u + ½ uᵀHu: columns for g, for H's diagonal and for its upper half (which
    # counts twice).
    halves = np.where(first == second, 0.5, 1.0)
    design = np.concatenate([u, u[:, :, first] * u[:, :, second] * halves], axis=2)
    # Neighbours that lie in fewer dimensions leave columns without a value: a relative cut of the
    # singular values.
    fits = np.linalg.pinv(design, rcond=1e-6)[:, dimension:, :]  # (N, entries of H, k)
    fits *= np.where(first == second, 1.0, np.sqrt(2.0))[None, :, None]
    P = np.zeros((N, N))
    operator = np.concatenate([-fits.sum(axis=2, keepdims=True), fits], axis=2)
    where = np.concatenate([np.arange(N)[:, None], neighbours], axis=1)
    np.add.at(P, (where[:, :, None], where[:, None, :]), np.swapaxes(operator, 1, 2) @ operator)
    return P


class ParallelFieldRLS(ManifoldRLS):
    r"""$\min_{f, V} \frac1n\sum_i (f(x_i)-y_i)^2 + \gamma_A\|f\|^2 + \frac{\gamma_I}{N^2}[R_1(f, V)
    + \rho R_2(V)]$.

    $R_1 = \sum_{i \sim j} ((x_j - x_i)^\top T_i v_i - f_j + f_i)^2$: V is f's gradient; $R_2 =
    \sum_{i\sim j} \|T_i^\top T_j v_j - v_i\|^2$: V is parallel. The v_i are coordinates in tangent
    bases T_i, from local principal directions; j runs over the neighbours of i. V is eliminated in
    closed form, which leaves a quadratic form of f.

    Source: Lin, Zhang, He (2011), equations 4 to 9. Departure: f is in a kernel space with a small
    ridge, as in `LaplacianRLS`, so that it has values at new rows.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
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
    >>> ParallelFieldRLS(manifold=0.1).fit(X, np.where(np.arange(100) < 10, X[:, 0],
        np.nan)).predictions_unlabelled_.shape
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
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.manifold = manifold
        self.parallel = parallel
        self.n_neighbours = n_neighbours
        self.dimension = dimension
        self.fit_intercept = fit_intercept

    def _energy(self, rows: Arr, neighbours: Ints) -> Arr:
        q = check_dimension(self.dimension, rows.shape[1], neighbours.shape[1] + 1, 3)
        return parallel_field_energy(rows, neighbours, q, self.parallel)


def parallel_field_energy(rows: Arr, neighbours: Ints, dimension: int, parallel: float) -> Arr:
    """The quadratic form min_V R₁(f, V) + ρ R₂(V) of f's values on the rows, (N, N)."""
    N, k = neighbours.shape
    q = dimension
    T = tangents(rows, neighbours, dimension)
    u = np.einsum("nkd,ndq->nkq", rows[neighbours] - rows[:, None, :], T)
    # R₁ = Σ (u·v_i − f_j + f_i)², R₂ = Σ ‖Q_ij v_j − v_i‖²: A of f, C of f and v, D of v.
    A = np.zeros((N, N))
    C = np.zeros((N, N * q))
    D = np.zeros((N, N, q, q))
    each = np.arange(N)
    for a in range(k):
        j = neighbours[:, a]
        step = u[:, a, :]
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
    # Where rows repeat, a direction of V can be without effect on R₁ and R₂: its value is
    # arbitrary, and 1e-12 of the mean curvature decides it. f's energy, a minimum over V, moves by
    # no more than that share.
    of_v.flat[:: N * q + 1] += 1e-12 * np.trace(of_v) / (N * q)
    return A - C @ cho_solve(
        cho_factor(of_v, lower=True, overwrite_a=True, check_finite=False), C.T, check_finite=False
    )
