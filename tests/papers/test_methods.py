"""The papers' methods: golden predictions of each, and the identities that define it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.linalg import eigh, lstsq
from sklearn.base import clone

from benchmarks.papers import methods
from benchmarks.papers.methods import OCA, HessianRLS, LaplacianRLS, ParallelFieldRLS, oca
from benchmarks.papers.methods.kernel_ridge import Polynomial, dual_with_bias
from benchmarks.papers.methods.latent import _best
from benchmarks.papers.methods.xnv import canonical_basis, canonical_ridge, fold_rows

FILE_OF_PREDICTIONS = Path(__file__).parent / "predictions.json"
EXPECTED = json.loads(FILE_OF_PREDICTIONS.read_text())
FEWER = {"n_epochs": 20, "n_steps": 300, "random_state": 0}


def friedman():
    """(80 rows, the targets of Friedman's function)."""
    X = default_rng(7).uniform(size=(80, 6))
    x1, x2, x3, x4, x5, _ = X.T
    y = 10 * np.sin(np.pi * x1 * x2)
    y += 20 * (x3 - 0.5) ** 2
    y += 10 * x4 + 5 * x5
    return X, y


def of_two_classes(y):
    return np.where(y > np.median(y), 1.0, -1.0)


def predicted_by_tables(model, X, y):
    """OCA takes lists of tables."""
    tables = X[:, :3], X[:, 3:]
    labelled = [table[:40] for table in tables]
    unlabelled = [table[40:] for table in tables]
    model.fit(labelled, y[:40], unlabelled)
    return model.predict([table[-12:] for table in tables])


def predicted(model, X, y):
    if "views" in model.get_params():
        model.set_params(views=[[0, 1], [2, 3], [4, 5]])
    y = y.copy()
    y[40:] = np.nan
    model.fit(X, y)
    return model.predict(X[-12:])


@pytest.mark.parametrize("name", EXPECTED)
def test_predictions_stay(name):
    """Of the last 12 of 80 rows, 40 of them labelled. Classes are −1 and 1."""
    X, y = friedman()
    of_classes = name.endswith("Classifier")
    if of_classes:
        y = of_two_classes(y)
    class_name = name.removesuffix("Classifier").removesuffix("Regressor")
    model = getattr(methods, class_name)()
    parameters = model.get_params()
    fewer = {key: value for key, value in FEWER.items() if key in parameters}
    model.set_params(**fewer)

    if "OCA" in name:
        loss = "squared"
        if of_classes:
            loss = "hinge"
        model.set_params(loss=loss)
        predictions = predicted_by_tables(model, X, y)
    else:
        predictions = predicted(model, X, y)

    expected = np.array(EXPECTED[name])
    scale = max(float(np.std(expected)), 1e-300)
    assert_allclose(predictions, expected, rtol=0, atol=1e-8 * scale)


def rows():
    """(15 labelled rows, their targets, 60 unlabelled rows)."""
    rng = default_rng(0)
    X = rng.uniform(-1, 1, size=(75, 3))
    x1, x2, _ = X[:15].T
    y = np.sin(2 * x1) + x2
    return X[:15], y, X[15:]


def one_table(X, y, U):
    """(X above U, targets that are missing on U)."""
    missing = np.full(len(U), np.nan)
    rows = np.concatenate([X, U])
    return rows, np.concatenate([y, missing])


def reconstruction(degree):
    """(latent rows, the targets that they reconstruct)."""
    rng = default_rng(degree)
    latent = 0.6 * rng.normal(size=(9, 3))
    targets = rng.normal(size=(9, 2))
    return latent, targets


@pytest.mark.parametrize("degree", [1, 3])
def test_the_value_of_a_reconstruction_is_that_of_its_kernel_ridge(degree):
    Z, targets = reconstruction(degree)
    ridge = 0.3
    value, _ = _best(Z, targets, degree, ridge)
    K = Polynomial(degree)(Z, Z)
    alpha, bias = dual_with_bias(K, targets, ridge)
    residual = targets - K @ alpha - bias
    squares = np.sum(residual**2)
    norm = np.trace(alpha.T @ K @ alpha)
    assert_allclose(value, squares + ridge * norm, rtol=1e-9)


@pytest.mark.parametrize("degree", [1, 3])
def test_the_gradient_of_a_reconstruction_is_that_of_differences(degree):
    Z, targets = reconstruction(degree)
    _, gradient = _best(Z, targets, degree, 0.3)
    h = 1e-5
    numeric = np.empty_like(Z)
    for place in np.ndindex(*Z.shape):
        step = np.zeros_like(Z)
        step[place] = h
        above, _ = _best(Z + step, targets, degree, 0.3)
        below, _ = _best(Z - step, targets, degree, 0.3)
        numeric[place] = (above - below) / (2 * h)
    size = max(1.0, np.abs(numeric).max())
    assert_allclose(gradient, numeric, atol=1e-6 * size)


MANIFOLD_METHODS = [LaplacianRLS, HessianRLS, ParallelFieldRLS]


def fitted(method, X, y, U):
    model = method(bandwidth=2.0, ridge=0.01, manifold=20.0)
    return model.fit(*one_table(X, y, U))


@pytest.mark.parametrize("method", MANIFOLD_METHODS)
def test_the_solution_is_a_minimum_of_its_objective(method):
    X, y, U = rows()
    model = fitted(method, X, y, U)
    everything = np.vstack([X, U])
    P = model._penalty(everything)
    K = model.function_.kernel(everything, everything)
    centred = y - y.mean()

    def objective(alpha):
        f = K @ alpha
        errors = f[:15] - centred
        error = np.mean(errors**2)
        norm = alpha @ f
        roughness = f @ P @ f
        penalty = 20.0 / 75**2 * roughness
        return error + 0.01 * norm + penalty

    solution = model.function_.coef
    least = objective(solution)
    rng = default_rng(0)
    for size in (1e-1, 1e-3):
        for _ in range(20):
            step = size * rng.normal(size=75)
            assert objective(solution + step) > least


@pytest.mark.parametrize("method", MANIFOLD_METHODS)
def test_a_penalty_is_symmetric_and_positive(method):
    X, y, U = rows()
    model = fitted(method, X, y, U)
    P = model._penalty(np.vstack([X, U]))
    size = np.abs(P).max()
    assert_allclose(P, P.T, atol=1e-9 * size)
    least = np.linalg.eigvalsh(P).min()
    assert least > -1e-9 * size


# --- XNV, XKS, SSSL and its Nyström form ----------------------------------------------------------


def correlated(p, q):
    """Two views of 200 rows, with p and q columns of two common factors."""
    rng = default_rng(1)
    shared = rng.normal(size=(200, 2))
    views = []
    for width in (p, q):
        signal = shared @ rng.normal(size=(2, width))
        noise = 0.5 * rng.normal(size=(200, width))
        views.append(signal + noise)
    return views


BASES = pytest.mark.parametrize(
    ("p", "q", "ridge"), [(4, 3, 0.0), (3, 4, 1e-3), (3, 3, 1.0), (1, 5, 1e-3)]
)


def basis_of(first, second, ridge):
    """The canonical basis, from blocks of 64 rows."""
    cuts = [64, 128, 192]
    blocks = zip(np.split(first, cuts), np.split(second, cuts), strict=True)
    return canonical_basis(*fold_rows(blocks), 200, ridge)


def regularised_moment(Z, ridge):
    moment = Z.T @ Z / len(Z)
    size = len(moment)
    mean_of_diagonal = np.trace(moment) / size
    return moment + ridge * mean_of_diagonal * np.eye(size)


@BASES
def test_the_basis_is_orthonormal_in_the_moments_of_each_view(p, q, ridge):
    first, second = correlated(p, q)
    basis = basis_of(first, second, ridge)
    identity = np.eye(min(p, q))
    for Z, B in ((first, basis.first), (second, basis.second)):
        moment = B.T @ regularised_moment(Z, ridge) @ B
        assert_allclose(moment, identity, atol=1e-12)


@BASES
def test_the_basis_makes_the_cross_moment_diagonal(p, q, ridge):
    first, second = correlated(p, q)
    basis = basis_of(first, second, ridge)
    C = first.T @ second / 200
    cross_moment = basis.first.T @ C @ basis.second
    assert_allclose(cross_moment, np.diag(basis.correlations), atol=1e-12)


@BASES
def test_squared_correlations_are_the_generalised_eigenvalues_of_the_textbook(p, q, ridge):
    first, second = correlated(p, q)
    basis = basis_of(first, second, ridge)
    C = first.T @ second / 200
    moment_of_first = regularised_moment(first, ridge)
    moment_of_second = regularised_moment(second, ridge)
    explained = C @ np.linalg.solve(moment_of_second, C.T)
    ascending = eigh(explained, moment_of_first, eigvals_only=True)
    largest = ascending[::-1][: min(p, q)]
    assert_allclose(basis.correlations**2, largest, atol=1e-11)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-5, 0.1, 10.0]), st.integers(1, 40))
@settings(max_examples=50)
def test_the_gradient_of_equation_9_vanishes(seed, ridge, n):
    rng = default_rng(seed)
    Z = rng.normal(size=(n, 5))
    y = rng.normal(size=n)
    lam = -np.sort(-rng.uniform(size=5))
    beta = canonical_ridge(Z, y, lam, ridge)
    penalty = (1 - lam) / lam + ridge
    residuals = Z @ beta - y
    gradient = Z.T @ residuals / n + penalty * beta
    largest = [np.abs(numbers).max() for numbers in (y, Z, penalty)]
    size = np.prod(largest)
    assert_allclose(gradient, 0, atol=1e-11 * (1 + size))


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_without_a_penalty_it_is_least_squares_of_least_norm(seed, n):
    rng = default_rng(seed)
    Z = rng.normal(size=(n, 5))
    y = rng.normal(size=n)
    solution, *_ = lstsq(Z, y)
    beta = canonical_ridge(Z, y, np.ones(5), 0.0)
    assert_allclose(beta, solution, rtol=1e-6)


# --- OCA ------------------------------------------------------------------------------------------


@dataclass
class Views:
    """Labelled tables, their targets, and unlabelled tables."""

    X: list[np.ndarray]
    y: np.ndarray
    Z: list[np.ndarray]


def views(n_views=2):
    """30 labelled and 80 unlabelled rows of linear views of three hidden columns."""
    rng = default_rng(0)
    hidden = rng.uniform(-1, 1, size=(110, 3))
    tables = []
    for v in range(n_views):
        loadings = rng.normal(size=(3, 3 + v))
        tables.append(hidden @ loadings / 3)
    targets = hidden[:30].sum(axis=1)
    labelled = [table[:30] for table in tables]
    unlabelled = [table[30:] for table in tables]
    return Views(labelled, targets, unlabelled)


EPSILON = 0.1


def hinge(margins):
    return np.maximum(0.0, 1.0 - margins)


def pairwise(p, y):
    """Hinges of all pairs whose order is known."""
    total = np.zeros(len(y))
    for i in range(len(y)):
        lower = p[y < y[i]]
        margins = p[i] - lower
        total[i] = hinge(margins).sum()
    return 2 * total / (len(y) - 1)


def squared(p, y):
    return 0.5 * (p - y) ** 2


def epsilon_insensitive(p, y):
    return np.maximum(0.0, np.abs(p - y) - EPSILON)


def hinge_of_classes(p, y):
    return hinge(y * p)


def logistic(p, y):
    return np.log1p(np.exp(-y * p))


LOSSES = {
    "squared": squared,
    "epsilon_insensitive": epsilon_insensitive,
    "pairwise": pairwise,
    "hinge": hinge_of_classes,
    "log_loss": logistic,
}
COUPLING = 0.3
OF_CLASSES = ("hinge", "log_loss")


def objective(kind, w, given, ridge):
    """Equation 5, with λ/2, term by term."""
    total = 0.0
    for v, weights in enumerate(w):
        predictions = given.X[v] @ weights
        losses = LOSSES[kind](predictions, given.y)
        penalty = 0.5 * ridge[v] * weights @ weights
        total += losses.mean() + penalty
        for u, others in enumerate(w):
            others_predictions = given.Z[u] @ others
            difference = given.Z[v] @ weights - others_predictions
            total += COUPLING * np.mean(difference**2)
    return total


def slopes(kind, w, given, ridge):
    """Central differences of `objective`."""
    h = 1e-6

    def moved(v, j, step):
        weights = [a.copy() for a in w]
        weights[v][j] += step
        return objective(kind, weights, given, ridge)

    gradients = []
    for v, weights in enumerate(w):
        gradient = np.empty(len(weights))
        for j in range(len(weights)):
            difference = moved(v, j, h) - moved(v, j, -h)
            gradient[j] = difference / (2 * h)
        gradients.append(gradient)
    return gradients


def gradient_descent(kind, given, ridge, eta0):
    """The weights after six steps."""
    w = [np.zeros(table.shape[1]) for table in given.X]
    for t in range(6):
        gradients = slopes(kind, w, given, ridge)
        for v, gradient in enumerate(gradients):
            decay = 1 + eta0[v] * ridge[v] * t
            eta = eta0[v] / decay
            w[v] = w[v] - eta * gradient
    return w


@pytest.mark.parametrize("n_views", [1, 3])
@pytest.mark.parametrize("kind", LOSSES)
def test_full_batches_are_gradient_descent_on_equation_5(kind, n_views):
    given = views(n_views)
    if kind in OF_CLASSES:
        given.y = of_two_classes(given.y)
    ridge = [0.1 * (v + 1) for v in range(n_views)]
    eta0 = [0.2 / (v + 1) for v in range(n_views)]
    full_batches = {"n_labelled_step": 30, "n_unlabelled_step": 80, "n_steps": 6}
    rates = {"ridge": ridge, "eta0": eta0, "coupling": COUPLING}
    model = OCA(
        fit_intercept=False, epsilon=EPSILON, loss=kind, random_state=0, **full_batches, **rates
    )

    coefficients = model.fit(given.X, given.y, given.Z).coef_

    # Of central differences h² and eps/h are both below 1e-8.
    expected = gradient_descent(kind, given, ridge, eta0)
    for ours, weights in zip(coefficients, expected, strict=True):
        assert_allclose(ours, weights, atol=1e-8)


@pytest.mark.parametrize("few", [1, 100], ids=["by slices", "one by one"])
@pytest.mark.parametrize(("k", "eta0"), [(1, None), (3, 0.5), (30, None)])
def test_sparse_and_dense_give_the_same_weights(k, eta0, few, monkeypatch):
    given = views()
    for table in (*given.X, *given.Z):
        table[np.abs(table) < 0.2] = 0.0
    steps = {"n_labelled_step": k, "n_unlabelled_step": 2 * k, "n_steps": 100, "random_state": 0}
    model = OCA(loss="hinge", eta0=eta0, ridge=0.5, **steps)
    labels = np.sign(given.y)
    dense = model.fit(given.X, labels, given.Z).coef_
    labelled = [sparse.csr_array(table) for table in given.X]
    unlabelled = [sparse.csr_matrix(table) for table in given.Z]

    monkeypatch.setattr(oca, "FEW_ROWS", few)
    coefficients = clone(model).fit(labelled, labels, unlabelled).coef_

    for ours, expected in zip(coefficients, dense, strict=True):
        assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
