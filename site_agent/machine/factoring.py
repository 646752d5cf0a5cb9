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
from coreg_core.objectives.agreement import Agreement, LabelUnits
from site_agent.site_data import PrivateData


def units(y: Float64[Arr, " n"], rule: LabelUnits) -> tuple[float, float]:
    """Shift and divisor: the run sees (y − shift) / divisor."""
    match rule:
        case "centred":
            return float(y.mean()), 1.0
        case "standardised":  # the computed standard deviation of equal targets is a rounding error, not zero
            return float(y.mean()), float(y.std()) if np.ptp(y) > 0.0 else 1.0


# GiB of factors that an agent keeps in the exact form.
FACTOR_MEMORY = 4.0


def factor(
    objective: Agreement,
    data: PrivateData,
    y: Float64[Arr, " n"],
    factor_memory: float = FACTOR_MEMORY,
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
    n_weights = sum(coupling > 0.0 for coupling in set(objective.coupling))
    if objective.form == "exact":
        _require_room(n_weights, len(X), len(Z), factor_memory)
    kind = "linear" if objective.form == "linear" else objective.kernel
    bandwidth, ridge = kernel_rule(X, y, kind, objective.bandwidth, objective.ridge)
    span: Span
    match objective.form:
        case "exact":
            span = EveryPoint()
        case "semi-parametric" if len(X) <= objective.landmarks:
            span = LabelledPoints()
        case "semi-parametric":
            span = Landmarks(objective.landmarks, objective.seed)
        case "linear":
            return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
    kernel = make_kernel(objective.kernel, bandwidth=bandwidth)
    return make_view(span, kernel, X, y, Z, ridge, n_weights=n_weights)


def many_labels(objective: Agreement, n: int) -> str:
    """A sentence where a site's rows are too many for the span of all of them; "" where they are not."""
    if objective.form != "semi-parametric" or n <= objective.landmarks:
        return ""
    return (
        f"this site has {n} labelled rows, more than landmarks = {objective.landmarks}: its function uses so many points, drawn "
        "from the labelled and the shared rows, instead of all labelled rows"
    )


def _require_room(n_weights: int, n: int, m: int, factor_memory: float) -> None:
    """Refuse an exact form that does not fit: 8 m² bytes for each coupling, and 8 n² for the labelled rows."""
    factors = max(n_weights, 1)
    each, labelled = 8 * m * m / 2**30, 8 * n * n / 2**30
    if (needed := factors * each + labelled) <= factor_memory:
        return
    parts = [f"{each:,.3g} GiB for each of {factors} couplings with {m} unlabelled instances"]
    parts += [f"{labelled:,.3g} GiB for {n} labelled rows"] * (labelled > 0.01 * needed)
    serves = ['form = "semi-parametric"']
    if 0 < (fit := int((factor_memory - labelled) / each) if each else 0) < factors:
        serves.append(f"at most {fit} coupling{'s' * (fit > 1)} in a run")
    raise BadData(
        f'form = "exact" needs {needed:,.3g} GiB of factors ({" and ".join(parts)}). An agent has at most {factor_memory:g} GiB '
        f"for them. Use {' or '.join(serves)}."
    )


def data_digest(data: PrivateData, run: str) -> str:
    """A digest salted with the site's secret and the run: it shows whether the rows changed, and reveals nothing about them."""
    digest = hashlib.sha256(data.salt + run.encode() + data.ids_digest.encode())
    for array in data.arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(array.shape).encode())
    return digest.hexdigest()
