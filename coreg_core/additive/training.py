r"""A whole additive training with all sites' rows in memory: the estimators, and studies of what a
federation would reach.

It runs the exchange of a federation (`coreg_core.additive.exchange`) over a channel of exact sums,
with sizes that need no rule of privacy: `sizes` in place of `terms_of`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.channel import ExactSums, SiteNumbers, total
from coreg_core.additive.check import Conclusion, Verdict
from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.features import FeatureSettings, SiteRows, sizes
from coreg_core.additive.fit import Fit
from coreg_core.additive.label_privacy import randomised
from coreg_core.additive.missing_features import Completion
from coreg_core.additive.site_model import ClassModel, SiteModel, model_of
from coreg_core.additive.site_start import SiteStart, started
from coreg_core.additive.terms import Terms, terms_in_memory
from coreg_core.arrays import Arr
from coreg_core.errors import BadData
from coreg_core.objectives.additive import IN_MEMORY, Additive
from coreg_core.threads import one_thread


@dataclass(frozen=True, eq=False)
class TrainedSite:
    """What a site has at the end; of several targets there is a verdict for each."""

    model: SiteModel | ClassModel
    verdicts: tuple[Verdict, ...]
    own: Completion  # the view of all features, of the first target
    private_noise: float | None  # the inverse precision, where all labelled rows are private

    @property
    def verdict(self) -> Verdict:
        """Of the first target."""
        return self.verdicts[0]


@dataclass(frozen=True, eq=False)
class TrainedFederation:
    """A federation's training: the fit of each target, and each site's models."""

    fits: tuple[Fit, ...]
    sites: tuple[TrainedSite, ...]

    def score(self, features: Sequence[Float64[Arr, "n _"] | None], site: int | None = None) -> Arr:
        """The score, (n,) or of several targets (n, t).

        ``features``: each site's `SiteModel.phi` of the rows, None for a missing site. ``site``:
        the label owner; None: the mean of the owners.
        """
        present = [v for v, phi in enumerate(features) if phi is not None]
        parts = [
            site.model.part(phi, present)
            for site, phi in zip(self.sites, features, strict=True)
            if phi is not None
        ]
        intercepts = np.array([fit.intercept(site) for fit in self.fits])
        return np.asarray(
            np.sum(parts, axis=0) + (intercepts if len(intercepts) > 1 else intercepts[0])
        )

    def site_score(
        self, site: int, features: Sequence[Float64[Arr, "n _"] | None], X: Float64[Arr, "n p"]
    ) -> Arr:
        """The score of a site as its verdict corrects it; ``X``: its own columns of the rows."""
        model = self.sites[site].model
        return model.correct_score(self.score(features, site), model.alone(X), X)


def _sizes(sites: Sequence[SiteRows], n_common: int, rules: Additive) -> tuple[int, int]:
    """(d, k) of all sites. BadData: fewer than two labels."""
    common = [site.own[site.own < n_common] for site in sites]
    n_private = sum(len(site.own) for site in sites) - sum(map(len, common))
    n_labelled = len(np.unique(np.concatenate(common))) + n_private
    if n_labelled < 2:
        raise BadData(
            f"{n_labelled} labels in all sites together ({n_labelled} sample): an additive"
            " model needs at least two."
        )
    if rules.kernel == "linear":
        columns = max(site.X.shape[1] for site in sites)
        return columns, columns
    return sizes(n_labelled, n_common, rules.rows_per_feature)


def _normals(rng: np.random.Generator, count: int, _size: float) -> Arr:
    return rng.normal(size=count)


def _starts(
    sites: Sequence[SiteRows],
    settings: Sequence[FeatureSettings],
    rules: Additive,
    *,
    one_owner: bool,
    rng: np.random.Generator,
) -> list[SiteStart]:
    return [
        started(
            site,
            of_site,
            rules,
            label_normals=partial(_normals, rng, len(site.y)),
            randomised=(
                randomised(site.y, rules, rng.random((len(site.y), 2)))
                if rules.private_labels
                else None
            ),
            sent=np.full(len(site.y), v == 0 or not one_owner),
        )
        for v, (site, of_site) in enumerate(zip(sites, settings, strict=True))
    ]


@one_thread()
def train(
    sites: Sequence[SiteRows],
    n_common: int,
    *,
    seed: int = 0,
    rules: Additive = IN_MEMORY,
    one_owner: bool = False,
) -> TrainedFederation:
    """Train on the rows of all sites.

    ``one_owner``: all have the same labels of the same common rows, and each counts once.
    """
    d, k = _sizes(sites, n_common, rules)
    rng = np.random.default_rng([seed, 1])
    seeds = np.random.default_rng(seed).integers(2**31, size=len(sites)).tolist()
    settings = [FeatureSettings(n_common, k, of_site, rules.kernel) for of_site in seeds]
    starts = _starts(sites, settings, rules, one_owner=one_owner, rng=rng)
    terms = terms_in_memory(rules, [start.summary() for start in starts], d)
    exchanges = [
        SiteExchange(v, start, rules, ExactSums(), seed=seed, random_bytes=rng.bytes)
        for v, (start, seed) in enumerate(zip(starts, seeds, strict=True))
    ]
    normals = [rng.normal(size=(rules.targets, n_common)) for _ in sites]
    conclusions = run_in_memory(exchanges, terms, normals)
    return TrainedFederation(
        fits=tuple(exchanges[0].fits),
        sites=tuple(
            TrainedSite(
                model=model_of(site.models(of_targets)),
                verdicts=tuple(conclusion.verdict for conclusion in of_targets),
                own=site.owns[0],
                private_noise=site.private_noise,
            )
            for site, of_targets in zip(exchanges, conclusions, strict=True)
        ),
    )


def run_in_memory(
    exchanges: Sequence[SiteExchange], terms: Terms, normals: Sequence[Float64[Arr, "t r"]]
) -> list[tuple[Conclusion, ...]]:
    """All steps of an exchange between sites of one process, with any channel."""
    of_private_rows = _opened(exchanges, terms)
    # (4) and (5)
    parts = [
        site.parts(of_private_rows, noise) for site, noise in zip(exchanges, normals, strict=True)
    ]
    return [
        site.finish([answer[v] for answer in parts if v in answer])
        for v, site in enumerate(exchanges)
    ]


def _opened(exchanges: Sequence[SiteExchange], terms: Terms) -> SiteNumbers | None:
    """Steps (1) to (3): the sums over private rows, None if no site has such rows."""
    messages = [site.announce(terms, bytes(32)) for site in exchanges]
    answers = [site.add(messages) for site in exchanges]
    opened = total([numbers for numbers, _ in answers])
    private = []
    for v, site in enumerate(exchanges):
        shares = {u: shares[v] for u, (_, shares) in enumerate(answers) if u != v}
        numbers = site.add_private(opened, shares)
        if numbers is not None:
            private.append(numbers)
    if private:
        return total(private)
    return None
