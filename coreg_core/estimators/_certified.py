"""The certificates of CoRLSR's functions. A schedule certifies answers; here the functions and the data are known."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import ROUNDING, Certificate, consensus_factors, with_response_error
from coreg_core.agreement.schedules.schedule import Terms
from coreg_core.agreement.views import Solution, View
from coreg_core.agreement.views.optimality import optimality_certificate, optimality_of
from coreg_core.kernels.functions import Kernel
from coreg_core.numerics.arrays import Arr


class ViewData(NamedTuple):
    """One view as it is trained: labels in the units of the fit."""

    kernel: Kernel
    X: Arr
    y: Arr
    Z: Arr
    ridge: float


def certified(
    views: list[View],
    solutions: list[Solution],
    targets: Float64[Arr, "M m"],
    weight: float,
    mu: float,
    terms: Terms,
) -> Certificate:
    """The certificate of models that answer ``targets`` at ``weight``, from the models: sharper than that of the schedules.

    A schedule knows only Q(0), and uses the largest ρ for every site. Here each view's share of Q is known. ``mu`` is 2λM.
    """
    predictions, bounds = np.array([s.prediction for s in solutions]), np.array(terms.bounds)
    mean = predictions.mean(axis=0)
    sizes = np.linalg.norm(predictions, axis=1)
    pulls = np.linalg.norm(predictions - mean, axis=1)
    # F_v and its precision: the rounding of the residuals, and of a norm that cancels.
    known = 1e-13 * float(np.sqrt(terms.initial_objective)) + 16 * ROUNDING * float(np.sqrt(mu)) * float(sizes.sum())
    shares = np.sqrt([max(s.local_objective, 0.0) + mu * p * p for s, p in zip(solutions, pulls, strict=True)]) + known
    own = np.array([s.function_rounding for s in solutions])
    rounding = np.array([view.response_error(weight) for view in views])
    shift = float(np.linalg.norm(rounding * shares + own))
    norms = np.linalg.norm(targets, axis=1)
    noise = ROUNDING * float((norms + sizes + np.linalg.norm(mean)).max(initial=0.0))
    if weight == mu:
        residual = float(np.linalg.norm(mean - targets[0])) + noise
        root, apart = (factor * residual for factor in consensus_factors(mu, bounds))
        return with_response_error(root, noise, bounds, terms.response_error(0), shift, apart)
    # Algorithm 1: g_v = 4λM(ŷ_v − ȳ) − 2μ_v(ŷ_v − t_v).
    gradient = weight * targets - mu * mean + (mu - weight) * predictions
    root = float(np.sqrt(bounds @ (np.linalg.norm(gradient, axis=1) + mu * noise) ** 2))
    return with_response_error(root, noise, bounds, terms.response_error(0), shift)


def certified_without_rho(
    data: list[ViewData],
    views: list[View],
    solutions: list[Solution],
    target: Float64[Arr, " m"],
    mu: float,
    bounds: Float64[Arr, " M"],
) -> Certificate | None:
    """`optimality_certificate` at a target; None where a view cannot tell (`optimality_of`)."""
    found = [
        optimality_of(v, s.function, d.X, d.y, d.Z, target, mu) for v, s, d in zip(views, solutions, data, strict=True)
    ]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    mean, errors = np.mean([each.values for each in known], axis=0), [each.values_error for each in known]
    off = float(np.linalg.norm(target - mean)) + ROUNDING * float(np.linalg.norm(target)) + max(errors)
    e = [each.residual for each in known]
    stated = optimality_certificate(sum(x * x for x in e), max(e), off, mu, bounds)
    apart = [float(np.linalg.norm(s.prediction - each.values)) for s, each in zip(solutions, known, strict=True)]
    return replace(stated, prediction_bound=stated.prediction_bound + max(errors) + max(apart))


def smaller(a: Certificate, b: Certificate) -> Certificate:
    """The smaller of each bound: both certificates hold."""
    return Certificate(min(a.gap, b.gap), min(a.prediction_bound, b.prediction_bound))
