r"""Pegasos: stochastic gradient steps on one linear model, and on several independent views."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from coreg_core.estimators._online import Loss, Rows, Weights, descend, objective
from coreg_core.estimators._scores import Regressor, TwoClasses
from coreg_core.estimators._tables import COUNT, POSITIVE, fit_context, generator, own_table
from coreg_core.estimators.oca import OCAClassifier, OCARegressor
from coreg_core.numerics.arrays import Arr


class _Pegasos(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    _loss: Loss
    _targets: Any
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ridge": [POSITIVE], "eta0": [StrOptions({"auto"}), POSITIVE, None], "n_labelled_step": [COUNT],
        "n_steps": [COUNT], "random_state": ["random_state"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        ridge: float = 0.01,
        eta0: str | float | None = "auto",
        n_labelled_step: int = 1,
        n_steps: int = 10_000,
        random_state: Any = None,
    ):
        self.ridge, self.eta0, self.n_labelled_step = ridge, eta0, n_labelled_step
        self.n_steps, self.random_state = n_steps, random_state

    def _descend(self, X: Any, y: Arr) -> Self:
        """On the rows whose target is not missing."""
        known = np.flatnonzero(~np.isnan(y))
        table, weights = [Rows(X[known])], [Weights(X.shape[1])]
        terms = objective(self._loss, self.ridge, self.eta0, table, [])
        rng = generator(self.random_state)
        descend(weights, terms, table, y[known], [], n_steps=self.n_steps, k=self.n_labelled_step, rng=rng)
        self.coef_, self.n_iter_ = weights[0].w, self.n_steps
        return self

    def _decide(self, X: Any) -> Arr:
        X = own_table(self, X, sparse="csr")
        return np.asarray(X @ self.coef_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PegasosRegressor(Regressor, _Pegasos):
    r"""$\frac1n \sum_i \frac12 (w^\top x_i - y_i)^2 + \frac{\lambda}{2}\|w\|^2$, by stochastic gradient steps.

    Source: Shalev-Shwartz, Singer, Srebro (2007), with the squared loss, as de Ruijter, Tsivtsivadze (2012) use it. No
    projection onto the ball of radius 1/√λ, which the convergence does not need.

    Parameters
    ----------
    ridge
        λ > 0.
    eta0
        η₀: the steps are η₀ / (1 + η₀ λ (t−1)); "auto": 1/(λ + ‖x‖²) with the longest row, which cannot diverge; None: 1/(λt).
    n_labelled_step
        k, rows a step.
    n_steps
        steps.
    fit_intercept
        subtract the mean of the targets, and add it back; False is the paper's form.
    random_state
        of the rows drawn.

    Attributes
    ----------
    coef_
        w, (d,). intercept_. n_iter_: steps.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(200, 3))
    >>> model = PegasosRegressor(ridge=0.1, random_state=0).fit(X, X[:, 0])
    >>> bool(model.coef_[0] > 0.6)
    True
    """

    _loss = "squared"
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_Pegasos._parameter_constraints, "fit_intercept": ["boolean"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        ridge: float = 0.01,
        eta0: str | float | None = "auto",
        n_labelled_step: int = 1,
        n_steps: int = 10_000,
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        super().__init__(
            ridge=ridge, eta0=eta0, n_labelled_step=n_labelled_step, n_steps=n_steps, random_state=random_state
        )
        self.fit_intercept = fit_intercept

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), dense or sparse; y (n,), NaN on rows to leave out."""
        X = own_table(self, X, reset=True, sparse="csr")
        targets = self._targets(y, X.shape[0])
        self.intercept_ = float(np.nanmean(targets)) if self.fit_intercept else 0.0
        return self._descend(X, targets - self.intercept_)

    def predict(self, X: Any) -> Any:
        """Xw + b, (n,)."""
        return self._decide(X) + self.intercept_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # the result of a number of steps depends on the scale of the features
        return tags


class PegasosClassifier(TwoClasses, _Pegasos):
    r"""$\frac1n \sum_i \max(0, 1 - y_i w^\top x_i) + \frac{\lambda}{2}\|w\|^2$: Pegasos itself, for two classes.

    Source: Shalev-Shwartz, Singer, Srebro (2007). No bias and no projection.

    Parameters
    ----------
    ridge
        λ > 0.
    eta0
        η₀: the steps are η₀ / (1 + η₀ λ (t−1)); "auto" and None: 1/(λt), as published.
    n_labelled_step
        k, rows a step.
    n_steps
        steps.
    random_state
        of the rows drawn.

    Attributes
    ----------
    classes_
        the two, sorted. coef_: w, (d,). n_iter_: steps.

    """

    _loss = "hinge"

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (n, d), dense or sparse; y (n,) of two classes, NaN or None on rows to leave out."""
        X = own_table(self, X, reset=True, sparse="csr")
        return self._descend(X, self._targets(y, X.shape[0]))


class MultiViewPegasosRegressor(OCARegressor):
    r"""$\sum_v [\frac1n \sum_i \frac12 (w_v^\top x_i^v - y_i)^2 + \frac{\lambda_v}{2}\|w_v\|^2]$: independent views.

    `OCARegressor` at μ = 0, the paper's baseline: the gain of the views' mean without co-regularisation.

    Source: de Ruijter, Tsivtsivadze (2012), section 4.1, "PEGASOS MV". Parameters and attributes: those of `OCARegressor`.
    """

    coupling, n_unlabelled_step, loss = 0.0, 0, "squared"

    def __init__(
        self,
        *,
        views: Any = None,
        ridge: float | Sequence[float] = 0.01,
        eta0: str | float | Sequence[float] | None = "auto",
        n_labelled_step: int = 1,
        n_steps: int = 10_000,
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        self.views, self.ridge, self.eta0, self.n_labelled_step = views, ridge, eta0, n_labelled_step
        self.n_steps, self.random_state = n_steps, random_state
        self.fit_intercept = fit_intercept


class MultiViewPegasosClassifier(OCAClassifier):
    r"""`MultiViewPegasosRegressor` with the hinge loss, for two classes: `OCAClassifier` at μ = 0.

    Source: de Ruijter, Tsivtsivadze (2012), section 4.1, "PEGASOS MV". Parameters and attributes: those of `OCAClassifier`.
    """

    coupling, n_unlabelled_step, loss = 0.0, 0, "hinge"

    def __init__(
        self,
        *,
        views: Any = None,
        ridge: float | Sequence[float] = 0.01,
        eta0: str | float | Sequence[float] | None = "auto",
        n_labelled_step: int = 1,
        n_steps: int = 10_000,
        random_state: Any = None,
    ):
        self.views, self.ridge, self.eta0, self.n_labelled_step = views, ridge, eta0, n_labelled_step
        self.n_steps, self.random_state = n_steps, random_state
