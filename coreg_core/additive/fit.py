r"""The additive model's fit to second moments: prior variances by evidence, and the posterior.

All sites do this by themselves, from the moments that all members have.

    y = a + offset_owner + Σ_v φ_v·β_v + ε
    β_v ~ N(0, τ_v I)     offsets ~ N(0, τ_0)     a flat     ε ~ N(0, σ)

τ and σ are variances, where the labels' variance is 1. Each part of the moments has a σ, and normal
equations G and b (`Moments.standard`). For given variances the posterior of all weights is normal:

    S = (Σ_parts G/σ + diag(1/τ, 0))⁻¹     β = S Σ_parts b/σ

The variances are chosen to lower −2 log(restricted likelihood) + Σ (mode/t + t/mode) over all
variances t. Such a prior is largest at its mode, and weighs as one label. One step is

    g_v = Σ_{i∈v} (1 − S_ii/τ_v)       weights that the data resolve        `resolved`
    q_v = ‖β_v‖²                                                           `power`
    τ_v ← √((q_v + mode_v)/(g_v/τ_v + 1/mode_v))
    rss = Σ w y² − 2 bᵀβ + βᵀGβ
    σ   ← √((rss + mode)/((count − tr(SG)/σ)/σ + 1/mode))                  tr(SG)/σ: `used`

It minimises an upper bound that touches the objective at the present variances, so no step raises
the objective. This needs no line search, and a fixed number of steps is enough in place of a rule
for stopping.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.moments import Moments
from coreg_core.arrays import Arr
from coreg_core.errors import BadData

# Modes of the priors of τ, where the labels' variance is 1.
TAU_MODE = 0.3  # of a site's features
OFFSETS_MODE = 0.01
STEPS = 50
MOST_LEVERAGE = 0.95  # residuals are divided by 1 less it


@dataclass(frozen=True, eq=False)
class Fit:
    """The normal posterior of the A weights, in the unit of the fit: N(beta, S)."""

    moments: Moments
    tau: Float64[Arr, " t"]  # prior variances of the M sites' features, and of the offsets
    sigma: Float64[Arr, " parts"]  # noise variance of each part
    beta: Float64[Arr, " A"]
    S: Float64[Arr, "A A"]
    grams: tuple[Float64[Arr, "A A"], ...]  # the parts' G

    @property
    def coef(self) -> Float64[Arr, " D"]:
        """β of the features, in the labels' units."""
        return self.moments.deviation * self.beta[: self.moments.n_features]

    def intercept(self, site: int | None = None) -> float:
        """Of the score of a site's rows, in the labels' units.

        None: with the mean of the offsets, weighted by numbers of labels.
        """
        m = self.moments
        offsets = self.beta[m.n_features : -1]
        offset = float(m.n @ offsets / m.n.sum()) if site is None else float(offsets[site])
        return m.mean + m.deviation * (offset + float(self.beta[-1]))

    def leverage(self, part: int = 0) -> float:
        """The mean leverage tr(SG)/(σ · count) of a part's labels, at most 0.95."""
        used = float(np.sum(self.S * self.grams[part])) / self.sigma[part]  # tr(SG)/σ
        return float(min(used / self.moments.parts[part].count, MOST_LEVERAGE))


def fit(moments: Moments, steps: int = STEPS) -> Fit:
    """The fit after ``steps`` updates of τ and σ. BadData: fewer than two labels in all."""
    if moments.n.sum() < 2:
        raise BadData(
            f"{moments.n.sum():.0f} labels in all sites together: an additive model needs at least"
            " two."
        )
    data = [moments.standard(part) for part in moments.parts]
    counts = np.array([part.count for part in moments.parts])
    sigma_modes = np.array([part.mode for part in moments.parts])
    tau_modes = np.array([TAU_MODE] * moments.n_sites + [OFFSETS_MODE])
    D = moments.n_features
    blocks = [*moments.blocks, slice(D, D + moments.n_sites)]
    tau = tau_modes.copy()
    sigma = sigma_modes.copy()
    for _ in range(steps):
        prior = _prior_precisions(tau, moments)
        beta, S = _posterior(data, sigma, prior)
        resolved = np.array([np.sum(1.0 - np.diag(S)[block] * prior[block]) for block in blocks])
        power = np.array([beta[block] @ beta[block] for block in blocks])
        # Noise on the sums, or rounding, can make either negative.
        rss = np.array([max(yy - 2.0 * b @ beta + beta @ G @ beta, 0.0) for G, b, yy in data])
        used = np.array([np.sum(S * G) for G, _, _ in data]) / sigma
        free = np.maximum(counts - used, 0.0)
        tau = np.sqrt((power + tau_modes) / (resolved / tau + 1.0 / tau_modes))
        sigma = np.sqrt((rss + sigma_modes) / (free / sigma + 1.0 / sigma_modes))
    beta, S = _posterior(data, sigma, _prior_precisions(tau, moments))
    return Fit(moments, tau, sigma, beta, S, tuple(G for G, _, _ in data))


def _prior_precisions(tau: Float64[Arr, " t"], moments: Moments) -> Float64[Arr, " A"]:
    """1/τ of each feature and each offset, and 0 of a, whose prior is flat."""
    return np.concatenate([np.repeat(1.0 / tau, [*moments.d, moments.n_sites]), [0.0]])


def _posterior(
    data: Sequence[tuple[Arr, Arr, float]], sigma: Arr, prior: Arr
) -> tuple[Float64[Arr, " A"], Float64[Arr, "A A"]]:
    """β and S for each part's normal equations and noise variance, and the prior precisions."""
    precisions = np.diag(prior)
    weighted_b = np.zeros(len(prior))
    for (G, b, _), variance in zip(data, sigma, strict=True):
        precisions = precisions + G / variance
        weighted_b = weighted_b + b / variance
    S = inverse(precisions)
    return S @ weighted_b, S


def inverse(A: Float64[Arr, "A A"]) -> Float64[Arr, "A A"]:
    """A⁻¹ of a positive definite matrix, by Cholesky of A scaled to a unit diagonal."""
    s = 1.0 / np.sqrt(np.diag(A))
    L = np.linalg.inv(np.linalg.cholesky(s[:, None] * A * s))
    return np.asarray(s[:, None] * (L.T @ L) * s)
