r"""The exchange of second moments: the computations of one site, step by step, without sending,
sealing or signing.

| step | input | output |
|---|---|---|
| (1) `announce` | terms of all sites | the site's message of cross products |
| (2) `add` | all messages | the site's numbers of the sums, and a share for each other site |
| (3) `add_private` | the sums, shares for this site | numbers of sums over private rows, if any |
| (4) `parts` | these sums | parts of the score at rows of each other site |
| (5) `finish` | the others' parts | the verdicts; the site has its models |

Before the first step each site told its summary (`SiteStart.summary`), and all derived the same
`Terms`. A site adds its numbers to each sum, and reads the sum alone. The channel decides what a
number is (`coreg_core.additive.channel`): exact in memory, sealed words in a federation. With noise
0 both end alike, up to the words' rounding.

An exchange cannot go back a step: noise that was drawn twice for the same rows would tell them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, log2, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.channel import Channel, Numbers, SiteNumbers
from coreg_core.additive.check import Conclusion, OwnLabels, concluded, left_out_score
from coreg_core.additive.fit import fit
from coreg_core.additive.label_privacy import noise_variance
from coreg_core.additive.learned import ScoredRows
from coreg_core.additive.missing_features import Completion
from coreg_core.additive.moments import positive, precision
from coreg_core.additive.site_model import SiteModel
from coreg_core.additive.site_start import SiteStart
from coreg_core.additive.terms import (
    MOST_PRECISION,
    SCORE_GRAIN,
    SCORE_NOISE,
    Flags,
    Terms,
    full,
)
from coreg_core.additive.worth import Worth, worths
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import Refused
from coreg_core.objectives.additive import Additive
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import HEADROOM


class SiteExchange:
    """One site's half of an exchange."""

    def __init__(
        self,
        site: int,
        start: SiteStart,
        rules: Additive,
        channel: Channel,
        *,
        seed: int,
        random_bytes: cross.RandomBytes,
    ):
        self.site = site
        self.start = start
        self.seed = seed
        self.rules = rules
        self._channel = channel
        self._random = random_bytes
        self._kept: dict[int, Numbers] = {}
        # Scores of `Terms.scored` at the end, a column for each target.
        self.scores: Arr = np.zeros((0, rules.targets))
        self._own_scores: Arr | None = None  # of own labels in the sums; a row for each target

    def announce(self, terms: Terms, seed: bytes) -> Any:
        """(1) The message of cross products; ``seed`` is the digest of the attempt's chain."""
        self.terms = T = terms
        if not T.used.all():
            self.start = self.start.centred(T.used)
        start = self.start
        self.common = start.W[: start.n_common][T.used]
        self.mine = T.flags[self.site]
        entering = np.zeros(len(start.W), dtype=bool)
        entering[np.flatnonzero(T.used)[self.mine]] = True
        self.entering: Flags = entering[start.rows.own]
        self._labels = np.zeros((T.rows, len(T.targets)))
        self._labels[self.mine] = T.labels(start.told[self.entering], self.site)
        private = start.sent & ~start.inner & bool(T.private[self.site])
        self._private: Flags = np.asarray(private)
        W = self.common / T.norms[self.site]
        phi = W[:, : T.d[self.site]]
        Y = np.column_stack(
            [
                phi * T.labelled[:, None],
                phi,
                T.share[:, None] * self._labels,
                T.share * self.mine,
            ]
        )
        self._exact = Y.T @ W
        return self._channel.announce(W, Y, T.places, seed)

    def add(self, messages: Sequence[Any]) -> tuple[SiteNumbers, dict[int, Numbers]]:
        """(2) Numbers of P, C, b, o and scalars; block (v, u) of P and C is Y_vᵀW_u for v > u. Each
        is rounded once.
        """
        T = self.terms
        v = self.site
        e = T.exponent
        d = T.d[v]
        D = sum(T.d)
        K = len(T.targets)
        mine = T.blocks[v]
        exact = self._channel.number(self._exact[:, :d], e)
        P = self._zeros(D, D)
        C = self._zeros(D, D)
        b = self._zeros(K, D)
        o = self._zeros(T.n_sites, D)
        P[mine, mine] = exact[:d]
        C[mine, mine] = exact[d : 2 * d]
        b[:, mine] = exact[2 * d : 2 * d + K]
        o[v, mine] = exact[2 * d + K]
        shares = {}
        for u, message in enumerate(messages):
            if u == v:
                continue
            theirs = T.blocks[u]
            du = T.d[u]
            first, second = self._channel.shares(message)  # of Y_vᵀW_u, of Y_uᵀW_v
            if v > u:
                P[mine, theirs] = first[:d, :du]
                C[mine, theirs] = first[d : 2 * d, :du]
            else:
                P[theirs, mine] = second[:du, :d]
                C[theirs, mine] = second[du : 2 * du, :d]
            b[:, theirs] += first[2 * d : 2 * d + K, :du]
            b[:, mine] += second[2 * du : 2 * du + K, :d]
            o[v, theirs] = first[2 * d + K, :du]
            o[u, mine] = second[2 * du + K, :d]
            further = first[d : 2 * d, du:]
            shares[u] = self._channel.short(further + self._noise(further.shape, e))
            self._kept[u] = self._channel.short(second[du : 2 * du, d:])
        own = np.repeat(np.arange(T.n_sites) == v, T.d)
        touched = np.logical_or.outer(own, own)  # entries with own features
        P += self._noise(P.shape, e, touched)
        C += self._noise(C.shape, e, touched)
        o[:, mine] += self._noise((T.n_sites, d), e)
        labels = self._labels[self.mine]
        share = T.share[self.mine]
        scalars = np.zeros((K, T.n_sites + 1))
        scalars[:, v] = share @ labels
        scalars[:, -1] = share @ labels**2
        numbers = self._summands(P, b, o, self._channel.number(scalars.ravel(), e))
        numbers["C"] = self._channel.short(C)[np.tril_indices(D)]
        return numbers, shares

    def add_private(self, total: SiteNumbers, shares: Mapping[int, Numbers]) -> SiteNumbers | None:
        """(3) Open the sums, and add the site's private rows.

        The result is None if no site has private rows.
        """
        T = self.terms
        v = self.site
        d = T.d[v]
        D = sum(T.d)
        opened = self._opened(total, T.exponent)
        C = full(opened["C"], D)
        self._check(full(opened["P"], D), C)
        C = C / T.rows * np.outer(T.scale, T.scale)
        self._C = positive(C) if T.noise else C
        self._parts = [T.part(opened)] if T.n_labelled else []
        self._C_WW = self.common.T @ self.common / T.rows
        self._C_Wx = np.zeros((self.common.shape[1], D))
        self._C_Wx[:d] = self._C[T.blocks[v]]
        for u, share in shares.items():
            further = self._channel.of_short(share + self._kept[u], T.exponent).T
            self._C_Wx[d:, T.blocks[u]] = further * T.norms[u] * T.norms[v] / T.rows
        self._C_Wx[:, T.blocks[v]] = self._C_WW[:, :d]
        if not T.private.any():
            return None
        p = np.zeros((D, D))
        o = np.zeros((T.n_sites, D))
        K = len(T.targets)
        b = np.zeros((K, D))
        of_labels = np.zeros((K, T.n_sites + 1))
        weights = np.zeros(T.n_sites)
        if self._private.any():
            x = self._completed()
            t = T.labels(self.start.told[self._private], v)
            w = self._precision
            p = w * x.T @ x
            b = w * t.T @ x
            o[v] = w * x.sum(axis=0)
            of_labels[:, v] = w * t.sum(axis=0)
            of_labels[:, -1] = w * (t**2).sum(axis=0)
            weights[v] = w * len(t)
            p = p + self._normal(p.shape)
            o = o + (T.private > 0)[:, None] * self._normal(o.shape)
        scalars = np.concatenate([of_labels.ravel(), weights])
        return self._summands(
            *(self._channel.number(values, T.private_exponent) for values in (p, b, o, scalars))
        )

    def parts(self, total: SiteNumbers | None, normals: Float64[Arr, "t r"]) -> dict[int, Numbers]:
        """(4) The fit, and numbers of this site's parts of the score for each other site
        (`Terms.rows_scored_for`).

        ``normals``: always the same one for an individual and a model.
        """
        T = self.terms
        v = self.site
        self._fit(total)
        betas = np.array([of_target.coef for of_target in self.fits])
        bound = self._score_bound(betas)
        self.score_exponent = HEADROOM - ceil(log2(bound))
        part = betas[:, T.blocks[v]] @ self.start.W[: self.start.n_common, : T.d[v]].T
        self._part = part[:, T.rows_scored_for(v)]
        if T.noise:  # An exact score would be an equation of 53 bits about the features.
            deviations = np.array([[of.deviation] for of in T.targets])
            grain = SCORE_GRAIN * deviations
            part = np.rint((part + SCORE_NOISE * deviations * normals) / grain) * grain
            part = np.clip(part, -bound / T.n_sites, bound / T.n_sites)
        numbers = self._channel.number(part, self.score_exponent)
        parts = {}
        for u in range(T.n_sites):
            rows = T.rows_scored_for(u)
            if u != v and len(rows):
                parts[u] = numbers[:, rows].ravel()
        return parts

    def _fit(self, total: SiteNumbers | None) -> None:
        """The fit of each target, the same at all sites, and this site's view of all features."""
        T = self.terms
        if total is not None:
            opened = self._opened(total, T.private_exponent)
            self._parts.append(T.part(opened, private=True))
        moments = [
            T.moments(self._C, tuple(part[k] for part in self._parts), k)
            for k in range(len(T.targets))
        ]
        self.fits = [fit(of_target) for of_target in moments]
        own = Completion.of(moments[0], self.site, self._C_WW, self._C_Wx)
        self.owns = [replace(own, moments=of_target) for of_target in moments]

    def _score_bound(self, betas: Float64[Arr, "t D"]) -> float:
        """What no sum of parts exceeds."""
        T = self.terms
        sizes = [
            norm * float(np.linalg.norm(betas[:, block], axis=1).max())
            for norm, block in zip(T.norms, T.blocks, strict=True)
        ]
        return float(T.n_sites * max(sizes) + 1e-300)

    def finish(self, received: Sequence[Numbers]) -> tuple[Conclusion, ...]:
        """(5) For each target the verdict by own labels, and a joined model that learns from
        scores.

        ``received``: each other site's parts; of two sites that do not score together none comes.
        """
        if len(received) == self.terms.n_sites - 1:
            others = np.zeros(self._part.shape)
            if received:
                numbers = np.sum(received, axis=0, dtype=received[0].dtype)
                others = self._channel.value(numbers, self.score_exponent).reshape(others.shape)
            intercepts = np.array([[f.intercept(self.site)] for f in self.fits])
            scores = intercepts + self._part + others
            n_own = int(self.mine.sum())
            self._own_scores = scores[:, :n_own]
            self.scores = scores[:, n_own:].T
        return tuple(self._concluded(target) for target in range(len(self.fits)))

    def _concluded(self, target: int) -> Conclusion:
        scored = None
        if self._own_scores is not None:
            X = self.start.rows.X[self.terms.scored]
            scored = ScoredRows(X, self.scores[:, target])
        return concluded(
            self.fits[target],
            self.owns[target],
            self._own_labels(target),
            scored,
            seed=self.seed,
            kernel=self.rules.kernel,
        )

    def _own_labels(self, target: int) -> OwnLabels:
        order = self._order()
        weight = np.where(self._private, self._precision, 0.0)
        weight[self.entering] = self.terms.share[self.mine]
        start = self.start
        own = start.rows.own[order]
        local = start.local_models[target]
        return OwnLabels(
            X=start.rows.X[own],
            W=start.W[own],
            y=start.y[order, target],
            error=start.error[order, target],
            weight=weight[order],
            n_common=int(self.mine.sum()),
            score=None if self._own_scores is None else self._own_scores[target],
            local=None if local is None else local.left_out[order],
            private_noise=self.private_noise,
        )

    def _order(self) -> Ints:
        """The labels: those of common rows in the sums first, as the verdict has them."""
        return np.argsort(~self.entering, kind="stable")

    @property
    def judged_labels(self) -> Arr:
        """Own labels in the order of the verdict."""
        return np.asarray(self.start.rows.y[self._order()])

    def told_gain(self) -> float | None:
        """The relative change of the score's error against the local model's, by labels that were
        told: the one that may leave under `label_epsilon`.

        The variance of the labels' noise is in both errors, so it is subtracted. None: there are no
        scores, or the noise is larger than the error. This local model then learnt mostly noise.
        """
        left_out = self.start.told_left_out
        scores = self._own_scores
        if scores is None or not self.mine.any() or not all(map(len, left_out)):
            return None
        kept = self.entering[self.start.sent]
        sent_labels = self.start.told[self.entering]
        score = 0.0
        local = 0.0
        for k, fit_k in enumerate(self.fits):
            score += float(np.mean(left_out_score(fit_k, sent_labels[:, k], scores[k]) ** 2))
            local += float(np.mean(left_out[k][kept] ** 2))
        noise = noise_variance(self.rules) * len(self.fits)
        if local - noise < noise:
            return None
        return sqrt(max(score - noise, 0.0) / (local - noise)) - 1.0

    def partners(self) -> dict[int, Worth | None]:
        """What each other site's columns bring to the score; nothing for several classes.

        The noise on this site's labels stands for that on all labels. So the worths are too small
        at a site without labels.
        """
        if len(self.fits) > 1:
            return {}
        others = [v for v in range(self.terms.n_sites) if v != self.site]
        return worths(self.fits[0], others, self.start.error_variance)

    def models(self, conclusions: Sequence[Conclusion]) -> tuple[SiteModel, ...]:
        """The site's models of each target, with its verdict."""
        start = self.start
        return tuple(
            SiteModel.of(fit_k, own, start.features, local, conclusion, self.private_noise)
            for fit_k, own, local, conclusion in zip(
                self.fits, self.owns, start.local_models, conclusions, strict=True
            )
        )

    @property
    def private_noise(self) -> float | None:
        """The inverse precision of private rows, where there are no other labels."""
        alone = self._private.any() and not self.terms.n_labelled
        if alone:
            return 1.0 / self._precision
        return None

    @cached_property
    def _precision(self) -> float:
        """The weight of a private row; 1 where labels of some target are equal.

        Of several targets the mean of their squared errors counts.
        """
        if not all(map(len, self.start.told_left_out)):
            return 1.0
        scaled = [
            left_out / of.deviation
            for left_out, of in zip(self.start.told_left_out, self.terms.targets, strict=True)
        ]
        error = np.sqrt(np.mean(np.square(scaled), axis=0))
        return min(precision(error, 1.0), MOST_PRECISION)

    def _completed(self) -> Float64[Arr, "n D"]:
        """Features of private rows, divided by the norms and by √M, and clipped at norm 1."""
        T = self.terms
        W = self.start.W[self.start.rows.own[self._private]]
        k = min(W.shape[1], max(T.d[self.site], len(W) // 2))
        own = Completion.of(T.moments(self._C, ()), self.site, self._C_WW[:k, :k], self._C_Wx[:k])
        x = own.complete(W[:, :k]) / (T.scale * sqrt(T.n_sites))
        return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1), 1.0)[:, None])

    def _check(self, P: Arr, C: Arr) -> None:
        limit = 8 * self.terms.noise + 1e-3
        D = len(P)
        size = np.sqrt(np.maximum(np.diag(P) + limit, 0.0))
        mine = self.terms.blocks[self.site]
        d = self.terms.d[self.site]
        beyond = [np.linalg.eigvalsh(matrix)[0] + 2 * limit * sqrt(D) for matrix in (P, C)]
        beyond += [(np.outer(size, size) + limit - np.abs(P)).min()]
        beyond += [limit - np.abs(P[mine, mine] - self._exact[:d, :d]).max()]
        if min(beyond) < 0:
            raise Refused(
                "the opened second moments cannot be those of any columns: a site or the"
                " coordinator changed them."
            )

    def _normal(self, shape: tuple[int, ...]) -> Arr:
        """Noise in the unit of a sum over common rows."""
        if not self.terms.noise:
            return np.zeros(shape)
        return self.terms.noise * cross.normal(shape, self._random)

    def _noise(
        self, shape: tuple[int, ...], exponent: int, entries: Flags | bool = True
    ) -> Numbers:
        """Noise on these entries."""
        return self._channel.number(self._normal(shape) * entries, exponent)

    def _zeros(self, *shape: int) -> Numbers:
        return self._channel.number(np.zeros(shape), 0)

    def _summands(self, P: Numbers, b: Numbers, o: Numbers, scalars: Numbers) -> SiteNumbers:
        """Each number rounded once; scalars whole."""
        short = self._channel.short
        return {
            "P": short(P)[np.tril_indices(len(P))],
            "b": short(b.ravel()),
            "o": short(o),
            "scalars": self._channel.halves(scalars),
        }

    def _opened(self, total: SiteNumbers, exponent: int) -> dict[str, Arr]:
        opened = {
            name: self._channel.of_short(numbers, exponent)
            for name, numbers in total.items()
            if name != "scalars"
        }
        opened["scalars"] = self._channel.of_halves(total["scalars"], exponent)
        return opened
