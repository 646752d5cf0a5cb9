"""Two classes over views: least squares on 0 and 1, and probabilities by labels that were left out."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin

from coreg_core.errors import BadData
from coreg_core.estimators._inputs import TwoClasses
from coreg_core.evaluation.probability import Probability, fit_probability
from coreg_core.numerics.arrays import Arr


class ViewsClassifier(TwoClasses, ClassifierMixin):  # type: ignore[misc]  # scikit-learn ships no types
    """The classifier of an estimator over views: `_joint` is its score of all views, `_own` that of each view, (M, n)."""

    _joint: Any
    _own: Any

    def _numbered(self, y: Any, Z_views: Any) -> Any:
        """Targets as 0 and 1, NaN where missing, in the form of ``y``."""
        if y is None:
            raise BadData(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if Z_views is None or all(np.ndim(each) == 0 for each in y):
            return self._numbers(y)
        filled = [np.asarray(each) for each in y if len(each)]
        whole = self._numbers(np.concatenate(filled)) if filled else np.zeros(0)
        return np.split(whole, np.cumsum([len(each) for each in y])[:-1])

    def _numbers(self, y: Any) -> Arr:
        """0 and 1, NaN where missing; sets ``classes_``."""
        return 0.5 + 0.5 * self.signs_and_gaps(y)

    def _calibrate(self, left_out: list[tuple[Arr, Arr]]) -> None:
        """A and B of each view, and of the joint score, from pairs of left-out scores and labels."""
        self.probabilities_ = [fit_probability(*pair) for pair in left_out]
        self.probability_: Probability = fit_probability(*map(np.concatenate, zip(*left_out, strict=True)))

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
