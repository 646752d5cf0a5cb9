"""The paper's own systems, for tests and benchmarks to compare with (Brefeld et al.

2006, Propositions 3.1 and 3.2).

They square K inside G_v. They are singular when rows repeat, and then raise `SingularSystem`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from coreg_core.arrays import Arr
from coreg_core.errors import SingularSystem
from coreg_core.kernels import Kernel


@dataclass(frozen=True)
class TextbookView:
    """The matrices of Definition 3.1 (L is (n, n+m)) or 3.2 (L is (n, n)), with the points they
    expand over.
    """

    L: Float64[Arr, "n p"]
    U: Float64[Arr, "m p"]
    K: Float64[Arr, "p p"]
    y: Float64[Arr, " n"]
    ridge: float
    points: Float64[Arr, "p d"]


def textbook_view(
    kernel: Kernel,
    X: Float64[Arr, "n d"],
    y: Float64[Arr, " n"],
    Z: Float64[Arr, "m d"],
    ridge: float,
    *,
    exact: bool,
) -> TextbookView:
    """L, U and K as the paper defines them: over X ∪ Z when exact, over X otherwise."""
    points = np.concatenate([X, Z]) if exact else X
    return TextbookView(
        kernel(X, points), kernel(Z, points), kernel(points, points), y, ridge, points
    )


def normal_matrix(
    L: Float64[Arr, "n p"],
    U: Float64[Arr, "m p"],
    K: Float64[Arr, "p p"],
    *,
    ridge: float,
    coupling: float,
    n_views: int,
) -> Float64[Arr, "p p"]:
    r"""$G = L^\top L + \nu K + 2\lambda(M-1)U^\top U$; positive definite for ridge > 0 and K
    positive definite.

    Source: Brefeld et al. (2006), Proposition 3.1 (exact) and 3.2 (semi-parametric, where L = Lᵀ =
    K).
    """
    nu = ridge
    lam = coupling
    M = n_views
    return L.T @ L + nu * K + 2 * lam * (M - 1) * (U.T @ U)


def solve_stacked(views: Sequence[TextbookView], coupling: float) -> list[Float64[Arr, " p"]]:
    r"""The coefficients c_v from the paper's stacked system: blocks G_v and −2λ U_vᵀU_u, right side
    L_vᵀ y_v.

    Source: Brefeld et al. (2006), Propositions 3.1 and 3.2. O((Σ p_v)³).

    Raises
    ------
    SingularSystem
        repeated rows, or a kernel so wide that K squared is singular in floating point.
    """
    M = len(views)
    ends = np.cumsum([0] + [view.K.shape[0] for view in views])
    N = np.zeros((ends[-1], ends[-1]))
    for i, v in enumerate(views):
        for j, u in enumerate(views):
            block = (
                normal_matrix(v.L, v.U, v.K, ridge=v.ridge, coupling=coupling, n_views=M)
                if i == j
                else -2.0 * coupling * (v.U.T @ u.U)
            )
            N[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
    c = _solve_positive_definite(N, np.concatenate([v.L.T @ v.y for v in views]), "stacked")
    return [c[ends[i] : ends[i + 1]] for i in range(M)]


def _solve_positive_definite(N: Arr, right: Arr, name: str) -> Arr:
    try:
        factor = cho_factor(N, lower=True, check_finite=False)
    except LinAlgError:
        raise SingularSystem(_singular(name, "its Cholesky factor fails")) from None
    norm = float(np.abs(N).sum(axis=0).max())
    rcond, _ = lapack.dpocon(factor[0], norm, uplo="L")
    if rcond < len(N) * np.finfo(float).eps:
        raise SingularSystem(_singular(name, f"its reciprocal condition number is {rcond:.1e}"))
    solved: Arr = cho_solve(factor, right, check_finite=False)
    return solved


def _singular(name: str, why: str) -> str:
    return (
        f"the paper's {name} system is singular in floating point ({why}): rows repeat, or the"
        " kernel is wide. Use solver='closed-form' or 'conjugate-gradients', which solve the same"
        " problem without squaring K."
    )
