"""Targets of the estimators: numbers, or classes as places.

A missing target is NaN. A row without a target is a shared row, and does not count in a score.
"""

import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_consistent_length, column_or_1d

from coreg_core.arrays import Arr
from coreg_core.errors import BadData
from coreg_core.estimators.tables import SMALLEST, _refuse_sizes, as_array, missing_in, numbers

MARKERS = {"-1", "-1.0", "", "nan", "none", "na", "null", "?"}  # of rows without a label


def given_targets(y: Any, n_rows: int, estimator: Any) -> Any:
    """y as a vector of that length, of any dtype."""
    if y is None:
        raise BadData(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y"
            " is None."
        )
    y = column_or_1d(as_array(y), warn=True)
    check_consistent_length(np.empty((n_rows, 0)), y)
    return y


def _score(metric: Any, y: Any, predict: Any, X: Any, sample_weight: Any) -> float:
    """The metric over the rows with a target; NaN where none is known."""
    y = np.ravel(as_array(y))
    has_target = ~missing_in(y)
    if not has_target.any():
        text = (
            "No row has a target, so the score is NaN. In a search or a cross-validation give"
            " cv=LabelledFolds()."
        )
        warnings.warn(text, UndefinedMetricWarning, stacklevel=3)
        return float("nan")
    weight = None
    if sample_weight is not None:
        weight = np.asarray(sample_weight)[has_target]
    targets = np.array(y[has_target].tolist())
    predictions = predict(X)[has_target]
    return float(metric(targets, predictions, sample_weight=weight))


def _warn_of_markers(classes: Any) -> None:
    """Other programs mark a row without a label so; here it would be trained as a class."""
    if len(classes) < 3:
        return
    markers = [text for text in map(str, classes.tolist()) if text.lower() in MARKERS]
    if markers:
        warnings.warn(
            f"y: {' and '.join(map(repr, markers))} counts as a class. If it marks rows without a"
            " label, give NaN or None there.",
            stacklevel=6,
        )


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Targets are numbers."""

    predict: Any

    def _targets(self, y: Any, n_rows: int) -> Arr:
        """y (N,) as floats, NaN where it is missing."""
        y = given_targets(y, n_rows, self)
        try:
            targets: Arr = numbers(y, "y").astype(np.float64)
        except BadData:  # it says what to do
            raise
        except (TypeError, ValueError) as error:
            raise BadData(
                f"y: {error}. For a target of two classes use a classifier, for example"
                " AdditiveClassifier."
            ) from None
        if np.isinf(targets).any():
            raise BadData(
                "Input y contains infinity or a value too large; leave a target that is not known"
                " missing (NaN)."
            )
        _refuse_sizes(targets, "y", least=SMALLEST)
        if np.isnan(targets).all():
            raise BadData(
                "All targets are NaN. Some rows need a target. In GridSearchCV and cross_val_score,"
                " set cv to LabelledFolds."
            )
        return targets

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of `predict` over the rows whose target is not missing; NaN where none is known."""
        return _score(r2_score, y, self.predict, X, sample_weight)


class ViewsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Two classes as 0 and 1, with probabilities: `_joint` is the score of all views, `_own` that
    of each view, (M, n). If ``_several`` there can be more, as their places: `_joint` and `_own`
    then have a last axis for the classes.
    """

    _several: ClassVar[bool] = False

    classes_: Any
    probability_: Any
    probabilities_: list[Any]
    _joint: Any
    _own: Any

    def _targets(self, y: Any, n_rows: int) -> Arr:
        """y as places among ``classes_``, which it sets, sorted; NaN where it is missing."""
        y = given_targets(y, n_rows, self)
        missing = missing_in(y)
        out = np.full(len(y), np.nan)
        given = y[~missing]
        if y.dtype == object:
            given = np.array(given.tolist())
        if given.dtype.kind == "f" and np.isinf(given).any():
            raise BadData("Input y contains infinity or a value too large; classes are finite.")
        if not len(given):
            raise BadData("All targets are NaN, so no class is known.")
        check_classification_targets(given)
        classes = np.unique(given)
        if len(classes) > 2 and not self._several:
            raise BadData(
                "Only binary classification is supported. The type of the target is"
                f" {type_of_target(given)}: {len(classes)} classes. A row without a label has y ="
                " NaN, not -1. For a numeric target use a regressor."
            )
        if len(classes) < 2:
            raise BadData(
                f"y: one class ({classes.tolist()[0]!r}) and a classifier needs two; label rows of"
                " the other."
            )
        if not missing.any():
            _warn_of_markers(classes)
        self.classes_ = classes
        out[~missing] = np.searchsorted(classes, given)
        return out

    def decision_function(self, X: Any) -> Any:
        """Log odds of the second class by the joint score, (n,); of several classes the logarithm
        of each probability, (n, K).
        """
        scores = self._joint(X)
        return self.probability_.log_odds(scores)

    def predict(self, X: Any) -> Any:
        """The class of each row, (n,)."""
        odds = self.decision_function(X)
        if odds.ndim > 1:
            return self.classes_[odds.argmax(axis=1)]
        return self.classes_[(odds > 0).astype(int)]

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes by the joint score, (n, K), from the columns of every
        view.
        """
        scores = self._joint(X)
        positive = self.probability_.of(scores)
        if positive.ndim > 1:
            return positive
        return np.column_stack([1.0 - positive, positive])

    def predict_proba_views(self, X: Any) -> Any:
        """Probability of the second class by each view's own model, (M, n); of several classes
        of each, (M, n, K).
        """
        scores = self._own(X)
        return np.array([p.of(s) for p, s in zip(self.probabilities_, scores, strict=True)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict` over the rows whose target is not missing; NaN where none is
        known.
        """
        return _score(accuracy_score, y, self.predict, X, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._several
        return tags
