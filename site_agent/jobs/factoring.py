"""A site's data under a plan: its label column's units, its view, and the digest that tells whether either changed.

Knows the site's arrays and the plan; nothing of questions, messages or other sites.
"""

import hashlib

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures, Span
from coreg_core.kernels import Linear, make_kernel
from coreg_core.loo import kernel_rule
from coreg_core.plan import Agreement, LabelUnits
from coreg_core.views import View, make_view
from site_agent.data.private import PrivateData


def units(y: Float64[Arr, " n"], rule: LabelUnits) -> tuple[float, float]:
    """Shift and divisor: the run sees (y − shift) / divisor."""
    match rule:
        case "raw":
            return 0.0, 1.0
        case "centred":
            return float(y.mean()), 1.0
        case "standardised":  # equal targets have a standard deviation of rounding errors, not of zero
            return float(y.mean()), float(y.std()) if np.ptp(y) > 0.0 else 1.0


def factor(objective: Agreement, data: PrivateData, y: Float64[Arr, " n"]) -> View:
    """The site's view of its own rows and the shared ones.

    Raises
    ------
    CoregError
        a parameter that these rows do not allow, or a system that is singular in floating point.
    numpy.linalg.LinAlgError
        numbers that the kernel turned into infinities.
    """
    X, Z = data.X, data.Z
    kind = "linear" if objective.form == "linear" else objective.kernel
    bandwidth, ridge = kernel_rule(
        X, y, kind, objective.bandwidth, objective.ridge, degree=objective.degree, offset=objective.offset
    )
    span: Span
    match objective.form:
        case "exact":
            span = EveryPoint()
        case "semi-parametric":
            span = LabelledPoints()
        case "landmarks":
            span = Landmarks(objective.landmarks, objective.seed)
        case "linear":
            return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
    kernel = make_kernel(objective.kernel, bandwidth=bandwidth, degree=objective.degree, offset=objective.offset)
    return make_view(span, kernel, X, y, Z, ridge)


def data_digest(data: PrivateData, run: str) -> str:
    """Salted by the site's secret and the run: tells that nothing changed, and nothing else."""
    digest = hashlib.sha256(data.salt + run.encode())
    for array in (data.X, data.y, data.Z):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(array.shape).encode())
    return digest.hexdigest()
