r"""Shared by XNV and XKS: two random views of the same rows, their canonical basis, and ridge regression in it.

They differ only in the source of the views (`_draw_views`).
"""

from collections.abc import Iterator
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from coreg_core.errors import UsageError
from coreg_core.estimators._inputs import Estimator, Regressor, TwoClasses, all_or_nothing, generator, split_rows
from coreg_core.estimators._parameters import check_parameters
from coreg_core.kernels.leave_one_out import leave_one_out
from coreg_core.numerics.arrays import Arr, block_rows
from coreg_core.numerics.cca import CanonicalBasis, canonical_basis, canonical_ridge, fold_rows, sketch_rows

GAMMAS: Arr = np.logspace(-5.0, 2.0, 15)


@runtime_checkable
class FeatureMap(Protocol):
    """A feature map."""

    def features(self, A: Arr) -> Arr:
        """(a, d) -> (a, M)."""


class CanonicalRidge(Estimator):
    """The base of XNV and XKS; see there for the parameters."""

    ridge_by_rule = True

    n_components: int | None
    ridge: str | float
    cca: str
    cca_ridge: float
    sketch: int | None
    fit_intercept: bool
    random_state: Any

    def _draw_views(self, sample: Arr, n_components: int, rng: np.random.Generator) -> tuple[FeatureMap, FeatureMap]:
        raise NotImplementedError

    # --- fitting, in two steps ------------------------------------------------------------------------------------

    @all_or_nothing
    def fit(self, X: Any, y: Any, X_unlabelled: Any = None) -> Self:
        """X (n, d), y (n,), NaN on unlabelled rows; X_unlabelled (N−n, d): more of them.

        It is `fit_unlabelled` on all rows, then `fit_labelled`.

        Raises
        ------
        UsageError
            a parameter out of range; the message names it.
        BadData
            tables of inconsistent shapes, or values that are not finite.
        """
        X, y, more = split_rows(self, X, y, X_unlabelled, least=2)
        self._correlate([X, more] if len(more) else [X])
        return self._regress(X, y)

    def fit_unlabelled(self, X: Any) -> Self:
        """Draw the views and find their canonical basis; X (N, d), no label needed."""
        self._correlate([validate_data(self, X, dtype=np.float64, order="C", ensure_min_samples=2)])
        return self

    def fit_labelled(self, X: Any, y: Any) -> Self:
        """Solve equation 9 in the existing canonical basis; X (n, d), y (n,)."""
        check_is_fitted(self, "basis_")
        X, y, _ = split_rows(self, X, y, reset=False)
        return self._regress(X, y)

    def _correlate(self, tables: list[Arr]) -> None:
        check_parameters(self)
        n_rows = sum(len(table) for table in tables)
        M = self._n_components(n_rows)
        rng = generator(self.random_state)
        drawn = np.sort(rng.choice(n_rows, size=2 * M, replace=False))
        sample = _rows(tables, drawn)[rng.permutation(2 * M)]  # the half of a point is random, too
        self.views_ = self._draw_views(sample, M, rng)
        blocks = _blocks(tables, self.views_, M)
        match self.cca:
            case "exact":
                first, second, _ = fold_rows(blocks)
            case _:
                sketch = 40 * M if self.sketch is None else self.sketch
                if sketch < 2 * M:
                    raise UsageError(f"sketch={sketch}: needs at least twice n_components, {2 * M} rows.")
                if n_rows <= sketch:  # no reduction is possible
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

    def _regress(self, X: Arr, y: Arr) -> Self:
        self.intercept_ = float(y.mean()) if self.fit_intercept else 0.0
        features, y = self._canonical(X), y - self.intercept_
        lam = self.canonical_correlations_
        self.ridge_ = loo_ridge(features, y, lam) if self.ridge == "loo" else float(self.ridge)
        self.coef_ = canonical_ridge(features, y, lam, self.ridge_)
        return self

    # --- prediction ----------------------------------------------------------------------------------------------------

    def _canonical(self, X: Arr) -> Arr:
        return self.views_[0].features(X) @ self.basis_.first

    def canonical_features(self, X: Any) -> Any:
        """z̄(X), the first view in the canonical basis, (n, r)."""
        check_is_fitted(self, "basis_")
        return self._canonical(validate_data(self, X, dtype=np.float64, order="C", reset=False))

    def _decide(self, X: Any) -> Arr:
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, dtype=np.float64, order="C", reset=False)
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


class Classification(TwoClasses, ClassifierMixin):  # type: ignore[misc]
    """Targets are two classes: least squares on −1 and 1, the sign decides."""


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
