r"""The exchange of second moments: the computations of one site, step by step, without sending,
sealing or signing.

| step | input | output |
|---|---|---|
| `summary` | | `SiteSummary`: labelled common individuals, sizes, level and deviation of labels |
| `announce` | all summaries | the site's message of cross products |
| `add` | all messages | the site's words of the sums, and a share for each other site |
| `add_private` | the sum of words, shares for this site | words of sums over private rows, if any |
| `parts` | the sum of these words | parts of the score at rows of each other site |
| `finish` | the sum of the others' parts | the verdict; the site has its models |

`Words` maps a name to words modulo 2⁶⁴. A site opens sums of words, and no other site's words. With
noise 0 the result equals training in memory within the fixed-point error, for the same features,
sizes and labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, floor, log2, log10, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64, UInt64

from coreg_core.additive.check import Conclusion, OwnLabels, concluded, left_out_score
from coreg_core.additive.features import SiteRows, fit_features_of
from coreg_core.additive.label_privacy import columns_of, noise_variance, unbiased
from coreg_core.additive.learned import ScoredRows
from coreg_core.additive.moments import Own, fit, positive, precision
from coreg_core.additive.site_model import SiteModel
from coreg_core.additive.terms import (
    MOST_PRECISION,
    SCORE_GRAIN,
    SCORE_NOISE,
    Flags,
    SiteSummary,
    Some,
    Terms,
    full,
    value,
    word,
)
from coreg_core.additive.worth import Worth, worths
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import Refused
from coreg_core.objectives.additive import MOST_OWN, Additive
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import HEADROOM, WORD

Words: TypeAlias = dict[str, Some]


class SiteExchange:
    """One site's half of an exchange."""

    def __init__(
        self,
        site: int,
        n_sites: int,
        rules: Additive,
        data: SiteRows,
        n_common: int,
        *,
        seed: int,
        label_normals: Float64[Arr, " l"],
        random_bytes: cross.RandomBytes,
        scores: bool = True,
        randomised: Arr | None = None,  # labels, if the plan has label_epsilon
    ):
        """``data.y``: numbers, or places among the plan's classes."""
        self.site = site
        self._seed = seed
        self._scores = scores
        self._rules = rules
        self._data = data
        self._n_common = n_common
        self._random = random_bytes
        k = int(
            min(
                MOST_OWN,
                n_common / rules.rows_per_feature,
                cross.MOST_ENCRYPTED / max(n_sites - 1, 1),
            )
        )
        self._y = columns_of(data.y, rules.classes)
        _, self.local_models, _ = fit_features_of(
            data.X, n_common, data.own, self._y, k=k, seed=seed, kernel=rules.kernel
        )
        inner = data.own < n_common
        counts = [(~inner).sum(), inner.sum()]  # of private labels, of common ones
        enough = np.array([each >= rules.least_labels for each in counts])
        self._inner: Flags = inner
        self._sent: Flags = enough[inner.astype(int)]
        if randomised is None:
            spread = float(np.std(data.y)) if len(data.y) else 0.0
            if (local := self.local_models[0]) is not None:
                spread = float(np.sqrt(np.mean(local.left_out**2)))
            self._label_noise = (rules.label_noise * spread) ** 2
            self._error: Arr = (rules.label_noise * spread * label_normals)[:, None]
            self._noisy: Arr = self._y + self._error
        else:
            self._label_noise = noise_variance(rules)
            self._noisy = unbiased(randomised, rules)
            self._error = self._noisy - self._y
        # Features use the labels that the site sends, as it sends them.
        self.features, noisy, W = fit_features_of(
            data.X,
            n_common,
            data.own[self._sent],
            self._noisy[self._sent],
            k=k,
            seed=seed,
            kernel=rules.kernel,
        )
        self._kept: dict[int, Some] = {}
        # Scores of `Terms.scored` at the end, a column for each target.
        self.scores: Arr = np.zeros((0, rules.targets))
        self._W = W
        none = np.zeros(0)
        self._noisy_left_out = [none if local is None else local.left_out for local in noisy]

    def summary(self) -> SiteSummary:
        """The first step."""
        flags = np.zeros(self._n_common, dtype=bool)
        y = self._noisy[self._sent]
        flags[self._data.own[self._sent & self._inner]] = True
        told = [(0.0, 0.0)] * y.shape[1]
        if len(y):
            told = [_two_digits(float(t.mean()), float(t.std(ddof=1))) for t in y.T]
        levels, deviations = zip(*told, strict=True)
        norm = float(np.linalg.norm(self._W[: self._n_common], axis=1).max())
        # A power of 2^(1/4) discloses little of the largest row.
        norm = 2.0 ** (ceil(4 * log2(norm) - 1e-9) / 4) * (1 + 1e-12) if norm > 0 else 1.0
        private = int((self._sent & ~self._inner).sum())
        width = self._W.shape[1]
        return SiteSummary(flags, width, norm, levels, deviations, private, self._scores)

    def announce(self, summaries: Sequence[SiteSummary], seed: bytes) -> cross.Message:
        """The second step; ``seed`` is the digest of the attempt's chain.

        Raises `Refused` by the rules.
        """
        X, Y = self.meet(summaries)
        e, f = self.terms.places
        self._secret, message = cross.announce(
            seed, cross.fixed(X, e), cross.fixed(Y, f), self._random
        )
        return message

    def meet(self, summaries: Sequence[SiteSummary]) -> tuple[Arr, Arr]:
        """The columns W and Y of this site's messages, by what all sites told."""
        self.terms = T = Terms(self._rules, summaries)
        if not T.used.all():
            self._centre(T.used)
        self._common = self._W[: self._n_common][T.used]
        self._mine = T.flags[self.site]
        entering = np.zeros(len(self._W), dtype=bool)
        entering[np.flatnonzero(T.used)[self._mine]] = True
        self._entering: Flags = entering[self._data.own]
        self._labels = np.zeros((T.rows, len(T.targets)))
        self._labels[self._mine] = T.labels(self._noisy[self._entering], self.site)
        private = self._sent & ~self._inner & bool(T.private[self.site])
        self._private: Flags = np.asarray(private)
        X = self._common / T.norms[self.site]
        phi = self._common[:, : T.d[self.site]] / T.norms[self.site]
        Y = np.column_stack(
            [
                phi * T.labelled[:, None],
                phi,
                T.share[:, None] * self._labels,
                T.share * self._mine,
            ]
        )
        self._exact = Y.T @ X
        return X, Y

    def _centre(self, used: Flags) -> None:
        """Centre the features over these common rows."""
        centre = self._W[: self._n_common][used].mean(axis=0)
        self.features = replace(self.features, centre=self.features.centre + centre)
        self._W = self._W - centre

    def add(
        self, messages: Sequence[cross.Message]
    ) -> tuple[Words, dict[int, UInt64[np.ndarray, "d r"]]]:
        """The third step: words of P, C, b, o and scalars; block (v, u) of P and C is Y_vᵀW_u for v
        > u. Each is rounded once.
        """
        T = self.terms
        v = self.site
        e = T.exponent
        d = T.d[v]
        D = sum(T.d)
        K = len(T.targets)
        mine = T.blocks[v]
        P, C, b, o = (
            np.zeros(shape, dtype=WORD) for shape in ((D, D), (D, D), (K, D), (T.n_sites, D))
        )
        P[mine, mine] = word(self._exact[:d, :d], e)
        C[mine, mine] = word(self._exact[d : 2 * d, :d], e)
        b[:, mine] = word(self._exact[2 * d : 2 * d + K, :d], e)
        o[v, mine] = word(self._exact[2 * d + K, :d], e)
        shares = {}
        for u, message in enumerate(messages):
            if u == v:
                continue
            theirs = T.blocks[u]
            du = T.d[u]
            first = self._secret.share_of_own_projection(message.encrypted)  # of Y_vᵀW_u
            second = self._secret.share_of_own_encryption(message.projected)  # of Y_uᵀW_v
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
            shares[u] = cross.rounded(further + self._noise(further.shape, e))
            self._kept[u] = cross.rounded(second[du : 2 * du, d:])
        own = np.repeat(np.arange(T.n_sites) == v, T.d)
        touched = np.logical_or.outer(own, own).astype(WORD)  # entries with own features
        P += self._noise(P.shape, e) * touched
        C += self._noise(C.shape, e) * touched
        o[:, mine] += self._noise((T.n_sites, d), e)
        labels = self._labels[self._mine]
        share = T.share[self._mine]
        scalars = np.zeros((K, T.n_sites + 1))
        scalars[:, v] = share @ labels
        scalars[:, -1] = share @ labels**2
        words = _rounded(P, b.ravel(), o, scalars.ravel(), e) | {
            "C": cross.rounded(C)[np.tril_indices(D)]
        }
        return words, shares

    def add_private(self, total: Mapping[str, Some], shares: Mapping[int, Some]) -> Words | None:
        """The fourth step: open the sums, and add the site's private rows.

        The result is None if no site has private rows.
        """
        T = self.terms
        v = self.site
        d = T.d[v]
        D = sum(T.d)
        P, C = (full(cross.opened(total[name], T.exponent), D) for name in ("P", "C"))
        self._check(P, C)
        C = C / T.rows * np.outer(T.scale, T.scale)
        self._C = positive(C) if T.noise else C
        self._parts = [T.part(total)] if T.n_labelled else []
        self._C_WW = self._common.T @ self._common / T.rows
        self._C_Wx = np.zeros((self._common.shape[1], D))
        self._C_Wx[:d] = self._C[T.blocks[v]]
        for u, share in shares.items():
            further = cross.opened(share + self._kept.get(u, np.uint64(0)), T.exponent).T
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
            t = T.labels(self._noisy[self._private], v)
            w = self._precision
            p = w * x.T @ x
            b = w * t.T @ x
            o[v] = w * x.sum(axis=0)
            of_labels[:, v] = w * t.sum(axis=0)
            of_labels[:, -1] = w * (t**2).sum(axis=0)
            weights[v] = w * len(t)
            p = p + T.noise * self._normal(p.shape)
            o = o + T.noise * (T.private > 0)[:, None] * self._normal(o.shape)
        e = T.private_exponent
        scalars = np.concatenate([of_labels.ravel(), weights])
        return _rounded(word(p, e), word(b.ravel(), e), word(o, e), scalars, e)

    def parts(
        self, total: Mapping[str, Some] | None, normals: Float64[Arr, "t r"]
    ) -> dict[int, UInt64[np.ndarray, " q"]]:
        """The fifth step: the fit, and words of this site's parts of the score for each other site
        (`Terms.rows_scored_for`).
        """
        # ``normals``: always the same one for an individual and a model.
        T = self.terms
        v = self.site
        if total is not None:
            self._parts.append(T.part(total, private=True))
        moments = [
            T.moments(self._C, tuple(part[k] for part in self._parts), k)
            for k in range(len(T.targets))
        ]
        self.fits = [fit(m) for m in moments]
        own = Own.of(moments[0], v, self._C_WW, self._C_Wx)
        self.owns = [replace(own, moments=m) for m in moments]
        betas = np.array([f.coef for f in self.fits])
        bound = self._score_bound(betas)
        self._score_exponent = HEADROOM - ceil(log2(bound))
        part = betas[:, T.blocks[v]] @ self._W[: self._n_common, : T.d[v]].T
        self._part = part[:, T.rows_scored_for(v)]
        if T.noise:  # An exact score would be an equation of 53 bits about the features.
            deviations = np.array([[of.deviation] for of in T.targets])
            grain = SCORE_GRAIN * deviations
            part = np.rint((part + SCORE_NOISE * deviations * normals) / grain) * grain
            part = np.clip(part, -bound / T.n_sites, bound / T.n_sites)
        rows = {u: T.rows_scored_for(u) for u in range(T.n_sites) if u != v}
        words = word(part, self._score_exponent)
        return {u: words[:, at].ravel() for u, at in rows.items() if len(at)}

    def _score_bound(self, betas: Float64[Arr, "t D"]) -> float:
        """What no sum of parts exceeds."""
        T = self.terms
        sizes = [
            norm * float(np.linalg.norm(betas[:, block], axis=1).max())
            for norm, block in zip(T.norms, T.blocks, strict=True)
        ]
        return float(T.n_sites * max(sizes) + 1e-300)

    def finish(self, words: UInt64[np.ndarray, " q"] | None) -> tuple[Conclusion, ...]:
        """The last step: for each target the verdict by own labels, and a joined model that learns
        from scores.

        ``words``: the sum of the others' parts, None if none came.
        """
        own: list[Arr | None] = [None] * len(self.fits)
        scored: list[ScoredRows | None] = [None] * len(self.fits)
        if words is not None:
            others = value(words.reshape(self._part.shape), self._score_exponent)
            intercepts = np.array([[f.intercept(self.site)] for f in self.fits])
            scores = intercepts + self._part + others
            c = int(self._mine.sum())
            own = list(scores[:, :c])
            self.scores = scores[:, c:].T
            X = self._data.X[self.terms.scored]
            scored = [ScoredRows(X, column) for column in self.scores.T]
        self._own_scores = own
        return tuple(
            concluded(
                fit_k,
                own_k,
                self._own_labels(k),
                score,
                of_others,
                seed=self._seed,
                kernel=self._rules.kernel,
            )
            for k, (fit_k, own_k, score, of_others) in enumerate(
                zip(self.fits, self.owns, own, scored, strict=True)
            )
        )

    def _own_labels(self, target: int) -> OwnLabels:
        order = self._order()
        weight = np.where(self._private, self._precision, 0.0)
        weight[self._entering] = self.terms.share[self._mine]
        own = self._data.own[order]
        local = self.local_models[target]
        return OwnLabels(
            self._data.X[own],
            self._W[own],
            self._y[order, target],
            self._error[order, target],
            weight[order],
            int(self._mine.sum()),
            None if local is None else local.left_out[order],
            self._lone,
        )

    def _order(self) -> Ints:
        """The labels: those of common rows in the sums first, as the verdict has them."""
        return np.argsort(~self._entering, kind="stable")

    @property
    def judged_labels(self) -> Arr:
        """Own labels in the order of the verdict."""
        return np.asarray(self._data.y[self._order()])

    def told_gain(self) -> float | None:
        """The relative change of the score's error against the local model's, by labels that were
        told: the one that may leave under `label_epsilon`.

        The variance of the labels' noise is in both errors, so it is subtracted. None: there are no
        scores, or the noise is larger than the error. This local model then learnt mostly noise.
        """
        if not self._mine.any() or not all(map(len, self._noisy_left_out)):
            return None
        score = 0.0
        local = 0.0
        kept = self._entering[self._sent]
        told = self._noisy[self._entering]
        for k, (fit_k, scores) in enumerate(zip(self.fits, self._own_scores, strict=True)):
            if scores is None:
                return None
            score += float(np.mean(left_out_score(fit_k, told[:, k], scores) ** 2))
            local += float(np.mean(self._noisy_left_out[k][kept] ** 2))
        noise = noise_variance(self._rules) * len(self.fits)
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
        return worths(self.fits[0], others, self._label_noise)

    def models(self, found: Sequence[Conclusion]) -> tuple[SiteModel, ...]:
        """The site's models of each target, with its verdict."""
        return tuple(
            SiteModel.of(fit_k, own, self.features, local, conclusion, self._lone)
            for fit_k, own, local, conclusion in zip(
                self.fits, self.owns, self.local_models, found, strict=True
            )
        )

    @property
    def _lone(self) -> float | None:
        """The inverse precision of private rows, where there are no other labels."""
        alone = self._private.any() and not self.terms.n_labelled
        return 1.0 / self._precision if alone else None

    @cached_property
    def _precision(self) -> float:
        """The weight of a private row; 1 where labels of some target are equal.

        Of several targets the mean of their squared errors counts.
        """
        if not all(map(len, self._noisy_left_out)):
            return 1.0
        scaled = [
            left_out / of.deviation
            for left_out, of in zip(self._noisy_left_out, self.terms.targets, strict=True)
        ]
        error = np.sqrt(np.mean(np.square(scaled), axis=0))
        return min(precision(error, 1.0), MOST_PRECISION)

    def _completed(self) -> Float64[Arr, "n D"]:
        """Features of private rows, divided by the norms and by √M, and clipped at norm 1."""
        T = self.terms
        W = self._W[self._data.own[self._private]]
        k = min(W.shape[1], max(T.d[self.site], len(W) // 2))
        own = Own.of(T.moments(self._C, ()), self.site, self._C_WW[:k, :k], self._C_Wx[:k])
        x = own.complete(W[:, :k]) / (T.scale * sqrt(T.n_sites))
        return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1), 1.0)[:, None])

    def _check(self, P: Arr, C: Arr) -> None:
        limit = 8 * self.terms.noise + 1e-3
        D = len(P)
        size = np.sqrt(np.maximum(np.diag(P) + limit, 0.0))
        mine = self.terms.blocks[self.site]
        d = self.terms.d[self.site]
        beyond = [np.linalg.eigvalsh(each)[0] + 2 * limit * sqrt(D) for each in (P, C)]
        beyond += [(np.outer(size, size) + limit - np.abs(P)).min()]
        beyond += [limit - np.abs(P[mine, mine] - self._exact[:d, :d]).max()]
        if min(beyond) < 0:
            raise Refused(
                "the opened second moments cannot be those of any columns: a site or the"
                " coordinator changed them."
            )

    def _normal(self, shape: tuple[int, ...]) -> Arr:
        return cross.normal(shape, self._random)

    def _noise(self, shape: tuple[int, ...], exponent: int) -> Some:
        return word(self.terms.noise * self._normal(shape), exponent)


def total(answers: Sequence[Words]) -> Words:
    """The sum of all sites' words, which the sealed sum opens."""
    return {
        name: np.asarray(np.sum([each[name] for each in answers], axis=0, dtype=WORD))
        for name in answers[0]
    }


def _rounded(P: Some, b: Some, o: Some, scalars: Arr, exponent: int) -> Words:
    """Each word rounded once; scalars whole, in two halves of 32 bits."""
    whole = word(scalars, exponent)
    halves = np.stack([whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)])
    lower = cross.rounded(P)[np.tril_indices(len(P))]
    return {"P": lower, "b": cross.rounded(b), "o": cross.rounded(o), "scalars": halves}


def _two_digits(level: float, deviation: float) -> tuple[float, float]:
    """The deviation with two digits, and the level to the same decimal place."""
    if not deviation > 0.0:
        return level, 0.0
    step = 10.0 ** (floor(log10(deviation)) - 1)
    return round(level / step) * step, round(deviation / step) * step
