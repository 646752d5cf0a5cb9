r"""Shared by XNV and XKS: two random views of the same rows, their canonical basis, and ridge regression in it.

They differ only in the source of the views (`_draw_views`).

Canonical correlation analysis of two feature maps over many rows, in one pass and bounded memory.

An orthogonal transformation of the rows changes no inner product, so the N rows are folded into the (M₁+M₂) rows of a
triangular factor, block after block (without forming Q or a covariance matrix), and the analysis of the
factor is the analysis of the rows.

The features are not centred: XNV's definition (McWilliams et al. 2013, section 2.1) has second moments, not
covariances.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, lstsq, qr, solve_triangular, svd
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from coreg_core.errors import UsageError
from coreg_core.estimators._scores import Regressor
from coreg_core.estimators._tables import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RULES,
    fit_context,
    generator,
    labelled_first,
    own_table,
)
from coreg_core.kernels.bases import Basis, FourierBasis
from coreg_core.kernels.leave_one_out import leave_one_out
from coreg_core.numerics.arrays import Arr, block_rows


@dataclass(frozen=True, eq=False)
class CanonicalBasis:
    r"""$\bar z_v = B_v^\top z_v$ with $E[\bar z_v \bar z_v^\top] = I$ and $E[\bar z_1 \bar z_2^\top] = \mathrm{diag}(\lambda)$.

    Under a relative ridge κ the first holds with $E[z z^\top] + \kappa \tau_v I$ in place of E[z zᵀ], where
    $\tau_v = \mathrm{tr}\,E[z z^\top] / M_v$, and every λ is smaller for it.
    """

    first: Float64[Arr, "p r"]
    second: Float64[Arr, "q r"]
    correlations: Float64[Arr, " r"]


def fold_rows(blocks: Iterable[tuple[Arr, Arr]]) -> tuple[Arr, Arr]:
    """N rows of both views, given as blocks (b, M₁), (b, M₂), in at most M₁+M₂ rows with the same inner products.

    Cost 2N(M₁+M₂)² operations, memory a block and the factor.
    """
    factor: Any = np.zeros((0, 0))
    width = 0
    for first, second in blocks:
        width, stack = first.shape[1], np.hstack([first, second])
        if len(factor):
            stack = np.vstack([factor, stack])
        factor = qr(stack, mode="r", overwrite_a=True, check_finite=False)[0][: stack.shape[1]]
    return np.ascontiguousarray(factor[:, :width]), np.ascontiguousarray(factor[:, width:])


def sketch_rows(blocks: Iterable[tuple[Arr, Arr]], sketch: int, rng: np.random.Generator) -> tuple[Arr, Arr]:
    r"""N rows of both views, summed with random signs into ``sketch`` rows: inner products hold in expectation.

    Each row goes to one of the sketch's rows, so the cost is N(M₁+M₂) additions. With t rows in the sketch the canonical
    correlations are off by the order of $\sqrt{(M_1+M_2)/t}$.

    Source: Avron, Boutsidis, Toledo, Zouzias (2013), with a sparse embedding in place of their Hadamard transform, which
    needs the number of rows in advance.
    """
    total: Arr = np.zeros(())
    width = 0
    for first, second in blocks:
        width, b = first.shape[1], len(first)
        signs = rng.integers(0, 2, size=b) * 2.0 - 1.0
        where = rng.integers(0, sketch, size=b)
        S = sparse.csr_array((signs, (where, np.arange(b))), shape=(sketch, b))
        total = total + np.asarray(S @ np.hstack([first, second]))
    return np.ascontiguousarray(total[:, :width]), np.ascontiguousarray(total[:, width:])


def canonical_basis(
    first: Float64[Arr, "k p"], second: Float64[Arr, "k q"], n_rows: int, ridge: float
) -> CanonicalBasis:
    r"""The canonical basis of rows whose second moments are FᵀF/N and SᵀS/N, by QR and SVD.

    With $R_v^\top R_v = N(E[z z^\top] + \kappa\tau_v I)$ and $U \Lambda V^\top$ the singular value decomposition of
    $R_1^{-\top} F^\top S R_2^{-1}$: $B_1 = \sqrt N R_1^{-1} U$, $B_2 = \sqrt N R_2^{-1} V$.
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
    """
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


GAMMAS: Arr = np.logspace(-5.0, 2.0, 15)


FeatureMap: TypeAlias = Basis | FourierBasis


class CanonicalRidge(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The base of XNV and XKS; see there for the parameters."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [COUNT, None], "bandwidth": [RULES, POSITIVE], "ridge": [StrOptions({"loo"}), NOT_NEGATIVE],
        "cca": [StrOptions({"exact", "randomised"})], "cca_ridge": [NOT_NEGATIVE], "sketch": [COUNT, None],
        "fit_intercept": ["boolean"], "random_state": ["random_state"],
    }  # fmt: skip

    n_components: int | None
    ridge: str | float
    cca: str
    cca_ridge: float
    sketch: int | None
    fit_intercept: bool
    random_state: Any

    def _draw_views(self, sample: Arr, n_components: int, rng: np.random.Generator) -> tuple[FeatureMap, FeatureMap]:
        raise NotImplementedError

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y, least=2)
        self._correlate([X, more])
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        features, y = self._canonical(X), y - self.intercept_
        lam = self.canonical_correlations_
        self.ridge_ = loo_ridge(features, y, lam) if self.ridge == "loo" else float(self.ridge)
        self.coef_ = canonical_ridge(features, y, lam, self.ridge_)
        return self

    def _correlate(self, tables: list[Arr]) -> None:
        """Draw the views, and find their canonical basis on all rows."""
        n_rows = sum(len(table) for table in tables)
        M = self._n_components(n_rows)
        rng = generator(self.random_state)
        drawn = np.sort(rng.choice(n_rows, size=2 * M, replace=False))
        sample = _rows(tables, drawn)[rng.permutation(2 * M)]  # the half of a point is random, too
        self.views_ = self._draw_views(sample, M, rng)
        blocks, sketch = _blocks(tables, self.views_, M), 40 * M if self.sketch is None else self.sketch
        if self.cca == "randomised" and sketch < 2 * M:
            raise UsageError(f"sketch={sketch}: needs at least twice n_components, {2 * M} rows.")
        folds = self.cca == "exact" or n_rows <= sketch  # with so few rows no reduction is possible
        moments = fold_rows(blocks) if folds else sketch_rows(blocks, sketch, rng)
        self.basis_: CanonicalBasis = canonical_basis(*moments, n_rows, self.cca_ridge)
        self.n_components_ = M
        self.canonical_correlations_ = self.basis_.correlations

    def _n_components(self, n_rows: int) -> int:
        if self.n_components is None:
            return max(1, min(200, n_rows // 8))  # more features than that and the correlations are of noise
        if 2 * self.n_components > n_rows:
            raise UsageError(
                f"n_components={self.n_components}: two views of that many need {2 * self.n_components} rows, and there are "
                f"{n_rows}. Choose at most {n_rows // 2}, or give more unlabelled rows."
            )
        return self.n_components

    def _canonical(self, X: Arr) -> Arr:
        return self.views_[0].features(X) @ self.basis_.first

    def canonical_features(self, X: Any) -> Any:
        """z̄(X), the first view in the canonical basis, (n, r)."""
        X = own_table(self, X)
        return self._canonical(X)

    def _decide(self, X: Any) -> Arr:
        X = own_table(self, X)
        coef = self.basis_.first @ self.coef_
        out = np.empty(len(X))
        step = block_rows(len(coef))
        for start in range(0, len(X), step):
            out[start : start + step] = self.views_[0].features(X[start : start + step]) @ coef
        out += self.intercept_
        return out


class Regression(Regressor):
    """Targets are numbers."""

    def predict(self, X: Any) -> Any:
        """f(X), (n,)."""
        return self._decide(X)


def loo_ridge(features: Arr, y: Arr, correlations: Arr) -> float:
    """The γ of least mean squared leave-one-out error; the largest one for a single row."""
    alive, n = correlations > 0, len(y)
    if n < 2 or not alive.any():
        return float(GAMMAS[-1])
    with np.errstate(over="ignore"):
        penalty = (1.0 - correlations[alive]) / correlations[alive]
    scaled = (features[:, alive] / np.sqrt(penalty + gamma) for gamma in GAMMAS)
    errors = [float(np.mean(leave_one_out(A, y, np.array([float(n)]), intercept=False) ** 2)) for A in scaled]
    return float(GAMMAS[int(np.argmin(errors))])


def _rows(tables: list[Arr], wanted: Any) -> Arr:
    """The rows of those numbers, in that order, of the tables one after another; no copy of the tables."""
    start, parts = 0, []
    for table in tables:
        inside = wanted[(wanted >= start) & (wanted < start + len(table))]
        parts.append(table[inside - start])
        start += len(table)
    return np.concatenate(parts)


def _blocks(tables: list[Arr], views: tuple[FeatureMap, FeatureMap], n_components: int) -> Iterator[tuple[Arr, Arr]]:
    step = block_rows(2 * n_components)
    for table in tables:
        for start in range(0, len(table), step):
            rows = table[start : start + step]
            yield views[0].features(rows), views[1].features(rows)
