"""OCA and its baselines: steps by identity, dense and sparse alike, and mistakes named."""

from itertools import combinations, product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from benchmarks.papers.rivals import (
    MultiViewPegasosClassifier,
    MultiViewPegasosRegressor,
    PegasosClassifier,
    PegasosRegressor,
)
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import OCAClassifier, OCARegressor, _online


def views(n=30, m=80, seed=0, M=2, d=3):
    rng = np.random.default_rng(seed)
    hidden = rng.uniform(-1, 1, size=(n + m, d))
    tables = [hidden @ rng.normal(size=(d, d + v)) / d for v in range(M)]
    y = hidden.sum(axis=1)
    return [t[:n] for t in tables], y[:n], [t[n:] for t in tables]


EPSILON = 0.1
LOSSES = {
    "squared": lambda p, y: 0.5 * (p - y) ** 2,
    "epsilon_insensitive": lambda p, y: np.maximum(0.0, np.abs(p - y) - EPSILON),
    "pairwise": lambda p, y: (
        np.array([np.maximum(0.0, 1.0 - (p[i] - p[y < y[i]])).sum() for i in range(len(y))]) * 2 / (len(y) - 1)
    ),
    "hinge": lambda p, y: np.maximum(0.0, 1.0 - y * p),
    "log_loss": lambda p, y: np.log1p(np.exp(-y * p)),
}
OF_CLASSES = ("hinge", "log_loss")


def objective(kind, w, X, y, Z, ridge, coupling):
    """Equation 5, with λ/2, term by term."""
    total = 0.0
    for v in range(len(w)):
        total += LOSSES[kind](X[v] @ w[v], y).mean() + 0.5 * ridge[v] * w[v] @ w[v]
        for u in range(len(w)):
            total += coupling * ((Z[v] @ w[v] - Z[u] @ w[u]) ** 2).mean()
    return total


def gradient(kind, w, X, y, Z, ridge, coupling, h=1e-6):
    out = []
    for v in range(len(w)):
        numeric = np.empty(len(w[v]))
        for j in range(len(w[v])):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in w]
                moved[v][j] += sign * h
                ends.append(objective(kind, moved, X, y, Z, ridge, coupling))
            numeric[j] = (ends[0] - ends[1]) / (2 * h)
        out.append(numeric)
    return out


@pytest.mark.parametrize("M", [1, 2, 3])
@pytest.mark.parametrize("kind", LOSSES)
def test_full_batches_are_gradient_descent_on_equation_5(kind, M):
    X, y, Z = views(M=M)
    if kind in OF_CLASSES:
        y = np.where(y > np.median(y), 1.0, -1.0)
    method = OCAClassifier if kind in OF_CLASSES else OCARegressor
    ridge, eta0 = [0.1 * (v + 1) for v in range(M)], [0.2 / (v + 1) for v in range(M)]
    more = {} if kind in OF_CLASSES else {"fit_intercept": False, "epsilon": EPSILON}
    model = method(
        **more, loss=kind, ridge=ridge, eta0=eta0, coupling=0.3, n_labelled_step=30, n_unlabelled_step=80, n_steps=6,
        random_state=0,
    )  # fmt: skip
    w = [np.zeros(t.shape[1]) for t in X]
    for t in range(1, 7):
        slopes = gradient(kind, w, X, y, Z, ridge, 0.3)
        eta = [e / (1 + e * lam * (t - 1)) for e, lam in zip(eta0, ridge, strict=True)]
        w = [a - e * g for a, e, g in zip(w, eta, slopes, strict=True)]
    for ours, expected in zip(model.fit(X, y, Z).coef_, w, strict=True):
        assert_allclose(ours, expected, atol=1e-8)  # central differences: h² and eps/h are both below it
    falls = [
        objective(kind, clone(model).set_params(n_steps=n).fit(X, y, Z).coef_, X, y, Z, ridge, 0.3) for n in (1, 3, 6)
    ]
    assert falls[0] > falls[1] > falls[2]


def one_step(kind, tables, i, y, unlabelled, j, start, coupling=0.7):
    """The weights after a step from ``start``."""
    weights = [_online.Weights(len(s)) for s in start]
    for w, s in zip(weights, start, strict=True):
        w.v += s
    M = len(start)
    terms = _online.Objective(kind, [0.1 * (v + 2) for v in range(M)], [1.0] * M, coupling, EPSILON)
    _online.step(weights, terms, 1, tables, i, y[i], unlabelled, j)
    return [w.w for w in weights]


@pytest.mark.parametrize("kind", LOSSES)
def test_one_step_in_the_mean_is_the_gradient(kind):
    """Over every row, or pair of rows, that a step of l = 1 can draw: the co-regularisation's sign, and its factor 4."""
    X, y, Z = views(n=7, m=5)
    y = np.sign(y) if kind in OF_CLASSES else np.round(y, 1)  # with ties
    start = [np.arange(1.0, t.shape[1] + 1) / 3 for t in X]
    tables, unlabelled = [_online.Rows(t) for t in X], [_online.Rows(t) for t in Z]
    draws = list(
        product([np.array(c) for c in combinations(range(7), 2)] if kind == "pairwise" else range(7), range(5))
    )
    ends = [one_step(kind, tables, i, y, unlabelled, j, start) for i, j in draws]
    expected = gradient(kind, start, X, y, Z, [0.2, 0.3], 0.7)
    for v, s in enumerate(start):
        assert_allclose(s - np.mean([end[v] for end in ends], axis=0), expected[v], atol=1e-7)


@pytest.mark.parametrize("kind", [kind for kind in LOSSES if kind != "pairwise"])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
def test_a_row_given_by_its_number_is_an_array_of_one(kind, make):
    X, y, Z = views(M=3)
    y = np.sign(y) if kind in OF_CLASSES else y
    tables, unlabelled = [_online.Rows(make(t)) for t in X], [_online.Rows(make(t)) for t in Z]
    start = [np.arange(1.0, t.shape[1] + 1) / 3 for t in X]
    for i, j in [(0, 3), (5, 2), (0, 0)]:
        numbers = one_step(kind, tables, i, y, unlabelled, j, start)
        arrays = one_step(kind, tables, np.array([i]), y, unlabelled, np.array([j]), start)
        for a, b in zip(numbers, arrays, strict=True):
            assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def concordance(predicted, y):
    """The share of pairs of different targets that are in the order of the targets."""
    above = y[:, None] > y
    return (predicted[:, None] > predicted)[above].mean()


def test_the_pairwise_loss_ranks_and_reads_only_the_order_of_the_targets():
    X, y, Z = views(n=60, m=300, seed=4)
    model = OCARegressor(loss="pairwise", n_labelled_step=4, n_steps=4000, random_state=0)
    score = model.fit(X, y, Z).predict(X)
    assert concordance(score, y) > 0.95
    stretched = clone(model).fit(X, np.exp(5 * y), Z)  # the same order
    assert_array_equal(stretched.predict(X), score)
    squared = OCARegressor(n_labelled_step=4, n_steps=4000, random_state=0).fit(X, np.exp(5 * y), Z)
    assert concordance(squared.predict(X), y) < concordance(score, y)
    backwards = clone(model).fit(X, -y, Z)
    assert_allclose(backwards.predict(X), -score, atol=1e-12)
    assert_array_equal(clone(model).fit(X, y, Z).predict(X), score)
    assert not np.array_equal(clone(model).set_params(random_state=1).fit(X, y, Z).predict(X), score)
    flat = clone(model).fit(X, np.ones(60), Z)  # no pair to learn from
    assert all((w == 0).all() for w in flat.coef_)


def test_more_unlabelled_rows_while_the_views_diverge(monkeypatch):
    (X, _), y, (Z, _) = views(n=20, m=200, seed=2)
    drawn, step = [], _online.step
    monkeypatch.setattr(_online, "step", lambda *given: drawn.append(len(given[-1])) or step(*given))

    def sizes(second, **changes):
        drawn.clear()
        model = OCARegressor(coupling=0.01, n_unlabelled_step=2, n_steps=600, random_state=0, **changes)
        model.fit([X, X], y, [Z, second])
        assert model.n_unlabelled_step_ in drawn
        return drawn.copy()

    assert set(sizes(-Z)) == {2}
    assert set(sizes(Z, max_unlabelled_step=64)) == {2}  # views that agree
    opposed = sizes(-Z, max_unlabelled_step=64)
    assert opposed[:8] == [2, 2, 4, 8, 16, 32, 64, 64]  # the first step is made from w = 0
    assert max(opposed) == 64
    assert sizes(-Z, max_unlabelled_step=64) == opposed
    assert max(sizes(-Z, max_unlabelled_step=10**6)) == 200  # all rows that there are


def test_without_coupling_it_is_multi_view_pegasos_and_with_one_view_pegasos():
    X, y, _ = views()
    oca = OCARegressor(coupling=0.0, eta0=0.1, n_steps=200, random_state=3)
    several = MultiViewPegasosRegressor(eta0=0.1, n_steps=200, random_state=3).fit(X, y)
    for a, b in zip(oca.fit(X, y).coef_, several.coef_, strict=True):
        assert_array_equal(a, b)
    one = PegasosRegressor(eta0=0.1, n_steps=200, random_state=3).fit(X[0], y)
    assert_array_equal(one.coef_, oca.fit(X[:1], y).coef_[0])
    assert_array_equal(one.coef_, several.coef_[0])
    labels = np.where(y > 0, "a", "b")
    classifier = PegasosClassifier(n_steps=200, random_state=3).fit(X[1], labels)
    both = MultiViewPegasosClassifier(n_steps=200, random_state=3).fit(X, labels)
    assert_array_equal(classifier.coef_, both.coef_[1])
    assert "coupling" not in several.get_params()


@pytest.mark.parametrize("k", [1, 3, 30])
@pytest.mark.parametrize("eta0", [None, 0.5])
def test_sparse_and_dense_give_the_same_weights(k, eta0, monkeypatch):
    X, y, Z = views()
    for table in (*X, *Z):
        table[np.abs(table) < 0.2] = 0.0
    model = OCAClassifier(eta0=eta0, ridge=0.5, n_labelled_step=k, n_unlabelled_step=2 * k, n_steps=100, random_state=0)
    labels = np.sign(y)
    dense = model.fit(X, labels, Z).coef_
    csr = [sparse.csr_array(t) for t in X], [sparse.csr_matrix(t) for t in Z]
    for few in (1, 100):  # one by one, and by slices
        monkeypatch.setattr(_online, "FEW_ROWS", few)
        for a, b in zip(dense, clone(model).fit(csr[0], labels, csr[1]).coef_, strict=True):
            assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    predicted = clone(model).fit(*([sparse.csc_array(t) for t in X], labels, csr[1]))
    assert_allclose(predicted.decision_function(csr[1]), predicted.decision_function(Z))


def test_the_scale_of_the_weights_is_folded_in_before_it_underflows():
    table, w = _online.Rows(np.eye(2)), _online.Weights(2)
    w.add(table, np.array([0]), np.array([1.0]))
    for _ in range(2000):
        w.shrink(0.5)
        w.add(table, np.array([1]), np.array([1.0]))
    assert_allclose(w.w, [0.5**2000, 2.0], rtol=1e-12)
    w.shrink(0.0)  # Pegasos's first step
    w.add(table, np.array([0]), np.array([3.0]))
    assert_allclose(w.w, [3.0, 0.0])


def test_a_stream_of_whole_batches_is_fit_with_whole_batches():
    X, y, Z = views()
    model = OCARegressor(eta0=0.1, n_labelled_step=30, n_unlabelled_step=80, n_steps=4, random_state=0)
    stream = clone(model)
    for _ in range(4):
        stream.partial_fit(X, y, Z)
    for a, b in zip(model.fit(X, y, Z).coef_, stream.coef_, strict=True):
        assert_array_equal(a, b)
    assert stream.n_steps_ == 4


def test_a_stream_has_moments_without_labels_and_without_the_unlabelled():
    X, y, Z = views()
    model = OCAClassifier(eta0=0.1, ridge=0.1)
    none = [t[:0] for t in X]
    with pytest.raises(BadData, match="class"):
        clone(model).partial_fit(none, [], Z)
    model.partial_fit(none, [], Z, classes=["no", "yes"])
    assert all((w == 0).all() for w in model.coef_)
    model.partial_fit(X, np.where(y > 0, "yes", "no"), [t[:0] for t in Z])
    before = model.coef_
    model.partial_fit(none, [], Z)
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, model.coef_, strict=True))
    with pytest.raises(BadData, match="neither a labelled nor an unlabelled"):
        model.partial_fit(none, [])
    with pytest.raises(BadData, match="'perhaps' is none of the classes"):
        model.partial_fit(X, np.where(y > 0, "perhaps", "no"))


def test_unlabelled_rows_draw_the_views_together():
    X, y, Z = views(n=4, m=400, seed=2)

    def apart(coupling):
        model = OCARegressor(coupling=coupling, eta0=0.3, ridge=0.01, n_steps=4000, random_state=0).fit(X, y, Z)
        return np.ptp(model.predict_views(Z), axis=0).mean()

    assert apart(1.0) < 0.7 * apart(0.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ridge": [0.1]}, "ridge: 1 values for 2 views"),
        ({"n_labelled_step": 31}, "n_labelled_step=31: choose 1 to 30"),
        ({"loss": "pairwise"}, "n_labelled_step=1: choose 2 to 30"),
        ({"n_unlabelled_step": 81}, "n_unlabelled_step=81: choose 1 to 80"),
        ({"eta0": 1e6, "ridge": 1e-9, "n_steps": 5000}, "diverge.*eta0"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_named(changes, says):
    with pytest.raises(UsageError, match=says):
        OCARegressor(**changes, random_state=0).fit(*views())


def test_a_call_with_wrong_arguments_leaves_the_model_as_it_was():
    X, y, Z = views()
    model = OCARegressor(eta0=0.1, n_steps=20, random_state=0)
    with pytest.raises(BadData, match="NaN"):
        model.partial_fit(X, y * np.nan, Z)
    with pytest.raises(NotFittedError):
        model.predict(X)
    before = model.fit(X, y, Z).predict(X)
    with pytest.raises(BadData, match="NaN"):
        model.fit(X, y * np.nan, Z)
    with pytest.raises(BadData, match="30 labelled rows and 29 targets"):
        model.partial_fit(X, y[:-1], Z)
    for changes in ({"n_steps": 0}, {"ridge": 0.0}, {"coupling": -1.0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            model.set_params(**changes).fit(X, y, Z)
        model.set_params(n_steps=20, ridge=0.01, coupling=0.1)
    assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("size", [1, 2])
def test_weights_that_are_of_no_use_are_never_handed_out(size):
    """Every step multiplies them by 10¹² or so: one of these numbers of steps ends just where they leave what is sound."""
    X = [sparse.csr_array(np.array([[value, 0.0]] * 2)) for value in (1.0, 0.5)]
    Z = [sparse.csr_array(np.array([[1.0, sign * 1e3]] * 2)) for sign in (1, -1)]
    said = 0
    for n_steps in range(1, 40):
        model = OCARegressor(
            eta0=1.0, coupling=1e6, n_steps=n_steps, n_unlabelled_step=size, fit_intercept=False, random_state=0
        )
        try:
            model.fit(X, [1.0, 1.0], Z)
        except UsageError as error:
            said += "diverge" in str(error)
        else:
            assert all(np.abs(w).max() < 1e100 for w in model.coef_)
    assert said > 20
