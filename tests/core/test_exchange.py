"""The exchange of second moments in one process.

Each site uses only what it received, and gets the result of exact sums.
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.additive import refined
from coreg_core.additive.channel import ExactSums, SealedSums, total
from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.features import FeatureSettings, SiteRows
from coreg_core.additive.site_start import started
from coreg_core.additive.terms import SiteSummary, own_features, terms_of
from coreg_core.additive.training import run_in_memory
from coreg_core.errors import Refused
from coreg_core.objectives.additive import Additive
from coreg_core.secure import cross_products as cross

EXACT = Additive(noise=0.0, label_noise=0.0)


def shorten(patch):
    """A short secret gives the same sums. test_cross_products.py tests the real length."""
    patch.setattr(cross, "SECRET_ROWS", 64)
    patch.setattr(cross, "RANDOM_ROWS", 320)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@dataclass(frozen=True)
class Problem:
    """Sites of a target that is a sum of parts.

    The first ``twice`` labelled individuals of the first site have a second label, of the next
    site.
    """

    common: int
    labelled: tuple[int, ...]
    private: tuple[int, ...]
    seed: int
    twice: int = 25


@dataclass(frozen=True)
class Drawn:
    starts: list
    new: list  # 400 new rows, a table for each site
    truth: np.ndarray  # of them


def drawn(problem, rules):
    g = default_rng(problem.seed)
    n_sites = len(problem.labelled)
    common = problem.common
    owner = np.repeat(np.arange(n_sites), problem.labelled)
    individuals = common + sum(problem.private) + 400
    z = g.normal(size=(individuals, 4))
    tables = []
    truth = np.full(individuals, 3e3)
    for v in range(n_sites):
        width = 3 + v % 3
        signal = 0.6 * z @ g.normal(size=(4, width))
        x = signal + g.normal(size=(individuals, width))
        tables.append(x)
        truth += 40 * (np.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0))
    at = g.permutation(common)[: len(owner)]
    second_labels = at[owner == 0][: problem.twice]
    starts = []
    private_rows = np.split(np.arange(common, individuals), np.cumsum(problem.private))
    for v, x in enumerate(tables):
        mine = at[owner == v]
        if v == 1:
            mine = np.concatenate([mine, second_labels])
        rows = np.concatenate([np.arange(common), private_rows[v]])
        own = np.concatenate([np.sort(mine), common + np.arange(problem.private[v])])
        y = truth[rows[own]] + 20 * g.normal(size=len(own)) + 5 * v
        start = started(
            SiteRows(x[rows], own, y),
            FeatureSettings(common, own_features(rules, common, n_sites), v),
            rules,
            label_normals=lambda _size, n=own.size: g.normal(size=n),
        )
        starts.append(start)
    return Drawn(starts, [x[-400:] for x in tables], truth[-400:])


def exchanges(starts, rules, channel):
    """The sites of a problem, and the terms that they agree on."""
    terms = terms_of(rules, [start.summary().rounded() for start in starts])
    sites = []
    for v, start in enumerate(starts):
        site = SiteExchange(v, start, rules, channel(), seed=v, random_bytes=os.urandom)
        sites.append(site)
    return sites, terms


@dataclass(frozen=True)
class Exchanged:
    sites: list
    models: list
    verdicts: list

    def score(self, tables):
        everyone = range(len(self.models))
        score = self.models[0].score_intercept
        for model, X in zip(self.models, tables, strict=True):
            score = score + model.part(model.phi(X), everyone)
        return score


def exchanged(starts, rules, channel):
    sites, terms = exchanges(starts, rules, channel)
    rows = starts[0].n_common
    normals = [default_rng(v).normal(size=(1, rows)) for v in range(len(sites))]
    conclusions = run_in_memory(sites, terms, normals)
    models = [site.models(own)[0] for site, own in zip(sites, conclusions, strict=True)]
    verdicts = [conclusion.verdict for [conclusion] in conclusions]
    return Exchanged(sites, models, verdicts)


def sealed():
    return SealedSums(os.urandom)


CASES = {
    "two sites": Problem(300, (100, 70), (0, 35), 1),
    "one below least_labels": Problem(400, (110, 80, 12), (0, 40, 0), 3),
    "few unlabelled rows": Problem(240, (120, 60, 40), (0, 0, 0), 4),
    "private rows alone": Problem(300, (0, 0, 0), (150, 80, 0), 6),
    "five sites, one without labels": Problem(700, (120, 90, 80, 0, 24), (0, 30, 25, 0, 0), 9),
    # Below `least_labels` they are an atom whose labels stay out of the sums.
    "few individuals with two labels": Problem(300, (130, 70, 40), (0, 0, 0), 2, twice=15),
}
# Below `least_labels` they are an atom whose labels stay out of the sums.


@pytest.fixture(scope="module", params=CASES)
def ends(request):
    """New rows, and what sealed words and exact sums end with."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        # A forest jumps where the fixed-point error moves a row over a split.
        patch.setattr(refined, "LEAST_LABELS", 10_000)
        given = drawn(CASES[request.param], EXACT)
        yield (
            given.new,
            exchanged(given.starts, EXACT, sealed),
            exchanged(given.starts, EXACT, ExactSums),
        )


def test_all_sites_make_the_same_fit(ends):
    _, sealed_words, _ = ends
    first, *others = sealed_words.sites
    for site in others:
        assert_array_equal(site.fits[0].beta, first.fits[0].beta)


def test_the_fit_of_sealed_words_is_that_of_exact_sums(ends):
    """Of an entry of P the fixed-point error is 1e-4 and less, where P has N/d: the fit follows by
    a thousandth.
    """
    _, sealed_words, exact = ends
    fit = sealed_words.sites[0].fits[0]
    expected = exact.sites[0].fits[0]
    assert_allclose(fit.tau, expected.tau, rtol=2e-2)
    assert_allclose(fit.sigma, expected.sigma, rtol=2e-3)


def deviation_of(sealed_words):
    return sealed_words.sites[0].terms.targets[0].deviation


def test_scores_of_sealed_words_are_those_of_exact_sums(ends):
    new, sealed_words, exact = ends
    errors = sealed_words.score(new) - exact.score(new)
    assert np.abs(errors).max() < 5e-3 * deviation_of(sealed_words)


def own_predictions(site, X):
    return site.owns[0].predict(site.fits[0], site.start.features(X))


def test_joined_models_of_sealed_words_are_those_of_exact_sums(ends):
    new, sealed_words, exact = ends
    limit = 1e-2 * deviation_of(sealed_words)
    for site, exact_site, X in zip(sealed_words.sites, exact.sites, new, strict=True):
        errors = own_predictions(site, X) - own_predictions(exact_site, X)
        assert np.abs(errors).max() < limit


def test_verdicts_of_sealed_words_are_those_of_exact_sums(ends):
    _, sealed_words, exact = ends
    limit = 1e-2 * deviation_of(sealed_words)
    for verdict, expected in zip(sealed_words.verdicts, exact.verdicts, strict=True):
        assert verdict.left_out.keys() == expected.left_out.keys()
        slopes_are_one = verdict.score.slope == expected.score.slope == 1.0
        if slopes_are_one and "score" in verdict.left_out:
            scores = verdict.left_out["score"]
            assert_allclose(scores, expected.left_out["score"], atol=limit)


def test_under_the_default_rules_a_score_knows_what_no_site_does():
    rules = Additive()
    given = drawn(Problem(1200, (300, 200, 100), (0, 60, 0), 7), rules)

    result = exchanged(given.starts, rules, sealed)

    def correlation(predicted):
        return np.corrcoef(predicted, given.truth)[0, 1]

    alone = [correlation(model.alone(X)) for model, X in zip(result.models, given.new, strict=True)]
    assert correlation(result.score(given.new)) > max(alone) + 0.1
    assert {verdict.recommended for verdict in result.verdicts} == {"score"}


def test_a_changed_sum_that_no_columns_have_is_refused():
    given = drawn(Problem(300, (90, 60, 40), (0, 0, 0), 2), EXACT)
    sites, terms = exchanges(given.starts, EXACT, sealed)
    messages = [site.announce(terms, bytes(32)) for site in sites]
    added = [site.add(messages) for site in sites]
    opened = total([numbers for numbers, _ in added])
    shares_for_the_first = {u: added[u][1][0] for u in (1, 2)}
    opened["P"][0] += np.uint64(1 << 20)
    with pytest.raises(Refused, match="changed them"):
        sites[0].add_private(opened, shares_for_the_first)


def summary(labelled, private=0):
    return SiteSummary(labelled, 30, 1.0, (0.0,), (1.0,), private)


def terms_for(flags, **rules):
    """Terms of sites whose labelled individuals these flags are, or Refused."""
    return terms_of(Additive(**rules), [summary(labelled) for labelled in flags])


def labelled_flags(n_sites, common, labelled):
    flags = np.zeros((n_sites, common), dtype=bool)
    flags[:, :labelled] = True
    return flags


def test_labels_of_individuals_with_the_same_owners_enter_if_there_are_enough_of_them():
    flags = np.zeros((3, 1000), dtype=bool)
    flags[0, :200] = True
    flags[1, 181:400] = True  # 19 have labels of both
    terms = terms_for(flags)
    assert not terms.flags[:, 181:200].any()
    assert terms.flags.sum() == 181 + 200


def test_40_individuals_of_3_sites_are_too_few_features():
    with pytest.raises(Refused, match="40 labelled individuals of 3 sites allow 4 features"):
        terms_for(labelled_flags(3, 1000, 40), least_rows=10)


def test_fewer_individuals_than_least_rows_are_refused_with_how_many_to_label():
    with pytest.raises(Refused, match=r"40 labelled .* least_rows is 150: label 110 more of the"):
        terms_for(labelled_flags(3, 1000, 40))


def test_private_labels_alone_are_refused_if_none_are_common():
    nobody = np.zeros(40, dtype=bool)
    with pytest.raises(Refused, match="private labels"):
        terms_of(Additive(), [summary(nobody, private=100)] * 3)


def test_200_individuals_of_3_sites_allow_20_features_each():
    assert terms_for(labelled_flags(3, 1000, 200)).d == (20, 20, 20)


def test_a_site_of_fewer_labels_than_features_sends_none():
    flags = labelled_flags(3, 1000, 200)
    flags[2, 12:] = False
    assert terms_for(flags).targets[0].n[2] == 0


@pytest.mark.parametrize(("labels", "sent"), [(19, 0), (20, 20)])
def test_a_site_sends_its_labels_from_as_many_as_features(labels, sent):
    flags = labelled_flags(3, 1000, 200)
    flags[2, labels:] = False
    terms = terms_for(flags, least_labels=1)
    assert terms.d == (20, 20, 20)
    assert terms.targets[0].n[2] == sent


def test_38_sites_are_the_most_of_2000_individuals():
    flags = labelled_flags(39, 2000, 2000)
    assert terms_for(flags[:38]).d == (5,) * 38
    with pytest.raises(Refused, match="39 sites allow 4 features"):
        terms_for(flags)
