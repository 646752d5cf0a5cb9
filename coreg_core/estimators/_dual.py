"""The dual of ridge regression with an unpenalised bias. LS-SVM solves it once, and SNF in every step."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_solve

from coreg_core.agreement.views import positive_factor
from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr


def dual_with_bias(K: Float64[Arr, "n n"], Y: Float64[Arr, "n k"], ridge: float) -> tuple[Arr, Arr]:
    r"""$\begin{bmatrix}0 & 1^\top\\ 1 & K+\lambda I\end{bmatrix} \begin{bmatrix}b\\ \alpha\end{bmatrix}
    = \begin{bmatrix}0\\ Y\end{bmatrix}$, for every column of Y: α (n, k) and b (k,).

    By the Cholesky factor of K + λI: $b = 1^\top A^{-1} Y / 1^\top A^{-1} 1$, $\alpha = A^{-1}(Y - 1b^\top)$.

    Raises
    ------
    UsageError
        λ is not positive.
    SingularSystem
        rows repeat, and λ is below rounding.
    """
    if not (np.isfinite(ridge) and ridge > 0):
        raise UsageError(f"ridge={ridge!r}: needs a positive number.")
    A = K.copy()
    A.flat[:: len(A) + 1] += ridge
    factor = positive_factor(A, f"the kernel matrix at ridge={ridge:g}", "raise the ridge")
    solved = cho_solve(factor, np.hstack([np.ones((len(K), 1)), Y]), check_finite=False)
    ones, of_Y = solved[:, 0], solved[:, 1:]
    b = of_Y.sum(axis=0) / ones.sum()
    return of_Y - np.outer(ones, b), b
