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
from functools import cached_property
from math import ceil, floor, log2, log10, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.additive.moments import (
    NOISE_MODE,
    PRIVATE_NOISE_MODE,
    Moments,
    Sums,
    common_deviation,
    steadied,
)
from coreg_core.arrays import Arr, Ints, evenly
from coreg_core.errors import Refused
from coreg_core.objectives.additive import MOST_FEATURES, MOST_OWN, Additive
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import HEADROOM

LABEL_UNIT = 8.0  # labels travel in so many common deviations
MOST_PRECISION = 20.0  # of a private row
LEAST_FEATURES = 5
MOST_SCORED = 10_000  # individuals whose scores the sites have at the end
SCORE_NOISE = 0.05  # of a part of a score, in common deviations; as the next
SCORE_GRAIN = 1 / 64
Flags: TypeAlias = Bool[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class SiteSummary:
    """What the members learn of one site. ``labelled`` has a flag for each common individual."""

    labelled: Flags
    width: int  # columns of W
    norm: float  # the largest row norm of W over the common rows; 1 if they are 0
    levels: tuple[float, ...]  # of each target
    deviations: tuple[float, ...]
    private: int
    scores: bool = True  # whether the site takes part in joint scores

    def rounded(self) -> "SiteSummary":
        """As it leaves a site: a deviation has two digits, and a level the same decimal place."""
        rounded = [
            _two_digits(level, deviation)
            for level, deviation in zip(self.levels, self.deviations, strict=True)
        ]
        levels, deviations = zip(*rounded, strict=True)
        # A power of 2^(1/4) discloses little of the largest row.
        norm = 2.0 ** (ceil(4 * log2(self.norm) - 1e-9) / 4) * (1 + 1e-12)
        return replace(self, norm=norm, levels=levels, deviations=deviations)


def _two_digits(level: float, deviation: float) -> tuple[float, float]:
    if not deviation > 0.0:
        return level, 0.0
    step = 10.0 ** (floor(log10(deviation)) - 1)
    return round(level / step) * step, round(deviation / step) * step


def own_features(rules: Additive, n_common: int, n_sites: int) -> int:
    """k: the features that a site of a federation keeps for itself."""
    others = max(n_sites - 1, 1)
    rows = n_common / rules.rows_per_feature
    return int(min(MOST_OWN, rows, cross.MOST_ENCRYPTED / others))


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


@dataclass(frozen=True, eq=False)
class Terms:
    """Rows, sizes, units and exponents of one exchange: the same at each site."""

    used: Flags  # of the common rows, those that enter sums
    flags: Bool[np.ndarray, "M r"]  # of the used rows, those with a label of each site
    private: Int64[Ints, " M"]  # labels of private rows in the sums
    d: tuple[int, ...]  # features of each site in the sums
    norms: Float64[Arr, " M"]  # at least the largest norm of a site's used rows
    targets: tuple[Target, ...]
    scored: Ints  # the common rows of whom no site has a label, with a score at the end
    scores: bool  # whether all sites take part in joint scores
    noise: float

    @property
    def n_sites(self) -> int:
        """M."""
        return len(self.d)

    @cached_property
    def rows(self) -> int:
        """Common rows that enter sums."""
        return int(self.used.sum())

    @cached_property
    def labelled(self) -> Flags:
        """The used rows with a label of some site."""
        return np.asarray(self.flags.any(axis=0))

    @cached_property
    def n_labelled(self) -> int:
        """The individuals of these rows."""
        return int(self.labelled.sum())

    @cached_property
    def share(self) -> Float64[Arr, " r"]:
        """The weight of each label of an individual: one over the number of its owners."""
        return np.asarray(1.0 / np.maximum(self.flags.sum(axis=0), 1))

    @cached_property
    def scale(self) -> Float64[Arr, " D"]:
        """The unit of each feature: its site's norm."""
        return np.repeat(self.norms, self.d)

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """The places of each site's features among the D."""
        ends = np.cumsum(self.d).tolist()
        return tuple(slice(end - d, end) for end, d in zip(ends, self.d, strict=True))

    @cached_property
    def places(self) -> tuple[int, int]:
        """Binary places of the two factors of a cross product."""
        return cross.exponents(self.rows)

    @property
    def exponent(self) -> int:
        """Binary places of sums over common rows."""
        return sum(self.places)

    @property
    def private_exponent(self) -> int:
        """Binary places of sums over private rows."""
        most = MOST_PRECISION * max(int(self.private.sum()), 1)
        return HEADROOM - ceil(log2(most))

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
        return Moments(self.d, C, self.rows, of.n, of.levels, of.within, parts, self.noise)

    def labels(self, y: Float64[Arr, "n t"], site: int) -> Float64[Arr, "n t"]:
        """Scaled labels in [−1, 1], as a site sends them."""
        scaled = [of.scaled(column, site) for of, column in zip(self.targets, y.T, strict=True)]
        return np.stack(scaled, axis=1)

    def part(self, opened: Mapping[str, Arr], *, private: bool = False) -> tuple[Sums, ...]:
        """Sums of each target over common or private rows, from opened sums of scaled numbers.

        Each site with private rows adds noise to their sums.
        """
        D = sum(self.d)
        M = self.n_sites
        K = len(self.targets)
        scalars = opened["scalars"]
        if private:
            scale = self.scale * sqrt(M)
            n = scalars[K * (M + 1) :]
            count = int(self.private.sum())
            mode = PRIVATE_NOISE_MODE
            noise = self.noise * sqrt(np.count_nonzero(self.private) / 2)
        else:
            scale = self.scale
            n = (self.flags * self.share).sum(axis=1)
            count = self.n_labelled
            mode = NOISE_MODE
            noise = self.noise
        o = np.where(n[:, None] > 0, opened["o"], 0.0)
        P = full(opened["P"], D) * np.outer(scale, scale)
        b = opened["b"].reshape(K, D) * scale
        of_labels = scalars[: K * (M + 1)].reshape(K, M + 1)
        common = Sums(P, o * scale, b[0], np.zeros(M), 0.0, n, float(count), mode)
        if noise:
            common = steadied(common, noise, scale)
        return tuple(
            replace(common, b=b_k * of.unit, r=s[:M] * of.unit, s=float(s[M]) * of.unit**2)
            for of, b_k, s in zip(self.targets, b, of_labels, strict=True)
        )


def terms_of(rules: Additive, summaries: Sequence[SiteSummary]) -> Terms:
    """The terms that all sites of a federation derive. Refused: a rule is not kept."""
    stated = np.array([summary.private for summary in summaries])
    private = np.where(stated >= rules.least_labels, stated, 0)
    labelled = np.array([summary.labelled for summary in summaries])
    flags, d = _sized(labelled, int(private.sum()), rules)
    _require_labels(flags, private, d, rules)
    # The difference of two sums would disclose a few unlabelled rows, so no sum contains them.
    used = np.asarray(flags.any(axis=0))
    few = int((~used).sum()) < rules.rows_per_feature * d  # too few for features, and for a sum
    if not few:
        used = np.ones_like(used)
    if few:  # a row's distance from the mean of some rows is at most twice the largest norm
        summaries = [replace(summary, norm=2.0 * summary.norm) for summary in summaries]
    return _terms(summaries, used, flags, private, d=d, noise=rules.noise)


def terms_in_memory(rules: Additive, summaries: Sequence[SiteSummary], d: int) -> Terms:
    """The terms for ``d`` features where all rows are in one process: no rule withholds a label."""
    labelled = np.array([summary.labelled for summary in summaries])
    if rules.noise:  # what a federation would withhold
        labelled = in_whole_atoms(labelled, rules.least_labels)
    used = np.ones(labelled.shape[1], dtype=bool)
    private = np.array([summary.private for summary in summaries])
    return _terms(summaries, used, labelled, private, d=d, noise=rules.noise)


def _terms(
    summaries: Sequence[SiteSummary],
    used: Flags,
    flags: Flags,
    private: Ints,
    *,
    d: int,
    noise: float,
) -> Terms:
    labelled = np.array([summary.labelled for summary in summaries])
    scores = all(summary.scores for summary in summaries)
    return Terms(
        used=used,
        flags=flags[:, used],
        private=private,
        d=tuple(min(d, summary.width) for summary in summaries),
        norms=np.array([summary.norm for summary in summaries]),
        targets=_targets((flags[:, used].sum(axis=1) + private).astype(float), summaries),
        scored=_scored(labelled) if scores else np.zeros(0, dtype=np.int64),
        scores=scores,
        noise=noise,
    )


def _require_labels(flags: Flags, private: Ints, d: int, rules: Additive) -> None:
    """Refused: too few labels of common individuals, or (if there are none) of private ones."""
    n_labelled = int(flags.any(axis=0).sum())
    n_sites = len(flags)
    if 0 < n_labelled < rules.least_rows:
        raise Refused(
            f"{n_labelled} labelled common individuals, where least_rows is"
            f" {rules.least_rows}: label {rules.least_rows - n_labelled} more of the"
            " individuals that all sites share. If each site has labels, the agreement needs"
            " fewer."
        )
    if d < LEAST_FEATURES:
        raise Refused(
            f"{n_labelled or private.sum()} labelled individuals of {n_sites}"
            f" sites allow {d} features a site, where {LEAST_FEATURES} are the fewest: label"
            f" more, or lower rows_per_feature ({rules.rows_per_feature})."
        )
    needed = rules.rows_per_feature * d
    n_common = flags.shape[1]
    if not n_labelled and n_common < needed:
        raise Refused(
            f"{n_common} common individuals, where private labels with {d} features need {needed}."
        )


def full(lower: Arr, size: int) -> Arr:
    """A symmetric matrix of its lower triangle."""
    A = np.zeros((size, size))
    A[np.tril_indices(size)] = lower
    return np.asarray(np.tril(A) + np.tril(A, -1).T)
