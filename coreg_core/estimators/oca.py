r"""Online co-regularisation, OCA-k-l: linear views that learn from a stream, labelled and unlabelled."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from coreg_core.errors import BadData
from coreg_core.estimators._online import Loss, Objective, Rows, Weights, descend, objective, step
from coreg_core.estimators._scores import Regressor, TwoClasses
from coreg_core.estimators._tables import COUNT, NOT_NEGATIVE, POSITIVE, VIEWS, fit_context, generator
from coreg_core.estimators._views import MultiView
from coreg_core.numerics.arrays import Arr


class _OCA(MultiView, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The steps; the subclasses define the loss and the targets."""

    loss: Loss
    epsilon = 0.0
    max_unlabelled_step: int | None = None
    _sparse, _optional = "csr", True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "views": VIEWS, "ridge": [POSITIVE, "array-like"], "coupling": [NOT_NEGATIVE],
        "eta0": [StrOptions({"auto"}), POSITIVE, "array-like", None], "n_labelled_step": [COUNT],
        "n_unlabelled_step": [COUNT], "max_unlabelled_step": [COUNT, None], "n_steps": [COUNT],
        "random_state": ["random_state"],
    }  # fmt: skip
    weights_: list[Weights]
    n_steps_: int
    _terms: Objective

    @fit_context
    def fit(self, X_views: Any, y: Any, Z_views: Sequence[Any] | None = None) -> Self:
        """From w = 0, ``n_steps`` steps of k labelled and l unlabelled rows, drawn anew each.

        Parameters
        ----------
        X_views
            one table (N, p) with columns split by ``views``; or M tables of labelled rows. Dense or sparse.
        y
            (N,), of one table NaN on unlabelled rows.
        Z_views
            of a list: M tables (m, d_v), the same unlabelled rows in each. Without such rows there is no co-regularisation.

        Raises
        ------
        BadData
            tables of inconsistent shapes.
        UsageError
            a parameter out of range, k or l above the number of rows, or steps that diverge.
        """
        X, target, Z = self._rows_of(X_views, y, Z_views, first=True, least=1)
        self._begin(X, Z)
        target = self._centred(target, 0)
        self.n_unlabelled_step_ = descend(
            self.weights_, self._terms, X, target, Z, n_steps=self.n_steps, k=self.n_labelled_step,
            l=self.n_unlabelled_step, most=self.max_unlabelled_step, rng=generator(self.random_state),
        )  # fmt: skip
        self.n_steps_ = self.n_steps
        return self

    @fit_context
    def partial_fit(self, X_views: Any, y: Any, Z_views: Sequence[Any] | None = None) -> Self:
        """One step with all given rows: A_t is (X_views, y), Ã_t is Z_views. One of them can have no rows, not both."""
        first = not hasattr(self, "weights_")
        X, target, Z = self._rows_of(X_views, y, Z_views, first=first, least=0)
        n, m = len(target), Z[0].shape[0] if Z else 0
        if n == 0 and m == 0:
            raise BadData("neither a labelled nor an unlabelled row to learn from.")
        if first:
            self._begin(X, Z)
        else:
            before, self._terms = self._terms.eta0, self._objective(X, Z)
            if isinstance(self.eta0, str) and before is not None:
                starts = zip(before, self._terms.eta0 or [], strict=True)
                self._terms = replace(self._terms, eta0=[min(pair) for pair in starts])
        target = self._centred(target, self.n_labels_)
        self.n_steps_ += 1
        with np.errstate(over="ignore", invalid="ignore"):  # a step that diverges raises an error
            step(self.weights_, self._terms, self.n_steps_, X, np.arange(n), target, Z, np.arange(m))
        return self

    # --- checks ---------------------------------------------------------------------------------------------------

    def _rows_of(self, X: Any, y: Any, Z: Any, *, first: bool, least: int) -> tuple[list[Rows], Arr, list[Rows]]:
        """Labelled tables, targets and unlabelled tables."""
        if isinstance(y, (list, tuple)) and any(np.ndim(each) for each in y):
            raise BadData("y: several target vectors. All views have the same labelled rows here: give one vector.")
        dealt = self._split(X, y, Z, least=least, reset=first)
        Zs = [Rows(table) for table in dealt.Z] if self.coupling > 0 and dealt.Z[0].shape[0] else []
        return [Rows(table) for table in dealt.X], dealt.y[0], Zs

    def _begin(self, X: list[Rows], Z: list[Rows]) -> None:
        """Start a new model."""
        self._terms, self.weights_ = self._objective(X, Z), [Weights(table.shape[1]) for table in X]
        self.n_steps_, self.n_labels_, self.intercept_ = 0, 0, 0.0

    def _objective(self, X: list[Rows], Z: list[Rows]) -> Objective:
        return objective(self.loss, self.ridge, self.eta0, X, Z, self.coupling, self.epsilon)

    def _centred(self, target: Arr, before: int) -> Arr:
        """Targets less the intercept, after ``before`` labels of earlier calls."""
        self.n_labels_ = before + len(target)
        return target

    # --- prediction ----------------------------------------------------------------------------------------------------

    @property
    def coef_(self) -> list[Arr]:
        """w, (d_v,) for each view."""
        return [w.w for w in self.weights_]

    def _predictions(self, X_views: Any) -> Arr:
        tables = self._tables(X_views)
        return self.intercept_ + np.array([t @ w for t, w in zip(tables, self.coef_, strict=True)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class OCARegressor(Regressor, _OCA):
    r"""$\sum_v [\frac1n \sum_i \frac12 (w_v^\top x_i^v - y_i)^2 + \frac{\lambda_v}{2}\|w_v\|^2]
    + \frac{\mu}{m} \sum_{u \ne v} \sum_j (w_u^\top z_j^u - w_v^\top z_j^v)^2$, by stochastic gradient steps.

    Source: de Ruijter, Tsivtsivadze (2012), equations 5 and 6, Algorithm 1.

    In the place of the square (section 3.1 of the paper names both), ``loss="epsilon_insensitive"`` has
    max(0, |w_vᵀx_i^v − y_i| − ε). ``loss="pairwise"`` ranks: it has max(0, 1 − w_vᵀ(x_i^v − x_j^v)) for each pair of rows with
    y_i > y_j, the mean over all pairs. Only the order of y counts, and only that of the predictions has a meaning.

    Departures: the objective has λ/2, because equation 6 shrinks by 1 − ηλ, which is the gradient of that. The targets are less
    their mean, and by default the steps begin so small that none can overshoot. Scale features to [−1, 1].

    Parameters
    ----------
    views
        columns of each view (slices, positions, booleans or names) of one table; None for a list of tables.
    ridge
        λ > 0, a number or one a view.
    coupling
        μ ≥ 0; each pair of views counts twice.
    eta0
        η₀: the steps are η₀ / (1 + η₀ λ (t−1)); a number or one a view. "auto": the largest stable one,
        1/(λ + ‖x‖² + 4μM‖z‖²) with the longest rows. None: 1/(λt), as in Algorithm 1; it can diverge.
    n_labelled_step
        k; at least 2 for "pairwise", which compares k² pairs.
    n_unlabelled_step
        l.
    max_unlabelled_step
        of `fit`: l doubles up to this while more than a quarter of the views' mean squared prediction is their variance, and
        halves again below. None: l stays.
    n_steps
        of `fit`.
    fit_intercept
        subtract the mean of the labels so far, and add it back; False is the paper's form.
    loss
        "squared", "epsilon_insensitive", which outliers among the labels move less, or "pairwise".
    epsilon
        ε ≥ 0 of that loss, in units of y.
    random_state
        of the rows drawn.

    Attributes
    ----------
    coef_
        w, one (d_v,) a view. intercept_. n_steps_: steps so far. n_unlabelled_step_: the last l of `fit`.
        n_features_in_views_, n_views_.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.uniform(-1, 1, size=(50, 4)), rng.uniform(-1, 1, size=(500, 4))
    >>> model = OCARegressor(n_steps=500, random_state=0)
    >>> model = model.fit([X[:, :2], X[:, 2:]], X.sum(axis=1), [Z[:, :2], Z[:, 2:]])
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape
    (500,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_OCA._parameter_constraints, "loss": [StrOptions({"squared", "epsilon_insensitive", "pairwise"})],
        "fit_intercept": ["boolean"], "epsilon": [NOT_NEGATIVE],
    }  # fmt: skip

    def __init__(
        self,
        *,
        views: Any = None,
        ridge: float | Sequence[float] = 0.01,
        coupling: float = 0.1,
        eta0: str | float | Sequence[float] | None = "auto",
        n_labelled_step: int = 1,
        n_unlabelled_step: int = 1,
        max_unlabelled_step: int | None = None,
        n_steps: int = 10_000,
        fit_intercept: bool = True,
        loss: Loss = "squared",
        epsilon: float = 0.1,
        random_state: Any = None,
    ):
        self.views, self.ridge, self.coupling, self.eta0 = views, ridge, coupling, eta0
        self.n_labelled_step, self.n_unlabelled_step = n_labelled_step, n_unlabelled_step
        self.max_unlabelled_step, self.n_steps, self.random_state = max_unlabelled_step, n_steps, random_state
        self.fit_intercept, self.loss, self.epsilon = fit_intercept, loss, epsilon

    def _centred(self, target: Arr, before: int) -> Arr:
        target = super()._centred(target, before)
        if self.fit_intercept and self.loss != "pairwise" and len(target):
            self.intercept_ += float((target - self.intercept_).sum()) / self.n_labels_
        return target - self.intercept_

    def predict_views(self, X_views: Any) -> Any:
        """Every view's prediction, (M, n)."""
        return self._predictions(X_views)

    def predict(self, X_views: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self._predictions(X_views).mean(axis=0)


class OCAClassifier(TwoClasses, _OCA):
    r"""As `OCARegressor` for two classes, −1 and 1 inside: the hinge loss max(0, 1 − y·p) or log(1 + exp(−y·p)), p = w_vᵀx^v.

    Source: de Ruijter, Tsivtsivadze (2012), Algorithm 1; equation 6 corrects a sign and a 1/k in its line 5.

    Parameters
    ----------
    views, ridge, coupling, n_labelled_step, n_unlabelled_step, max_unlabelled_step, n_steps, random_state
        those of `OCARegressor`.
    eta0
        η₀, a number or one a view; "auto": 1/(λ + 4μM‖z‖²) with the longest rows, for "log_loss" with ‖x‖²/4 in the sum;
        None: 1/(λt).
    loss
        "hinge" or "log_loss".

    Attributes
    ----------
    classes_
        the two, sorted. coef_, n_steps_, n_features_in_views_, n_views_: as of `OCARegressor`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_OCA._parameter_constraints, "loss": [StrOptions({"hinge", "log_loss"})],
    }  # fmt: skip

    def __init__(
        self,
        *,
        views: Any = None,
        ridge: float | Sequence[float] = 0.01,
        coupling: float = 0.1,
        eta0: str | float | Sequence[float] | None = "auto",
        n_labelled_step: int = 1,
        n_unlabelled_step: int = 1,
        max_unlabelled_step: int | None = None,
        n_steps: int = 10_000,
        loss: Loss = "hinge",
        random_state: Any = None,
    ):
        self.views, self.ridge, self.coupling, self.eta0 = views, ridge, coupling, eta0
        self.n_labelled_step, self.n_unlabelled_step = n_labelled_step, n_unlabelled_step
        self.max_unlabelled_step, self.n_steps, self.random_state = max_unlabelled_step, n_steps, random_state
        self.loss = loss

    def fit(self, X_views: Any, y: Any, Z_views: Sequence[Any] | None = None) -> Self:
        """As `OCARegressor.fit`; a missing label is NaN or None."""
        self._known_classes = None
        return super().fit(X_views, y, Z_views)

    def partial_fit(self, X_views: Any, y: Any, Z_views: Sequence[Any] | None = None, classes: Any = None) -> Self:
        """One step with all given rows; the first call names the two ``classes`` if y does not have both."""
        self._known_classes = getattr(self, "classes_", None) if hasattr(self, "weights_") else classes
        return super().partial_fit(X_views, y, Z_views)

    def _decide(self, X_views: Any) -> Arr:
        """The mean of the views' predictions, (n,)."""
        return np.asarray(self._predictions(X_views).mean(axis=0))
