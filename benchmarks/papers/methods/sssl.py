r"""Simple semi-supervised learning: least squares on the eigenfunctions of the unlabelled data, and
its Nyström form.
"""

from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cho_solve, eigh, lstsq, qr
from scipy.sparse.linalg import eigsh
from sklearn.utils._param_validation import StrOptions

from benchmarks.papers.methods.inputs import RULES, KernelRegressor, labelled_first, leave_one_out
from coreg_core.agreement.views import KernelExpansion, positive_factor
from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.estimators.parameters import COUNT, KERNELS, POSITIVE, fit_context, generator
from coreg_core.kernels import make_kernel
from coreg_core.selection import RIDGES, require_rows, resolve_bandwidth
from coreg_core.spans import RANK_TOLERANCE, Basis, orthonormal_basis


class SSSL(KernelRegressor):
    r"""$\min_w \sum_i (\sum_{j \le s} w_j \phi_j(x_i) - y_i)^2$, φ the first s eigenfunctions of
    $L_N$.

    $L_N f = \frac1N \sum_i k(x_i, \cdot) f(x_i)$ over all N rows, labelled or not: with K's
    eigenpairs (μ_j, v_j), $\phi_j(x) = \mu_j^{-1/2} \sum_i v_{ij} k(x_i, x)$. Cost O(N³), memory
    O(N²): see `NystromSSSL` for many rows.

    Source: Ji, Yang, Lin, Jin, Han (2012), as given by McWilliams et al. (2013), equations 6 and
    10.

    Parameters
    ----------
    n_eigenfunctions
        s; None: by leave-one-out, at most half as many as labelled rows.
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    bandwidth
        σ: "paper" or "median", over all N rows; or a positive number.
    eigen_solver
        "dense" (LAPACK, with the cost above) or "lanczos" (O(N²) a step; the same functions).
    fit_intercept
        subtract the target's labelled mean, and add it back; False is the paper's equation as
        printed.

    Attributes
    ----------
    eigenvalues_
        of K/N, the first s. coef_: w. basis_: the eigenfunctions. intercept_, bandwidth_.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> y = np.where(np.arange(300) < 20, X[:, 0], np.nan)
    >>> SSSL(n_eigenfunctions=5).fit(X, y).predict(X).shape
    (300,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_eigenfunctions": [COUNT, None], "kernel": [KERNELS], "bandwidth": [RULES, POSITIVE],
        "eigen_solver": [StrOptions({"dense", "lanczos"})], "fit_intercept": ["boolean"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_eigenfunctions: int | None = None,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        eigen_solver: str = "dense",
        fit_intercept: bool = True,
    ):
        self.n_eigenfunctions = n_eigenfunctions
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.eigen_solver = eigen_solver
        self.fit_intercept = fit_intercept

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y)
        everything = np.concatenate([X, more])
        s = (
            min(max(1, len(X) // 2), len(everything))
            if self.n_eigenfunctions is None
            else self.n_eigenfunctions
        )
        if s > len(everything):
            raise UsageError(
                f"n_eigenfunctions={s}: choose 1 to {len(everything)}, the number of rows."
            )
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, everything, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        values, vectors = _largest(kernel(everything, everything), s, self.eigen_solver)
        keep = values > RANK_TOLERANCE * max(
            values[0], 0.0
        )  # an eigenvalue of zero has no eigenfunction
        if not keep.any():
            raise UsageError(
                "the kernel is zero on every row; use another kernel, or a feature that is not"
                " constant."
            )
        values = values[keep]
        vectors = vectors[:, keep]
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        if self.n_eigenfunctions is None:
            s = best_columns(vectors[: len(X)], y - self.intercept_)
            values = values[:s]
            vectors = vectors[:, :s]
        self.eigenvalues_ = values / len(everything)
        self.basis_ = Basis(kernel, everything, np.ascontiguousarray(vectors / np.sqrt(values)))
        # The row of x_i among the eigenvectors is φ(x_i) already; scaled alike, so that columns of
        # tiny μ still count.
        features = vectors[: len(X)]
        self.coef_ = lstsq(features, y - self.intercept_, check_finite=False)[0] / np.sqrt(values)
        self.function_ = KernelExpansion(kernel, everything, self.basis_.transform @ self.coef_)
        return self


class NystromSSSL(KernelRegressor):
    r"""$\min_w \frac1n \sum_i (w^\top z(x_i) - y_i)^2 + \gamma\|w\|^2$, z the Nyström features of M
    landmarks from all rows.

    The paper's SSSL_M (and with 2M landmarks SSSL_2M): Nyström for the eigenfunctions, a ridge for
    their number. With every labelled row a landmark and no other row it is kernel ridge regression
    with ridge nγ.

    Source: McWilliams, Balduzzi, Buhmann (2013), section 2.4.

    Parameters
    ----------
    n_components
        M; None: 200, or every row where they are fewer.
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    bandwidth
        σ: "paper" or "median", over the landmarks; or a positive number.
    ridge
        γ > 0, or "loo" (leave-one-out).
    fit_intercept
        subtract the target's labelled mean, and add it back; False is the paper's equation as
        printed.
    random_state
        of the landmarks.

    Attributes
    ----------
    coef_
        w. basis_: the features. intercept_, bandwidth_, ridge_, n_components_.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> y = np.where(np.arange(300) < 20, X[:, 0], np.nan)
    >>> NystromSSSL(n_components=40, random_state=0).fit(X, y).predict(X).shape
    (300,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [COUNT, None], "kernel": [KERNELS], "bandwidth": [RULES, POSITIVE],
        "ridge": [StrOptions({"loo"}), POSITIVE], "fit_intercept": ["boolean"],
        "random_state": ["random_state"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_components: int | None = None,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: str | float = "loo",
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """As `SSSL.fit`; of the unlabelled rows only the landmarks are used."""
        X, y, more = labelled_first(self, X, y)
        everything = np.concatenate([X, more])
        M = min(200, len(everything)) if self.n_components is None else self.n_components
        if len(everything) < M:
            raise UsageError(
                f"n_components={M}: choose 1 to {len(everything)}, the number of rows."
            )
        rng = generator(self.random_state)
        landmarks = everything[np.sort(rng.choice(len(everything), size=M, replace=False))]
        self.bandwidth_ = resolve_bandwidth(
            self.bandwidth, landmarks if M > 1 else everything, self.kernel
        )
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        self.basis_ = orthonormal_basis(kernel, landmarks)
        self.n_components_ = M
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        features = self.basis_.features(X)
        y = y - self.intercept_
        self.ridge_ = (
            best_ridge(features, y) / len(y) if self.ridge == "loo" else float(self.ridge)
        )  # γ is ν/n
        self.coef_ = ridge_regression(features, y, self.ridge_)
        self.function_ = KernelExpansion(
            kernel, self.basis_.points, self.basis_.transform @ self.coef_
        )
        return self


def best_ridge(features: Arr, y: Arr) -> float:
    """The ridge of least mean squared leave-one-out error, without an intercept; UsageError for one
    row.
    """
    require_rows(y)
    return float(RIDGES[int(np.mean(leave_one_out(features, y) ** 2, axis=1).argmin())])


def best_columns(features: Arr, y: Arr) -> int:
    """The number of leading columns whose least squares fit has the least squared leave-one-out
    error.

    With Q of the columns' QR, a fit adds q_j (q_jᵀy) for each column, and a leverage q_ij².
    """
    Q = qr(features, mode="economic", check_finite=False)[0]
    residuals = y[:, None] - np.cumsum(Q * (Q.T @ y), axis=1)
    left_out = residuals / np.maximum(1.0 - np.cumsum(Q * Q, axis=1), 1e-6)
    return int((left_out**2).sum(axis=0).argmin()) + 1


def ridge_regression(features: Arr, y: Arr, ridge: float, products: Arr | None = None) -> Arr:
    r"""$\min_w \frac1n \|\Phi w - y\|^2 + \gamma\|w\|^2$, γ > 0, through the smaller of ΦᵀΦ
    (``products``, if known) and ΦΦᵀ.
    """
    n, p = features.shape
    if p > n:
        H = features @ features.T
    elif products is None:
        H = features.T @ features
    else:
        H = products.copy()
    H.flat[:: len(H) + 1] += n * ridge
    factor = positive_factor(H, f"the features' matrix at ridge={ridge:g}", "raise the ridge")
    right = features.T @ y if p <= n else y
    solution: Arr = cho_solve(factor, right, check_finite=False)
    return solution if p <= n else features.T @ solution


def _largest(K: Arr, count: int, solver: str) -> tuple[Arr, Arr]:
    """The ``count`` largest eigenvalues, descending, and their vectors."""
    n = len(K)
    match solver:
        case "dense":
            values, vectors = eigh(K, driver="evd", overwrite_a=True, check_finite=False)
            values = values[n - count :]
            vectors = vectors[:, n - count :]
        case "lanczos" if count < n:
            start = np.full(
                n, 1.0 / np.sqrt(n)
            )  # else ARPACK draws one, and the signs differ between runs
            values, vectors = eigsh(K, k=count, v0=start)
        case _:
            return _largest(K, count, "dense")
    return values[::-1], vectors[:, ::-1]
