"""The methods of the literature with scikit-learn's conventions, one a file."""

from coreg_core.estimators.corls import CoRLS
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.estimators.oca import OCAClassifier, OCARegressor
from coreg_core.estimators.pegasos import (
    MultiViewPegasosClassifier,
    MultiViewPegasosRegressor,
    PegasosClassifier,
    PegasosRegressor,
)
from coreg_core.estimators.rlsr import RLSR
from coreg_core.estimators.sssl import SSSL, NystromSSSL
from coreg_core.estimators.xks import XKS, XKSClassifier
from coreg_core.estimators.xnv import XNV, XNVClassifier

__all__ = [
    "RLSR",
    "SSSL",
    "XKS",
    "XNV",
    "CoRLS",
    "CoRLSR",
    "MultiViewPegasosClassifier",
    "MultiViewPegasosRegressor",
    "NystromSSSL",
    "OCAClassifier",
    "OCARegressor",
    "PegasosClassifier",
    "PegasosRegressor",
    "XKSClassifier",
    "XNVClassifier",
]
