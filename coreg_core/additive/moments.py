r"""Second moments of all sites' features: what a federation opens to its members, and all that the
fit needs.

A *common* row is of an individual that all sites know; of a *private* row one site alone has the
features. A label has *owners*: the sites that have it. A *part* is the common rows with labels, or
the private ones: their labels have a noise variance of their own. Sums are *opened* when members
learn them. The numbers of a single site stay sealed.

| entry | shape | over | tells a member |
|---|---|---|---|
| P, o, b, r, s, n: `Sums` | D×D, M×D, D, M, 1, M | labelled common rows | aggregates of many rows |
| the same, of a second part | | private rows, with completed features | aggregates of many rows |
| C | D×D | all common rows | how the sites' features go together |
| level, deviation, number of labels | M each | a site's labels | two numbers of its label column |
| which individuals a site has labels of | bits | common rows | of an individual: who has a label |

Sizes: M sites; D features of all sites together; A = D + M + 1 weights of the model, of features,
of offsets of owners, and of 1.

φ are a row's D features, d_v of them of site v. W_v are the k ≥ d_v features that site v makes of
its own columns: the first d_v are φ_v, which enter the sums, and the others stay at the site. Site
v alone also opens C_Wx (k×D), the mean of W_v φᵀ over the common rows. The first d_v rows of it are
rows of C, which all members have.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr

# Modes of the priors of noise variances, where the labels' variance is 1.
NOISE_MODE = 0.3  # of common rows
PRIVATE_NOISE_MODE = 1.0  # of private rows, divided by their `precision`
PRIVATE_LABELS = 5.0  # the prior of a precision weighs as so many labels
RIDGE = 0.7  # times the largest eigenvalue of the noise on opened sums, about √(2D)


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums over the labels of one part. u is the owner of a label, w its weight.

    Of a common row the weights of all owners add up to 1. Of a private row the weight is its site's
    `precision`.
    """

    P: Float64[Arr, "D D"]  # Σ wφφᵀ
    o: Float64[Arr, "M D"]  # Σ wφ by owner
    b: Float64[Arr, " D"]  # Σ wφ(y − level_u)
    r: Float64[Arr, " M"]  # Σ w(y − level_u) by owner
    s: float  # Σ w(y − level_u)²
    n: Float64[Arr, " M"]  # Σ w by owner
    count: float  # rows, whatever their weights: what the noise variance is estimated from
    mode: float = NOISE_MODE  # of the prior of the noise variance


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

    @property
    def n_sites(self) -> int:
        """M."""
        return len(self.d)

    @property
    def n_features(self) -> int:
        """D."""
        return len(self.C)

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
        """Normal equations of a part: G = Σ w ttᵀ, b = Σ w tz, and Σ w z².

        t = (φ, indicator of the owner, 1);  z = (y − mean)/deviation = (y − level_u)/deviation +
        shift_u.
        """
        unit = self.deviation
        shift = (self.levels - self.mean) / unit
        features = part.o.sum(0)
        G = np.block(
            [
                [part.P, part.o.T, features[:, None]],
                [part.o, np.diag(part.n), part.n[:, None]],
                [features, part.n, part.n.sum()],
            ]
        )
        by_feature = part.b / unit + part.o.T @ shift
        by_owner = part.n * shift + part.r / unit
        b = np.concatenate([by_feature, by_owner, [by_owner.sum()]])
        squares = part.s / unit**2 + 2.0 * shift @ part.r / unit + part.n @ shift**2
        return G, b, float(squares)


def common_deviation(n: Float64[Arr, " M"], within: float) -> float:
    """Of labels around their owners' means, √(within/(Σ n − owners)); 1 if that is no positive
    number.
    """
    degrees_of_freedom = n.sum() - np.count_nonzero(n)
    if degrees_of_freedom > 0 and within > 0:
        return float(np.sqrt(within / degrees_of_freedom))
    return 1.0


def precision(left_out_residuals: Float64[Arr, " n"], deviation: float) -> float:
    """The weight of a site's private rows: (n + 5)/(Σ (e/deviation)² + 5) for the n left-out
    residuals e of its local model. Without one there are none, and the weight is 1.
    """
    squares = np.sum((left_out_residuals / deviation) ** 2)
    return float((len(left_out_residuals) + PRIVATE_LABELS) / (squares + PRIVATE_LABELS))


def positive(A: Float64[Arr, "p p"]) -> Float64[Arr, "p p"]:
    """The nearest positive semi-definite matrix: negative eigenvalues cut."""
    values, V = np.linalg.eigh((A + A.T) / 2)
    return np.asarray((V * np.maximum(values, 0.0)) @ V.T)


def steadied(part: Sums, entry_noise: float, scale: Float64[Arr, " D"]) -> Sums:
    """Sums that were opened with noise, so that a fit of them is stable.

    (1) The negative eigenvalues of the sums over features and owners are cut. (2) P gets a ridge of
    0.7 · noise · √(2D), which is the size of the noise's largest eigenvalues. ``scale``: of each
    feature, the largest norm of a row of its site's features.
    """
    D = len(part.P)
    joint = positive(np.block([[part.P, part.o.T], [part.o, np.diag(part.n)]]))
    ridge = RIDGE * entry_noise * np.sqrt(2 * D) * np.diag(scale**2)
    return replace(part, P=joint[:D, :D] + ridge, o=joint[D:, :D])
