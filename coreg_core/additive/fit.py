r"""The additive model's fit to second moments: prior variances by evidence, and the posterior. All sites do this by themselves.

    y = a + offset_owner + Σ_v φ_v·β_v + ε        β_v ~ N(0, τ_v I), offsets ~ N(0, τ_0), a flat, ε ~ N(0, σ)

    S = (Σ_parts G/σ + diag(1/τ, 0))⁻¹     β = S Σ_parts b/σ     g_v = Σ_{i∈v} (1 − S_ii/τ_v)     q_v = ‖β_v‖²
    τ_v ← √((q_v + mode_v)/(g_v/τ_v + 1/mode_v))     σ ← √((rss + mode)/((count − tr SG/σ)/σ + 1/mode))

Each step lowers −2 log(restricted likelihood) with priors that weigh as one label each (a minorisation): no line search, and a
fixed number of steps in place of a stopping rule.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.moments import Moments
from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr

PRIOR, PRIOR_OFFSETS = 0.3, 0.01  # modes of τ_v and τ_0; the labels' variance is 1
STEPS = 50


@dataclass(frozen=True, eq=False)
class Fit:
    """The posterior: ``prior`` τ of the M sites and of the offsets (M + 1,), ``noise`` σ of each part, ``beta`` and ``S`` over
    the features, the offsets and 1; ``grams`` are the parts' G."""

    moments: Moments
    prior: Float64[Arr, " t"]
    noise: Float64[Arr, " q"]
    beta: Float64[Arr, " A"]
    S: Float64[Arr, "A A"]
    grams: tuple[Float64[Arr, "A A"], ...]

    @property
    def coef(self) -> Float64[Arr, " D"]:
        """β of the features, in the labels' units."""
        return self.moments.deviation * self.beta[: len(self.moments.C)]

    def intercept(self, site: int | None = None) -> float:
        """Of the score for a site's rows; None: with the label-weighted mean of the offsets."""
        m, D = self.moments, len(self.moments.C)
        offsets = self.beta[D:-1]
        offset = float(m.n @ offsets / m.n.sum()) if site is None else float(offsets[site])
        return m.mean + m.deviation * (offset + float(self.beta[-1]))

    def leverage(self, part: int = 0) -> float:
        """The mean over a part's labels, at most 0.95."""
        share = float(np.sum(self.S * self.grams[part])) / self.noise[part] / self.moments.parts[part].count
        return float(min(share, 0.95))


def inverse(A: Float64[Arr, "A A"]) -> Float64[Arr, "A A"]:
    """A⁻¹ of a positive definite matrix, by Cholesky of A scaled to a unit diagonal."""
    s = 1.0 / np.sqrt(np.diag(A))
    L = np.linalg.inv(np.linalg.cholesky(s[:, None] * A * s))
    return np.asarray(s[:, None] * (L.T @ L) * s)


def fit(moments: Moments, steps: int = STEPS) -> Fit:
    """The fit after ``steps`` updates of τ and σ.

    Raises
    ------
    BadData
        fewer than two labels in all.
    """
    if moments.n.sum() < 2:
        raise BadData(f"{moments.n.sum():.0f} labels in all sites together: an additive model needs at least two.")
    M, D = len(moments.d), len(moments.C)
    data = [moments.standard(part) for part in moments.parts]
    mode, count = (np.array([getattr(part, key) for part in moments.parts]) for key in ("mode", "count"))
    modes, blocks = np.array([PRIOR] * M + [PRIOR_OFFSETS]), [*moments.blocks, slice(D, D + M)]
    tau, sigma = modes.copy(), mode.copy()
    while True:
        p = np.concatenate([np.repeat(1.0 / tau, [*moments.d, M]), [0.0]])
        S = inverse(sum((G / v for (G, _, _), v in zip(data, sigma, strict=True)), np.diag(p)))
        beta = S @ sum((b / v for (_, b, _), v in zip(data, sigma, strict=True)), np.zeros(len(p)))
        if not steps:
            return Fit(moments, tau, sigma, beta, S, tuple(G for G, _, _ in data))
        steps -= 1
        known = np.array([np.sum(1.0 - np.diag(S)[block] * p[block]) for block in blocks])
        power = np.array([beta[block] @ beta[block] for block in blocks])
        rss = np.array([max(yy - 2.0 * b @ beta + beta @ G @ beta, 0.0) for G, b, yy in data])
        used = np.array([np.sum(S * G) for G, _, _ in data]) / sigma
        tau = np.sqrt((power + modes) / (known / tau + 1.0 / modes))
        sigma = np.sqrt((rss + mode) / (np.maximum(count - used, 0.0) / sigma + 1.0 / mode))
