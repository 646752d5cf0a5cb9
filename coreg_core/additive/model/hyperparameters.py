r"""Tuning from sums alone: the evidence's fixed point for each site's noise and prior, by probes.

    γ_u = τ_u² tr(B_uᵀK⁻¹B_u),  κ_v = σ_v² tr((K⁻¹)_vv)                               y ~ N(0, K)
    τ_u² ← ‖w_u‖²/γ_u           σ_v² ← (‖r_v‖² + 5σ₀²)/(κ_v + 5),  r_v = σ_v²α_v
    without labels: τ_u² ← (‖w_u‖² + 5 g τ₀²)/(γ_u + 5),  g = Σ‖w‖²/τ₀² / Σγ

Probes E (±1) replace y in P more columns; with Q_E = Σ S_vᵀE_v, sent once, each site estimates γ̂_u = mean_p ⟨Ψ_uᵀe_p +
Z_uᵀQ_E^p, w_u^p⟩ and κ̂_v = σ_v² mean_p ⟨e_p, α_v^p⟩ for itself. Only g needs a sum of two scalars. Source: MacKay
(1992) for the fixed point; design, 7.3, for the priors, which cut harm, and the clips.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.numerics.arrays import Arr

NOISE_FLOOR = 1e-4
PRIOR_LABELS = 5.0  # the pull of each prior, in labels
_PRIOR_STEP = (0.2, 5.0)
_NOISE_STEP = (0.5, 2.0)
_NOISE_RANGE = float(np.exp(4.0))
_LEAST_GAMMA = 1e-3
_LEAST_KAPPA = 0.05  # of n


# Without tuning steps the start is better with less noise and a bounded prior. Of four noises and five bounds these were the
# best on the first group of sets of the benefit study (benchmarks/strict.py measures them on the second).
_UNTUNED_NOISE, _UNTUNED_PRIOR = 0.7, 1.0


@dataclass(frozen=True)
class Traces:
    """‖w‖², γ̂, ‖r‖² and κ̂ of one site at one point."""

    weight: float
    gamma: float
    residual: float
    kappa: float


def untuned(start: Hyper) -> Hyper:
    """The values of a training without tuning steps: σ² smaller, τ² at most the federation's label variance."""
    return Hyper(_UNTUNED_NOISE * start.noise, min(start.prior, _UNTUNED_PRIOR))


def traces(
    view: AdditiveView,
    hyper: Hyper,
    x: Float64[Arr, "r k"],
    signs: Float64[Arr, "n p"],
    probe_sum: Float64[Arr, "m p"],
) -> Traces:
    """At x, whose first column belongs to the labels and the others to the probes E = ``signs``; ``probe_sum`` is Q_E."""
    P = signs.shape[1]
    alpha, w = view.solve(x, np.concatenate([view.y[:, None], signs], axis=1), hyper)
    of_probes = view.psi.T @ signs + view.shared.T @ probe_sum
    residual = hyper.noise * alpha[:, 0]
    return Traces(
        weight=float(w[:, 0] @ w[:, 0]),
        gamma=max(float(np.sum(of_probes * w[:, 1:])) / P, _LEAST_GAMMA),
        residual=float(residual @ residual),
        kappa=max(hyper.noise * float(np.sum(signs * alpha[:, 1:])) / P, _LEAST_KAPPA * view.n_labelled),
    )


def next_hyper(found: Traces, old: Hyper, start: Hyper, multiplier: float, n_labelled: int) -> Hyper:
    """One step of the fixed point.

    Parameters
    ----------
    found
        at the solution under ``old``.
    old
        σ², τ² now.
    start
        σ₀², τ₀².
    multiplier
        g, the federation's ratio of τ² to its start.
    n_labelled
        of this site; without labels σ² stays, and τ² is drawn to g τ₀².
    """
    if n_labelled == 0:
        drawn = found.weight + PRIOR_LABELS * multiplier * start.prior
        return Hyper(old.noise, old.prior * _clip(drawn / (found.gamma + PRIOR_LABELS) / old.prior, _PRIOR_STEP))
    prior = old.prior * _clip(found.weight / found.gamma / old.prior, _PRIOR_STEP)
    wanted = (found.residual + PRIOR_LABELS * start.noise) / (found.kappa + PRIOR_LABELS)
    noise = old.noise * _clip(wanted / old.noise, _NOISE_STEP)
    return Hyper(_clip(noise, (start.noise / _NOISE_RANGE, start.noise * _NOISE_RANGE)), prior)


def _clip(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
