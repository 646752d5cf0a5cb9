"""The two methods with scikit-learn's conventions."""

from coreg_core.estimators.additive import AdditiveClassifier, AdditiveRegressor
from coreg_core.estimators.corlsr import CoRLSR, CoRLSRClassifier
from coreg_core.estimators.corlsr_cv import CoRLSRCV, LabelledFolds

__all__ = [
    "AdditiveClassifier", "AdditiveRegressor", "CoRLSR", "CoRLSRCV", "CoRLSRClassifier", "LabelledFolds",
]  # fmt: skip
