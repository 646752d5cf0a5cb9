r"""Regularised least squares regression: the model of a site alone, and the baseline of every comparison."""

from typing import Any, ClassVar, Self

from scipy.linalg import cho_solve
from sklearn.utils._param_validation import StrOptions

from coreg_core.agreement.views import KernelExpansion, positive_factor
from coreg_core.estimators._scores import KernelRegressor
from coreg_core.estimators._tables import (
    COUNT,
    KERNELS,
    NOT_NEGATIVE,
    POSITIVE,
    by_preset,
    fit_context,
    labelled_first,
    polynomial,
)
from coreg_core.kernels.functions import make_kernel
from coreg_core.kernels.leave_one_out import kernel_rule


class RLSR(KernelRegressor):
    r"""$\min_f \|y - f(X)\|^2 + \nu\|f\|^2$ over kernels at X: f(x) = k(x, X)(K + νI)⁻¹ y.

    The targets are less their mean, which predictions contain (``fit_intercept``). Columns are not standardised: put a
    StandardScaler before it.

    Source: Saunders et al. (1998), as cited by Brefeld et al. (2006), section 3.

    Parameters
    ----------
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper" is "paper", "paper" and
        False.
    bandwidth
        σ: "paper" (mean of ‖x_i−x_j‖² over all n² pairs), "median", "loo" (leave-one-out), or a positive number. None: by the
        preset.
    ridge
        ν: "paper" (inverse mean input norm), "loo", or a positive number. None: by the preset.
    fit_intercept
        subtract the mean of the targets, and add it back. None: by the preset.
    degree, offset
        of the polynomial kernel.

    Attributes
    ----------
    bandwidth_, ridge_
        the values in use. intercept_.
    function_
        the kernel expansion.

    >>> import numpy as np
    >>> from coreg_core.estimators import RLSR
    >>> RLSR(bandwidth=1.0, ridge=1.0, fit_intercept=False).fit([[0.0]], [2.0]).predict([[0.0]])
    array([1.])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "kernel": [KERNELS], "preset": [StrOptions({"loo", "paper"})],
        "bandwidth": [StrOptions({"paper", "median", "loo"}), POSITIVE, None],
        "ridge": [StrOptions({"paper", "loo"}), POSITIVE, None], "fit_intercept": ["boolean", None],
        "degree": [COUNT], "offset": [NOT_NEGATIVE],
    }  # fmt: skip

    def __init__(
        self,
        *,
        kernel: str = "gaussian",
        preset: str = "loo",
        bandwidth: str | float | None = None,
        ridge: str | float | None = None,
        fit_intercept: bool | None = None,
        degree: int = 3,
        offset: float = 1.0,
    ):
        self.kernel, self.preset = kernel, preset
        self.bandwidth, self.ridge, self.fit_intercept = bandwidth, ridge, fit_intercept
        self.degree, self.offset = degree, offset

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), y (n,), NaN on rows to leave out."""
        X, y, _ = labelled_first(self, X, y)
        bandwidth, ridge, with_intercept = by_preset(self)
        self.intercept_ = float(y.mean()) if with_intercept else 0.0
        y = y - self.intercept_
        self.bandwidth_, self.ridge_ = kernel_rule(X, y, self.kernel, bandwidth, ridge, **polynomial(self))
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_, **polynomial(self))
        K = kernel(X, X)
        K.flat[:: len(X) + 1] += self.ridge_
        factor = positive_factor(K, f"the kernel matrix at ridge={self.ridge_:g}", "raise the ridge")
        self.function_ = KernelExpansion(kernel, X, cho_solve(factor, y, check_finite=False))
        return self
