r"""What all sites of an exchange derive from their summaries: rows, labels, sizes, units and
exponents.

A sum must be over many individuals, and so must the difference of any two sums that are opened:

    an atom        the individuals with the same owners of labels; those without a label are one too
    atoms          at least `least_labels` individuals each; of a smaller one the labels stay out
    without label  at least s·d individuals for s rows a feature; fewer stay out of every sum

Features are centred over the rows that enter the sums. Else a sum over all of them would tell the
sum over the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, UInt64

from coreg_core.additive.moments import (
    NOISE,
    NOISE_PRIVATE,
    Moments,
    Sums,
    common_deviation,
    steadied,
)
from coreg_core.arrays import Arr, Ints, evenly
from coreg_core.errors import Refused
from coreg_core.objectives.additive import MOST_FEATURES, Additive
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import HEADROOM, WORD

LABEL_UNIT = 8.0  # labels travel in so many common deviations
MOST_PRECISION = 20.0  # of a private row
LEAST_FEATURES = 5
MOST_SCORED = 10_000  # individuals whose scores the sites have at the end
SCORE_NOISE = 0.05  # of a part of a score, in common deviations; as the next
SCORE_GRAIN = 1 / 64
Some: TypeAlias = UInt64[np.ndarray, "..."]  # words
Flags: TypeAlias = Bool[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class SiteSummary:
    """What the members learn of one site. ``labelled`` has a flag for each common individual."""

    labelled: Flags
    width: int  # columns of W
    norm: float  # the largest row norm of W over the common rows, rounded up to a power of 2^(1/4)
    levels: tuple[float, ...]  # of each target
    deviations: tuple[float, ...]
    private: int
    scores: bool = True  # whether the site takes part in joint scores


def in_whole_atoms(labelled: Flags, least: int) -> Flags:
    """The labels of individuals in atoms of ``least`` individuals or more."""
    # The owners of an individual's labels as the bits of one number: there are at most 38 sites.
    owners = (1 << np.arange(len(labelled), dtype=np.uint64)) @ labelled
    _, atom, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    return np.asarray(labelled & (sizes[atom] >= least))


def _sized(labelled: Flags, n_private: int, rules: Additive) -> tuple[Flags, int]:
    """The labels that enter the sums, and the features d of a site: a site with fewer labels than
    features sends none, and a small atom neither. Refused: no labels are left.
    """
    n_sites = len(labelled)
    most = (cross.MOST_PROJECTED / max(n_sites - 1, 1) - 1 - rules.targets) / 2
    while True:
        labelled = in_whole_atoms(labelled, rules.least_labels)
        counted = int(labelled.any(axis=0).sum()) or n_private
        d = int(min(MOST_FEATURES, counted / rules.rows_per_feature, most))
        few = labelled.any(axis=1) & (labelled.sum(axis=1) < d)
        if not few.any():
            break
        labelled = labelled & ~few[:, None]  # this can change the atoms and the features
    if not counted:
        raise Refused(
            f"no site has {rules.least_labels} labels of shared individuals (least_labels), or"
            " so many private ones."
        )
    return labelled, d


@dataclass(frozen=True, eq=False)
class Target:
    """The labels of one target: a number, or 1 for one of several classes."""

    n: Float64[Arr, " M"]  # labels of each owner
    levels: Float64[Arr, " M"]
    within: float  # sum of squares around the levels

    @property
    def deviation(self) -> float:
        """`Moments.deviation`."""
        return common_deviation(self.n, self.within)

    @property
    def unit(self) -> float:
        """Labels travel in it."""
        return LABEL_UNIT * self.deviation

    def scaled(self, y: Float64[Arr, " n"], site: int) -> Float64[Arr, " n"]:
        """In [−1, 1], as a site sends them."""
        return np.asarray(np.clip((y - self.levels[site]) / self.unit, -1.0, 1.0))


def _targets(n: Float64[Arr, " M"], summaries: Sequence[SiteSummary]) -> tuple[Target, ...]:
    free = np.maximum(n - 1, 0)
    levels = np.array([summary.levels for summary in summaries])
    deviations = np.array([summary.deviations for summary in summaries])
    return tuple(
        Target(n, of_sites, float(free @ spread**2))
        for of_sites, spread in zip(levels.T, deviations.T, strict=True)
    )


def _scored(labelled: Flags) -> Ints:
    """The individuals of whom no site has a label, evenly spaced where there are too many.

    A score tells a member more of a label than its own model does, so no one gets those of others'
    labelled individuals.
    """
    without = np.flatnonzero(~labelled.any(axis=0))
    return without[evenly(len(without), MOST_SCORED)]


class Terms:
    """Rows, sizes, units and exponents.

    Each site derives the same ones from all summaries. Refused: a rule is not kept.
    """

    def __init__(self, rules: Additive, summaries: Sequence[SiteSummary]):
        s = rules.rows_per_feature
        self.n_sites = len(summaries)
        self.noise = rules.noise
        told = np.array([summary.private for summary in summaries])
        self.private = np.where(told >= rules.least_labels, told, 0)
        labelled = np.array([each.labelled for each in summaries])
        flags, d = _sized(labelled, int(self.private.sum()), rules)
        self.n_labelled = int(flags.any(axis=0).sum())
        self._require_labels(d, rules)
        unlabelled = int((~flags.any(axis=0)).sum())
        few = unlabelled < s * d  # too few for features, and for a sum
        if not self.n_labelled and few:
            raise Refused(
                f"{unlabelled} common individuals, where private labels with {d} features need"
                f" {s * d}."
            )
        # The difference of two sums would disclose a few unlabelled rows, so no sum contains them.
        self.used: Flags = np.ones(flags.shape[1], dtype=bool)
        if few:
            self.used = np.asarray(flags.any(axis=0))
        self.scores = all(summary.scores for summary in summaries)
        self.scored = _scored(labelled) if self.scores else np.zeros(0, dtype=np.int64)
        self.flags = flags[:, self.used]
        self.rows = int(self.used.sum())
        self.labelled: Flags = np.asarray(self.flags.any(axis=0))
        self.d = tuple(min(d, each.width) for each in summaries)
        # A row's distance from the mean of some rows is at most twice the largest norm.
        self.norms = np.array([summary.norm for summary in summaries]) * (2.0 if few else 1.0)
        self.scale = np.repeat(self.norms, self.d)
        self.n = (self.flags.sum(axis=1) + self.private).astype(float)
        self.targets = _targets(self.n, summaries)
        self.share = 1.0 / np.maximum(
            self.flags.sum(axis=0), 1
        )  # of an individual with labels of several sites
        self.places = cross.exponents(self.rows)
        self.exponent = sum(self.places)
        self.private_exponent = HEADROOM - ceil(
            log2(MOST_PRECISION * max(int(self.private.sum()), 1))
        )
        ends = np.cumsum(self.d).tolist()
        self.blocks = tuple(slice(end - d, end) for end, d in zip(ends, self.d, strict=True))

    def _require_labels(self, d: int, rules: Additive) -> None:
        """Refused: too few labels of common individuals, or (if there are none) of private ones."""
        if 0 < self.n_labelled < rules.least_rows:
            raise Refused(
                f"{self.n_labelled} labelled common individuals, where least_rows is"
                f" {rules.least_rows}: label {rules.least_rows - self.n_labelled} more of the"
                " individuals that all sites share. If each site has labels, the agreement needs"
                " fewer."
            )
        if d < LEAST_FEATURES:
            raise Refused(
                f"{self.n_labelled or self.private.sum()} labelled individuals of {self.n_sites}"
                f" sites allow {d} features a site, where {LEAST_FEATURES} are the fewest: label"
                f" more, or lower rows_per_feature ({rules.rows_per_feature})."
            )

    def judged(self, site: int) -> Ints:
        """The common rows of a site's labels in the sums."""
        common = np.flatnonzero(self.used)
        return np.asarray(common[self.flags[site]])

    def rows_scored_for(self, site: int) -> Ints:
        """The common rows whose score a site has at the end: of its labels, then without a label.

        With two sites a score tells the other's part: both must allow it.
        """
        if self.n_sites == 2 and not self.scores:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([self.judged(site), self.scored])

    def moments(self, C: Arr, parts: tuple[Sums, ...], target: int = 0) -> Moments:
        """Of one target, with its opened parts."""
        of = self.targets[target]
        return Moments(self.d, C, self.rows, self.n, of.levels, of.within, parts, self.noise)

    def labels(self, y: Float64[Arr, "n t"], site: int) -> Float64[Arr, "n t"]:
        """Scaled labels in [−1, 1], as a site sends them."""
        scaled = [of.scaled(column, site) for of, column in zip(self.targets, y.T, strict=True)]
        return np.stack(scaled, axis=1)

    def part(self, got: Mapping[str, Some], *, private: bool = False) -> tuple[Sums, ...]:
        """Sums of each target over common or private rows from opened words.

        Each site with private rows adds noise to their sums.
        """
        D = sum(self.d)
        M = self.n_sites
        K = len(self.targets)
        exponent = self.private_exponent if private else self.exponent
        scalars = joined(got["scalars"], exponent)
        if private:
            scale = self.scale * sqrt(M)
            n = scalars[K * (M + 1) :]
            count = int(self.private.sum())
            mode = NOISE_PRIVATE
            noise = self.noise * sqrt(np.count_nonzero(self.private) / 2)
        else:
            scale = self.scale
            n = (self.flags * self.share).sum(axis=1)
            count = self.n_labelled
            mode = NOISE
            noise = self.noise
        o = np.where(n[:, None] > 0, cross.opened(got["o"], exponent), 0.0)
        P = full(cross.opened(got["P"], exponent), D) * np.outer(scale, scale)
        b = cross.opened(got["b"], exponent).reshape(K, D) * scale
        of_labels = scalars[: K * (M + 1)].reshape(K, M + 1)
        found = Sums(P, o * scale, b[0], np.zeros(M), 0.0, n, float(count), mode)
        if noise:
            found = steadied(found, noise, scale)
        return tuple(
            replace(found, b=b_k * of.unit, r=s[:M] * of.unit, s=float(s[M]) * of.unit**2)
            for of, b_k, s in zip(self.targets, b, of_labels, strict=True)
        )


# --- words and numbers ----------------------------------------------------------------------------


def joined(halves: Some, exponent: int) -> Arr:
    """Numbers of two halves of 32 bits."""
    return value(halves[0] + (halves[1] << np.uint64(32)), exponent)


def value(words: Some, exponent: int) -> Arr:
    """Numbers of words, in two's complement."""
    return np.asarray(np.ldexp(words.view(np.int64).astype(np.float64), -exponent))


def word(values: Arr, exponent: int) -> Some:
    """Words of numbers, of which multiples of 2 to minus the exponent are kept."""
    return np.asarray(np.rint(np.ldexp(values, exponent)), dtype=np.int64).view(WORD)


def full(lower: Arr, size: int) -> Arr:
    """A symmetric matrix of its lower triangle."""
    A = np.zeros((size, size))
    A[np.tril_indices(size)] = lower
    return np.asarray(np.tril(A) + np.tril(A, -1).T)
