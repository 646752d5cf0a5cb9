r"""Second moments of all sites' features: what a federation opens to its members, and all that the
fit needs.

| entry | shape | over | tells a member |
|---|---|---|---|
| P, o, b, r, s, n: `Sums` | D×D, M×D, D, M, 1, M | labelled common rows | aggregates of many rows |
| the same, of a second part | | private rows, with completed features | aggregates of many rows |
| C | D×D | all common rows | how the sites' features go together |
| level, deviation, number of labels | M each | a site's labels | two numbers of its label column |
| which individuals a site has labels of | bits | common rows | of an individual: who has a label |

To site v alone: C_vx (k×D), the mean of W_v φ' over the common rows, whose first d rows all members
have.

The additive model's fit to second moments: prior variances by evidence, and the posterior. All
sites do this by themselves.

    y = a + offset_owner + Σ_v φ_v·β_v + ε
    β_v ~ N(0, τ_v I)     offsets ~ N(0, τ_0)     a flat     ε ~ N(0, σ)

    S = (Σ_parts G/σ + diag(1/τ, 0))⁻¹     β = S Σ_parts b/σ     g_v = Σ_{i∈v} (1 − S_ii/τ_v)
    q_v = ‖β_v‖²
    τ_v ← √((q_v + mode_v)/(g_v/τ_v + 1/mode_v))
    σ ← √((rss + mode)/((count − tr SG/σ)/σ + 1/mode))

Each step lowers −2 log(restricted likelihood) with priors that weigh as one label each (a
minorisation): no line search, and a fixed number of steps in place of a stopping rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData

# Modes of the noise variances, of common and of private rows; the labels' variance is 1.
NOISE = 0.3
NOISE_PRIVATE = 1.0
PRIVATE_LABELS = 5.0  # labels' worth of the prior of a private row's noise
SHIFT = 0.7  # of the fit's ridge against the noise of opened sums


@dataclass(frozen=True, eq=False)
class Sums:
    """Over labels with one noise variance: u a label's owner, w its weight; an individual's weights
    add up to 1.
    """

    P: Float64[Arr, "D D"]  # Σ wφφᵀ
    o: Float64[Arr, "M D"]  # Σ wφ by owner
    b: Float64[Arr, " D"]  # Σ wφ(y − level_u)
    r: Float64[Arr, " M"]  # Σ w(y − level_u) by owner
    s: float  # Σ w(y − level_u)²
    n: Float64[Arr, " M"]  # Σ w by owner
    count: float  # the rows for the noise
    mode: float = NOISE  # of the noise's prior


@dataclass(frozen=True, eq=False)
class Moments:
    """What members have of M sites with d_v features each, D in all."""

    d: tuple[int, ...]
    C: Float64[Arr, "D D"]  # mean of φφᵀ over the common rows
    rows: int  # common ones
    n: Float64[Arr, " M"]  # labels of each owner
    levels: Float64[Arr, " M"]  # what was subtracted from them
    within: float  # sum of squares of the labels around their owners' means
    parts: tuple[Sums, ...]  # of common rows first, then of private rows
    noise: float = 0.0  # deviation on an opened entry, for features whose largest row norm is 1

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """The places of each site's features among the D."""
        ends = np.cumsum(self.d).tolist()
        return tuple(slice(end - d, end) for d, end in zip(self.d, ends, strict=True))

    @cached_property
    def mean(self) -> float:
        """The mean label."""
        return float(self.n @ self.levels / self.n.sum())

    @cached_property
    def deviation(self) -> float:
        """`common_deviation`: the unit of the fit."""
        return common_deviation(self.n, self.within)

    def standard(self, part: Sums) -> tuple[Float64[Arr, "A A"], Float64[Arr, " A"], float]:
        """(G, b, Σ wy²) of a part for the features, the owners' offsets and 1, with labels less
        their mean in deviations.
        """
        G = np.block(
            [
                [part.P, part.o.T, part.o.sum(0)[:, None]],
                [part.o, np.diag(part.n), part.n[:, None]],
                [part.o.sum(0), part.n, part.n.sum()],
            ]
        )
        level = (self.levels - self.mean) / self.deviation
        by_owner = part.n * level + part.r / self.deviation
        b = np.concatenate([part.b / self.deviation + part.o.T @ level, by_owner, [by_owner.sum()]])
        squares = (
            part.s / self.deviation**2 + 2.0 * level @ part.r / self.deviation + part.n @ level**2
        )
        return G, b, float(squares)


def common_deviation(n: Float64[Arr, " M"], within: float) -> float:
    """Of labels around their owners' means, √(within/(Σ n − owners)); 1 if all are equal."""
    free = n.sum() - np.count_nonzero(n)
    if free > 0 and within > 0:
        return float(np.sqrt(within / free))
    return 1.0


def precision(left_out: Float64[Arr, " n"], deviation: float) -> float:
    """The weight of a site's private rows: larger where its own columns say more; 1 without a local
    model.
    """
    return float(
        (len(left_out) + PRIVATE_LABELS) / (np.sum((left_out / deviation) ** 2) + PRIVATE_LABELS)
    )


def positive(A: Float64[Arr, "p p"]) -> Float64[Arr, "p p"]:
    """The nearest positive semi-definite matrix: negative eigenvalues cut."""
    values, V = np.linalg.eigh((A + A.T) / 2)
    return np.asarray((V * np.maximum(values, 0.0)) @ V.T)


def steadied(part: Sums, noise: float, scale: Float64[Arr, " D"]) -> Sums:
    """Sums that were opened with noise, positive, with a ridge of its size; ``scale`` is the
    largest row norm of each feature.
    """
    D = len(part.P)
    A = positive(np.block([[part.P, part.o.T], [part.o, np.diag(part.n)]]))
    ridge = SHIFT * noise * np.sqrt(2 * D) * np.diag(scale**2)
    return replace(part, P=A[:D, :D] + ridge, o=A[D:, :D])


PRIOR = 0.3  # mode of τ_v; the labels' variance is 1
PRIOR_OFFSETS = 0.01  # mode of τ_0
STEPS = 50


@dataclass(frozen=True, eq=False)
class Fit:
    """The posterior over the features, the offsets and 1."""

    moments: Moments
    prior: Float64[Arr, " t"]  # τ of the M sites and of the offsets
    noise: Float64[Arr, " q"]  # σ of each part
    beta: Float64[Arr, " A"]
    S: Float64[Arr, "A A"]
    grams: tuple[Float64[Arr, "A A"], ...]  # the parts' G

    @property
    def coef(self) -> Float64[Arr, " D"]:
        """β of the features, in the labels' units."""
        return self.moments.deviation * self.beta[: len(self.moments.C)]

    def intercept(self, site: int | None = None) -> float:
        """Of the score for a site's rows; None: with the label-weighted mean of the offsets."""
        m = self.moments
        D = len(m.C)
        offsets = self.beta[D:-1]
        offset = float(m.n @ offsets / m.n.sum()) if site is None else float(offsets[site])
        return m.mean + m.deviation * (offset + float(self.beta[-1]))

    def leverage(self, part: int = 0) -> float:
        """The mean over a part's labels, at most 0.95."""
        share = (
            float(np.sum(self.S * self.grams[part]))
            / self.noise[part]
            / self.moments.parts[part].count
        )
        return float(min(share, 0.95))


def inverse(A: Float64[Arr, "A A"]) -> Float64[Arr, "A A"]:
    """A⁻¹ of a positive definite matrix, by Cholesky of A scaled to a unit diagonal."""
    s = 1.0 / np.sqrt(np.diag(A))
    L = np.linalg.inv(np.linalg.cholesky(s[:, None] * A * s))
    return np.asarray(s[:, None] * (L.T @ L) * s)


def _posterior(
    data: Sequence[tuple[Arr, Arr, float]], sigma: Arr, p: Arr
) -> tuple[Float64[Arr, " A"], Float64[Arr, "A A"]]:
    """β and S for the parts' noise variances ``sigma`` and the prior precisions ``p``."""
    precisions = np.diag(p)
    moments = np.zeros(len(p))
    for (G, b, _), variance in zip(data, sigma, strict=True):
        precisions = precisions + G / variance
        moments = moments + b / variance
    S = inverse(precisions)
    return S @ moments, S


def fit(moments: Moments, steps: int = STEPS) -> Fit:
    """The fit after ``steps`` updates of τ and σ. BadData: fewer than two labels in all."""
    if moments.n.sum() < 2:
        raise BadData(
            f"{moments.n.sum():.0f} labels in all sites together: an additive model needs at least"
            " two."
        )
    M = len(moments.d)
    D = len(moments.C)
    data = [moments.standard(part) for part in moments.parts]
    mode, count = (
        np.array([getattr(part, key) for part in moments.parts]) for key in ("mode", "count")
    )
    modes = np.array([PRIOR] * M + [PRIOR_OFFSETS])
    blocks = [*moments.blocks, slice(D, D + M)]
    tau = modes.copy()
    sigma = mode.copy()
    while True:
        p = np.concatenate([np.repeat(1.0 / tau, [*moments.d, M]), [0.0]])
        beta, S = _posterior(data, sigma, p)
        if not steps:
            return Fit(moments, tau, sigma, beta, S, tuple(G for G, _, _ in data))
        steps -= 1
        resolved = np.array([np.sum(1.0 - np.diag(S)[block] * p[block]) for block in blocks])
        power = np.array([beta[block] @ beta[block] for block in blocks])
        rss = np.array([max(yy - 2.0 * b @ beta + beta @ G @ beta, 0.0) for G, b, yy in data])
        used = np.array([np.sum(S * G) for G, _, _ in data]) / sigma
        tau = np.sqrt((power + modes) / (resolved / tau + 1.0 / modes))
        sigma = np.sqrt((rss + mode) / (np.maximum(count - used, 0.0) / sigma + 1.0 / mode))


# --- the site's models ----------------------------------------------------------------------------
#
# What a site makes of the fit: its part of the score, scores with sites missing, its joined model,
# and their deviations.
#
# score(x) = a + offset_v + Σ_u φ_u(x_u)·β_u
# with the sites S alone:  E[score | φ_S] = a + offset_v + φ_S·(β_S + C_SS⁻¹ C_S,rest β_rest)
# joined model of site v:  a + offset_v + φ_v·β_v + Σ_{u ≠ v} E[φ_u | W_v]·β_u

AGAINST_NOISE = 0.3  # of the regression's ridge


def ridged(
    C_SS: Float64[Arr, "p p"], rows: int, n_features: int, noise: float
) -> Float64[Arr, "p p"]:
    """For a regression on features S over the common rows: the ridge counts as one row of mean
    size, and against noise.
    """
    p = len(C_SS)
    ridge = (
        np.trace(C_SS) / max(rows, 1) * (1.0 / p + AGAINST_NOISE * noise * np.sqrt(p + n_features))
        + 1e-12
    )
    return np.asarray(C_SS + ridge * np.eye(p))


@dataclass(frozen=True, eq=False)
class ScoreWeights:
    """What a score weighs, whichever sites are present."""

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
        """Variance of the score that the features of the present sites leave unknown, in the
        labels' units.
        """
        there = self._there(present)
        if there.all():
            return 0.0
        p = int(there.sum())
        C_x = self.C[np.ix_(there, ~there)]
        left = positive(self.C[np.ix_(~there, ~there)] - self._regression(there) @ C_x)
        coef = self.coef[~there]
        return float(coef @ left @ coef) * self.rows / max(self.rows - p, 1.0)

    def _regression(self, there: Bool[np.ndarray, " D"]) -> Float64[Arr, "q p"]:
        """Of the features that are not there on those that are."""
        A = ridged(self.C[np.ix_(there, there)], int(self.rows), len(self.C), self.noise)
        return np.asarray(np.linalg.solve(A, self.C[np.ix_(there, ~there)]).T)


@dataclass(frozen=True, eq=False)
class Own:
    """Site v's view of all features: ``B`` (D, k) completes them from its own, ``R`` (D, D) is what
    these leave unknown.

    wᵀHw is the leverage of a common row w in that regression.
    """

    moments: Moments
    site: int
    B: Float64[Arr, "D k"]
    R: Float64[Arr, "D D"]
    H: Float64[Arr, "k k"]

    @classmethod
    def of(
        cls, m: Moments, site: int, C_WW: Float64[Arr, "k k"], C_Wx: Float64[Arr, "k D"]
    ) -> "Own":
        """From the mean of W_v W_vᵀ over the common rows, and of W_v φᵀ, which is opened to this
        site alone.
        """
        A = ridged(C_WW, m.rows, len(m.C), m.noise)
        B = np.asarray(np.linalg.solve(A, C_Wx).T)
        R = (m.C - B @ C_Wx - C_Wx.T @ B.T + B @ C_WW @ B.T) * (m.rows / max(m.rows - len(C_WW), 1))
        R[m.blocks[site]] = R[:, m.blocks[site]] = 0.0
        return cls(m, site, B, positive(R) if m.noise else R, np.linalg.inv(A) / max(m.rows, 1))

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
        """Of a new label given all sites' features, and given the own ones; ``private``:
        1/precision where all rows are.
        """
        x = self.rows(W)
        D = len(self.moments.C)
        missing = float(fit.beta[:D] @ self.R @ fit.beta[:D])
        noise = float(fit.noise[0])
        if private is not None:
            noise = max(noise * private - missing, 0.1 * noise * private)
        known = (
            np.einsum("ij,jk,ik->i", x, fit.S, x) + float(np.sum(fit.S[:D, :D] * self.R)) + noise
        )
        unit = self.moments.deviation
        return unit * np.sqrt(known), unit * np.sqrt(known + missing)
