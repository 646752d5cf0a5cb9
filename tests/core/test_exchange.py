"""The exchange of second moments in one process.

Each site uses only what it received, and gets the result of exact sums.
"""

import os

import numpy as np
import pytest

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


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A short secret gives the same sums. test_cross_products.py tests the real length."""
    monkeypatch.setattr(cross, "SECRET_ROWS", 64)
    monkeypatch.setattr(cross, "RANDOM_ROWS", 320)


def problem(n_sites, common, labelled, private, seed, rules, twice=15):
    """Sites of a target that is a sum of parts; the first labelled individuals have a second label,
    of the next site.
    """
    g = np.random.default_rng(seed)
    N = sum(labelled)
    owner = np.repeat(np.arange(n_sites), labelled)
    z = g.normal(size=(common + sum(private) + 400, 4))
    X = [
        z @ g.normal(size=(4, 3 + v % 3)) * 0.6 + g.normal(size=(len(z), 3 + v % 3))
        for v in range(n_sites)
    ]
    truth = 3e3 + 40 * sum(np.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0) for x in X)
    at = g.permutation(common)[:N]
    ends = common + np.cumsum([0, *private])
    starts = []
    for v in range(n_sites):
        second_labels = at[owner == 0][:twice] if v == 1 else at[:0]
        mine = np.sort(np.concatenate([at[owner == v], second_labels]))
        rows = np.concatenate([np.arange(common), np.arange(ends[v], ends[v + 1])])
        own = np.concatenate([mine, common + np.arange(private[v])]).astype(np.int64)
        y = truth[rows[own]] + 20 * g.normal(size=len(own)) + 5 * v
        start = started(
            SiteRows(X[v][rows], own, y),
            FeatureSettings(common, own_features(rules, common, n_sites), v),
            rules,
            label_normals=g.normal(size=len(own)),
        )
        starts.append(start)
    return starts, [x[-400:] for x in X], truth[-400:]


def exchanges(starts, rules, channel):
    """The sites of a problem, and the terms that they agree on."""
    terms = terms_of(rules, [start.summary().rounded() for start in starts])
    sites = [
        SiteExchange(v, start, rules, channel(), seed=v, random_bytes=os.urandom)
        for v, start in enumerate(starts)
    ]
    return sites, terms


def exchanged(starts, rules, channel):
    sites, terms = exchanges(starts, rules, channel)
    rows = starts[0].n_common
    normals = [np.random.default_rng(v).normal(size=(1, rows)) for v in range(len(sites))]
    conclusions = run_in_memory(sites, terms, normals)
    models = [site.models(own)[0] for site, own in zip(sites, conclusions, strict=True)]
    return sites, models, [conclusion.verdict for [conclusion] in conclusions]


def score_of(models, tables):
    parts = [m.part(m.phi(X), range(len(models))) for m, X in zip(models, tables, strict=True)]
    return models[0].score_intercept + np.sum(parts, axis=0)


def sealed():
    return SealedSums(os.urandom)


CASES = {
    "two sites": (2, 300, (100, 70), (0, 35), 1),
    "one below least_labels": (3, 400, (110, 80, 12), (0, 40, 0), 3),
    "few unlabelled rows": (3, 240, (120, 60, 40), (0, 0, 0), 4),
    "private rows alone": (3, 300, (0, 0, 0), (150, 80, 0), 6),
    "five sites, one without labels": (5, 700, (120, 90, 80, 0, 24), (0, 30, 25, 0, 0), 9),
    "few individuals with two labels": (3, 300, (130, 70, 40), (0, 0, 0), 2),
}
# Below `least_labels` they are an atom whose labels stay out of the sums.
LABELLED_TWICE = {"private rows alone": 0, "few individuals with two labels": 15}


@pytest.mark.parametrize("case", CASES)
def test_without_noise_sealed_words_end_as_exact_sums_do(case, monkeypatch):
    # A forest jumps where the fixed-point error moves a row over a split.
    monkeypatch.setattr(refined, "LEAST_LABELS", 10_000)
    starts, new, _ = problem(*CASES[case], EXACT, twice=LABELLED_TWICE.get(case, 25))

    sites, models, verdicts = exchanged(starts, EXACT, sealed)
    exact, exact_models, exact_verdicts = exchanged(starts, EXACT, ExactSums)

    assert all((site.fits[0].beta == sites[0].fits[0].beta).all() for site in sites), (
        "all sites make the same fit"
    )
    # Of an entry of P the fixed-point error is 1e-4 and less, where P has N/d: the fit follows by a
    # thousandth.
    fit = sites[0].fits[0]
    wanted = exact[0].fits[0]
    deviation = sites[0].terms.targets[0].deviation
    np.testing.assert_allclose(fit.prior, wanted.prior, rtol=2e-2)
    np.testing.assert_allclose(fit.noise, wanted.noise, rtol=2e-3)
    assert np.abs(score_of(models, new) - score_of(exact_models, new)).max() < 5e-3 * deviation
    for site, other, X in zip(sites, exact, new, strict=True):
        joined = site.owns[0].predict(fit, site.start.features(X))
        exact_joined = other.owns[0].predict(wanted, other.start.features(X))
        assert np.abs(joined - exact_joined).max() < 1e-2 * deviation
    for verdict, other in zip(verdicts, exact_verdicts, strict=True):
        assert verdict.left_out.keys() == other.left_out.keys()
        if verdict.score.slope == other.score.slope == 1.0 and "score" in verdict.left_out:
            scores = verdict.left_out["score"]
            exact_scores = other.left_out["score"]
            np.testing.assert_allclose(scores, exact_scores, atol=1e-2 * deviation)


def test_under_the_default_rules_a_score_knows_what_no_site_does():
    rules = Additive()
    starts, new, truth = problem(3, 1200, (300, 200, 100), (0, 60, 0), 7, rules)

    _, models, verdicts = exchanged(starts, rules, sealed)

    alone = [np.corrcoef(m.alone(X), truth)[0, 1] for m, X in zip(models, new, strict=True)]
    assert np.corrcoef(score_of(models, new), truth)[0, 1] > max(alone) + 0.1
    assert {verdict.recommended for verdict in verdicts} == {"score"}


def test_a_changed_sum_that_no_columns_have_is_refused():
    starts, _, _ = problem(3, 300, (90, 60, 40), (0, 0, 0), 2, EXACT)
    sites, terms = exchanges(starts, EXACT, sealed)
    messages = [site.announce(terms, bytes(32)) for site in sites]
    numbers, shares = zip(*[site.add(messages) for site in sites], strict=True)
    opened = total(numbers)
    opened["P"][0] += np.uint64(1 << 20)
    with pytest.raises(Refused, match="changed them"):
        sites[0].add_private(opened, {u: shares[u][0] for u in (1, 2)})


def summary(labelled, private=0):
    return SiteSummary(labelled, 30, 1.0, (0.0,), (1.0,), private)


def test_labels_of_individuals_with_the_same_owners_enter_if_there_are_enough_of_them():
    flags = np.zeros((3, 1000), dtype=bool)
    flags[0, :200] = True
    flags[1, 181:400] = True  # 19 have labels of both
    terms = terms_of(Additive(), [summary(each) for each in flags])
    assert not terms.flags[:, 181:200].any()
    assert terms.flags.sum() == 181 + 200


def test_rules_are_refused_with_the_number_that_was_found():
    flags = np.zeros((3, 1000), dtype=bool)
    flags[:, :40] = True
    with pytest.raises(Refused, match="40 labelled individuals of 3 sites allow 4 features"):
        terms_of(Additive(least_rows=10), [summary(each) for each in flags])
    with pytest.raises(Refused, match=r"40 labelled .* least_rows is 150: label 110 more of the"):
        terms_of(Additive(), [summary(each) for each in flags])
    with pytest.raises(Refused, match="private labels"):
        terms_of(Additive(), [summary(each[:40] & False, private=100) for each in flags])
    flags[:, :200] = True
    assert terms_of(Additive(), [summary(each) for each in flags]).d == (20, 20, 20)
    flags[2, 12:] = False  # fewer labels than features: it sends none
    assert terms_of(Additive(), [summary(each) for each in flags]).targets[0].n[2] == 0
    flags = np.ones((39, 2000), dtype=bool)
    assert terms_of(Additive(), [summary(each) for each in flags[:38]]).d == (5,) * 38
    with pytest.raises(Refused, match="39 sites allow 4 features"):
        terms_of(Additive(), [summary(each) for each in flags])
