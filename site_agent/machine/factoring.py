"""A site's data under a plan: the units of its label column, its view, and a digest that detects changes of both."""

import hashlib

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.views import View, make_view
from coreg_core.errors import BadData
from coreg_core.kernels.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures, Span
from coreg_core.kernels.functions import Linear, make_kernel
from coreg_core.kernels.leave_one_out import kernel_rule
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement, LabelUnits
from site_agent.machine.site_data import PrivateData


def units(y: Float64[Arr, " n"], rule: LabelUnits) -> tuple[float, float]:
    """Shift and divisor: the run sees (y − shift) / divisor."""
    match rule:
        case "raw":
            return 0.0, 1.0
        case "centred":
            return float(y.mean()), 1.0
        case "standardised":  # the computed standard deviation of equal targets is a rounding error, not zero
            return float(y.mean()), float(y.std()) if np.ptp(y) > 0.0 else 1.0


# GiB of factors that an agent keeps in the exact and the semi-parametric form, if policy.toml has no other limit.
FACTOR_MEMORY = 4.0


def factor(
    objective: Agreement, data: PrivateData, y: Float64[Arr, " n"], factor_memory: float = FACTOR_MEMORY
) -> View:
    """The site's view of its own rows and the shared ones.

    Raises
    ------
    CoregError
        a parameter that these rows do not allow, a system that is singular in floating point, or factors of more than
        ``factor_memory`` GiB.
    numpy.linalg.LinAlgError
        the kernel returned infinities.
    """
    X, Z = data.X, data.Z
    kind = "linear" if objective.form == "linear" else objective.kernel
    bandwidth, ridge = kernel_rule(
        X, y, kind, objective.bandwidth, objective.ridge, degree=objective.degree, offset=objective.offset
    )
    span: Span
    n_weights = sum(coupling > 0.0 for coupling in set(objective.coupling))
    match objective.form:
        case "exact":
            _require_room("exact", n_weights, len(X), len(Z), factor_memory)
            span = EveryPoint()
        case "semi-parametric":
            _require_room("semi-parametric", n_weights, len(X), len(Z), factor_memory)
            span = LabelledPoints()
        case "landmarks":
            span = Landmarks(objective.landmarks, objective.seed)
        case "linear":
            return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
    kernel = make_kernel(objective.kernel, bandwidth=bandwidth, degree=objective.degree, offset=objective.offset)
    return make_view(span, kernel, X, y, Z, ridge, n_weights=n_weights)


def _require_room(form: str, n_weights: int, n: int, m: int, factor_memory: float) -> None:
    """Refuse what does not fit: 8 m² bytes for each coupling of the exact form, and 8 n² for the labelled rows."""
    factors = max(n_weights, 1) if form == "exact" else 0
    each, labelled = 8 * m * m / 2**30, 8 * n * n / 2**30
    if (needed := factors * each + labelled) <= factor_memory:
        return
    parts = [f"{each:,.3g} GiB for each of {factors} couplings with {m} unlabelled instances"] * (factors > 0)
    parts += [f"{labelled:,.3g} GiB for {n} labelled rows"] * (labelled > 0.01 * needed)
    serves = ["form='landmarks'"] if labelled > factor_memory else ["form='semi-parametric'", "form='landmarks'"]
    if 0 < (fit := int((factor_memory - labelled) / each) if each else 0) < factors:
        serves.append(f"at most {fit} coupling{'s' * (fit > 1)} in a run")
    raise BadData(
        f"form={form!r} needs {needed:,.3g} GiB of factors ({' and '.join(parts)}). This agent grants {factor_memory:g} GiB. "
        f"Use {', '.join(serves)}, or raise factor_memory in this site's policy.toml."
    )


def data_digest(data: PrivateData, run: str) -> str:
    """A digest salted with the site's secret and the run: it shows whether the rows changed, and reveals nothing about them."""
    digest = hashlib.sha256(data.salt + run.encode())
    for array in (data.X, data.y, data.Z):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(array.shape).encode())
    return digest.hexdigest()
