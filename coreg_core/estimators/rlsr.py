r"""Regularised least squares regression: the model of a site alone, and the baseline of every comparison."""

from typing import Any, Self

import numpy as np
from scipy.linalg import cho_solve
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from coreg_core.agreement.views import KernelExpansion, positive_factor
from coreg_core.kernels.functions import make_kernel, resolve_bandwidth, resolve_ridge


class RLSR(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    r"""$\min_f \|y - f(X)\|^2 + \nu\|f\|^2$ over kernels at X: f(x) = k(x, X)(K + νI)⁻¹ y.

    Source: Saunders et al. (1998), as cited by Brefeld et al. (2006), section 3.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    bandwidth
        σ: "paper" (mean of ‖x_i−x_j‖² over all n² pairs), "median", or a positive number.
    ridge
        ν: "paper" (inverse mean input norm) or a positive number.
    degree
        of the polynomial kernel.
    offset
        of the polynomial kernel.

    Attributes
    ----------
    bandwidth_, ridge_
        the values in use.
    function_
        the kernel expansion.

    Raises
    ------
    UsageError
        (a ValueError) a rule has no value for these rows; the message names the parameter.
    SingularSystem
        (a ValueError) rows repeat, and the ridge is below rounding.

    >>> import numpy as np
    >>> from coreg_core.estimators import RLSR
    >>> RLSR(bandwidth=1.0, ridge=1.0).fit([[0.0]], [2.0]).predict([[0.0]])
    array([1.])
    """

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: str | float = "paper",
        degree: int = 3,
        offset: float = 1.0,
    ):
        self.kernel, self.bandwidth, self.ridge = kernel, bandwidth, ridge
        self.degree, self.offset = degree, offset

    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), y (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, X, self.kernel)
        self.ridge_ = resolve_ridge(self.ridge, X)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_, degree=self.degree, offset=self.offset)
        K = kernel(X, X)
        K.flat[:: len(X) + 1] += self.ridge_
        factor = positive_factor(K, f"the kernel matrix at ridge={self.ridge_:g}", "raise the ridge")
        coef = cho_solve(factor, y, check_finite=False)
        self.function_ = KernelExpansion(kernel, X, coef)
        return self

    def predict(self, X: Any) -> Any:
        """f(X), shape (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, order="C", reset=False)
        return self.function_.predict(X)
