r"""Least squares support vector machine for regression: kernel ridge with a bias."""

from typing import Any, ClassVar, Self

from coreg_core.agreement.views import KernelExpansion
from coreg_core.estimators._scores import KernelRegressor
from coreg_core.estimators._tables import (
    COUNT,
    KERNELS,
    NOT_NEGATIVE,
    POSITIVE,
    RULES,
    fit_context,
    labelled_first,
    polynomial,
)
from coreg_core.estimators.snf import dual_with_bias
from coreg_core.kernels.functions import make_kernel, resolve_bandwidth


class LSSVM(KernelRegressor):
    r"""$\min_{f,b} \|y - f(X) - b\|^2 + \lambda\|f\|^2$, the bias b unpenalised.

    Source: Suykens and Vandewalle (1999), as cited by Grabocka, Bedalli, Schmidt-Thieme (2014), section 5.1.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    bandwidth
        σ: "paper" (mean squared distance), "median", or a positive number.
    ridge
        λ > 0.
    degree
        of the polynomial kernel.
    offset
        of the polynomial kernel.

    Attributes
    ----------
    function_
        f. intercept_: b. bandwidth_: σ in use.

    >>> import numpy as np
    >>> X = np.arange(5.0)[:, None]
    >>> bool(abs(LSSVM(bandwidth=2.0, ridge=1e-3).fit(X, X[:, 0] + 7).predict([[2.0]])[0] - 9.0) < 1e-2)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [KERNELS], "bandwidth": [RULES, POSITIVE], "ridge": [POSITIVE], "degree": [COUNT],
        "offset": [NOT_NEGATIVE],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: float = 1.0,
        degree: int = 3,
        offset: float = 1.0,
    ):
        self.kernel, self.bandwidth, self.ridge = kernel, bandwidth, ridge
        self.degree, self.offset = degree, offset

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), y (n,), NaN on rows to leave out."""
        X, y, _ = labelled_first(self, X, y)
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, X, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_, **polynomial(self))
        alpha, bias = dual_with_bias(kernel(X, X), y[:, None], float(self.ridge))
        self.function_, self.intercept_ = KernelExpansion(kernel, X, alpha[:, 0]), float(bias[0])
        return self
