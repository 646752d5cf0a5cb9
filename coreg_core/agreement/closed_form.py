r"""Centralised solutions: stable closed forms.

`consensus_closed_form` gives z*, the mean prediction at the optimum: for exact views the
precision-weighted mean of their posteriors, for finite spans a reduced stacked system in the
coordinates a_v.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack

from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.views import Solution, SpectralView, View
from coreg_core.arrays import Arr
from coreg_core.errors import SingularSystem


def consensus_closed_form(views: Sequence[View], coupling: float) -> Float64[Arr, " m"]:
    """z*, the mean of all predictions at the optimum: O(m (Σ r_v)²) for finite spans, O(M m³) for
    exact views.
    """
    finite = [view for view in views if isinstance(view, SpectralView)]
    if len(finite) == len(views):
        return _reduced_stacked_system(finite, coupling)
    return _weighted_mean(views, coupling)


def solved(views: Sequence[View], coupling: float) -> list[Solution]:
    """Every view's function at the optimum, from one set-up of the views for any number of
    couplings.
    """
    mean = consensus_closed_form(views, coupling)
    weight = consensus_weight(coupling, len(views))
    return [view.solve(mean, weight) for view in views]


def _weighted_mean(views: Sequence[View], coupling: float) -> Float64[Arr, " m"]:
    r"""$z^* = [\sum_v N_v]^{-1} \sum_v N_v m_{0,v}$, $N_v = B_v^{-1}$ at μ = 2Mλ
    (docs/research/mathematics.md).
    """
    weight = consensus_weight(coupling, len(views))
    answers = [
        view.respond(np.zeros((view.n_unlabelled, 1)), np.array([weight]))[:, 0] for view in views
    ]  # N_v m₀_v
    total: Arr = np.sum(answers, axis=0)
    if weight == 0.0 or not len(total):
        return total / len(views)
    N = _precision(views[0], weight)
    for view in views[1:]:
        N = np.add(N, _precision(view, weight), out=N if N.flags.writeable else None)
    try:
        factor = cho_factor(N, lower=True, check_finite=False)
    except LinAlgError:
        raise SingularSystem(
            f"the sum of the posteriors' precisions at μ={weight:g} is singular in floating point; "
            "lower the coupling, raise the ridge, or use solver='conjugate-gradients'."
        ) from None
    z: Arr = cho_solve(factor, total, check_finite=False)
    return z


def _precision(view: View, weight: float) -> Float64[Arr, "m m"]:
    """The lower triangle of B⁻¹: by potri, and for a finite span in its coordinates."""
    if isinstance(view, SpectralView):
        return view.precision(weight)
    inverse, info = lapack.dpotri(view.factor(weight)[0], lower=1)
    if info != 0:
        raise SingularSystem(f"potri failed on a posterior precision (info={info}).")
    triangle: Arr = inverse
    return triangle


def _reduced_stacked_system(views: Sequence[SpectralView], coupling: float) -> Float64[Arr, " m"]:
    r"""Q in the coordinates: $\sum_v [a_v^\top a_v - 2\beta_v^\top a_v] + λ \sum_{u,v} \|P_u a_u -
    P_v a_v\|^2$.
    """
    # Its normal matrix has the blocks I + 2λ(M - 1) P_vᵀP_v and -2λ P_vᵀP_u: at least I, unless
    # rounding outweighs it.
    maps = [view.prediction_map for view in views]
    M = len(views)
    ends = np.cumsum([0] + [P.shape[1] for P in maps])
    N = np.eye(ends[-1])
    for v, view in enumerate(views):  # the lower triangle
        others = [-2.0 * coupling * (maps[v].T @ P) for P in maps[:v]]
        N[ends[v] : ends[v + 1], : ends[v + 1]] += np.concatenate(
            [*others, 2.0 * coupling * (M - 1) * view.gram], axis=1
        )
    try:
        factor = cho_factor(N, lower=True, check_finite=False, overwrite_a=True)
    except LinAlgError:
        raise SingularSystem(
            "the reduced stacked system is singular in floating point: the predictions on"
            " unlabelled instances are so large beside the ridge that rounding outweighs the"
            " identity; lower the coupling, raise the ridge, rescale the features, or use"
            " solver='conjugate-gradients'."
        ) from None
    a = cho_solve(
        factor, np.concatenate([view.label_coordinates for view in views]), check_finite=False
    )
    total = np.zeros(maps[0].shape[0])
    for v in range(M):
        total += maps[v] @ a[ends[v] : ends[v + 1]]
    return total / M
