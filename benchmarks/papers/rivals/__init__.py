"""The methods that the papers compare theirs with: estimators of the tables, and no part of the product."""

from benchmarks.papers.rivals.hessian import HessianRLS
from benchmarks.papers.rivals.latent_reconstruction import LinearLatentReconstruction
from benchmarks.papers.rivals.ls_svm import LSSVM
from benchmarks.papers.rivals.parallel_field import ParallelFieldRLS
from benchmarks.papers.rivals.pegasos import (
    MultiViewPegasosClassifier,
    MultiViewPegasosRegressor,
    PegasosClassifier,
    PegasosRegressor,
)

__all__ = [
    "LSSVM",
    "HessianRLS",
    "LinearLatentReconstruction",
    "MultiViewPegasosClassifier",
    "MultiViewPegasosRegressor",
    "ParallelFieldRLS",
    "PegasosClassifier",
    "PegasosRegressor",
]
