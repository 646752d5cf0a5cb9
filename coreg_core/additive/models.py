r"""What a site makes of the fit: its part of the score, scores with sites missing, its joined model, and their deviations.

score(x) = a + offset_v + Σ_u φ_u(x_u)·β_u
with the sites S alone:  E[score | φ_S] = a + offset_v + φ_S·(β_S + C_SS⁻¹ C_S,rest β_rest)
joined model of site v:  a + offset_v + φ_v·β_v + Σ_{u ≠ v} E[φ_u | W_v]·β_u
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.additive.moments import Fit, Moments, positive
from coreg_core.numerics.arrays import Arr, Ints

AGAINST_NOISE = 0.3  # of the regression's ridge


def regression(
    C_SS: Float64[Arr, "p p"], C_Sx: Float64[Arr, "p q"], rows: int, n_features: int, noise: float
) -> Float64[Arr, "q p"]:
    """Of features x on features S over the common rows; its ridge counts as one row of mean size, and against noise."""
    p = len(C_SS)
    ridge = np.trace(C_SS) / max(rows, 1) * (1.0 / p + AGAINST_NOISE * noise * np.sqrt(p + n_features)) + 1e-12
    return np.asarray(np.linalg.solve(C_SS + ridge * np.eye(p), C_Sx).T)


@dataclass(frozen=True, eq=False)
class ScoreWeights:
    """What a score weighs, whichever sites are present.

    Parameters
    ----------
    coef
        β (D,) of all sites' features, in the labels' units.
    C
        mean of φφᵀ over the common rows (D, D).
    sizes
        features of each site (M,).
    rows, noise
        number of common rows; noise on the opened entries.
    """

    coef: Float64[Arr, " D"]
    C: Float64[Arr, "D D"]
    sizes: Int64[Ints, " M"]
    rows: float
    noise: float

    @classmethod
    def of(cls, fit: Fit) -> "ScoreWeights":
        """Those of a fit."""
        m = fit.moments
        return cls(fit.coef, m.C, np.array(m.d, dtype=np.int64), float(m.rows), float(m.noise))

    def block(self, site: int) -> slice:
        """Places of a site's features."""
        start = int(self.sizes[:site].sum())
        return slice(start, start + int(self.sizes[site]))

    def _there(self, present: Sequence[int]) -> Bool[np.ndarray, " D"]:
        there = np.zeros(len(self.C), dtype=bool)
        for site in present:
            there[self.block(site)] = True
        return there

    def of_sites(self, present: Sequence[int]) -> Float64[Arr, " D"]:
        """(D,) of E[score | features of the present sites]; 0 for the others."""
        there = self._there(present)
        out = np.where(there, self.coef, 0.0)
        if not there.all():
            out[there] += self._regression(there).T @ self.coef[~there]
        return out

    def missing_variance(self, present: Sequence[int]) -> float:
        """Variance of the score that the features of the present sites leave unknown, in the labels' units."""
        there = self._there(present)
        if there.all():
            return 0.0
        p, C_x = int(there.sum()), self.C[np.ix_(there, ~there)]
        left = positive(self.C[np.ix_(~there, ~there)] - self._regression(there) @ C_x)
        coef = self.coef[~there]
        return float(coef @ left @ coef) * self.rows / max(self.rows - p, 1.0)

    def _regression(self, there: Bool[np.ndarray, " D"]) -> Float64[Arr, "q p"]:
        C = self.C
        return regression(C[np.ix_(there, there)], C[np.ix_(there, ~there)], int(self.rows), len(C), self.noise)


@dataclass(frozen=True, eq=False)
class Own:
    """Site v's view of all features: ``B`` (D, k) completes them from its own, ``R`` (D, D) is what these leave unknown."""

    moments: Moments
    site: int
    B: Float64[Arr, "D k"]
    R: Float64[Arr, "D D"]

    @classmethod
    def of(cls, m: Moments, site: int, C_WW: Float64[Arr, "k k"], C_Wx: Float64[Arr, "k D"]) -> "Own":
        """From the mean of W_v W_vᵀ over the common rows, and of W_v φᵀ, which is opened to this site alone."""
        B = regression(C_WW, C_Wx, m.rows, len(m.C), m.noise)
        R = (m.C - B @ C_Wx - C_Wx.T @ B.T + B @ C_WW @ B.T) * (m.rows / max(m.rows - len(C_WW), 1))
        R[m.blocks[site]] = R[:, m.blocks[site]] = 0.0
        return cls(m, site, B, positive(R) if m.noise else R)

    def complete(self, W: Float64[Arr, "n k"]) -> Float64[Arr, "n D"]:
        """All sites' features: the own ones, and what they say of the others'."""
        out = W @ self.B.T
        out[:, self.moments.blocks[self.site]] = W[:, : self.moments.d[self.site]]
        return out

    def rows(self, W: Float64[Arr, "n k"]) -> Float64[Arr, "n A"]:
        """Completed features, the owner's indicator and 1."""
        e = np.zeros((len(W), len(self.moments.d) + 1))
        e[:, self.site] = e[:, -1] = 1.0
        return np.concatenate([self.complete(W), e], axis=1)

    def predict(self, fit: Fit, W: Float64[Arr, "n k"]) -> Float64[Arr, " n"]:
        """The joined model, in the labels' units."""
        return np.asarray(self.moments.mean + self.moments.deviation * (self.rows(W) @ fit.beta))

    def deviations(
        self, fit: Fit, W: Float64[Arr, "n k"], private: float | None = None
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, " n"]]:
        """Of a new label given all sites' features, and given the own ones.

        ``private``: the inverse precision of this site's private rows, where there are no others; their noise holds what the
        own features leave unknown.
        """
        x, D = self.rows(W), len(self.moments.C)
        missing = float(fit.beta[:D] @ self.R @ fit.beta[:D])
        noise = float(fit.noise[0])
        if private is not None:
            noise = max(noise * private - missing, 0.1 * noise * private)
        known = np.einsum("ij,jk,ik->i", x, fit.S, x) + float(np.sum(fit.S[:D, :D] * self.R)) + noise
        unit = self.moments.deviation
        return unit * np.sqrt(known), unit * np.sqrt(known + missing)
