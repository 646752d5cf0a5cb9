"""Laplacian, Hessian and parallel field regularisation: their penalties by what they must ignore, and their limits."""

import numpy as np
import pytest
from gaps import one_table
from numpy.testing import assert_allclose

from benchmarks.papers.rivals import HessianRLS, ParallelFieldRLS
from benchmarks.papers.rivals.hessian import hessian_energy
from benchmarks.papers.rivals.parallel_field import parallel_field_energy
from benchmarks.papers.rivals.tangents import tangents
from coreg_core.estimators import RLSR, LaplacianRLS
from coreg_core.estimators.laplacian_rls import graph_laplacian, nearest

METHODS = [LaplacianRLS, HessianRLS, ParallelFieldRLS]


def rows(n=15, m=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n + m, 3))
    return X[:n], np.sin(2 * X[:n, 0]) + X[:n, 1], X[n:]


@pytest.mark.parametrize("method", METHODS)
def test_without_the_manifold_it_is_rlsr(method):
    X, y, U = rows()
    ours = method(bandwidth=2.0, ridge=0.02, manifold=0.0, fit_intercept=False).fit(*one_table(X, y, U))
    expected = RLSR(preset="paper", bandwidth=2.0, ridge=15 * 0.02).fit(X, y)
    assert_allclose(ours.predict(U), expected.predict(U), atol=1e-9)
    assert_allclose(ours.predictions_unlabelled_, ours.predict(U), atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
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
        for _ in range(20):
            assert objective(model.function_.coef + size * rng.normal(size=75)) > best
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
    assert abs(line @ energies["hessian"] @ line) < 1e-8
    # A line's gradient is parallel; what is left is the 1e-12 that decides what nothing sees.
    assert abs(line @ energies["parallel"] @ line) < 1e-6


def test_the_hessian_of_a_quadratic_is_found():
    u, X = flat(200)
    for H in (np.diag([2.0, -3.0]), np.array([[1.0, 0.5], [0.5, 2.0]])):
        f = 0.5 * np.einsum("ni,ij,nj->n", u, H, u)
        assert_allclose(f @ hessian_energy(X, nearest(X, 12), 2) @ f, 200 * (H**2).sum(), rtol=1e-7)


def test_the_laplacian_is_the_sum_over_edges():
    _, X = flat(30)
    L, f = graph_laplacian(X, nearest(X, 4)), np.random.default_rng(1).normal(size=30)
    W = np.diag(np.diag(L)) - L
    assert (W >= 0).all()
    assert_allclose(f @ L @ f, 0.5 * (W * (f[:, None] - f) ** 2).sum())
    assert ((W > 0).sum(axis=1) >= 4).all()


def test_the_field_is_the_one_that_costs_least():
    """Eliminating V in closed form, against a direct least squares over V."""
    _, X = flat(25)
    neighbours, rho = nearest(X, 5), 0.7
    f, T = np.random.default_rng(2).normal(size=25), tangents(X, neighbours, 2)
    left, right = [], []
    for i in range(25):
        for j in neighbours[i]:
            one = np.zeros((25, 2))
            one[i] = (X[j] - X[i]) @ T[i]
            left.append(one.ravel())
            right.append(f[j] - f[i])
            turn = T[i].T @ T[j]
            for a in range(2):
                one = np.zeros((25, 2))
                one[j] += np.sqrt(rho) * turn[a]
                one[i, a] -= np.sqrt(rho)
                left.append(one.ravel())
                right.append(0.0)
    left, right = np.array(left), np.array(right)
    V = np.linalg.lstsq(left, right, rcond=None)[0]
    direct = ((left @ V - right) ** 2).sum()
    assert_allclose(f @ parallel_field_energy(X, neighbours, 2, rho) @ f, direct, rtol=1e-8)


def test_the_manifold_helps_where_neighbours_agree():
    """Two clusters, one label in each: what the penalty is for."""
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(40, 2)) * 0.3 + c for c in ([-1.5, 0], [1.5, 0])])
    labels = np.repeat([-1.0, 1.0], 40)
    chosen = [0, 40]
    rest = np.setdiff1d(np.arange(80), chosen)
    model = LaplacianRLS(bandwidth=0.3, ridge=1e-4, manifold=10.0, fit_intercept=False)
    together = model.fit(*one_table(X[chosen], labels[chosen], X[rest]))
    alone = RLSR(preset="paper", bandwidth=0.3, ridge=2e-4).fit(X[chosen], labels[chosen])

    def error(f):
        return np.abs(f - labels[rest]).mean()

    assert error(together.predictions_unlabelled_) < 0.5 * error(alone.predict(X[rest]))


@pytest.mark.parametrize("method", METHODS)
def test_repeated_rows_and_constant_columns_are_no_error(method):
    X, y, U = rows()
    X = np.column_stack([X, np.ones(15)])
    U = np.column_stack([np.repeat(U[:20], 3, axis=0), np.ones(60)])
    assert np.isfinite(method(bandwidth=2.0).fit(*one_table(X, y, U)).predict(U)).all()
