"""The complexity of the co-regularised class against its definition, sign vector by sign vector; CoRLS with both losses."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from coreg_core.agreement.complexity import CoRegularisedClass, kernel_blocks
from coreg_core.errors import SingularSystem
from coreg_core.kernels.functions import Gaussian


def tables(seed, M=2, l=5, m=4, repeat=False):  # noqa: E741
    rng = np.random.default_rng(seed)
    Xs, Zs = [rng.normal(size=(l, 2)) for _ in range(M)], [rng.normal(size=(m, 2)) for _ in range(M)]
    if repeat and m > 1:
        for X, Z in zip(Xs, Zs, strict=True):
            Z[1], X[-1] = Z[0], Z[0]
    return Xs, Zs


def blocks(Xs, Zs, kernel=None):
    return [kernel_blocks(kernel or Gaussian(2.0), X, Z) for X, Z in zip(Xs, Zs, strict=True)]


def supremum(Xs, Zs, ridge, coupling, sigma, kernel=None):
    """sup over H of (2/(M l)) Σ σ_i Σ_v f_v(x_i), from the definition: pairs summed one by one, all points as a basis."""
    kernel = kernel or Gaussian(2.0)
    M, l = len(Xs), len(sigma)  # noqa: E741
    points = [np.vstack([Z, X]) for X, Z in zip(Xs, Zs, strict=True)]
    K = [kernel(P, P) for P in points]
    m, size = len(Zs[0]), len(points[0])
    N = np.zeros((M * size, M * size))
    for v in range(M):
        N[v * size : (v + 1) * size, v * size : (v + 1) * size] += ridge[v] * K[v]
    for u, v in combinations(range(M), 2):
        apart = np.zeros((m, M * size))
        apart[:, u * size : (u + 1) * size], apart[:, v * size : (v + 1) * size] = K[u][:m], -K[v][:m]
        N += coupling * apart.T @ apart
    c = np.concatenate([sigma @ K[v][m:] for v in range(M)])
    # sup c·a subject to aᵀNa ≤ 1 is √(cᵀN⁺c), for c in the range of N.
    return 2 / (M * l) * np.sqrt(max(0.0, c @ np.linalg.pinv(N, rcond=1e-12, hermitian=True) @ c)), c, N


def limit_of(J):
    """tr(Jᵀ 𝓜⁺ J), what Δ(λ) tends to: Proposition 1."""
    s, E = np.linalg.eigh(J._gram)
    rotated = E[:, s > 1e-13 * s.max(initial=0.0)].T @ J.difference
    return float(np.einsum("ij,ij,i->", rotated, rotated, 1.0 / s[s > 1e-13 * s.max(initial=0.0)]))


def by_enumeration(Xs, Zs, ridge, coupling, kernel=None):
    values = [
        supremum(Xs, Zs, ridge, coupling, np.array(s), kernel)[0] for s in product((-1.0, 1.0), repeat=len(Xs[0]))
    ]
    return np.mean(values)


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("M", [1, 2, 3, 4])
@pytest.mark.parametrize("coupling", [0.0, 0.3, 20.0])
def test_the_bounds_hold_and_the_second_moment_is_u(M, coupling, repeat):
    Xs, Zs = tables(M, M, repeat=repeat)
    ridge = [0.2 * (v + 1) for v in range(M)]
    J = CoRegularisedClass(blocks(Xs, Zs), ridge, coupling)
    low, high = J.complexity_bounds
    complexity = by_enumeration(Xs, Zs, ridge, coupling)
    assert low * (1 - 1e-9) <= complexity <= high * (1 + 1e-9)
    # U² is the mean of the squared suprema over every sign vector: the formula itself, not only the bounds.
    squares = [supremum(Xs, Zs, ridge, coupling, np.array(s))[0] ** 2 for s in product((-1.0, 1.0), repeat=5)]
    assert_allclose(np.sqrt(np.mean(squares)), high, rtol=1e-7)
    assert_allclose(np.trace(J.gram), J.scale**2, rtol=1e-10)


def test_for_two_views_it_is_the_formula_as_printed():
    Xs, Zs = tables(3)
    (A, C, B), (D, F, E) = ((b.unlabelled, b.cross, b.labelled) for b in blocks(Xs, Zs))
    gF, gG, lam = 0.4, 0.9, 0.25
    J, M = C / gF - F / gG, A / gF + D / gG
    reduction = lam * np.trace(J.T @ np.linalg.inv(np.eye(4) + lam * M) @ J)
    ours = CoRegularisedClass(blocks(Xs, Zs), [gF, gG], lam)
    assert_allclose(ours.reduction, reduction, rtol=1e-12)
    norm = np.linalg.inv(np.eye(4) / lam + M)
    assert_allclose(ours.reduction_by_row, [J[:, i] @ norm @ J[:, i] for i in range(J.shape[1])], rtol=1e-10)
    assert_allclose(ours.scale**2, np.trace(B) / gF + np.trace(E) / gG - reduction, rtol=1e-12)
    assert_allclose(np.abs(ours.pairs), [[1.0, 1.0]])


@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans(), st.sampled_from([0, 1, 4]))
@settings(max_examples=40)
def test_the_reduction_rises_from_0_to_its_limit(seed, M, repeat, m):
    Xs, Zs = tables(seed, M, m=m, repeat=repeat)
    couplings = (0.0, 1e-4, 1e-2, 1.0, 1e2, 1e4, 1e8)
    classes = [CoRegularisedClass(blocks(Xs, Zs), [0.5] * M, lam) for lam in couplings]
    reductions = [J.reduction for J in classes]
    limit = limit_of(classes[0])
    assert reductions[0] == 0.0
    slack = 1e-7 * max(1.0, limit)  # at λ = 1e8 the system's condition number is 1e9 or so
    assert (np.diff(reductions) >= -slack).all()
    assert max(reductions) <= limit + slack
    # An eigenvalue s of 𝓜 contributes λ/(1+λs) instead of 1/s: within 1e-4 relative where s ≥ 1e-4.
    assert reductions[-1] >= 0.9 * limit - slack


def test_a_coupling_at_which_rounding_decides_is_refused():
    Xs, Zs = tables(4, 2, m=60)
    Zs = [np.vstack([Z[:30], Z[:30]]) for Z in Zs]
    J = CoRegularisedClass(blocks(Xs, Zs), [1.0, 1.0], 1e18)
    with pytest.raises(SingularSystem, match="Lower the coupling"):
        _ = J.complexity_bounds
    assert CoRegularisedClass(blocks(Xs, Zs), [1.0, 1.0], 1e12).reduction <= limit_of(J) * (1 + 1e-6)
