r"""Second moments of all sites' features: what a federation opens to its members, and all that the fit needs.

| entry | shape | over | tells a member |
|---|---|---|---|
| P, o, b, r, s, n (`Sums`) | D×D, M×D, D, M, 1, M | labelled common rows | aggregates over many individuals |
| the same, of a second part | | private rows, with completed features | aggregates over many individuals |
| C | D×D | all common rows | how the sites' features go together |
| level, deviation, number of labels | M each | a site's labels | two numbers of its label column |
| which common individuals a site has labels of | bits | common rows | of one individual only who has a label of it |

To site v alone: C_vx (k×D), the mean of W_v φ' over the common rows, whose first d rows all members have.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

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
