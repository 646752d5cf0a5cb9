r"""Online co-regularisation, OCA-k-l: linear views that learn from a stream, labelled and unlabelled."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, column_or_1d

from coreg_core.errors import BadData
from coreg_core.estimators._inputs import generator, one_a_view
from coreg_core.estimators._online import (
    Draws,
    Loss,
    Rows,
    Weights,
    as_rows,
    check_finite,
    not_negative,
    one_step,
    positive,
    single_step,
    step_size,
    whole,
)
from coreg_core.numerics.arrays import Arr


class _OCA(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """The steps; the subclasses define the loss and the targets."""

    _loss: Loss
    weights_: list[Weights]
    n_features_in_views_: list[int]
    n_steps_: int
    n_views_: int
    classes_: Any
    _ridge: list[float]
    _eta0: list[float | None]

    def __init__(
        self,
        *,
        ridge: float | Sequence[float] = 0.01,
        coupling: float = 0.1,
        eta0: float | Sequence[float] | None = None,
        n_labelled_step: int = 1,
        n_unlabelled_step: int = 1,
        n_steps: int = 10_000,
        random_state: Any = None,
    ):
        self.ridge, self.coupling, self.eta0 = ridge, coupling, eta0
        self.n_labelled_step, self.n_unlabelled_step = n_labelled_step, n_unlabelled_step
        self.n_steps, self.random_state = n_steps, random_state

    def fit(self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] | None = None) -> Self:
        """From w = 0, ``n_steps`` steps of k labelled and l unlabelled rows, drawn anew each.

        Parameters
        ----------
        X_views
            M tables (n, d_v), dense or sparse: the same labelled instances in each.
        y
            (n,).
        Z_views
            M tables (m, d_v): the same unlabelled instances in each; None: no co-regularisation.

        Raises
        ------
        BadData
            tables of inconsistent shapes.
        UsageError
            a parameter out of range, k or l above the number of rows, or steps that diverge.
        """
        X, target, Z, classes = self._check(X_views, y, Z_views)
        n, m = X[0].shape[0], Z[0].shape[0] if Z else 0
        k = whole(self.n_labelled_step, "n_labelled_step", 1, n, "the labelled rows that there are")
        l = whole(self.n_unlabelled_step, "n_unlabelled_step", 1, m, "the unlabelled rows that there are") if Z else 0  # noqa: E741
        whole(self.n_steps, "n_steps", 1, None, "a whole number")
        self._begin(X, classes)
        rng = generator(self.random_state)
        rows, more = Draws(n, k, rng), Draws(m, l, rng)
        if rows.single and more.single:
            numbers = target.tolist()
            for _ in range(self.n_steps):
                i = rows.one()
                self._step(single_step, X, i, numbers[i], Z, more.one())
        else:
            for _ in range(self.n_steps):
                chosen = rows.next()
                self._step(one_step, X, chosen, target[chosen], Z, more.next())
        check_finite(self.weights_)
        return self

    def partial_fit(self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] | None = None) -> Self:
        """One step with all given rows: A_t is (X_views, y), Ã_t is Z_views. One of them can have no rows, not both."""
        return self._partial_fit(X_views, y, Z_views)

    def _partial_fit(self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] | None, classes: Any = None) -> Self:
        first = not hasattr(self, "weights_")
        X, target, Z, classes = self._check(X_views, y, Z_views, classes if first else getattr(self, "classes_", None))
        widths = [t.shape[1] for t in X]
        if not first and widths != self.n_features_in_views_:
            raise BadData(f"X_views: views of {widths} features, the model has {self.n_features_in_views_}.")
        n, m = X[0].shape[0], Z[0].shape[0] if Z else 0
        if n == 0 and m == 0:
            raise BadData("neither a labelled nor an unlabelled row to learn from.")
        if first:
            self._begin(X, classes)
        self._step(one_step, X, np.arange(n), target, Z, np.arange(m))
        return self

    def _step(self, how: Any, X: list[Rows], rows: Any, y: Any, Z: list[Rows], more: Any) -> None:
        self.n_steps_ += 1
        eta = [step_size(e, lam, self.n_steps_) for e, lam in zip(self._eta0, self._ridge, strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):  # a step that diverges raises an error
            how(
                self.weights_, X, rows, y, Z, more, loss=self._loss, ridge=self._ridge, coupling=self.coupling, eta=eta
            )  # fmt: skip

    # --- checks ---------------------------------------------------------------------------------------------------

    def _check(
        self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] | None, classes: Any = None
    ) -> tuple[list[Rows], Arr, list[Rows], Any]:
        """Tables, targets as the steps want them, tables, and the classes; the model is not touched."""
        X = _tables(X_views, "X_views")
        Z = [] if Z_views is None else _tables(Z_views, "Z_views")
        if Z and [t.shape[1] for t in Z] != [t.shape[1] for t in X]:
            raise BadData(
                f"Z_views: views of {[t.shape[1] for t in Z]} features, X_views has {[t.shape[1] for t in X]}; needs the same."
            )
        target, classes = self._target(column_or_1d(y), classes)
        if len(target) != X[0].shape[0]:
            raise BadData(f"y: {len(target)} targets for {X[0].shape[0]} labelled rows; needs as many.")
        return X, target, Z, classes

    def _begin(self, X: list[Rows], classes: Any) -> None:
        """Start a new model, after all checks of the arguments, so that an invalid call keeps the old model."""
        ridge = [positive(value, "ridge") for value in one_a_view(self.ridge, len(X), "ridge")]
        eta0: list[float | None] = [None] * len(X)
        if self.eta0 is not None:
            eta0 = [positive(value, "eta0") for value in one_a_view(self.eta0, len(X), "eta0")]
        not_negative(self.coupling, "coupling")
        widths = [t.shape[1] for t in X]
        self._ridge, self._eta0, self.weights_ = ridge, eta0, [Weights(d) for d in widths]
        self.n_steps_, self.n_views_, self.n_features_in_views_ = 0, len(X), widths
        if classes is not None:
            self.classes_ = classes

    def _target(self, y: Any, classes: Any) -> tuple[Arr, Any]:
        raise NotImplementedError

    # --- prediction ----------------------------------------------------------------------------------------------------

    @property
    def coef_(self) -> list[Arr]:
        """w, (d_v,) for each view."""
        return [w.w for w in self.weights_]

    def _predictions(self, X_views: Sequence[Any]) -> Arr:
        check_is_fitted(self, "weights_")
        X = [_table(t, f"X_views[{v}]") for v, t in enumerate(X_views)]
        if [t.shape[1] for t in X] != self.n_features_in_views_:
            raise BadData(
                f"X_views: views of {[t.shape[1] for t in X]} features, the model has {self.n_features_in_views_}."
            )
        if len({t.shape[0] for t in X}) > 1:
            raise BadData(f"X_views: views of {[t.shape[0] for t in X]} instances; every view needs the same.")
        return np.array([np.asarray(t @ w) for t, w in zip(X, self.coef_, strict=True)])


class OCARegressor(_OCA):
    r"""$\sum_v [\frac1n \sum_i \frac12 (w_v^\top x_i^v - y_i)^2 + \frac{\lambda_v}{2}\|w_v\|^2]
    + \frac{\mu}{m} \sum_{u \ne v} \sum_j (w_u^\top z_j^u - w_v^\top z_j^v)^2$, by stochastic gradient steps.

    Source: de Ruijter, Tsivtsivadze (2012), equations 5 and 6, Algorithm 1.

    Departures: the objective has λ/2, because equation 6 shrinks by 1 − ηλ, which is the gradient of that. There is no
    bias, as in the paper: add a constant column to a view, or centre the target. Scale features to [−1, 1].

    Parameters
    ----------
    ridge
        λ > 0, a number or one a view.
    coupling
        μ ≥ 0; each pair of views counts twice.
    eta0
        η₀: the steps are η₀ / (1 + η₀ λ (t−1)); a number or one a view. None: 1/(λt), as in Algorithm 1.
    n_labelled_step
        k.
    n_unlabelled_step
        l.
    n_steps
        of `fit`.
    random_state
        of the rows drawn.

    Attributes
    ----------
    coef_
        w, one (d_v,) a view. n_steps_: steps so far. n_features_in_views_, n_views_.

    Raises
    ------
    UsageError
        (a ValueError) a parameter out of range, or steps that diverge.
    BadData
        (a ValueError) tables of inconsistent shapes.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.uniform(-1, 1, size=(50, 4)), rng.uniform(-1, 1, size=(500, 4))
    >>> model = OCARegressor(n_steps=500, random_state=0)
    >>> model = model.fit([X[:, :2], X[:, 2:]], X.sum(axis=1), [Z[:, :2], Z[:, 2:]])
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape
    (500,)
    """

    _loss = "squared"

    def _target(self, y: Any, classes: Any) -> tuple[Arr, Any]:  # noqa: ARG002
        target = np.asarray(y, dtype=np.float64)
        if not np.isfinite(target).all():
            raise BadData("y: NaN or infinity among the targets.")
        return target, None

    def predict_views(self, X_views: Sequence[Any]) -> Any:
        """Every view's prediction, (M, n)."""
        return self._predictions(X_views)

    def predict(self, X_views: Sequence[Any]) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self._predictions(X_views).mean(axis=0)


class OCAClassifier(_OCA):
    r"""As `OCARegressor` with the hinge loss max(0, 1 − y·w_vᵀx^v) for two classes, −1 and 1 inside.

    Source: de Ruijter, Tsivtsivadze (2012), Algorithm 1; equation 6 corrects a sign and a 1/k in its line 5.

    Parameters
    ----------
    ridge
        λ > 0, a number or one a view.
    coupling
        μ ≥ 0; each pair of views counts twice.
    eta0
        η₀, a number or one a view; None: 1/(λt).
    n_labelled_step
        k.
    n_unlabelled_step
        l.
    n_steps
        of `fit`.
    random_state
        of the rows drawn.

    Attributes
    ----------
    classes_
        the two, sorted. coef_, n_steps_, n_features_in_views_, n_views_: as of `OCARegressor`.

    Raises
    ------
    UsageError
        (a ValueError) a parameter out of range, or steps that diverge.
    BadData
        (a ValueError) tables of inconsistent shapes, one class, or more than two.
    """

    _loss = "hinge"

    def partial_fit(
        self, X_views: Sequence[Any], y: Any, Z_views: Sequence[Any] | None = None, classes: Any = None
    ) -> Self:
        """One step with all given rows; the first call names the two ``classes`` if y does not have both."""
        return self._partial_fit(X_views, y, Z_views, None if classes is None else np.unique(classes))

    def _target(self, y: Any, classes: Any) -> tuple[Arr, Any]:
        classes = np.unique(y) if classes is None else classes
        if len(classes) != 2:
            raise BadData(f"y: {len(classes)} class(es); the hinge loss needs two.")
        strange = ~np.isin(y, classes)
        if strange.any():
            raise BadData(f"y: {str(y[strange][0])!r} is none of the classes {classes.tolist()}.")
        return np.where(y == classes[1], 1.0, -1.0), classes

    def decision_function(self, X_views: Sequence[Any]) -> Any:
        """The mean of the views' predictions, (n,): positive for the second class."""
        return self._predictions(X_views).mean(axis=0)

    def decision_function_views(self, X_views: Sequence[Any]) -> Any:
        """Every view's prediction, (M, n)."""
        return self._predictions(X_views)

    def predict(self, X_views: Sequence[Any]) -> Any:
        """The class of each row, (n,)."""
        positive = self.decision_function(X_views) > 0
        return self.classes_[positive.astype(int)]


def _table(table: Any, name: str) -> Any:
    # A table without rows is valid: a stream has moments without labels.
    return check_array(table, accept_sparse="csr", dtype=np.float64, order="C", ensure_min_samples=0, input_name=name)


def _tables(views: Sequence[Any], name: str) -> list[Rows]:
    if len(views) == 0:
        raise BadData(f"{name}: no view; give at least one table.")
    tables = [as_rows(_table(t, f"{name}[{v}]")) for v, t in enumerate(views)]
    if len({t.shape[0] for t in tables}) > 1:
        raise BadData(f"{name}: views of {[t.shape[0] for t in tables]} instances; every view needs the same.")
    return tables
