"""The experiments: no method sees a held-out target, and the statistics are right."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.papers import corlsr_uci, corlsr_unlabelled, oca, rademacher, snf, xnv
from benchmarks.papers.baselines import PEERS
from benchmarks.papers.pool import NumericDataSet
from benchmarks.papers.views import scaled
from coreg_core.estimators import RLSR, XNV, CoRLSR, HessianRLS, OCAClassifier, OCARegressor
from coreg_core.kernels.functions import Gaussian, paper_bandwidth, paper_ridge
from coreg_core.numerics.cca import canonical_ridge

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


def test_the_parameter_is_chosen_by_other_draws_than_those_that_count():
    errors = [[1.0, 2.0], [1.0, 2.0], [9.0, 3.0], [9.0, 5.0]]
    assert corlsr_unlabelled._chosen(errors, 2) == 9.0
    assert corlsr_unlabelled._chosen(errors[::-1], 2) == 2.0


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


def test_the_experiment_s_xnv_is_the_estimator():
    one = split()
    [family] = [f for f in xnv._families(one, 20, np.random.default_rng(0)) if f.method == "XNV"]
    landmarks = one.X[np.random.default_rng(0).choice(240, size=40, replace=False)]
    labelled, test, fits = family.candidates[4]  # the second width, the second ridge of the correlation analysis
    model = XNV(n_components=20, bandwidth=xnv.paper_bandwidth(one.X), cca_ridge=1e-2, ridge=1e-5)
    model._draw_views_before = model._draw_views
    model._draw_views = lambda sample, M, rng: model._draw_views_before(landmarks, M, rng)
    model.fit_unlabelled(one.X).fit_labelled(one.X[:50], one.y[:50])
    centre = one.y[:50].mean()
    ours = test @ fits[0](labelled[:50], one.y[:50] - centre) + centre
    np.testing.assert_allclose(ours, model.predict(one.X_test), atol=1e-8)
    np.testing.assert_allclose(
        fits[0](labelled[:50], one.y[:50] - centre),
        canonical_ridge(labelled[:50], one.y[:50] - centre, model.canonical_correlations_, 1e-5),
        rtol=1e-6, atol=1e-9,
    )  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_oca_s_many_candidates_are_the_estimator_s_steps(loss, size):
    rng = np.random.default_rng(0)
    X, Z = [rng.uniform(-1, 1, size=(20, d)) for d in (2, 3)], [rng.uniform(-1, 1, size=(30, d)) for d in (2, 3)]
    y = np.sign(X[0][:, 0]) if loss == "hinge" else X[0][:, 0]
    ridge, eta0, coupling = np.array([[0.1, 0.2], [0.5, 0.3]]), np.array([0.3, 0.1]), np.array([0.4, 0.1]) * (size > 0)
    w = oca.descend(X, y, Z, loss, ridge, eta0, coupling, size, 50, np.random.default_rng(5))
    draws = np.random.default_rng(5)
    rows, more = draws.integers(0, 20, size=50), draws.integers(0, 30, size=(50, size)) if size else None
    for c in range(2):
        given = {"ridge": ridge[c], "eta0": eta0[c], "coupling": coupling[c]}
        model = OCARegressor(fit_intercept=False, **given) if loss == "squared" else OCAClassifier(**given)
        for t in range(50):
            unlabelled = [z[more[t]] for z in Z] if size else None
            arguments = {"classes": [-1, 1]} if loss == "hinge" else {}
            model.partial_fit([x[[rows[t]]] for x in X], y[[rows[t]]], unlabelled, **arguments)
        for ours, theirs in zip(w, model.coef_, strict=True):
            np.testing.assert_allclose(ours[:, c], theirs, rtol=1e-9, atol=1e-12)


def test_the_area_under_the_curve_is_scikit_learn_s_ties_included():
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], size=40)
    predicted = rng.integers(0, 5, size=(40, 3)).astype(float)
    one = oca._OcaSplit((), y, (), (), y, "hinge")
    expected = [roc_auc_score(y > 0, predicted[:, j]) for j in range(3)]
    np.testing.assert_allclose(one.scores(predicted, y), expected)
    np.testing.assert_array_equal(one.scores(predicted, np.ones(40)), 0.5)


def test_oca_scales_by_the_training_rows_and_sees_no_test_target():
    data = data_set(100)
    one = oca._OcaSplit.of(data, 0, "labelled rows")
    everything = np.vstack([one.X[0], one.Z[0]])
    np.testing.assert_allclose([everything.min(axis=0), everything.max(axis=0)], [[-1] * 4, [1] * 4])
    assert (one.y.min(), one.y.max()) == (0.0, 100.0)
    assert sorted([one.X[1].shape[1], one.X[2].shape[1]]) == [2, 2]
    assert oca._OcaSplit.of(data, 0, "constant").X[1].shape[1] == 3
    literal = oca._OcaSplit.of(data, 0, "literal").y
    assert np.all(np.diff(literal[np.argsort(one.y)]) >= 0)  # another scale of the same labels
    assert literal.min() >= 0.0
    assert literal.max() <= 100.0
    assert np.ptp(literal) < 100.0
    spoilt = replace(one, y_test=np.full(len(one.y_test), np.nan))
    assert (
        oca._tuned(spoilt, "OCA-1-1", oca.SMALL_RIDGES, 60, 0)[1:]
        == oca._tuned(one, "OCA-1-1", oca.SMALL_RIDGES, 60, 0)[1:]
    )


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


def test_the_graph_that_is_made_once_is_the_estimator_s():
    data = data_set(30)
    X, y = scaled(data.X, data.X), data.y
    labelled, rest = np.arange(0, 30, 3), np.setdiff1d(np.arange(30), np.arange(0, 30, 3))
    candidate = snf._methods(X, y, 2)["Hessian"][5]
    w, r, m = list(snf.product(snf.WIDTHS[1:], snf.RIDGES[:3], snf.MANIFOLD))[5]
    model = HessianRLS(bandwidth=w * snf.paper_bandwidth(X), ridge=r, manifold=m, n_neighbours=15)
    expected = model.fit(X[labelled], y[labelled], X[rest]).predictions_unlabelled_
    np.testing.assert_allclose(candidate(labelled, rest), expected, atol=1e-8)


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


def test_the_consistent_reading_is_the_2006_paper_s_problem():
    data = data_set()
    without, coupled, *_ = rademacher._fold(data, COLUMNS, LABELLED, REST, "consistent")
    theirs = corlsr_uci._predictions(data, "literal", COLUMNS, LABELLED, REST)
    errors = {method: np.sqrt(np.mean((p - data.y[REST]) ** 2)) for method, p in theirs.items()}
    np.testing.assert_allclose([without, coupled], [errors["average"], errors["exact"]], rtol=1e-7)
