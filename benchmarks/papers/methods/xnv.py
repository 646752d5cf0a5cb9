r"""Correlated views: the canonical correlations of two random views weight the directions of a
ridge regression.

XNV has two Nyström views, XKS two of random Fourier features (`_draw_views`).

Canonical correlation analysis of two feature maps over many rows, in one pass and bounded memory.

An orthogonal transformation of the rows changes no inner product, so the N rows are folded into the
(M₁+M₂) rows of a triangular factor, block after block (without forming Q or a covariance matrix),
and the analysis of the factor is the analysis of the rows.

The features are not centred: XNV's definition (McWilliams et al. 2013, section 2.1) has second
moments, not covariances.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from jaxtyping import Float64
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, lstsq, qr, solve_triangular, svd
from sklearn.utils._param_validation import StrOptions

from benchmarks.papers.methods.inputs import RULES, labelled_first, leave_one_out
from coreg_core.arrays import Arr, block_rows
from coreg_core.errors import UsageError
from coreg_core.estimators.parameters import (
    COUNT,
    KERNELS,
    NOT_NEGATIVE,
    POSITIVE,
    fit_context,
    generator,
)
from coreg_core.estimators.tables import own_table
from coreg_core.estimators.targets import Regressor
from coreg_core.kernels import make_kernel
from coreg_core.selection import resolve_bandwidth
from coreg_core.spans import Basis, orthonormal_basis


@dataclass(frozen=True, eq=False)
class CanonicalBasis:
    r"""$\bar z_v = B_v^\top z_v$ with $E[\bar z_v \bar z_v^\top] = I$ and $E[\bar z_1 \bar
    z_2^\top] = \mathrm{diag}(\lambda)$.

    Under a relative ridge κ the first holds with $E[z z^\top] + \kappa \tau_v I$ in place of E[z
    zᵀ], where $\tau_v = \mathrm{tr}\,E[z z^\top] / M_v$, and every λ is smaller for it.
    """

    first: Float64[Arr, "p r"]
    second: Float64[Arr, "q r"]
    correlations: Float64[Arr, " r"]


def fold_rows(blocks: Iterable[tuple[Arr, Arr]]) -> tuple[Arr, Arr]:
    """N rows of both views, given as blocks (b, M₁), (b, M₂), in at most M₁+M₂ rows with the same
    inner products.

    Cost 2N(M₁+M₂)² operations, memory a block and the factor.
    """
    factor: Any = np.zeros((0, 0))
    width = 0
    for first, second in blocks:
        width = first.shape[1]
        stack = np.hstack([first, second])
        if len(factor):
            stack = np.vstack([factor, stack])
        factor = qr(stack, mode="r", overwrite_a=True, check_finite=False)[0][: stack.shape[1]]
    return np.ascontiguousarray(factor[:, :width]), np.ascontiguousarray(factor[:, width:])


def sketch_rows(
    blocks: Iterable[tuple[Arr, Arr]], sketch: int, rng: np.random.Generator
) -> tuple[Arr, Arr]:
    r"""N rows of both views, summed with random signs into ``sketch`` rows: inner products hold in
    expectation.

    Each row goes to one of the sketch's rows, so the cost is N(M₁+M₂) additions. With t rows in the
    sketch the canonical correlations are off by the order of $\sqrt{(M_1+M_2)/t}$.

    Source: Avron, Boutsidis, Toledo, Zouzias (2013), with a sparse embedding in place of their
    Hadamard transform, which needs the number of rows in advance.
    """
    total: Arr = np.zeros(())
    width = 0
    for first, second in blocks:
        width = first.shape[1]
        b = len(first)
        signs = rng.integers(0, 2, size=b) * 2.0 - 1.0
        where = rng.integers(0, sketch, size=b)
        S = sparse.csr_array((signs, (where, np.arange(b))), shape=(sketch, b))
        total = total + np.asarray(S @ np.hstack([first, second]))
    return np.ascontiguousarray(total[:, :width]), np.ascontiguousarray(total[:, width:])


def canonical_basis(
    first: Float64[Arr, "k p"], second: Float64[Arr, "k q"], n_rows: int, ridge: float
) -> CanonicalBasis:
    r"""The canonical basis of rows whose second moments are FᵀF/N and SᵀS/N, by QR and SVD.

    With $R_v^\top R_v = N(E[z z^\top] + \kappa\tau_v I)$ and $U \Lambda V^\top$ the singular value
    decomposition of $R_1^{-\top} F^\top S R_2^{-1}$: $B_1 = \sqrt N R_1^{-1} U$, $B_2 = \sqrt N
    R_2^{-1} V$.
    """
    if not (np.isfinite(ridge) and ridge >= 0):
        raise UsageError(f"cca_ridge={ridge!r}: needs a finite number of at least 0.")
    R1 = _factor(first, ridge, "first")
    R2 = _factor(second, ridge, "second")
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
            raise UsageError(
                f"the {name} view's features are zero on every row; use another kernel or"
                " bandwidth."
            )
        rows = np.vstack([rows, np.sqrt(ridge * tau) * np.eye(M)])
    R: Arr = np.asarray(qr(rows, mode="r", check_finite=False)[0], dtype=np.float64)[:M]
    diagonal = np.abs(np.diag(R))
    if len(R) < M or diagonal.min() <= M * np.finfo(float).eps * diagonal.max():
        raise UsageError(
            f"the {name} view's features are linearly dependent on these rows, and cca_ridge is 0:"
            " give a small positive cca_ridge, fewer features or more rows."
        )
    return R


def canonical_ridge(
    features: Float64[Arr, "n r"],
    y: Float64[Arr, " n"],
    correlations: Float64[Arr, " r"],
    ridge: float,
    products: Float64[Arr, "r r"] | None = None,  # Z̄ᵀZ̄, where a caller with many ridges has it
) -> Float64[Arr, " r"]:
    r"""$\min_\beta \tfrac1n \|\bar Z\beta - y\|^2 + \sum_j \tfrac{1-\lambda_j}{\lambda_j} \beta_j^2
    + \gamma\|\beta\|^2$.

    A direction with λ_j = 0 costs infinitely much, so its β_j is 0. On whitened rows, $\bar
    Z^\top\bar Z = nI$, γ = 0 gives the shrinkage estimator $\beta_j = \tfrac{\lambda_j}{n}\sum_i
    \bar z_{ij} y_i$.

    Source: McWilliams et al. (2013), Definition 1, equations 3, 4 and 9.
    """
    n = len(y)
    lam = correlations
    beta = np.zeros(len(lam))
    alive = lam > 0
    with np.errstate(over="ignore"):
        penalty = (1.0 - lam[alive]) / lam[alive] + ridge
    A = features[:, alive]
    if penalty.size and penalty.min() > 0:
        # β = P^{-1/2} a: the matrix of a is I plus a positive matrix, for any spread of penalties.
        scale = 1.0 / np.sqrt(penalty)
        H = A.T @ A if products is None else products[np.ix_(alive, alive)]
        H *= np.outer(scale, scale / n)
        H.flat[:: len(H) + 1] += 1.0
        beta[alive] = scale * cho_solve(
            cho_factor(H, overwrite_a=True, check_finite=False), scale * (A.T @ y) / n
        )
    elif (
        penalty.size
    ):  # unpenalised directions: least squares, of least norm where the rows do not determine them
        rows = np.vstack([A / np.sqrt(n), np.diag(np.sqrt(penalty))])
        beta[alive] = lstsq(
            rows, np.concatenate([y / np.sqrt(n), np.zeros(len(penalty))]), check_finite=False
        )[0]
    return beta


GAMMAS: Arr = np.logspace(-5.0, 2.0, 15)


@dataclass(frozen=True, eq=False)
class FourierBasis:
    r"""$\varphi_j(x) = \sqrt{2/M} \cos(\omega_j^\top x + b_j)$: φ(x)·φ(x') is the gaussian kernel
    in expectation.

    Source: Rahimi and Recht (2007); the phase form, so that M features are M draws.
    """

    frequencies: Float64[Arr, "d p"]
    phases: Float64[Arr, " p"]

    def features(self, A: Float64[Arr, "a d"]) -> Float64[Arr, "a p"]:
        """φ(A)."""
        out = A @ self.frequencies
        out += self.phases
        np.cos(out, out=out)
        out *= np.sqrt(2.0 / len(self.phases))
        return out


def draw_fourier_basis(
    n_features: int, count: int, bandwidth: float, rng: np.random.Generator
) -> FourierBasis:
    r"""For k(x, x') = exp(−‖x−x'‖²/σ): $\omega \sim N(0, \tfrac{2}{\sigma} I)$, b uniform on [0,
    2π).
    """
    frequencies = rng.normal(scale=np.sqrt(2.0 / bandwidth), size=(n_features, count))
    return FourierBasis(frequencies, rng.uniform(0.0, 2.0 * np.pi, size=count))


FeatureMap: TypeAlias = Basis | FourierBasis


class CanonicalRidge(Regressor):
    """The base of XNV and XKS; see there for the parameters."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_components": [COUNT, None], "bandwidth": [RULES, POSITIVE],
        "ridge": [StrOptions({"loo"}), NOT_NEGATIVE],
        "cca": [StrOptions({"exact", "randomised"})], "cca_ridge": [NOT_NEGATIVE],
        "sketch": [COUNT, None],
        "fit_intercept": ["boolean"], "random_state": ["random_state"],
    }  # fmt: skip

    n_components: int | None
    ridge: str | float
    cca: str
    cca_ridge: float
    sketch: int | None
    fit_intercept: bool
    random_state: Any

    def _draw_views(
        self, sample: Arr, n_components: int, rng: np.random.Generator
    ) -> tuple[FeatureMap, FeatureMap]:
        raise NotImplementedError

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y, least=2)
        self._correlate([X, more])
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        features = self._canonical(X)
        y = y - self.intercept_
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
        blocks = _blocks(tables, self.views_, M)
        sketch = 40 * M if self.sketch is None else self.sketch
        if self.cca == "randomised" and sketch < 2 * M:
            raise UsageError(f"sketch={sketch}: needs at least twice n_components, {2 * M} rows.")
        folds = self.cca == "exact" or n_rows <= sketch  # with so few rows no reduction is possible
        moments = fold_rows(blocks) if folds else sketch_rows(blocks, sketch, rng)
        self.basis_: CanonicalBasis = canonical_basis(*moments, n_rows, self.cca_ridge)
        self.n_components_ = M
        self.canonical_correlations_ = self.basis_.correlations

    def _n_components(self, n_rows: int) -> int:
        if self.n_components is None:
            return max(
                1, min(200, n_rows // 8)
            )  # more features than that and the correlations are of noise
        if 2 * self.n_components > n_rows:
            raise UsageError(
                f"n_components={self.n_components}: two views of that many need"
                f" {2 * self.n_components} rows, and there are {n_rows}. Choose at most"
                f" {n_rows // 2}, or give more unlabelled rows."
            )
        return self.n_components

    def _canonical(self, X: Arr) -> Arr:
        return self.views_[0].features(X) @ self.basis_.first

    def canonical_features(self, X: Any) -> Any:
        """z̄(X), the first view in the canonical basis, (n, r)."""
        X = own_table(self, X)
        return self._canonical(X)

    def predict(self, X: Any) -> Any:
        """f(X), (n,)."""
        X = own_table(self, X)
        coef = self.basis_.first @ self.coef_
        out = np.empty(len(X))
        step = block_rows(len(coef))
        for start in range(0, len(X), step):
            out[start : start + step] = self.views_[0].features(X[start : start + step]) @ coef
        out += self.intercept_
        return out


def loo_ridge(features: Arr, y: Arr, correlations: Arr) -> float:
    """The γ of least mean squared leave-one-out error; the largest one for a single row."""
    alive = correlations > 0
    n = len(y)
    if n < 2 or not alive.any():
        return float(GAMMAS[-1])
    with np.errstate(over="ignore"):
        penalty = (1.0 - correlations[alive]) / correlations[alive]
    scaled = (features[:, alive] / np.sqrt(penalty + gamma) for gamma in GAMMAS)
    errors = [float(np.mean(leave_one_out(A, y, np.array([float(n)])) ** 2)) for A in scaled]
    return float(GAMMAS[int(np.argmin(errors))])


def _rows(tables: list[Arr], wanted: Any) -> Arr:
    """The rows of those numbers, in that order, of the tables one after another; no copy of the
    tables.
    """
    start = 0
    parts = []
    for table in tables:
        inside = wanted[(wanted >= start) & (wanted < start + len(table))]
        parts.append(table[inside - start])
        start += len(table)
    return np.concatenate(parts)


def _blocks(
    tables: list[Arr], views: tuple[FeatureMap, FeatureMap], n_components: int
) -> Iterator[tuple[Arr, Arr]]:
    step = block_rows(2 * n_components)
    for table in tables:
        for start in range(0, len(table), step):
            rows = table[start : start + step]
            yield views[0].features(rows), views[1].features(rows)


class XNV(CanonicalRidge):
    r"""$\min_\beta \frac1n \|\bar Z\beta - y\|^2 + \sum_j \frac{1-\lambda_j}{\lambda_j}\beta_j^2 +
    \gamma\|\beta\|^2$.

    Z̄ holds the labelled rows of the first of two Nyström views (M landmarks each, drawn from all
    rows) in the basis of their canonical correlation analysis over all rows, labelled or not; λ are
    the canonical correlations, and directions in which the views disagree are penalised. The cost
    is linear in N, and the memory is bounded by blocks of rows.

    Source: McWilliams, Balduzzi, Buhmann (2013), Algorithm 1, equation 9.

    Departures: a relative ridge in the correlation analysis (the features are nearly collinear, and
    without it directions of rounding error correlate perfectly); the target's labelled mean is
    subtracted and added back (``fit_intercept``).

    Parameters
    ----------
    n_components
        M, features a view; None: 200, at most an eighth of the rows.
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    bandwidth
        σ: "paper" (mean squared distance) or "median", over the 2M landmarks; or a positive number.
    ridge
        γ ≥ 0, or "loo" (leave-one-out).
    cca
        "exact" (QR and SVD of every row) or "randomised" (of a sketch of them).
    cca_ridge
        κ ≥ 0, relative to the mean second moment of a view's features.
    sketch
        rows of the sketch; None: 40 M. With no more rows than that the analysis is exact.
    fit_intercept
        False is the paper's equation as printed.
    random_state
        of the landmarks, and of the sketch.

    Attributes
    ----------
    canonical_correlations_
        λ, descending. basis_: the `CanonicalBasis`.
    coef_
        β. intercept_: the constant term.
    views_
        the two feature maps. bandwidth_: σ in use. n_components_: M in use.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = np.where(np.arange(500) < 30, np.sin(X[:, 0]), np.nan)
    >>> XNV(n_components=50, random_state=0).fit(X, y).predict(X).shape
    (500,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **CanonicalRidge._parameter_constraints, "kernel": [KERNELS],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_components: int | None = None,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: str | float = "loo",
        cca: str = "exact",
        cca_ridge: float = 1e-2,
        sketch: int | None = None,
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.cca = cca
        self.cca_ridge = cca_ridge
        self.sketch = sketch
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _draw_views(
        self, sample: Arr, n_components: int, rng: np.random.Generator
    ) -> tuple[FeatureMap, FeatureMap]:
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, sample, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_)
        return (
            orthonormal_basis(kernel, np.ascontiguousarray(sample[:n_components])),
            orthonormal_basis(kernel, np.ascontiguousarray(sample[n_components:])),
        )


class XKS(CanonicalRidge):
    r"""$\min_\beta \frac1n \|\bar Z\beta - y\|^2 + \sum_j \frac{1-\lambda_j}{\lambda_j}\beta_j^2 +
    \gamma\|\beta\|^2$.

    As `XNV`, with two views of M random Fourier features of the gaussian kernel each.

    Source: McWilliams, Balduzzi, Buhmann (2013), Algorithm 2, equation 11.

    Parameters
    ----------
    n_components, ridge, cca, cca_ridge, sketch, fit_intercept
        those of `XNV`.
    bandwidth
        σ: "paper" or "median", over 2M rows drawn from all; or a positive number.
    random_state
        of the frequencies, and of the sketch.

    Attributes
    ----------
    canonical_correlations_, basis_, coef_, intercept_, views_, bandwidth_, n_components_
        as of `XNV`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> XKS(n_components=50, random_state=0).fit(X, np.where(np.arange(500) < 30, np.sin(X[:, 0]),
        np.nan)).predict(X).shape
    (500,)
    """

    def __init__(
        self,
        *,
        n_components: int | None = None,
        bandwidth: str | float = "paper",
        ridge: str | float = "loo",
        cca: str = "exact",
        cca_ridge: float = 1e-2,
        sketch: int | None = None,
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.cca = cca
        self.cca_ridge = cca_ridge
        self.sketch = sketch
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _draw_views(
        self, sample: Arr, n_components: int, rng: np.random.Generator
    ) -> tuple[FeatureMap, FeatureMap]:
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, sample, "gaussian")
        d = sample.shape[1]
        first = draw_fourier_basis(d, n_components, self.bandwidth_, rng)
        return first, draw_fourier_basis(d, n_components, self.bandwidth_, rng)
