"""The methods of the literature with scikit-learn's conventions, one a file."""

from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.estimators.rlsr import RLSR

__all__ = ["RLSR", "CoRLSR"]
