"""What the methods of the papers share: one table with its labelled rows first, and a kernel
expansion that predicts.
"""

from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.linalg import svd
from sklearn.utils._param_validation import Interval, StrOptions

from coreg_core.agreement.views import KernelExpansion
from coreg_core.arrays import Arr
from coreg_core.estimators.tables import own_table
from coreg_core.estimators.targets import Regressor
from coreg_core.selection import RIDGES, left_out

COUNT_OR_0 = Interval(Integral, 0, None, closed="left")
RULES = StrOptions({"paper", "median"})  # of a bandwidth


def labelled_first(estimator: Any, X: Any, y: Any, *, least: int = 1) -> tuple[Arr, Arr, Arr]:
    """Labelled rows (n, d), their targets (n,), and the rows without a target (m, d)."""
    table = own_table(estimator, X, reset=True, least=least)
    targets = estimator._targets(y, len(table))
    unknown = np.isnan(targets)
    return table[~unknown], targets[~unknown], table[unknown]


class KernelRegressor(Regressor):
    """f(x) = k(x, B) c + b of one table."""

    function_: KernelExpansion
    intercept_: float

    def predict(self, X: Any) -> Any:
        """f(X), (n,)."""
        X = own_table(self, X)
        return self.function_.predict(X) + self.intercept_


def leave_one_out(
    Phi: Float64[Arr, "n d"], y: Float64[Arr, " n"], ridges: Float64[Arr, " g"] = RIDGES
) -> Float64[Arr, "g n"]:
    """The residuals of ridge regression without an intercept, each row left out in turn, one row
    for each ridge.
    """
    U, s, _ = svd(Phi, full_matrices=False, check_finite=False, lapack_driver="gesdd")
    return left_out(U, s * s, y, ridges)
