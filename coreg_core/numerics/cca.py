r"""Canonical correlation analysis of two feature maps over many rows, in one pass and bounded memory.

An orthogonal transformation of the rows changes no inner product, so the N rows are folded into the (M₁+M₂) rows of a
triangular factor, block after block (without forming Q or a covariance matrix), and the analysis of the
factor is the analysis of the rows.

The features are not centred: XNV's definition (McWilliams et al. 2013, section 2.1) has second moments, not
covariances.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, lstsq, qr, solve_triangular, svd

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True, eq=False)
class CanonicalBasis:
    r"""$\bar z_v = B_v^\top z_v$ with $E[\bar z_v \bar z_v^\top] = I$ and $E[\bar z_1 \bar z_2^\top] = \mathrm{diag}(\lambda)$.

    Under a relative ridge κ the first holds with $E[z z^\top] + \kappa \tau_v I$ in place of E[z zᵀ], where
    $\tau_v = \mathrm{tr}\,E[z z^\top] / M_v$, and every λ is smaller for it.

    Parameters
    ----------
    first
        B₁, (M₁, r).
    second
        B₂, (M₂, r); r = min(M₁, M₂).
    correlations
        λ, (r,), descending, in [0, 1].
    """

    first: Float64[Arr, "p r"]
    second: Float64[Arr, "q r"]
    correlations: Float64[Arr, " r"]


def fold_rows(blocks: Iterable[tuple[Arr, Arr]]) -> tuple[Arr, Arr, int]:
    """N rows of both views, given as blocks (b, M₁), (b, M₂), in at most M₁+M₂ rows with the same inner products; and N.

    Cost 2N(M₁+M₂)² operations, memory a block and the factor.

    Raises
    ------
    BadData
        there is no row.
    """
    factor, width, rows = None, 0, 0
    for first, second in blocks:
        width, rows = first.shape[1], rows + len(first)
        stack = np.hstack([first, second])
        if factor is not None:
            stack = np.vstack([factor, stack])
        factor = qr(stack, mode="r", overwrite_a=True, check_finite=False)[0][: stack.shape[1]]
    if factor is None or rows == 0:
        raise BadData("no rows to correlate; give at least one unlabelled instance.")
    return np.ascontiguousarray(factor[:, :width]), np.ascontiguousarray(factor[:, width:]), rows


def sketch_rows(blocks: Iterable[tuple[Arr, Arr]], sketch: int, rng: np.random.Generator) -> tuple[Arr, Arr, int]:
    r"""N rows of both views, summed with random signs into ``sketch`` rows: inner products hold in expectation, and N.

    Each row goes to one of the sketch's rows, so the cost is N(M₁+M₂) additions. With t rows in the sketch the canonical
    correlations are off by the order of $\sqrt{(M_1+M_2)/t}$.

    Source: Avron, Boutsidis, Toledo, Zouzias (2013), with a sparse embedding in place of their Hadamard transform, which
    needs the number of rows in advance.

    Raises
    ------
    BadData
        there is no row.
    """
    total: Arr | None = None
    width, rows = 0, 0
    for first, second in blocks:
        b = len(first)
        signs = rng.integers(0, 2, size=b) * 2.0 - 1.0
        where = rng.integers(0, sketch, size=b)
        S = sparse.csr_array((signs, (where, np.arange(b))), shape=(sketch, b))
        both = np.asarray(S @ np.hstack([first, second]))
        total = both if total is None else total + both
        width, rows = first.shape[1], rows + b
    if total is None or rows == 0:
        raise BadData("no rows to correlate; give at least one unlabelled instance.")
    return np.ascontiguousarray(total[:, :width]), np.ascontiguousarray(total[:, width:]), rows


def canonical_basis(
    first: Float64[Arr, "k p"], second: Float64[Arr, "k q"], n_rows: int, ridge: float
) -> CanonicalBasis:
    r"""The canonical basis of rows whose second moments are FᵀF/N and SᵀS/N, by QR and SVD.

    With $R_v^\top R_v = N(E[z z^\top] + \kappa\tau_v I)$ and $U \Lambda V^\top$ the singular value decomposition of
    $R_1^{-\top} F^\top S R_2^{-1}$: $B_1 = \sqrt N R_1^{-1} U$, $B_2 = \sqrt N R_2^{-1} V$.

    Parameters
    ----------
    first, second
        rows, folded or not; the two share their rows.
    n_rows
        N.
    ridge
        κ ≥ 0, relative to the mean second moment of a view's features. Nyström features are nearly collinear: at
        κ = 0 the directions of rounding error correlate with each other, and perfectly.

    Raises
    ------
    UsageError
        κ is negative, or κ = 0 and a view's features are linearly dependent.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"cca_ridge={ridge!r}: needs a finite number of at least 0.")
    R1, R2 = _factor(first, ridge, "first"), _factor(second, ridge, "second")
    # FᵀS, through the triangular factors from both sides.
    cross = solve_triangular(R1, first.T @ second, trans="T", check_finite=False)
    cross = solve_triangular(R2, cross.T, trans="T", check_finite=False).T
    U, correlations, Vt = svd(cross, full_matrices=False, check_finite=False)
    scale = np.sqrt(n_rows)
    return CanonicalBasis(
        scale * solve_triangular(R1, U, check_finite=False),
        scale * solve_triangular(R2, np.ascontiguousarray(Vt.T), check_finite=False),
        np.clip(correlations, 0.0, 1.0),
    )


def _factor(rows: Arr, ridge: float, name: str) -> Arr:
    M = rows.shape[1]
    if ridge > 0:
        tau = float(np.einsum("ij,ij->", rows, rows)) / M
        if tau == 0.0:
            raise UsageError(f"the {name} view's features are zero on every row; use another kernel or bandwidth.")
        rows = np.vstack([rows, np.sqrt(ridge * tau) * np.eye(M)])
    R: Arr = np.asarray(qr(rows, mode="r", check_finite=False)[0], dtype=np.float64)[:M]
    diagonal = np.abs(np.diag(R))
    if len(R) < M or diagonal.min() <= M * np.finfo(float).eps * diagonal.max():
        raise UsageError(
            f"the {name} view's features are linearly dependent on these rows, and cca_ridge is 0: give a small "
            "positive cca_ridge, fewer features or more rows."
        )
    return R


def canonical_ridge(
    features: Float64[Arr, "n r"], y: Float64[Arr, " n"], correlations: Float64[Arr, " r"], ridge: float
) -> Float64[Arr, " r"]:
    r"""$\min_\beta \tfrac1n \|\bar Z\beta - y\|^2 + \sum_j \tfrac{1-\lambda_j}{\lambda_j} \beta_j^2 + \gamma\|\beta\|^2$.

    A direction with λ_j = 0 costs infinitely much, so its β_j is 0. On whitened rows, $\bar Z^\top\bar Z = nI$, γ = 0 gives
    the shrinkage estimator $\beta_j = \tfrac{\lambda_j}{n}\sum_i \bar z_{ij} y_i$.

    Source: McWilliams et al. (2013), Definition 1, equations 3, 4 and 9.

    Raises
    ------
    UsageError
        γ is negative.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"ridge={ridge!r}: needs a finite number of at least 0.")
    n, lam = len(y), correlations
    beta = np.zeros(len(lam))
    alive = lam > 0
    with np.errstate(over="ignore"):
        penalty = (1.0 - lam[alive]) / lam[alive] + ridge
    A = features[:, alive]
    if penalty.size and penalty.min() > 0:
        # β = P^{-1/2} a: the matrix of a is I plus a positive matrix, for any spread of penalties.
        scale = 1.0 / np.sqrt(penalty)
        A = A * scale
        H = A.T @ A
        H /= n
        H.flat[:: len(H) + 1] += 1.0
        beta[alive] = scale * cho_solve(cho_factor(H, overwrite_a=True, check_finite=False), A.T @ y / n)
    elif penalty.size:  # unpenalised directions: least squares, of least norm where the rows do not determine them
        rows = np.vstack([A / np.sqrt(n), np.diag(np.sqrt(penalty))])
        beta[alive] = lstsq(rows, np.concatenate([y / np.sqrt(n), np.zeros(len(penalty))]), check_finite=False)[0]
    return beta
