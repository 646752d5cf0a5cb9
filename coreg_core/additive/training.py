r"""A whole additive training with all sites' rows in memory: the estimators, and studies of what a
federation would reach.

    features → moments → completed private rows → fit → each site's models and verdict

A federation computes the moments by sealed sums instead, and everything after them with the same
functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.additive.check import Conclusion, OwnLabels, Verdict, concluded
from coreg_core.additive.features import LocalModel, SiteFeatures, SiteRows, fit_features, sizes
from coreg_core.additive.label_privacy import randomised, unbiased
from coreg_core.additive.learned import ScoredRows
from coreg_core.additive.moments import (
    NOISE_PRIVATE,
    Fit,
    Moments,
    Own,
    ScoreWeights,
    Sums,
    fit,
    positive,
    precision,
    steadied,
    sums,
)
from coreg_core.additive.terms import SCORE_NOISE, in_whole_atoms
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from coreg_core.objectives.additive import IN_MEMORY, Additive
from coreg_core.threads import one_thread

Flags = Bool[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class TrainedSite:
    """What a site has at the end; ``local`` is None with fewer than three labels."""

    features: SiteFeatures
    local: LocalModel | None
    own: Own
    conclusion: Conclusion
    private_noise: float | None  # the inverse precision, where all labelled rows are private

    @property
    def verdict(self) -> Verdict:
        """By own labels."""
        return self.conclusion.verdict

    def prepared(self, X: Float64[Arr, "n p"]) -> "Prepared":
        """What the site's models need of new rows, once for all of them."""
        W, functions = self.features.with_functions(X)
        model = self.conclusion.learned
        learned = None if model is None else model.predict(X)
        if self.local is None:
            return Prepared(X, W, None, learned)
        shared = self.features.directions == (self.local,)
        local = self.local.mixed(functions) if shared else self.local.predict(X)
        return Prepared(X, W, local, learned)


@dataclass(frozen=True, eq=False)
class Prepared:
    """One site's columns and features of some rows, and predictions of its local model, and of a
    joined model that learned from scores (None without one).
    """

    X: Float64[Arr, "n p"]
    W: Float64[Arr, "n k"]
    local: Float64[Arr, " n"] | None
    learned: Float64[Arr, " n"] | None


@dataclass(frozen=True, eq=False)
class Trained:
    """A federation's training: the fit, and each site's models.

    Rows come as each site's `TrainedSite.prepared`.
    """

    fit: Fit
    sites: tuple[TrainedSite, ...]

    def score(self, rows: Sequence[Prepared | None], site: int | None = None) -> Float64[Arr, " n"]:
        """The score from the rows of all sites, None for a missing one; for the label owner
        ``site``, or their mean.
        """
        m = self.fit.moments
        present = [v for v, each in enumerate(rows) if each is not None]
        beta = ScoreWeights.of(self.fit).of_sites(present)
        parts = [
            each.W[:, : m.d[v]] @ beta[m.blocks[v]]
            for v, each in enumerate(rows)
            if each is not None
        ]
        return np.asarray(self.fit.intercept(site) + np.sum(parts, axis=0))

    def checked_score(self, rows: Sequence[Prepared | None], site: int) -> Float64[Arr, " n"]:
        """The score for a site with its verdict: rescaled, refined and blended with its local
        model.
        """
        own = rows[site]
        score = self.score(rows, site)
        if own is None:
            return self.sites[site].verdict.score(score, None)
        return self.sites[site].verdict.score(score, own.local, own.X)

    def joined(self, site: int, rows: Prepared) -> Float64[Arr, " n"]:
        """The joined model of a site, with its verdict."""
        predicted = rows.learned
        if predicted is None:
            predicted = self.sites[site].own.predict(self.fit, rows.W)
        return self.sites[site].verdict.joined(predicted, rows.local)


class _Training:
    """Each site's labels and features, and what a federation opens of them, with noise by its
    rules.
    """

    def __init__(
        self, sites: Sequence[SiteRows], n_common: int, seed: int, rules: Additive, one_owner: bool
    ):
        self.sites = sites
        self.n_common = n_common
        self.rules = rules
        self.rng = np.random.default_rng([seed, 1])
        M = len(sites)
        self.inner: list[Flags] = [site.own < n_common for site in sites]
        known = np.zeros((M, n_common), dtype=bool)
        for v, (site, common) in enumerate(zip(sites, self.inner, strict=True)):
            known[v, site.own[common]] = True
        if rules.noise:
            known = in_whole_atoms(known, rules.least_labels)
        self.unlabelled = np.flatnonzero(~known.any(axis=0))
        # The weight of an individual's label; 0 where it stays out of the sums.
        self.share = known.any(axis=0) / np.maximum(known.sum(axis=0), 1)
        self.owners = range(M)
        self.private = [v for v, common in enumerate(self.inner) if not common.all()]
        if one_owner:
            self.share = np.ones(n_common)
            self.owners = range(1)
            self.private = []
        n_private = sum(int((~self.inner[v]).sum()) for v in self.private)
        n_labelled = int(known.any(axis=0).sum()) + n_private
        if n_labelled < 2:
            raise BadData(
                f"{n_labelled} labels in all sites together ({n_labelled} sample): an additive"
                " model needs at least two."
            )
        self.d, self.k = sizes(n_labelled, n_common, rules.rows_per_feature)
        if rules.kernel == "linear":
            self.d = self.k = max(site.X.shape[1] for site in sites)
        self.seeds = np.random.default_rng(seed).integers(2**31, size=M).tolist()
        self._fit_features()
        self.widths = tuple(min(self.d, each.shape[1]) for each in self.W)
        self.scale = np.repeat([_row_norm(each[:n_common]) for each in self.W], self.widths)

    def _fit_features(self) -> None:
        """Local models of the labels, the noise on the labels, and features that depend on noisy
        labels alone.
        """
        sites = self.sites
        made = self._features([site.y for site in sites])
        self.locals = [local for _, local, _ in made]
        self.told = [
            self._told(site.y, local) for site, local in zip(sites, self.locals, strict=True)
        ]
        self.errors = [told - site.y for site, told in zip(sites, self.told, strict=True)]
        if self.rules.label_noise or self.rules.private_labels:
            made = self._features(self.told)
        self.features = [features for features, _, _ in made]
        self.W = [rows for _, _, rows in made]
        self.left_out = [np.zeros(0) if local is None else local.left_out for _, local, _ in made]

    def _features(self, labels: Sequence[Arr]) -> list[tuple[SiteFeatures, LocalModel | None, Arr]]:
        return [
            fit_features(
                site.X, self.n_common, site.own, y, k=self.k, seed=seed, kernel=self.rules.kernel
            )
            for site, y, seed in zip(self.sites, labels, self.seeds, strict=True)
        ]

    def _told(self, y: Arr, local: LocalModel | None) -> Arr:
        """The labels that a site tells, with noise that it draws once."""
        if self.rules.private_labels:
            labels = randomised(y, self.rules, self.rng.random((len(y), 2)))
            return unbiased(labels, self.rules)[:, 0]
        share = self.rules.label_noise
        if not share or not len(y):
            return y
        spread = float(y.std() if local is None else np.sqrt(np.mean(local.left_out**2)))
        return np.asarray(y + share * spread * self.rng.normal(size=len(y)))

    def phi(self, rows: Ints | slice) -> Arr:
        """All sites' features of common rows."""
        return np.concatenate(
            [each[rows, :width] for each, width in zip(self.W, self.widths, strict=True)], axis=1
        )

    def moments(self) -> Moments:
        """Those of the common rows."""
        told = self.told
        Phi = self.phi(slice(self.n_common))
        n = np.array([float(len(y)) if v in self.owners else 0.0 for v, y in enumerate(told)])
        levels = np.array([y.mean() if many else 0.0 for y, many in zip(told, n, strict=True)])
        within = sum(float(np.sum((told[v] - levels[v]) ** 2)) for v in self.owners)
        C = Phi.T @ Phi / self.n_common
        if self.rules.noise:
            C = positive(C + self._noise() / self.n_common)
        m = Moments(self.widths, C, self.n_common, n, levels, within, (), self.rules.noise)
        at = [self.sites[v].own[self.inner[v]] for v in self.owners]
        if not sum(map(len, at)):
            return m
        rows = np.concatenate(at)
        owner = np.repeat(list(self.owners), list(map(len, at))).astype(np.int64)
        y = np.concatenate([told[v][self.inner[v]] for v in self.owners])
        return replace(m, parts=(self._noisy(sums(Phi[rows], owner, y, self.share[rows], levels)),))

    def own(self, m: Moments, v: int) -> Own:
        """The site's view of all features; the moments of its further features are opened to it
        alone, with noise.
        """
        W = self.W[v][: self.n_common]
        N = self.n_common
        d = m.d[v]
        C_Wx = W.T @ self.phi(slice(N)) / N
        if self.rules.noise:
            size = self.rules.noise * self.scale[m.blocks[v]].max() * self.scale
            C_Wx[d:] += size * self.rng.normal(size=C_Wx[d:].shape) / N
            C_Wx[:d] = m.C[m.blocks[v]]
            C_Wx[:, m.blocks[v]] = W.T @ W[:, :d] / N
        return Own.of(m, v, W.T @ W / N, C_Wx)

    def own_labels(self, v: int, precision: float, lone: float | None) -> OwnLabels:
        """Those of a site, common rows first."""
        site = self.sites[v]
        c = int(self.inner[v].sum())
        private = np.full(len(site.y) - c, precision)
        local = self.locals[v]
        return OwnLabels(
            site.X[site.own],
            self.W[v][site.own],
            site.y,
            self.errors[v],
            np.concatenate([self.share[site.own[:c]], private]),
            c,
            None if local is None else local.left_out,
            lone,
        )

    def private_sums(self, m: Moments, owns: Sequence[Own], precisions: Sequence[float]) -> Sums:
        """Sums over private rows, with the features that the owner's columns complete."""
        at = [self.sites[v].own[~self.inner[v]] for v in self.private]
        rows = [owns[v].complete(self.W[v][mine]) for v, mine in zip(self.private, at, strict=True)]
        y = np.concatenate([self.told[v][~self.inner[v]] for v in self.private])
        counts = list(map(len, rows))
        owner = np.repeat(self.private, counts).astype(np.int64)
        weight = np.repeat([precisions[v] for v in self.private], counts)
        found = sums(
            np.concatenate(rows),
            owner,
            y,
            weight,
            m.levels,
            count=float(len(y)),
            mode=NOISE_PRIVATE,
        )
        return self._noisy(found)

    def _noise(self) -> Arr:
        """Each site's noise on the entries that have its features, (D, D)."""
        E = np.zeros((sum(self.widths), sum(self.widths)))
        ends = np.cumsum([0, *self.widths]).tolist()
        for a, b in pairwise(ends):
            F = np.zeros_like(E)
            F[a:b] = self.rules.noise * self.rng.normal(size=(b - a, len(E)))
            F[a:b, a:b] = (np.triu(F[a:b, a:b]) + np.triu(F[a:b, a:b], 1).T) / 2
            E += F + F.T
        return np.asarray(E * np.outer(self.scale, self.scale))

    def _noisy(self, part: Sums) -> Sums:
        """A part as a federation with noise opens it, and takes it into the fit."""
        if not self.rules.noise:
            return part
        P = part.P + self._noise()
        o = (
            part.o
            + self.rules.noise
            * self.scale
            * self.rng.normal(size=part.o.shape)
            * (part.n > 0.0)[:, None]
        )
        return steadied(replace(part, P=P, o=o), self.rules.noise, self.scale)


def _row_norm(W: Arr) -> float:
    """The largest of the rows; 1 if they are 0."""
    return float(np.linalg.norm(W, axis=1).max(initial=0.0)) or 1.0


@one_thread()
def train(
    sites: Sequence[SiteRows],
    n_common: int,
    *,
    seed: int = 0,
    rules: Additive = IN_MEMORY,
    one_owner: bool = False,
) -> Trained:
    """Train on the rows of all sites.

    ``one_owner``: all have the same labels of the same common rows, and each counts once.
    """
    t = _Training(sites, n_common, seed, rules, one_owner)
    m = t.moments()
    owns = [t.own(m, v) for v in range(len(sites))]
    precisions = [precision(each, m.deviation) for each in t.left_out]
    if t.private:
        m = replace(m, parts=(*m.parts, t.private_sums(m, owns, precisions)))
    fitted = fit(m)
    owns = [replace(own, moments=m) for own in owns]
    alone = t.private and len(m.parts) == 1
    Phi = t.phi(t.unlabelled)
    done = []
    for v, (own, local) in enumerate(zip(owns, t.locals, strict=True)):
        lone = 1.0 / precisions[v] if alone and v in t.private else None
        labels = t.own_labels(v, precisions[v], lone)
        at = sites[v].own[: labels.n_common]
        score = fitted.intercept(v) + t.phi(at) @ fitted.coef if len(at) else None
        scores = fitted.intercept(v) + Phi @ fitted.coef
        if rules.noise:
            noise = t.rng.normal(size=len(scores))
            scores += SCORE_NOISE * m.deviation * np.sqrt(len(sites) - 1) * noise
        scored = ScoredRows(sites[v].X[t.unlabelled], scores)
        found = concluded(fitted, own, labels, score, scored, seed=t.seeds[v], kernel=rules.kernel)
        done.append(TrainedSite(t.features[v], local, own, found, lone))
    return Trained(fitted, tuple(done))
