r"""Second moments of all sites' features: what a federation opens to its members, and all that the fit needs.

| entry | shape | over | tells a member |
|---|---|---|---|
| P, o, b, r, s, n (`Sums`) | D×D, M×D, D, M, 1, M | labelled common rows | aggregates over many individuals |
| the same, of a second part | | private rows, with completed features | aggregates over many individuals |
| C | D×D | all common rows | how the sites' features go together |
| level, deviation, number of labels | M each | a site's labels | two numbers of its label column |
| which common individuals a site has labels of | bits | common rows | of one individual only who has a label of it |

To site v alone: C_vx (k×D), the mean of W_v φ' over the common rows, whose first d rows all members have.

The additive model's fit to second moments: prior variances by evidence, and the posterior. All sites do this by themselves.

    y = a + offset_owner + Σ_v φ_v·β_v + ε        β_v ~ N(0, τ_v I), offsets ~ N(0, τ_0), a flat, ε ~ N(0, σ)

    S = (Σ_parts G/σ + diag(1/τ, 0))⁻¹     β = S Σ_parts b/σ     g_v = Σ_{i∈v} (1 − S_ii/τ_v)     q_v = ‖β_v‖²
    τ_v ← √((q_v + mode_v)/(g_v/τ_v + 1/mode_v))     σ ← √((rss + mode)/((count − tr SG/σ)/σ + 1/mode))

Each step lowers −2 log(restricted likelihood) with priors that weigh as one label each (a minorisation): no line search, and a
fixed number of steps in place of a stopping rule.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, Ints

NOISE, NOISE_PRIVATE = (
    0.3,
    1.0,
)  # modes of the noise variances, of common and of private rows; the labels' variance is 1
PRIVATE_LABELS = 5.0  # labels' worth of the prior of a private row's noise
SHIFT = 0.7  # of the fit's ridge against the noise of opened sums


@dataclass(frozen=True, eq=False)
class Sums:
    """Over labels with one noise variance: u a label's owner, w its weight; an individual's weights add up to 1.

    ``P`` Σ wφφᵀ (D, D), ``o`` Σ wφ by owner (M, D), ``b`` Σ wφ(y − level_u) (D,), ``r`` Σ w(y − level_u) by owner (M,),
    ``s`` Σ w(y − level_u)², ``n`` Σ w by owner (M,), ``count`` the rows for the noise, ``mode`` of the noise's prior.
    """

    P: Float64[Arr, "D D"]
    o: Float64[Arr, "M D"]
    b: Float64[Arr, " D"]
    r: Float64[Arr, " M"]
    s: float
    n: Float64[Arr, " M"]
    count: float
    mode: float = NOISE


def sums(
    Phi: Float64[Arr, "N D"],
    owner: Int64[Ints, " N"],
    y: Float64[Arr, " N"],
    weight: Float64[Arr, " N"],
    levels: Float64[Arr, " M"],
    *,
    count: float | None = None,
    mode: float = NOISE,
) -> Sums:
    """`Sums` of complete features in memory; ``count``: the number of rows, where ``weight`` is a precision."""
    own, t = (np.arange(len(levels))[:, None] == owner) * weight, y - levels[owner]
    weighted = weight[:, None] * Phi
    return Sums(
        Phi.T @ weighted,
        own @ Phi,
        weighted.T @ t,
        own @ t,
        float(weight @ t**2),
        own.sum(1),
        float(weight.sum()) if count is None else count,
        mode,
    )


@dataclass(frozen=True, eq=False)
class Moments:
    """What members have of M sites with d_v features each, D in all.

    Parameters
    ----------
    d
        features of each site.
    C
        mean of φφᵀ over the common rows (D, D).
    rows
        number of common rows.
    n, levels
        labels of each owner, and what was subtracted from them (M,).
    within
        sum of squares of the labels around their owners' means.
    parts
        of common rows first, then of private rows.
    noise
        deviation of the noise on an opened entry, for features whose largest row norm is 1.
    """

    d: tuple[int, ...]
    C: Float64[Arr, "D D"]
    rows: int
    n: Float64[Arr, " M"]
    levels: Float64[Arr, " M"]
    within: float
    parts: tuple[Sums, ...]
    noise: float = 0.0

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
        """The common deviation of labels around their owners' means: the unit of the fit; 1 if all are equal."""
        free = self.n.sum() - np.count_nonzero(self.n)
        return float(np.sqrt(self.within / free)) if free > 0 and self.within > 0 else 1.0

    def standard(self, part: Sums) -> tuple[Float64[Arr, "A A"], Float64[Arr, " A"], float]:
        """(G, b, Σ wy²) of a part for the features, the owners' offsets and 1, with labels less their mean in deviations."""
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
        squares = part.s / self.deviation**2 + 2.0 * level @ part.r / self.deviation + part.n @ level**2
        return G, b, float(squares)


def precision(left_out: Float64[Arr, " n"], deviation: float) -> float:
    """The weight of a site's private rows: larger where its own columns say more; 1 without a local model."""
    return float((len(left_out) + PRIVATE_LABELS) / (np.sum((left_out / deviation) ** 2) + PRIVATE_LABELS))


def positive(A: Float64[Arr, "p p"]) -> Float64[Arr, "p p"]:
    """The nearest positive semi-definite matrix: negative eigenvalues cut."""
    values, V = np.linalg.eigh((A + A.T) / 2)
    return np.asarray((V * np.maximum(values, 0.0)) @ V.T)


def steadied(part: Sums, noise: float, scale: Float64[Arr, " D"]) -> Sums:
    """Sums that were opened with noise, as the fit takes them: positive, with a ridge of the noise's size.

    ``noise`` is the deviation on an entry of features with largest row norm 1, ``scale`` that norm for each feature.
    """
    D = len(part.P)
    A = positive(np.block([[part.P, part.o.T], [part.o, np.diag(part.n)]]))
    ridge = SHIFT * noise * np.sqrt(2 * D) * np.diag(scale**2)
    return replace(part, P=A[:D, :D] + ridge, o=A[D:, :D])


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
