r"""What a site makes of a fit where features are missing: of sites that do not score, and of all
other sites in its joined model.

    score(x) = a + offset_v + Σ_u φ_u(x_u)·β_u
    with the sites T alone:  E[score | φ_T] = a + offset_v + φ_T·(β_T + C_TT⁻¹ C_T,rest β_rest)
    joined model of site v:  a + offset_v + φ_v·β_v + Σ_{u ≠ v} E[φ_u | W_v]·β_u

Missing features are replaced by their regression on those that are there, over the common rows:
C_TT, C_T,rest and the mean of W_v φᵀ are moments that the site has (`moments`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.additive.fit import Fit
from coreg_core.additive.moments import Moments, positive
from coreg_core.arrays import Arr, Ints

NOISE_RIDGE = 0.3  # the part of the ridge that noise on the moments adds
LEAST_OF_PRIVATE_NOISE = 0.1  # what is left of it without the unknown features


def ridged(
    C_there: Float64[Arr, "p p"], rows: int, n_features: int, entry_noise: float
) -> Float64[Arr, "p p"]:
    """C + κI, to regress the other features of D on these p, over the common rows.

    κ = tr C/rows · (1/p + 0.3 noise √(p + D)). The first term counts as one more row of mean size,
    and the second grows with the noise on opened entries. 1e-12 keeps features that are all 0
    solvable.
    """
    p = len(C_there)
    size = 1.0 / p + NOISE_RIDGE * entry_noise * np.sqrt(p + n_features)
    ridge = np.trace(C_there) / max(rows, 1) * size + 1e-12
    return np.asarray(C_there + ridge * np.eye(p))


@dataclass(frozen=True, eq=False)
class ScoreWeights:
    """The part of a fit with which a site's model scores, whichever sites are present. It has no
    sums of labels.
    """

    coef: Float64[Arr, " D"]
    C: Float64[Arr, "D D"]
    sizes: Int64[Ints, " M"]  # features of each site
    rows: float  # common ones
    noise: float  # on opened entries

    @classmethod
    def of(cls, fit: Fit) -> "ScoreWeights":
        """The weights of a fit."""
        m = fit.moments
        return cls(fit.coef, m.C, np.array(m.d, dtype=np.int64), float(m.rows), float(m.noise))

    def block(self, site: int) -> slice:
        """Places of a site's features."""
        start = int(self.sizes[:site].sum())
        return slice(start, start + int(self.sizes[site]))

    def of_sites(self, present: Sequence[int]) -> Float64[Arr, " D"]:
        """Weights (D,) of E[score | features of the present sites]; 0 for absent sites."""
        there = self._features_of(present)
        weights = np.where(there, self.coef, 0.0)
        if not there.all():
            weights[there] += self._regression(there).T @ self.coef[~there]
        return weights

    def missing_variance(self, present: Sequence[int]) -> float:
        """Variance of the score that the features of the present sites leave unknown, in the
        labels' units.
        """
        there = self._features_of(present)
        if there.all():
            return 0.0
        n_there = int(there.sum())
        C_absent = self.C[np.ix_(~there, ~there)]
        explained = self._regression(there) @ self.C[np.ix_(there, ~there)]
        unknown = positive(C_absent - explained)
        coef = self.coef[~there]
        return float(coef @ unknown @ coef) * self.rows / max(self.rows - n_there, 1.0)

    def _features_of(self, present: Sequence[int]) -> Bool[np.ndarray, " D"]:
        there = np.zeros(len(self.C), dtype=bool)
        for site in present:
            there[self.block(site)] = True
        return there

    def _regression(self, there: Bool[np.ndarray, " D"]) -> Float64[Arr, "missing p"]:
        """Of the features that are not there on those that are."""
        gram = ridged(self.C[np.ix_(there, there)], int(self.rows), len(self.C), self.noise)
        return np.asarray(np.linalg.solve(gram, self.C[np.ix_(there, ~there)]).T)


@dataclass(frozen=True, eq=False)
class Completion:
    """How site v completes all sites' features from its own W: E[φ | W] = B W.

    ``R`` is the covariance of φ that W leaves unknown. xᵀHx is the leverage of a common row x of W
    in that regression.
    """

    moments: Moments
    site: int
    B: Float64[Arr, "D k"]
    R: Float64[Arr, "D D"]
    H: Float64[Arr, "k k"]

    @classmethod
    def of(
        cls, m: Moments, site: int, C_WW: Float64[Arr, "k k"], C_Wx: Float64[Arr, "k D"]
    ) -> "Completion":
        """From the mean of W_v W_vᵀ over the common rows, and of W_v φᵀ, which is opened to this
        site alone.
        """
        gram = ridged(C_WW, m.rows, m.n_features, m.noise)
        B = np.asarray(np.linalg.solve(gram, C_Wx).T)
        # B has a ridge, so the two products do not cancel. k coefficients of each were fitted.
        residual = m.C - B @ C_Wx - C_Wx.T @ B.T + B @ C_WW @ B.T
        R = residual * (m.rows / max(m.rows - len(C_WW), 1))
        own = m.blocks[site]
        R[own] = 0.0  # known
        R[:, own] = 0.0
        if m.noise:
            R = positive(R)
        H = np.linalg.inv(gram) / max(m.rows, 1)
        return cls(m, site, B, R, H)

    def complete(self, W: Float64[Arr, "n k"]) -> Float64[Arr, "n D"]:
        """All sites' features: the own ones, and what they say of the others'."""
        features = W @ self.B.T
        features[:, self.moments.blocks[self.site]] = W[:, : self.moments.d[self.site]]
        return features

    def design(self, W: Float64[Arr, "n k"]) -> Float64[Arr, "n A"]:
        """Completed features, the owner's indicator and 1."""
        indicators = np.zeros((len(W), self.moments.n_sites + 1))
        indicators[:, self.site] = 1.0
        indicators[:, -1] = 1.0
        return np.concatenate([self.complete(W), indicators], axis=1)

    def predict(self, fit: Fit, W: Float64[Arr, "n k"]) -> Float64[Arr, " n"]:
        """The joined model, in the labels' units."""
        standard = self.design(W) @ fit.beta
        return np.asarray(self.moments.mean + self.moments.deviation * standard)

    def deviations(
        self, fit: Fit, W: Float64[Arr, "n k"], private_noise: float | None = None
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, " n"]]:
        """Standard deviations of a new label, given all sites' features, and given the own ones.

        ``private_noise``: 1/`precision` of this site if all its labelled rows are private, else
        None. The σ of such rows contains what the completed features leave unknown. That is taken
        off, and a tenth of σ always stays.
        """
        D = self.moments.n_features
        x = self.design(W)
        of_missing = float(fit.beta[:D] @ self.R @ fit.beta[:D])
        label_variance = float(fit.sigma[0])
        if private_noise is not None:
            of_private = label_variance * private_noise
            label_variance = max(of_private - of_missing, LEAST_OF_PRIVATE_NOISE * of_private)
        # xᵀSx at the completed features, tr(SR) for the true ones around them, and the label.
        of_weights = np.einsum("ij,jk,ik->i", x, fit.S, x)
        of_scatter = float(np.sum(fit.S[:D, :D] * self.R))
        given_all = of_weights + of_scatter + label_variance
        unit = self.moments.deviation
        return unit * np.sqrt(given_all), unit * np.sqrt(given_all + of_missing)
