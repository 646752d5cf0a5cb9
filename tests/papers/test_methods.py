"""The papers' methods: golden predictions of each, and the identities that define it."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.linalg import eigh, lstsq
from sklearn.base import clone

from benchmarks.papers import methods
from benchmarks.papers.methods import OCA, HessianRLS, LaplacianRLS, ParallelFieldRLS, oca
from benchmarks.papers.methods.kernel_ridge import Polynomial, dual_with_bias
from benchmarks.papers.methods.latent import _best
from benchmarks.papers.methods.xnv import canonical_basis, canonical_ridge, fold_rows

EXPECTED = json.loads((Path(__file__).parent / "predictions.json").read_text())
FEWER = {"n_epochs": 20, "n_steps": 300, "random_state": 0}


@pytest.mark.parametrize("name", EXPECTED)
def test_predictions_stay(name):
    """Of the first 12 of 80 rows, 40 of them labelled; OCA takes lists of tables, and classes as −1
    and 1.
    """
    rng = np.random.default_rng(7)
    X = rng.uniform(size=(80, 6))
    y = (
        10 * np.sin(np.pi * X[:, 0] * X[:, 1])
        + 20 * (X[:, 2] - 0.5) ** 2
        + 10 * X[:, 3]
        + 5 * X[:, 4]
    )
    of_classes = name.endswith("Classifier")
    y = np.where(y > np.median(y), 1.0, -1.0) if of_classes else y
    model = getattr(methods, name.removesuffix("Classifier").removesuffix("Regressor"))()
    known = model.get_params()
    model.set_params(**{key: value for key, value in FEWER.items() if key in known})
    if "OCA" in name:
        model.set_params(loss="hinge" if of_classes else "squared")
        tables = X[:, :3], X[:, 3:]
        found = model.fit([t[:40] for t in tables], y[:40], [t[40:] for t in tables]).predict(
            [t[-12:] for t in tables]
        )
    else:
        if "views" in known:
            model.set_params(views=[[0, 1], [2, 3], [4, 5]])
        found = model.fit(X, np.where(np.arange(80) < 40, y, np.nan)).predict(X[-12:])
    expected = np.array(EXPECTED[name])
    assert_allclose(found, expected, rtol=0, atol=1e-8 * max(float(np.std(expected)), 1e-300))


def rows(n=15, m=60, d=3, seed=0):
    """(labelled rows, their targets, unlabelled rows)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n + m, d))
    return X[:n], np.sin(2 * X[:n, 0]) + X[:n, 1], X[n:]


def one_table(X, y, U):
    """(X above U, targets that are missing on U)."""
    return np.concatenate([X, U]), np.concatenate([y, np.full(len(U), np.nan)])


@pytest.mark.parametrize("degree", [1, 3])
def test_the_value_and_the_gradient_of_a_reconstruction(degree):
    rng = np.random.default_rng(degree)
    Z = 0.6 * rng.normal(size=(9, 3))
    targets = rng.normal(size=(9, 2))
    ridge = 0.3
    value, gradient = _best(Z, targets, degree, ridge)
    K = Polynomial(degree)(Z, Z)
    alpha, bias = dual_with_bias(K, targets, ridge)
    residual = targets - K @ alpha - bias
    assert_allclose(value, (residual**2).sum() + ridge * np.trace(alpha.T @ K @ alpha), rtol=1e-9)
    h = 1e-5
    numeric = np.empty_like(Z)
    for i in np.ndindex(*Z.shape):
        step = np.zeros_like(Z)
        step[i] = h
        numeric[i] = (
            _best(Z + step, targets, degree, ridge)[0] - _best(Z - step, targets, degree, ridge)[0]
        ) / (2 * h)
    assert_allclose(gradient, numeric, atol=1e-6 * max(1.0, np.abs(numeric).max()))


@pytest.mark.parametrize("method", [LaplacianRLS, HessianRLS, ParallelFieldRLS])
def test_the_solution_is_a_minimum_of_its_objective(method):
    X, y, U = rows()
    model = method(bandwidth=2.0, ridge=0.01, manifold=20.0).fit(*one_table(X, y, U))
    everything = np.vstack([X, U])
    P = model._penalty(everything)
    K = model.function_.kernel(everything, everything)
    centred = y - y.mean()

    def objective(alpha):
        f = K @ alpha
        return ((f[:15] - centred) ** 2).mean() + 0.01 * alpha @ f + 20.0 / 75**2 * f @ P @ f

    best = objective(model.function_.coef)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-3):
        assert all(
            objective(model.function_.coef + size * rng.normal(size=75)) > best for _ in range(20)
        )
    assert_allclose(P, P.T, atol=1e-9 * np.abs(P).max())
    assert np.linalg.eigvalsh(P).min() > -1e-9 * np.abs(P).max()


# --- XNV, XKS, SSSL and its Nyström form ----------------------------------------------------------


def correlated(seed, n, p=4, q=3):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 2))
    first, second = (
        shared @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(n, d)) for d in (p, q)
    )
    return first, second


@pytest.mark.parametrize(
    ("p", "q", "ridge"), [(4, 3, 0.0), (3, 4, 1e-3), (3, 3, 1.0), (1, 5, 1e-3)]
)
def test_the_basis_has_the_two_properties_that_define_it(p, q, ridge):
    first, second = correlated(1, 200, p, q)
    blocks = [(first[i : i + 64], second[i : i + 64]) for i in range(0, 200, 64)]
    basis = canonical_basis(*fold_rows(blocks), 200, ridge)
    r = min(p, q)
    moments = []
    for Z, B in ((first, basis.first), (second, basis.second)):
        moment = Z.T @ Z / len(Z)
        moments.append(moment + ridge * np.trace(moment) / len(moment) * np.eye(len(moment)))
        assert_allclose(B.T @ moments[-1] @ B, np.eye(r), atol=1e-12)
    C = first.T @ second / len(first)
    assert_allclose(basis.first.T @ C @ basis.second, np.diag(basis.correlations), atol=1e-12)
    # The squared correlations are the generalised eigenvalues of the textbook's problem.
    textbook = eigh(C @ np.linalg.solve(moments[1], C.T), moments[0], eigvals_only=True)[::-1][:r]
    assert_allclose(basis.correlations**2, textbook, atol=1e-11)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-5, 0.1, 10.0]), st.integers(1, 40))
@settings(max_examples=50)
def test_the_gradient_of_equation_9_vanishes(seed, ridge, n):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 5))
    y = rng.normal(size=n)
    lam = np.sort(rng.uniform(size=5))[::-1].copy()
    beta = canonical_ridge(Z, y, lam, ridge)
    penalty = (1 - lam) / lam + ridge
    gradient = Z.T @ (Z @ beta - y) / n + penalty * beta
    assert_allclose(
        gradient, 0, atol=1e-11 * (1 + np.abs(y).max() * np.abs(Z).max() * np.abs(penalty).max())
    )
    assert_allclose(
        canonical_ridge(Z, y, np.ones(5), 0.0), lstsq(Z, y)[0], rtol=1e-6
    )  # and of least norm


# --- OCA ------------------------------------------------------------------------------------------


def views(n=30, m=80, seed=0, M=2, d=3):
    rng = np.random.default_rng(seed)
    hidden = rng.uniform(-1, 1, size=(n + m, d))
    made = [hidden @ rng.normal(size=(d, d + v)) / d for v in range(M)]
    return [t[:n] for t in made], hidden[:n].sum(axis=1), [t[n:] for t in made]


EPSILON = 0.1
LOSSES = {
    "squared": lambda p, y: 0.5 * (p - y) ** 2,
    "epsilon_insensitive": lambda p, y: np.maximum(0.0, np.abs(p - y) - EPSILON),
    "pairwise": lambda p, y: (
        np.array([np.maximum(0.0, 1.0 - (p[i] - p[y < y[i]])).sum() for i in range(len(y))])
        * 2
        / (len(y) - 1)
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


def slopes(kind, w, *arguments, h=1e-6):
    """Central differences of `objective`."""
    out = [np.empty(len(each)) for each in w]
    for v, each in enumerate(w):
        for j in range(len(each)):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in w]
                moved[v][j] += sign * h
                ends.append(objective(kind, moved, *arguments))
            out[v][j] = (ends[0] - ends[1]) / (2 * h)
    return out


@pytest.mark.parametrize("M", [1, 3])
@pytest.mark.parametrize("kind", LOSSES)
def test_full_batches_are_gradient_descent_on_equation_5(kind, M):
    X, y, Z = views(M=M)
    y = np.where(y > np.median(y), 1.0, -1.0) if kind in OF_CLASSES else y
    ridge = [0.1 * (v + 1) for v in range(M)]
    eta0 = [0.2 / (v + 1) for v in range(M)]
    model = OCA(
        fit_intercept=False, epsilon=EPSILON, loss=kind, ridge=ridge, eta0=eta0, coupling=0.3,
        n_labelled_step=30,
        n_unlabelled_step=80, n_steps=6, random_state=0,
    )  # fmt: skip
    w = [np.zeros(t.shape[1]) for t in X]
    for t in range(1, 7):
        eta = [e / (1 + e * lam * (t - 1)) for e, lam in zip(eta0, ridge, strict=True)]
        w = [
            a - e * g for a, e, g in zip(w, eta, slopes(kind, w, X, y, Z, ridge, 0.3), strict=True)
        ]
    for ours, expected in zip(model.fit(X, y, Z).coef_, w, strict=True):
        assert_allclose(
            ours, expected, atol=1e-8
        )  # central differences: h² and eps/h are both below it


@pytest.mark.parametrize(("k", "eta0"), [(1, None), (3, 0.5), (30, None)])
def test_sparse_and_dense_give_the_same_weights(k, eta0, monkeypatch):
    X, y, Z = views()
    for table in (*X, *Z):
        table[np.abs(table) < 0.2] = 0.0
    steps = {"n_labelled_step": k, "n_unlabelled_step": 2 * k, "n_steps": 100, "random_state": 0}
    model = OCA(loss="hinge", eta0=eta0, ridge=0.5, **steps)
    labels = np.sign(y)
    dense = model.fit(X, labels, Z).coef_
    csr = [sparse.csr_array(t) for t in X], [sparse.csr_matrix(t) for t in Z]
    for few in (1, 100):  # one by one, and by slices
        monkeypatch.setattr(oca, "FEW_ROWS", few)
        for a, b in zip(dense, clone(model).fit(csr[0], labels, csr[1]).coef_, strict=True):
            assert_allclose(a, b, rtol=1e-9, atol=1e-12)
