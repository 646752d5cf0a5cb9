"""The experiments: no method sees a held-out target, and the statistics are right."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers import corlsr_uci, rademacher, snf, xnv
from benchmarks.papers.baselines import PEERS
from benchmarks.papers.pool import NumericDataSet
from benchmarks.papers.views import scaled
from coreg_core.estimators import RLSR, CoRLSR
from coreg_core.kernels.functions import Gaussian, paper_bandwidth, paper_ridge

METHODS = {
    "literal": corlsr_uci.METHODS,
    "level numbers": corlsr_uci.METHODS,
    "standardised": corlsr_uci.METHODS,
    "practitioner": tuple(PEERS),
}


def data_set(n=60, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(3.0, size=(n, d))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=n) + 5
    return NumericDataSet("toy", X, y, tuple("abcd"), ((0,), (1,), (2,), (3,)), "regression")


@pytest.mark.parametrize("reading", METHODS)
def test_the_held_out_targets_are_not_looked_at(reading):
    data, labelled = data_set(), np.arange(12)
    rest = np.arange(12, 60)
    hidden = replace(data, y=np.where(np.arange(60) < 12, data.y, np.nan))
    columns = [np.array([0, 1]), np.array([2, 3])]
    seen = corlsr_uci._predictions(data, reading, columns, labelled, rest)
    blind = corlsr_uci._predictions(hidden, reading, columns, labelled, rest)
    assert set(seen) == set(METHODS[reading])
    for method in seen:
        np.testing.assert_array_equal(seen[method], blind[method])


def test_the_literal_reading_is_the_estimators_own():
    data, labelled, rest = data_set(), np.arange(12), np.arange(12, 60)
    columns = [np.array([0, 2]), np.array([1, 3])]
    ours = corlsr_uci._predictions(data, "literal", columns, labelled, rest)
    X, y, Z = data.X[labelled], data.y[labelled], data.X[rest]
    np.testing.assert_allclose(ours["rlsr"], RLSR(preset="paper").fit(X, y).predict(Z))
    views = [X[:, c] for c in columns], [Z[:, c] for c in columns]
    for form in ("exact", "semi-parametric"):
        model = CoRLSR(preset="paper", form=form, coupling=0.1, solver="conjugate-gradients", prediction_tol=1e-9)
        expected = model.fit(views[0], y, views[1]).predict(views[1])
        np.testing.assert_allclose(ours[form], expected, atol=1e-7)
    np.testing.assert_allclose(
        ours["average"], np.mean([RLSR(preset="paper").fit(a, y).predict(b) for a, b in zip(*views, strict=True)], 0)
    )


def test_w_sums_the_ranks_of_the_sets_that_got_worse():
    errors = {  # exact − rlsr: −1, +2, −3, −4: the only worse set has rank 2
        name: {"rlsr": [10.0], "exact": [10.0 + d], "semi-parametric": [11.0 + d]}
        for name, d in zip("abcd", (-1.0, 2.0, -3.0, -4.0), strict=True)
    }
    W, p, better = corlsr_uci._wilcoxon(errors)["exact", "rlsr"]
    assert (W, better) == (2.0, 3)
    assert p == pytest.approx(3 / 16)  # of the 16 sign patterns those with W ≤ 2: {}, {1}, {2}


def split(n=240, binary=False):
    data = data_set(2 * n, seed=4)
    y = np.where(data.y > np.median(data.y), 1.0, -1.0) if binary else data.y
    return xnv._XnvSplit.of(data.X, y, np.arange(n), np.arange(n, 2 * n), binary=binary)


@pytest.mark.parametrize("binary", [False, True])
def test_xnv_learns_from_its_labels_alone(binary):
    one = split(binary=binary)
    hidden = replace(one, y=np.where(np.arange(240) < 100, one.y, np.nan))
    for a, b in zip(*(list(xnv._families(s, 20, np.random.default_rng(0))) for s in (one, hidden)), strict=True):
        assert a.method == b.method
        error = a.error(one, a.tuned(one, 100), 60)
        assert error == b.error(hidden, b.tuned(hidden, 100), 60)
        assert 0 <= error < 1.0


def test_snf_s_methods_see_no_target_of_an_unlabelled_row():
    data = data_set(30)
    X, y = scaled(data.X, data.X), scaled(data.y, data.y)
    labelled, rest = np.arange(0, 30, 3), np.setdiff1d(np.arange(30), np.arange(0, 30, 3))
    hidden = np.where(np.isin(np.arange(30), labelled), y, np.nan)
    seen, blind = snf._methods(X, y, 2), snf._methods(X, hidden, 2)
    assert tuple(sorted(seen)) == tuple(sorted((*snf.SIX, *snf.OTHERS)))
    for method in seen:
        few = slice(None, None, 7)
        a = snf._chosen(seen[method][few], y, labelled, rest)(labelled, rest)
        b = snf._chosen(blind[method][few], hidden, labelled, rest)(labelled, rest)
        np.testing.assert_array_equal(a, b)
        assert len(a) == len(rest)


# --- rademacher ---------------------------------------------------------------------------------------------------

LABELLED, REST = np.arange(12), np.arange(12, 60)
COLUMNS = [np.array([0, 2]), np.array([1, 3])]


@pytest.mark.parametrize("reading", rademacher.READINGS)
def test_the_bounds_are_theorem_3_as_printed(reading):
    data = data_set()
    *_, before, after = rademacher._fold(data, COLUMNS, LABELLED, REST, reading)
    (XF, ZF), (XG, ZG) = ((data.X[LABELLED][:, c], data.X[REST][:, c]) for c in COLUMNS)
    kF, kG = Gaussian(paper_bandwidth(XF)), Gaussian(paper_bandwidth(XG))
    share = 1.0 if reading == "literal" else 1 / 24  # 1/(2ℓ)
    gF, gG = paper_ridge(XF) * share, paper_ridge(XG) * share
    lam = {"literal": 0.1, "consistent": 0.1 / 12, "pairs once": 0.1 / 24}[reading]
    J, M = kF(ZF, XF) / gF - kG(ZG, XG) / gG, kF(ZF, ZF) / gF + kG(ZG, ZG) / gG
    plain = 12 / gF + 12 / gG  # k(x, x) = 1
    U = np.sqrt([plain, plain - lam * np.trace(J.T @ np.linalg.inv(np.eye(48) + lam * M) @ J)])
    np.testing.assert_allclose([before, after], U / 12, rtol=1e-10)
