r"""Kernel ridge regression: RLSR, the baseline of every comparison, and LS-SVM, which has a
bias.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dposv
from sklearn.utils._param_validation import StrOptions

from benchmarks.papers.methods.inputs import RULES, KernelRegressor, labelled_first
from coreg_core.agreement.views import KernelExpansion, positive_factor
from coreg_core.arrays import Arr
from coreg_core.errors import SingularSystem
from coreg_core.estimators.corlsr import by_preset
from coreg_core.estimators.parameters import COUNT, KERNELS, POSITIVE, fit_context
from coreg_core.kernels import make_kernel
from coreg_core.selection import kernel_rule, resolve_bandwidth


class RLSR(KernelRegressor):
    r"""$\min_f \|y - f(X)\|^2 + \nu\|f\|^2$ over kernels at X: f(x) = k(x, X)(K + νI)⁻¹ y.

    The targets are less their mean, which predictions contain (``fit_intercept``). Columns are not
    standardised: put a StandardScaler before it.

    Source: Saunders et al. (1998), as cited by Brefeld et al. (2006), section 3.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper"
        is "paper", "paper" and False.
    bandwidth
        σ: "paper" (mean of ‖x_i−x_j‖² over all n² pairs), "median", "loo" (leave-one-out), or a
        positive number. None: by the preset.
    ridge
        ν: "paper" (inverse mean input norm), "loo", or a positive number. None: by the preset.
    fit_intercept
        subtract the mean of the targets, and add it back. None: by the preset.

    Attributes
    ----------
    bandwidth_, ridge_
        the values in use. intercept_.
    function_
        the kernel expansion.

    >>> import numpy as np
    >>> RLSR(bandwidth=1.0, ridge=1.0, fit_intercept=False).fit([[0.0]], [2.0]).predict([[0.0]])
    array([1.])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [KERNELS], "preset": [StrOptions({"loo", "paper"})],
        "bandwidth": [StrOptions({"paper", "median", "loo"}), POSITIVE, None],
        "ridge": [StrOptions({"paper", "loo"}), POSITIVE, None], "fit_intercept": ["boolean", None],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        preset: str = "loo",
        bandwidth: str | float | None = None,
        ridge: str | float | None = None,
        fit_intercept: bool | None = None,
    ):
        self.kernel = kernel
        self.preset = preset
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.fit_intercept = fit_intercept

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), y (n,), NaN on rows to leave out."""
        X, y, _ = labelled_first(self, X, y)
        bandwidth, ridge, with_intercept = by_preset(self)
        self.intercept_ = float(y.mean()) if with_intercept else 0.0
        y = y - self.intercept_
        self.bandwidth_, self.ridge_ = kernel_rule(X, y, self.kernel, bandwidth, ridge)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        K = kernel(X, X)
        K.flat[:: len(X) + 1] += self.ridge_
        factor = positive_factor(
            K, f"the kernel matrix at ridge={self.ridge_:g}", "raise the ridge"
        )
        self.function_ = KernelExpansion(kernel, X, cho_solve(factor, y, check_finite=False))
        return self


def dual_with_bias(K: Float64[Arr, "n n"], Y: Float64[Arr, "n k"], ridge: float) -> tuple[Arr, Arr]:
    r"""$\begin{bmatrix}0 & 1^\top\\ 1 & K+\lambda I\end{bmatrix} \begin{bmatrix}b\\
    \alpha\end{bmatrix} = \begin{bmatrix}0\\ Y\end{bmatrix}$, for every column of Y: α (n, k) and b
    (k,).

    By the Cholesky factor of K + λI: $b = 1^\top A^{-1} Y / 1^\top A^{-1} 1$, $\alpha = A^{-1}(Y -
    1b^\top)$. SingularSystem: λ is below rounding.
    """
    A = K.copy()
    A.flat[:: len(A) + 1] += ridge
    _, solved, info = dposv(
        A.T, np.hstack([np.ones((len(K), 1)), Y]), overwrite_a=True
    )  # LAPACK: SNF solves thousands
    if info:
        raise SingularSystem(
            f"the kernel matrix at ridge={ridge:g} is singular in floating point: raise the ridge."
        )
    ones = solved[:, :1]
    of_Y = solved[:, 1:]
    b = of_Y.sum(axis=0) / ones.sum()
    return of_Y - ones * b, b


@dataclass(frozen=True)
class Polynomial:
    r"""$k(x, x') = (\langle x, x'\rangle + 1)^{p}$ with p = ``degree``."""

    degree: int

    def __call__(self, A: Float64[Arr, "a d"], B: Float64[Arr, "b d"]) -> Float64[Arr, "a b"]:
        """The matrix k(a_i, b_j)."""
        K: Arr = (A @ B.T + 1.0) ** self.degree
        return K


@dataclass(frozen=True, eq=False)
class Expansion:
    """f(x) = k(x, points) · coef of any kernel."""

    kernel: Any
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X)."""
        return np.asarray(self.kernel(X, self.points) @ self.coef)


class LSSVM(KernelRegressor):
    r"""$\min_{f,b} \|y - f(X) - b\|^2 + \lambda\|f\|^2$, the bias b unpenalised.

    Source: Suykens and Vandewalle (1999), as cited by Grabocka, Bedalli, Schmidt-Thieme (2014),
    section 5.1.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "linear" or "polynomial".
    bandwidth
        σ: "paper" (mean squared distance), "median", or a positive number.
    ridge
        λ > 0.
    degree
        of the polynomial kernel.

    Attributes
    ----------
    function_
        f. intercept_: b. bandwidth_: σ in use.

    >>> import numpy as np
    >>> X = np.arange(5.0)[:, None]
    >>> bool(abs(LSSVM(bandwidth=2.0, ridge=1e-3).fit(X, X[:, 0] + 7).predict([[2.0]])[0] - 9.0) <
        1e-2)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [StrOptions({"gaussian", "linear", "polynomial"})],
        "bandwidth": [RULES, POSITIVE], "ridge": [POSITIVE],
        "degree": [COUNT],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: float = 1.0,
        degree: int = 3,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.degree = degree

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), y (n,), NaN on rows to leave out."""
        X, y, _ = labelled_first(self, X, y)
        kernel: Any = Polynomial(self.degree)
        if self.kernel != "polynomial":
            self.bandwidth_ = resolve_bandwidth(self.bandwidth, X, self.kernel)
            kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        alpha, bias = dual_with_bias(kernel(X, X), y[:, None], float(self.ridge))
        self.function_ = Expansion(kernel, X, alpha[:, 0])
        self.intercept_ = float(bias[0])
        return self
