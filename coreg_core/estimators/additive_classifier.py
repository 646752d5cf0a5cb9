"""Additive views for a target of two classes: least squares on 0 and 1, and probabilities by left-out labels."""

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import column_or_1d

from coreg_core.errors import BadData
from coreg_core.estimators._inputs import TwoClasses, missing_in
from coreg_core.estimators.additive import AdditiveViews
from coreg_core.evaluation.probability import Probability, fit_probability
from coreg_core.numerics.arrays import Arr


class AdditiveClassifier(TwoClasses, ClassifierMixin, AdditiveViews):  # type: ignore[misc]  # scikit-learn ships no types
    r"""`AdditiveRegressor` on labels of 0 and 1, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s.

    A and B are fitted to predictions of labelled rows that were left out in turn (Platt scaling), a pair for each view's own
    model. The joint score has one pair from all these rows, of own models too: in a federation no row has a joint score that is
    left out.

    Source: docs/research/mathematics.md, "The additive objective"; Platt (1999).

    Parameters
    ----------
    views, kernel, bandwidth, ridge, degree, offset, landmarks, rows, residuals, group_size, random_intercept, aim
        those of `AdditiveRegressor`, as are tuning_steps, probes, tol, tuning_tol, folds, max_rounds, forecast, random_state.

    Attributes
    ----------
    classes_
        the two classes, sorted; probabilities are of the second.
    probability_, probabilities_
        A and B of the joint score, and of each view's own model.
    models_, intercept_, noise_, prior_, r2_, gap_, score_bound_, n_rounds_, stop_
        those of `AdditiveRegressor`, of the labels 0 and 1.

    Raises
    ------
    BadData
        (a ValueError) other than two classes, or as `AdditiveRegressor`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.where(X[:, 0] + X[:, 3] > 0, "yes", "no").astype(object)
    >>> y[80:] = None  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((150, 2), dtype=bool)
    >>> mask[:40, 0] = mask[40:80, 1] = True  # each view has forty labels of its own
    >>> model = AdditiveClassifier(views=[slice(0, 2), slice(2, 4)], random_state=0).fit(X, y, label_mask=mask)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.predict_proba_views(X).shape
    (['no', 'yes'], (150, 2), (2, 150))
    """

    def fit(self, X: Any, y: Any = None, Z_views: Any = None, *, label_mask: Any = None, positions: Any = None) -> Self:
        """As `AdditiveRegressor.fit`. A missing target is NaN or None."""
        if y is None:
            raise BadData("This AdditiveClassifier estimator requires y to be passed, but the target y is None.")
        if Z_views is None:
            numbers: Any = self._numbers(column_or_1d(y, warn=True))
        else:
            filled = [np.asarray(each) for each in y if len(each)]
            whole = self._numbers(np.concatenate(filled)) if filled else np.zeros(0)
            numbers = np.split(whole, np.cumsum([len(each) for each in y])[:-1])
        super().fit(X, numbers, Z_views, label_mask=label_mask, positions=positions)
        # A view with fewer labels than its model alone needs has none that were left out.
        own = [
            (m.left_out[0], labels[: m.left_out.shape[1]]) for m, labels in zip(self.models_, self.labels_, strict=True)
        ]
        self.probabilities_ = [fit_probability(*pair) for pair in own]
        self.probability_: Probability = fit_probability(*(np.concatenate(each) for each in zip(*own, strict=True)))
        return self

    def _numbers(self, y: Any) -> Arr:
        """0 and 1, NaN where missing; sets ``classes_``."""
        y = np.asarray(y)
        missing = missing_in(y)
        known, out = y[~missing], np.full(len(y), np.nan)
        if not len(known):
            return out  # the fit says what is missing
        if known.dtype.kind == "f" and np.isinf(known).any():
            raise BadData("Input y contains infinity or a value too large; classes are finite.")
        if y.dtype == object:
            known = np.array(known.tolist())
        out[~missing] = self._signs(known) > 0.0
        return out

    def _decide(self, X: Any) -> Arr:
        scores = self._joint(X)
        return self.probability_.log_odds(scores)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of both classes by the joint score, (n, 2), from the columns of every view."""
        scores = self._joint(X)
        positive = self.probability_.of(scores)
        return np.column_stack([1.0 - positive, positive])

    def predict_proba_views(self, X: Any) -> Any:
        """Probability of the second class by each view's own model, (M, n)."""
        scores = self._own(X)
        return np.array([p.of(s) for p, s in zip(self.probabilities_, scores, strict=True)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` over the rows whose target is not missing; NaN where none is known."""
        y = column_or_1d(np.asarray(y))
        known = ~missing_in(y)
        if not known.any():
            return float("nan")
        weight = None if sample_weight is None else np.asarray(sample_weight)[known]
        right = y[known].astype(object) == self.predict(X)[known].astype(object)
        return float(np.average(right, weights=weight))
