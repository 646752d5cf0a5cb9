"""The two methods with scikit-learn's conventions."""

from coreg_core.estimators.additive import AdditiveClassifier, AdditiveRegressor
from coreg_core.estimators.corlsr import CoRLSR, CoRLSRClassifier
from coreg_core.estimators.folds import LabelledFolds

__all__ = [
    "AdditiveClassifier", "AdditiveRegressor", "CoRLSR", "CoRLSRClassifier", "LabelledFolds",
]  # fmt: skip
