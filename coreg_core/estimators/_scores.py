"""Targets and scores of regressors and of classifiers of two classes; rows without a target do not count."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.estimators._tables import as_array, given_targets, missing_in, own_table, read_targets
from coreg_core.evaluation import Probability, fit_probability
from coreg_core.numerics.arrays import Arr


def _score(metric: Any, y: Any, predict: Any, X: Any, sample_weight: Any) -> float:
    """The metric over the rows with a target; NaN where none is known."""
    y = np.ravel(as_array(y))
    known = ~missing_in(y)
    if not known.any():
        text = "No row has a target, so the score is NaN. In a search or a cross-validation give cv=LabelledFolds()."
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
        return float("nan")
    weight = None if sample_weight is None else np.asarray(sample_weight)[known]
    return float(metric(np.array(y[known].tolist()), predict(X)[known], sample_weight=weight))


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Targets are numbers."""

    predict: Any

    def _targets(self, y: Any, n_rows: int, least: int = 1) -> Arr:
        return read_targets(y, n_rows, self, least)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` over the rows whose target is not missing; NaN where none is known."""
        return _score(r2_score, y, self.predict, X, sample_weight)


class KernelRegressor(Regressor):
    """f(x) = k(x, B) c + b of one table."""

    function_: KernelExpansion
    intercept_: float

    def predict(self, X: Any) -> Any:
        """f(X), (n,)."""
        X = own_table(self, X)
        return self.function_.predict(X) + self.intercept_


class TwoClasses(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Two classes as −1 and 1: the sign of `decision_function` decides."""

    classes_: Any
    _decide: Any  # (X) -> (n,), of the class beside this one
    _known_classes: Any = None  # of a stream

    def _targets(self, y: Any, n_rows: int, least: int = 1) -> Arr:  # noqa: ARG002 - a class is needed in any case
        """y as −1 and 1, NaN where it is missing. Sets ``classes_``, sorted."""
        y = given_targets(y, n_rows, self)
        missing, classes = missing_in(y), self._known_classes
        known, out = np.array(y[~missing].tolist()) if y.dtype == object else y[~missing], np.full(len(y), np.nan)
        if known.dtype.kind == "f" and np.isinf(known).any():
            raise BadData("Input y contains infinity or a value too large; classes are finite.")
        if len(known):
            check_classification_targets(known)
        classes = np.unique(known if classes is None else classes)
        if len(classes) > 2:
            raise BadData(
                f"Only binary classification is supported. The type of the target is {type_of_target(known)}: "
                f"{len(classes)} classes. A row without a label has y = NaN, not -1. For a numeric target use a regressor."
            )
        if not len(classes):
            raise BadData("All targets are NaN, so no class is known.")
        if len(classes) < 2:
            raise BadData(
                f"y: one class ({classes.tolist()[0]!r}) and a classifier needs two; label rows of the other."
            )
        if (strange := ~np.isin(known, classes)).any():
            raise BadData(f"y: {str(known[strange][0])!r} is none of the classes {classes.tolist()}.")
        self.classes_ = classes
        out[~missing] = np.where(known == classes[1], 1.0, -1.0)
        return out

    def decision_function(self, X: Any) -> Any:
        """f(X), (n,): positive for the second class."""
        return self._decide(X)

    def predict(self, X: Any) -> Any:
        """The class of each row, (n,)."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` over the rows whose target is not missing; NaN where none is known."""
        return _score(accuracy_score, y, self.predict, X, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class ViewsClassifier(TwoClasses):
    """Probabilities of two classes: `_joint` is the score of all views, `_own` that of each view, (M, n)."""

    _joint: Any
    _own: Any
    probability_: Probability
    probabilities_: list[Probability]

    def _calibrate(self, left_out: list[tuple[Arr, Arr]]) -> None:
        """A and B of each view, and of the joint score, from pairs of left-out scores and labels."""
        self.probabilities_ = [fit_probability(*pair) for pair in left_out]
        self.probability_ = fit_probability(*map(np.concatenate, zip(*left_out, strict=True)))

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
