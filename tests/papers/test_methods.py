"""The papers' methods: golden predictions of each, and the identities that define it."""

import json
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.linalg import eigh, lstsq
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from benchmarks.papers import methods
from benchmarks.papers.methods import (
    LSSVM,
    OCA,
    RLSR,
    SNF,
    SSSL,
    CoRLS,
    HessianRLS,
    LaplacianRLS,
    LinearLatentReconstruction,
    NystromSSSL,
    ParallelFieldRLS,
    oca,
)
from benchmarks.papers.methods.corls import CoRegularisedClass, kernel_blocks
from benchmarks.papers.methods.kernel_ridge import Polynomial, dual_with_bias
from benchmarks.papers.methods.latent import _best
from benchmarks.papers.methods.manifold import graph_laplacian, hessian_energy, nearest, parallel_field_energy
from benchmarks.papers.methods.xnv import canonical_basis, canonical_ridge, fold_rows
from coreg_core.estimators import CoRLSR
from coreg_core.kernels import Gaussian

EXPECTED = json.loads((Path(__file__).parent / "predictions.json").read_text())
FEWER = {"n_epochs": 20, "n_steps": 300, "random_state": 0}


@pytest.mark.parametrize("name", EXPECTED)
def test_predictions_stay(name):
    """Of the first 12 of 80 rows, 40 of them labelled; OCA takes lists of tables, and classes as −1 and 1."""
    rng = np.random.default_rng(7)
    X = rng.uniform(size=(80, 6))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    of_classes = name.endswith("Classifier")
    y = np.where(y > np.median(y), 1.0, -1.0) if of_classes else y
    model = getattr(methods, name.removesuffix("Classifier").removesuffix("Regressor"))()
    known = model.get_params()
    model.set_params(**{key: value for key, value in FEWER.items() if key in known})
    if "OCA" in name:
        model.set_params(loss="hinge" if of_classes else "squared")
        tables = X[:, :3], X[:, 3:]
        found = model.fit([t[:40] for t in tables], y[:40], [t[40:] for t in tables]).predict([t[-12:] for t in tables])
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


# --- CoRLS, and the complexity of the co-regularised class --------------------------------------------------------


def blocks(Xs, Zs):
    return [kernel_blocks(Gaussian(2.0), X, Z) for X, Z in zip(Xs, Zs, strict=True)]


def tables(seed, M=2, repeat=False):
    rng = np.random.default_rng(seed)
    Xs, Zs = [rng.normal(size=(5, 2)) for _ in range(M)], [rng.normal(size=(4, 2)) for _ in range(M)]
    if repeat:
        for X, Z in zip(Xs, Zs, strict=True):
            Z[1], X[-1] = Z[0], Z[0]
    return Xs, Zs


def supremum(Xs, Zs, ridge, coupling, sigma):
    """sup over H of (2/(M l)) Σ σ_i Σ_v f_v(x_i), from the definition: pairs summed one by one, all points as a basis."""
    M, m, size = len(Xs), len(Zs[0]), len(Zs[0]) + len(sigma)
    points = [np.vstack([Z, X]) for X, Z in zip(Xs, Zs, strict=True)]
    K = [Gaussian(2.0)(P, P) for P in points]
    N = np.zeros((M * size, M * size))
    for v in range(M):
        N[v * size : (v + 1) * size, v * size : (v + 1) * size] += ridge[v] * K[v]
    for u, v in combinations(range(M), 2):
        apart = np.zeros((m, M * size))
        apart[:, u * size : (u + 1) * size], apart[:, v * size : (v + 1) * size] = K[u][:m], -K[v][:m]
        N += coupling * apart.T @ apart
    c = np.concatenate([sigma @ K[v][m:] for v in range(M)])
    # sup c·a subject to aᵀNa ≤ 1 is √(cᵀN⁺c), for c in the range of N.
    return 2 / (M * len(sigma)) * np.sqrt(max(0.0, c @ np.linalg.pinv(N, rcond=1e-12, hermitian=True) @ c))


@pytest.mark.parametrize(
    ("M", "coupling", "repeat"), [(1, 0.3, True), (2, 0.0, False), (2, 20.0, True), (3, 0.3, False)]
)
def test_the_bounds_hold_and_the_second_moment_is_u(M, coupling, repeat):
    """Over every sign vector."""
    Xs, Zs = tables(M, M, repeat)
    ridge = [0.2 * (v + 1) for v in range(M)]
    J = CoRegularisedClass(blocks(Xs, Zs), ridge, coupling)
    low, high = J.complexity_bounds
    values = np.array([supremum(Xs, Zs, ridge, coupling, np.array(s)) for s in product((-1.0, 1.0), repeat=5)])
    assert low * (1 - 1e-9) <= values.mean() <= high * (1 + 1e-9)
    assert_allclose(np.sqrt(np.mean(values**2)), high, rtol=1e-7)
    assert_allclose(np.trace(J.gram), J.scale**2, rtol=1e-10)


def test_without_coupling_and_with_the_separate_loss_it_is_corlsr():
    X, y, _ = rows(30)
    model = CoRLSR(bandwidth="loo", ridge="loo", coupling=0.0).fit([X], y, [X[:3]])
    once = CoRLS(bandwidth="loo", ridge=["loo"], coupling=0.0).fit([X], y, [X[:3]])
    assert_allclose(once.predict([X]), model.predict([X]), rtol=1e-6)


# --- SNF, its linear relative, LS-SVM -----------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 3])
def test_the_value_and_the_gradient_of_a_reconstruction(degree):
    rng = np.random.default_rng(degree)
    Z, targets, ridge = 0.6 * rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), 0.3
    value, gradient = _best(Z, targets, degree, ridge)
    K = Polynomial(degree)(Z, Z)
    alpha, bias = dual_with_bias(K, targets, ridge)
    residual = targets - K @ alpha - bias
    assert_allclose(value, (residual**2).sum() + ridge * np.trace(alpha.T @ K @ alpha), rtol=1e-9)
    h, numeric = 1e-5, np.empty_like(Z)
    for i in np.ndindex(*Z.shape):
        step = np.zeros_like(Z)
        step[i] = h
        numeric[i] = (_best(Z + step, targets, degree, ridge)[0] - _best(Z - step, targets, degree, ridge)[0]) / (2 * h)
    assert_allclose(gradient, numeric, atol=1e-6 * max(1.0, np.abs(numeric).max()))


def test_without_steps_it_is_ls_svm_on_the_components():
    X, y, U = rows(12, 20, 4)
    model = SNF(n_epochs=0, start="pca", n_latent=3, degree=2, ridge_target=0.2).fit(*one_table(X, y, U))
    Z = model.latent_
    expected = LSSVM(kernel="polynomial", degree=2, ridge=0.2).fit(Z[:12], y).predict(Z[12:])
    assert_allclose(model.predictions_unlabelled_, expected, rtol=1e-10)


def test_alternating_least_squares_end_where_nothing_moves():
    X, y, U = rows(12, 20, 4)
    model = LinearLatentReconstruction(n_latent=2, tolerance=0.0, n_epochs=3000).fit(*one_table(X, y, U))
    assert (np.diff(model.objective_) <= 1e-10 * model.objective_[0]).all()
    # Stationary in Z: the objective's own gradient, from its definition.
    Z, V, v0, w, w0 = model.latent_, model._V, model._v0, model._w[0], model._w0[0]
    gradient = -2 * (np.vstack([X, U]) - v0 - Z @ V.T) @ V + 2 * 0.1 * Z
    gradient[:12] -= 2 * np.outer(y - w0 - Z[:12] @ w, w)
    assert np.abs(gradient).max() < 1e-3


# --- the Laplacian, the Hessian and parallel fields ---------------------------------------------------------------


@pytest.mark.parametrize("method", [LaplacianRLS, HessianRLS, ParallelFieldRLS])
def test_the_solution_is_a_minimum_of_its_objective(method):
    X, y, U = rows()
    model = method(bandwidth=2.0, ridge=0.01, manifold=20.0).fit(*one_table(X, y, U))
    everything = np.vstack([X, U])
    P = model._penalty(everything, nearest(everything, model.n_neighbours))
    K, centred = model.function_.kernel(everything, everything), y - y.mean()

    def objective(alpha):
        f = K @ alpha
        return ((f[:15] - centred) ** 2).mean() + 0.01 * alpha @ f + 20.0 / 75**2 * f @ P @ f

    best, rng = objective(model.function_.coef), np.random.default_rng(0)
    for size in (1e-1, 1e-3):
        assert all(objective(model.function_.coef + size * rng.normal(size=75)) > best for _ in range(20))
    assert_allclose(P, P.T, atol=1e-9 * np.abs(P).max())
    assert np.linalg.eigvalsh(P).min() > -1e-9 * np.abs(P).max()


def flat(n=80, seed=0):
    """A plane, tilted into three dimensions: coordinates in it, and the rows."""
    rng = np.random.default_rng(seed)
    u = rng.uniform(-1, 1, size=(n, 2))
    return u, u @ np.linalg.qr(rng.normal(size=(3, 2)))[0].T


def test_constants_cost_nothing_and_lines_cost_the_laplacian_alone():
    u, X = flat()
    neighbours = nearest(X, 10)
    line, bowl = u @ [1.0, -2.0] + 3.0, (u**2).sum(axis=1)
    energies = {
        "laplacian": graph_laplacian(X, neighbours),
        "hessian": hessian_energy(X, neighbours, 2),
        "parallel": parallel_field_energy(X, neighbours, 2, 1.0),
    }
    for name, P in energies.items():
        assert abs(np.ones(80) @ P @ np.ones(80)) < 1e-8, name
        assert bowl @ P @ bowl > 1.0, name
    assert line @ energies["laplacian"] @ line > 1.0
    # A line's gradient is parallel; what is left is the 1e-12 that decides what nothing sees.
    assert abs(line @ energies["parallel"] @ line) < 1e-6
    assert abs(line @ energies["hessian"] @ line) < 1e-8
    H = np.array([[1.0, 0.5], [0.5, 2.0]])  # the Hessian of a quadratic is found
    f = 0.5 * np.einsum("ni,ij,nj->n", u, H, u)
    assert_allclose(f @ energies["hessian"] @ f, 80 * (H**2).sum(), rtol=1e-7)


# --- XNV, XKS, SSSL and its Nyström form --------------------------------------------------------------------------


def correlated(seed, n, p=4, q=3):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 2))
    first, second = (shared @ rng.normal(size=(2, d)) + 0.5 * rng.normal(size=(n, d)) for d in (p, q))
    return first, second


@pytest.mark.parametrize(("p", "q", "ridge"), [(4, 3, 0.0), (3, 4, 1e-3), (3, 3, 1.0), (1, 5, 1e-3)])
def test_the_basis_has_the_two_properties_that_define_it(p, q, ridge):
    first, second = correlated(1, 200, p, q)
    blocks = [(first[i : i + 64], second[i : i + 64]) for i in range(0, 200, 64)]
    basis = canonical_basis(*fold_rows(blocks), 200, ridge)
    r, moments = min(p, q), []
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
    Z, y, lam = rng.normal(size=(n, 5)), rng.normal(size=n), np.sort(rng.uniform(size=5))[::-1].copy()
    beta = canonical_ridge(Z, y, lam, ridge)
    penalty = (1 - lam) / lam + ridge
    gradient = Z.T @ (Z @ beta - y) / n + penalty * beta
    assert_allclose(gradient, 0, atol=1e-11 * (1 + np.abs(y).max() * np.abs(Z).max() * np.abs(penalty).max()))
    assert_allclose(canonical_ridge(Z, y, np.ones(5), 0.0), lstsq(Z, y)[0], rtol=1e-6)  # and of least norm


def test_nystrom_with_every_row_a_landmark_is_kernel_ridge():
    X, y, U = rows(40)
    model = NystromSSSL(n_components=40, kernel="gaussian", bandwidth=2.0, ridge=0.05, fit_intercept=False)
    expected = RLSR(preset="paper", kernel="gaussian", bandwidth=2.0, ridge=40 * 0.05).fit(X, y)
    assert_allclose(model.fit(X, y).predict(U), expected.predict(U), rtol=1e-8, atol=1e-9)


def test_linear_sssl_with_every_eigenfunction_is_linear_regression():
    X, y, U = rows(40, 160)
    model = SSSL(n_eigenfunctions=200, kernel="linear", fit_intercept=False).fit(*one_table(X, y, U))
    assert len(model.coef_) == 3  # the others have eigenvalue zero
    expected = LinearRegression(fit_intercept=False).fit(X, y)
    assert_allclose(model.predict(U), expected.predict(U), rtol=1e-9, atol=1e-10)


# --- OCA ----------------------------------------------------------------------------------------------------------


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
    ridge, eta0 = [0.1 * (v + 1) for v in range(M)], [0.2 / (v + 1) for v in range(M)]
    model = OCA(
        fit_intercept=False, epsilon=EPSILON, loss=kind, ridge=ridge, eta0=eta0, coupling=0.3, n_labelled_step=30,
        n_unlabelled_step=80, n_steps=6, random_state=0,
    )  # fmt: skip
    w = [np.zeros(t.shape[1]) for t in X]
    for t in range(1, 7):
        eta = [e / (1 + e * lam * (t - 1)) for e, lam in zip(eta0, ridge, strict=True)]
        w = [a - e * g for a, e, g in zip(w, eta, slopes(kind, w, X, y, Z, ridge, 0.3), strict=True)]
    for ours, expected in zip(model.fit(X, y, Z).coef_, w, strict=True):
        assert_allclose(ours, expected, atol=1e-8)  # central differences: h² and eps/h are both below it


@pytest.mark.parametrize("kind", LOSSES)
def test_one_step_in_the_mean_is_the_gradient(kind):
    """Over every row, or pair of rows, that a step of l = 1 can draw: the co-regularisation's sign, and its factor 4."""
    X, y, Z = views(n=7, m=5)
    y = np.sign(y) if kind in OF_CLASSES else np.round(y, 1)  # with ties
    start = [np.arange(1.0, t.shape[1] + 1) / 3 for t in X]
    labelled, unlabelled = [oca.Rows(t) for t in X], [oca.Rows(t) for t in Z]
    terms = oca.Objective(kind, [0.2, 0.3], [1.0, 1.0], 0.7, EPSILON)
    some, ends = [np.array(c) for c in combinations(range(7), 2)] if kind == "pairwise" else range(7), []
    for i, j in product(some, range(5)):
        weights = [oca.Weights(len(s)) for s in start]
        for w, s in zip(weights, start, strict=True):
            w.v += s
        oca.step(weights, terms, 1, labelled, i, y[i], unlabelled, j)
        ends.append([w.w for w in weights])
    for v, expected in enumerate(slopes(kind, start, X, y, Z, [0.2, 0.3], 0.7)):
        assert_allclose(start[v] - np.mean([end[v] for end in ends], axis=0), expected, atol=1e-7)


def test_more_unlabelled_rows_while_the_views_diverge(monkeypatch):
    (X, _), y, (Z, _) = views(n=20, m=200, seed=2)
    drawn, step = [], oca.step
    monkeypatch.setattr(oca, "step", lambda *given: drawn.append(len(given[-1])) or step(*given))

    def sizes(second, **changes):
        drawn.clear()
        OCA(coupling=0.01, n_unlabelled_step=2, n_steps=600, random_state=0, **changes).fit([X, X], y, [Z, second])
        return drawn.copy()

    assert set(sizes(-Z)) == {2}
    assert set(sizes(Z, max_unlabelled_step=64)) == {2}  # views that agree
    opposed = sizes(-Z, max_unlabelled_step=64)
    assert opposed[:8] == [2, 2, 4, 8, 16, 32, 64, 64]  # the first step is made from w = 0
    assert max(opposed) == 64
    assert max(sizes(-Z, max_unlabelled_step=10**6)) == 200  # all rows that there are


@pytest.mark.parametrize(("k", "eta0"), [(1, None), (3, 0.5), (30, None)])
def test_sparse_and_dense_give_the_same_weights(k, eta0, monkeypatch):
    X, y, Z = views()
    for table in (*X, *Z):
        table[np.abs(table) < 0.2] = 0.0
    steps = {"n_labelled_step": k, "n_unlabelled_step": 2 * k, "n_steps": 100, "random_state": 0}
    model, labels = OCA(loss="hinge", eta0=eta0, ridge=0.5, **steps), np.sign(y)
    dense = model.fit(X, labels, Z).coef_
    csr = [sparse.csr_array(t) for t in X], [sparse.csr_matrix(t) for t in Z]
    for few in (1, 100):  # one by one, and by slices
        monkeypatch.setattr(oca, "FEW_ROWS", few)
        for a, b in zip(dense, clone(model).fit(csr[0], labels, csr[1]).coef_, strict=True):
            assert_allclose(a, b, rtol=1e-9, atol=1e-12)
