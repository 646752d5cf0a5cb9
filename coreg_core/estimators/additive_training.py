r"""A whole additive training with all sites' rows in memory: the estimators, and studies of what a federation would reach.

    features → moments → completed private rows → fit → each site's models and verdict

A federation computes the moments by sealed sums instead, and everything after them with the same functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.additive.check import Verdict, site_verdict
from coreg_core.additive.features import LocalModel, SiteFeatures, SiteRows, fit_features, sizes
from coreg_core.additive.models import Own, ScoreWeights
from coreg_core.additive.moments import (
    NOISE_PRIVATE,
    Fit,
    Moments,
    Sums,
    fit,
    positive,
    precision,
    steadied,
    sums,
)
from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import one_thread
from coreg_core.objectives.additive import IN_MEMORY, Additive

Flags = Bool[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class TrainedSite:
    """What a site has at the end; ``local`` is None with fewer than three labels."""

    features: SiteFeatures
    local: LocalModel | None
    own: Own
    verdict: Verdict
    private_noise: float | None  # the inverse precision, where all labelled rows are private

    def prepared(self, X: Float64[Arr, "n p"]) -> "Prepared":
        """What the site's models need of new rows, once for all of them."""
        W, functions = self.features.with_functions(X)
        if self.local is None:
            return Prepared(W, None)
        shared = self.local is self.features.directions
        return Prepared(W, self.local.mixed(functions) if shared else self.local.predict(X))


@dataclass(frozen=True, eq=False)
class Prepared:
    """One site's features of some rows, and its local predictions of them (None without a local model)."""

    W: Float64[Arr, "n k"]
    local: Float64[Arr, " n"] | None


@dataclass(frozen=True, eq=False)
class Trained:
    """A federation's training: the fit, and each site's models. Rows come as each site's `TrainedSite.prepared`."""

    fit: Fit
    sites: tuple[TrainedSite, ...]

    def score(self, rows: Sequence[Prepared | None], site: int | None = None) -> Float64[Arr, " n"]:
        """The score from the rows of all sites, None for a missing one; for the label owner ``site``, or their mean."""
        m, present = self.fit.moments, [v for v, each in enumerate(rows) if each is not None]
        beta = ScoreWeights.of(self.fit).of_sites(present)
        parts = [each.W[:, : m.d[v]] @ beta[m.blocks[v]] for v, each in enumerate(rows) if each is not None]
        return np.asarray(self.fit.intercept(site) + np.sum(parts, axis=0))

    def checked_score(self, rows: Sequence[Prepared | None], site: int) -> Float64[Arr, " n"]:
        """The score for a site with its verdict: rescaled and blended with its local model."""
        own = rows[site]
        return self.sites[site].verdict.score(self.score(rows, site), None if own is None else own.local)

    def joined(self, site: int, rows: Prepared, *, checked: bool = True) -> Float64[Arr, " n"]:
        """The joined model of a site, with its verdict or as it is."""
        predicted = self.sites[site].own.predict(self.fit, rows.W)
        return self.sites[site].verdict.joined(predicted, rows.local) if checked else predicted

    def deviations(
        self, site: int, rows: Prepared, present: Sequence[int] | None = None
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, " n"]]:
        """Of a new label given the features of the present sites, and given the own ones, for the rows of a site."""
        at = self.sites[site]
        score, joined = at.own.deviations(self.fit, rows.W, at.private_noise)
        if present is not None:
            score = np.sqrt(score**2 + ScoreWeights.of(self.fit).missing_variance(present))
        return at.verdict.spread * score, at.verdict.spread * joined


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

    Parameters
    ----------
    sites
        each site's rows and labels.
    n_common
        how many rows all sites have.
    seed
        of the sites' landmarks and forests, and of the noise of the rules.
    one_owner
        all sites have the same labels of the same common rows, and each counts once.

    Raises
    ------
    BadData
        fewer than two labels in all.
    """
    M, rng = len(sites), np.random.default_rng([seed, 1])
    inner = [site.own < n_common for site in sites]
    known = np.zeros((M, n_common), dtype=bool)
    for v, (site, common) in enumerate(zip(sites, inner, strict=True)):
        known[v, site.own[common]] = True
    n_private = 0 if one_owner else sum(int((~common).sum()) for common in inner)
    n_labelled = int(known.any(axis=0).sum()) + n_private
    if n_labelled < 2:
        raise BadData(
            f"{n_labelled} labels in all sites together ({n_labelled} sample): an additive model needs at least two."
        )
    d, k = sizes(n_labelled, n_common, rules.rows_per_feature)
    if rules.kernel == "linear":
        d = k = max(site.X.shape[1] for site in sites)
    seeds = np.random.default_rng(seed).integers(2**31, size=M).tolist()
    made = [
        fit_features(site.X, n_common, site.own, site.y, k=k, seed=s, kernel=rules.kernel)
        for site, s in zip(sites, seeds, strict=True)
    ]
    locals_ = [local for _, local, _ in made]
    errors = [_told_noise(rules.label_noise, site.y, local, rng) for site, local in zip(sites, locals_, strict=True)]
    told = [site.y + e for site, e in zip(sites, errors, strict=True)]
    if rules.label_noise:  # features know only labels that are told
        made = [
            fit_features(site.X, n_common, site.own, y, k=k, seed=s, kernel=rules.kernel)
            for site, y, s in zip(sites, told, seeds, strict=True)
        ]
    W = [rows for _, _, rows in made]
    m, scale = _moments(sites, inner, told, W, known, n_common, d, rules, rng, one_owner)
    owns = [_own(m, v, W[v][:n_common], scale, W, n_common, rules, rng) for v in range(M)]
    left = [np.zeros(0) if local is None else local.left_out for _, local, _ in made]
    precisions = [precision(each, m.deviation) for each in left]
    private = [] if one_owner else [v for v in range(M) if not inner[v].all()]
    if private:
        second = _private_sums(m, owns, W, sites, inner, told, precisions, private)
        m = replace(m, parts=(*m.parts, _noisy(second, m, scale, rules, rng)))
    fitted, owns = fit(m), [replace(own, moments=m) for own in owns]
    alone = private and len(m.parts) == 1
    done = []
    for v, (site, own, local) in enumerate(zip(sites, owns, locals_, strict=True)):
        lone = 1.0 / precisions[v] if alone and v in private else None
        c = int(inner[v].sum())
        at, score, share = site.own[:c], None, 1.0
        if c:
            Phi = np.concatenate([each[at, :width] for each, width in zip(W, m.d, strict=True)], axis=1)
            score = fitted.intercept(v) + Phi @ fitted.coef
            share = 1.0 if one_owner else 1.0 / known[:, at].sum(axis=0)
        found = site_verdict(
            fitted,
            own,
            site.y,
            errors[v],
            W[v][site.own],
            c,
            local=None if local is None else local.left_out,
            score=score,
            share=share,
            precision=precisions[v],
            lone=lone,
        )
        done.append(TrainedSite(made[v][0], local, own, found, lone))
    return Trained(fitted, tuple(done))


def _told_noise(share: float, y: Arr, local: LocalModel | None, rng: np.random.Generator) -> Arr:
    """The noise that a site adds once to the labels that it tells."""
    spread = float(np.sqrt(np.mean(local.left_out**2))) if local is not None else float(y.std()) if len(y) else 0.0
    noise: Arr = share * spread * rng.normal(size=len(y)) if share else np.zeros(len(y))
    return noise


def _moments(
    sites: Sequence[SiteRows],
    inner: Sequence[Flags],
    told: Sequence[Arr],
    W: Sequence[Arr],
    known: Flags,
    n_common: int,
    d: int,
    rules: Additive,
    rng: np.random.Generator,
    one_owner: bool,
) -> tuple[Moments, Arr]:
    """Moments of the common rows, and the largest row norm of each feature's site."""
    widths = tuple(min(d, each.shape[1]) for each in W)
    Phi = np.concatenate([each[:n_common, :width] for each, width in zip(W, widths, strict=True)], axis=1)
    norms = [float(np.linalg.norm(each[:n_common], axis=1).max(initial=0.0)) or 1.0 for each in W]
    scale = np.repeat(norms, widths)
    owners = range(1) if one_owner else range(len(sites))
    n = np.array([float(len(told[v])) if v in owners else 0.0 for v in range(len(sites))])
    levels = np.array([told[v].mean() if n[v] else 0.0 for v in range(len(sites))])
    within = sum(float(np.sum((told[v] - levels[v]) ** 2)) for v in owners)
    C = Phi.T @ Phi / n_common
    if rules.noise:
        C = positive(C + _noise(widths, rules.noise, rng) * np.outer(scale, scale) / n_common)
    m = Moments(widths, C, n_common, n, levels, within, (), rules.noise)
    at = [sites[v].own[inner[v]] for v in owners]
    if sum(map(len, at)):
        y, owner = np.concatenate([told[v][inner[v]] for v in owners]), np.repeat(list(owners), list(map(len, at)))
        rows = np.concatenate(at)
        count = known.sum(axis=0) if not one_owner else np.ones(n_common)
        first = sums(Phi[rows], owner.astype(np.int64), y, 1.0 / count[rows], levels)
        m = replace(m, parts=(_noisy(first, m, scale, rules, rng),))
    return m, scale


def _noise(widths: tuple[int, ...], g: float, rng: np.random.Generator) -> Arr:
    """Each site's noise on the entries that have its features, (D, D)."""
    E, ends = np.zeros((sum(widths), sum(widths))), np.cumsum([0, *widths]).tolist()
    for a, b in pairwise(ends):
        F = np.zeros_like(E)
        F[a:b] = g * rng.normal(size=(b - a, len(E)))
        F[a:b, a:b] = (np.triu(F[a:b, a:b]) + np.triu(F[a:b, a:b], 1).T) / 2
        E += F + F.T
    return E


def _noisy(part: Sums, m: Moments, scale: Arr, rules: Additive, rng: np.random.Generator) -> Sums:
    """A part as a federation with noise opens it, and takes it into the fit."""
    if not rules.noise:
        return part
    P = part.P + _noise(m.d, rules.noise, rng) * np.outer(scale, scale)
    o = part.o + rules.noise * scale * rng.normal(size=part.o.shape) * (part.n > 0.0)[:, None]
    return steadied(replace(part, P=P, o=o), rules.noise, scale)


def _own(
    m: Moments, v: int, Wc: Arr, scale: Arr, W: Sequence[Arr], n_common: int, rules: Additive, rng: np.random.Generator
) -> Own:
    """The site's view of all features; the moments of its further features are opened to it alone, with noise."""
    Phi = np.concatenate([each[:n_common, :width] for each, width in zip(W, m.d, strict=True)], axis=1)
    C_Wx = Wc.T @ Phi / n_common
    if rules.noise:
        C_Wx[m.d[v] :] += (
            rules.noise * scale[m.blocks[v]].max() * scale * rng.normal(size=C_Wx[m.d[v] :].shape) / n_common
        )
        C_Wx[: m.d[v]] = m.C[m.blocks[v]]
        C_Wx[:, m.blocks[v]] = Wc.T @ Wc[:, : m.d[v]] / n_common
    return Own.of(m, v, Wc.T @ Wc / n_common, C_Wx)


def _private_sums(
    m: Moments,
    owns: Sequence[Own],
    W: Sequence[Arr],
    sites: Sequence[SiteRows],
    inner: Sequence[Flags],
    told: Sequence[Arr],
    precisions: Sequence[float],
    private: Sequence[int],
) -> Sums:
    """Sums over private rows, with the features that the owner's columns complete."""
    rows = [owns[v].complete(W[v][sites[v].own[~inner[v]]]) for v in private]
    y, counts = np.concatenate([told[v][~inner[v]] for v in private]), [len(each) for each in rows]
    owner, weight = np.repeat(private, counts).astype(np.int64), np.repeat([precisions[v] for v in private], counts)
    return sums(np.concatenate(rows), owner, y, weight, m.levels, count=float(len(y)), mode=NOISE_PRIVATE)
