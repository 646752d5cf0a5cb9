"""The methods of the literature with scikit-learn's conventions, one a file."""

from coreg_core.estimators.additive import AdditiveClassifier, AdditiveRegressor
from coreg_core.estimators.corls import CoRLS
from coreg_core.estimators.corlsr import CoRLSR, CoRLSRClassifier
from coreg_core.estimators.corlsr_cv import CoRLSRCV, LabelledFolds
from coreg_core.estimators.laplacian_rls import LaplacianRLS
from coreg_core.estimators.oca import OCAClassifier, OCARegressor
from coreg_core.estimators.rlsr import RLSR
from coreg_core.estimators.snf import SNF
from coreg_core.estimators.sssl import SSSL, NystromSSSL
from coreg_core.estimators.xnv import XKS, XNV, XKSClassifier, XNVClassifier

__all__ = [
    "RLSR", "SNF", "SSSL", "XKS", "XNV", "AdditiveClassifier", "AdditiveRegressor", "CoRLS", "CoRLSR",
    "CoRLSRCV", "CoRLSRClassifier", "LabelledFolds", "LaplacianRLS", "NystromSSSL", "OCAClassifier",
    "OCARegressor", "XKSClassifier", "XNVClassifier",
]  # fmt: skip
