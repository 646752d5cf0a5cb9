r"""Shared by XNV and XKS: two random views of the same rows, their canonical basis, and ridge regression in it.

They differ only in the source of the views (`_draw_views`).
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from coreg_core.errors import UsageError
from coreg_core.estimators._parameters import COUNT, NOT_NEGATIVE, POSITIVE, RULES, fit_context, generator
from coreg_core.estimators._scores import Regressor
from coreg_core.estimators._tables import labelled_first, own_table
from coreg_core.kernels.leave_one_out import leave_one_out
from coreg_core.numerics.arrays import Arr, block_rows
from coreg_core.numerics.cca import CanonicalBasis, canonical_basis, canonical_ridge, fold_rows, sketch_rows

GAMMAS: Arr = np.logspace(-5.0, 2.0, 15)


@runtime_checkable
class FeatureMap(Protocol):
    """A feature map."""

    def features(self, A: Arr) -> Arr:
        """(a, d) -> (a, M)."""


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
        if self.cca == "exact" or n_rows <= sketch:  # with so few rows no reduction is possible
            first, second, _ = fold_rows(blocks)
        else:
            first, second, _ = sketch_rows(blocks, sketch, rng)
        self.basis_: CanonicalBasis = canonical_basis(first, second, n_rows, self.cca_ridge)
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
