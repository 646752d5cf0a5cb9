"""The exchange of second moments in one process.

Each site uses only what it received, and gets the result of memory.
"""

import os
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from coreg_core.additive import refined
from coreg_core.additive.check import left_out_score
from coreg_core.additive.exchange import SiteExchange, total
from coreg_core.additive.features import SiteRows
from coreg_core.additive.moments import NOISE_PRIVATE, Own, ScoreWeights, fit, sums
from coreg_core.additive.terms import LABEL_UNIT, SiteSummary, Terms
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
    N, P, owner = sum(labelled), sum(private), np.repeat(np.arange(n_sites), labelled)
    z = g.normal(size=(common + P + 400, 4))
    X = [
        z @ g.normal(size=(4, 3 + v % 3)) * 0.6 + g.normal(size=(len(z), 3 + v % 3))
        for v in range(n_sites)
    ]
    truth = 3e3 + 40 * sum(np.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0) for x in X)
    at, ends = g.permutation(common)[:N], common + np.cumsum([0, *private])
    sites = []
    for v in range(n_sites):
        mine = np.sort(
            np.concatenate([at[owner == v], at[owner == 0][:twice] if v == 1 else at[:0]])
        )
        rows = np.concatenate([np.arange(common), np.arange(ends[v], ends[v + 1])])
        own = np.concatenate([mine, common + np.arange(private[v])]).astype(np.int64)
        y = truth[rows[own]] + 20 * g.normal(size=len(own)) + 5 * v
        data = SiteRows(X[v][rows], own, y)
        of_rows = {"seed": v, "label_normals": g.normal(size=len(own)), "random_bytes": os.urandom}
        sites.append(SiteExchange(v, n_sites, rules, data, common, **of_rows))
    return sites, [x[-400:] for x in X], truth[-400:]


def first_sum(sites):
    """Relay the summaries and messages, and add the words, as the coordinator does; and the
    shares.
    """
    summaries = [site.summary() for site in sites]
    messages = [site.announce(summaries, bytes(32)) for site in sites]
    words, shares = zip(*[site.add(messages) for site in sites], strict=True)
    return total(words), shares


def exchanged(sites):
    n, (first, shares) = len(sites), first_sum(sites)
    second = [
        s.add_private(first, {u: shares[u][v] for u in range(n) if u != v})
        for v, s in enumerate(sites)
    ]
    opened = None if second[0] is None else total(second)
    rows = sites[0]._n_common
    parts = [
        s.parts(opened, np.random.default_rng(v).normal(size=(1, rows)))
        for v, s in enumerate(sites)
    ]
    heard = [[each[v] for each in parts if v in each] for v in range(n)]
    return [
        s.finish(np.sum(h, axis=0, dtype=np.uint64) if h else None)[0].verdict
        for s, h in zip(sites, heard, strict=True)
    ]


def in_memory(sites):
    """The fit from true matrices with the features, sizes and labels of the exchange."""
    T, M = sites[0].terms, len(sites)
    Phi = np.concatenate([s._common[:, :d] for s, d in zip(sites, T.d, strict=True)], axis=1)
    unit, (owner, at) = LABEL_UNIT * T.targets[0].deviation, np.nonzero(T.flags)
    y = np.concatenate([s._labels[s._mine, 0] * unit + T.targets[0].levels[s.site] for s in sites])
    parts = (
        (sums(Phi[at], owner, y, T.share[at], T.targets[0].levels, count=float(T.n_labelled)),)
        if T.n_labelled
        else ()
    )
    m = T.moments(Phi.T @ Phi / T.rows, ())
    if T.private.any():
        rows, owners, told, weight = [], [], [], []
        for s in sites:
            if s._private.any():
                private = s._W[s._data.own[s._private]]
                k = min(s._W.shape[1], max(T.d[s.site], len(private) // 2))
                W = s._common[:, :k]
                own = Own.of(m, s.site, W.T @ W / T.rows, W.T @ Phi / T.rows)
                x = own.complete(private[:, :k]) / (T.scale * sqrt(M))
                rows.append(
                    x / np.maximum(np.linalg.norm(x, axis=1), 1.0)[:, None] * T.scale * sqrt(M)
                )
                owners.append(np.full(len(x), s.site))
                told.append(
                    T.labels(s._noisy[s._private], s.site)[:, 0] * unit
                    + T.targets[0].levels[s.site]
                )
                weight.append(np.full(len(x), s._precision))
        many = [np.concatenate(each) for each in (rows, owners, told, weight)]
        parts += (sums(*many, T.targets[0].levels, count=float(len(many[0])), mode=NOISE_PRIVATE),)
    return fit(replace(m, parts=parts)), Phi


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
def test_without_noise_the_exchange_ends_as_memory_does(case, monkeypatch):
    # A forest jumps where the fixed-point error moves a row over a split.
    monkeypatch.setattr(refined, "LEAST_LABELS", 10_000)
    sites, _, _ = problem(*CASES[case], EXACT, twice=LABELLED_TWICE.get(case, 25))
    verdicts = exchanged(sites)
    assert all((site.fits[0].beta == sites[0].fits[0].beta).all() for site in sites), (
        "all sites make the same fit"
    )
    f, Phi = in_memory(sites)
    T, found = sites[0].terms, sites[0].fits[0]
    # Of an entry of P the fixed-point error is 1e-4 and less, where P has N/d: the fit follows by a
    # thousandth.
    np.testing.assert_allclose(found.prior, f.prior, rtol=2e-2)
    np.testing.assert_allclose(found.noise, f.noise, rtol=2e-3)
    exact, opened = (Phi @ ScoreWeights.of(each).of_sites(range(len(sites))) for each in (f, found))
    assert np.abs(opened - exact).max() < 5e-3 * T.targets[0].deviation
    for site, verdict in zip(sites, verdicts, strict=True):
        joined, own = site.owns[0].predict(found, site._W), site._W[: site._n_common][T.used]
        memory = Own.of(f.moments, site.site, own.T @ own / T.rows, own.T @ Phi / T.rows).predict(
            f, site._W
        )
        assert np.abs(joined - memory).max() < 1e-2 * T.targets[0].deviation
        if len(sites) > 2 and site._mine.any() and site.local_models[0] is not None:
            at = site._data.own[site._entering]
            truth = f.intercept(site.site) + (Phi @ f.coef)[np.flatnonzero(T.used).searchsorted(at)]
            told = (
                site.fits[0].intercept(site.site) + opened[np.flatnonzero(T.used).searchsorted(at)]
            )
            assert np.abs(told - truth).max() < 1e-2 * T.targets[0].deviation
            if verdict.score.slope == 1.0:  # and the verdict is about these scores
                left, local = verdict.left_out["score"], verdict.left_out["local"][: len(at)]
                plain = left_out_score(found, site._data.y[site._entering], told)
                blended = local - verdict.score.weight * (local - plain)
                np.testing.assert_allclose(left, blended, atol=1e-2 * T.targets[0].deviation)


def test_under_the_default_rules_a_score_knows_what_no_site_does():
    sites, new, truth = problem(3, 1200, (300, 200, 100), (0, 60, 0), 7, Additive())
    verdicts = exchanged(sites)
    T, found = sites[0].terms, sites[0].fits[0]
    W = [site.features(x) for site, x in zip(sites, new, strict=True)]
    beta = ScoreWeights.of(found).of_sites(range(3))
    score = sum(w[:, :d] @ beta[b] for w, d, b in zip(W, T.d, T.blocks, strict=True))
    alone = max(
        np.corrcoef(site.local_models[0].predict(x), truth)[0, 1]
        for site, x in zip(sites, new, strict=True)
    )
    assert np.corrcoef(score, truth)[0, 1] > alone + 0.1
    assert {verdict.recommended for verdict in verdicts} == {"score"}


def test_a_changed_sum_that_no_columns_have_is_refused():
    sites, _, _ = problem(3, 300, (90, 60, 40), (0, 0, 0), 2, EXACT)
    opened, shares = first_sum(sites)
    opened["P"][0] += np.uint64(1 << 20)
    with pytest.raises(Refused, match="changed them"):
        sites[0].add_private(opened, {u: shares[u][0] for u in (1, 2)})


def summary(labelled, private=0):
    return SiteSummary(labelled, 30, 1.0, (0.0,), (1.0,), private)


def test_labels_of_individuals_with_the_same_owners_enter_if_there_are_enough_of_them():
    flags = np.zeros((3, 1000), dtype=bool)
    flags[0, :200] = True
    flags[1, 181:400] = True  # 19 have labels of both
    terms = Terms(Additive(), [summary(each) for each in flags])
    assert not terms.flags[:, 181:200].any()
    assert terms.flags.sum() == 181 + 200


def test_rules_are_refused_with_the_number_that_was_found():
    flags = np.zeros((3, 1000), dtype=bool)
    flags[:, :40] = True
    with pytest.raises(Refused, match="40 labelled individuals of 3 sites allow 4 features"):
        Terms(Additive(least_rows=10), [summary(each) for each in flags])
    with pytest.raises(Refused, match=r"40 labelled .* least_rows is 150: label 110 more of the"):
        Terms(Additive(), [summary(each) for each in flags])
    with pytest.raises(Refused, match="private labels"):
        Terms(Additive(), [summary(each[:40] & False, private=100) for each in flags])
    flags[:, :200] = True
    assert Terms(Additive(), [summary(each) for each in flags]).d == (20, 20, 20)
    flags[2, 12:] = False  # fewer labels than features: it sends none
    assert Terms(Additive(), [summary(each) for each in flags]).n[2] == 0
    flags = np.ones((39, 2000), dtype=bool)
    assert Terms(Additive(), [summary(each) for each in flags[:38]]).d == (5,) * 38
    with pytest.raises(Refused, match="39 sites allow 4 features"):
        Terms(Additive(), [summary(each) for each in flags])
