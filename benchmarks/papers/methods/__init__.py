"""The papers' methods beside coRLSR, and their rivals there: estimators of tables, and no part of
the product.
"""

from benchmarks.papers.methods.corls import CoRLS
from benchmarks.papers.methods.kernel_ridge import LSSVM, RLSR
from benchmarks.papers.methods.latent import SNF, LinearLatentReconstruction
from benchmarks.papers.methods.manifold import HessianRLS, LaplacianRLS, ParallelFieldRLS
from benchmarks.papers.methods.oca import OCA
from benchmarks.papers.methods.sssl import SSSL, NystromSSSL
from benchmarks.papers.methods.xnv import XKS, XNV

__all__ = [
    "LSSVM", "OCA", "RLSR", "SNF", "SSSL", "XKS", "XNV", "CoRLS", "HessianRLS", "LaplacianRLS",
    "LinearLatentReconstruction",
    "NystromSSSL", "ParallelFieldRLS",
]  # fmt: skip
