"""Canonical correlations and the ridge regression in their basis, by identity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.linalg import eigh, lstsq

from coreg_core.errors import UsageError
from coreg_core.estimators._canonical_ridge import canonical_basis, canonical_ridge, fold_rows


def views(seed, rows, p=4, q=3, noise=0.5):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, 2))
    first = shared @ rng.normal(size=(2, p)) + noise * rng.normal(size=(rows, p))
    return first, shared @ rng.normal(size=(2, q)) + noise * rng.normal(size=(rows, q))


def in_blocks(first, second, size):
    return [(first[i : i + size], second[i : i + size]) for i in range(0, len(first), size)]


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 50))
def test_folding_keeps_every_inner_product_whatever_the_blocks(seed, rows, size):
    first, second = views(seed, rows)
    F, S = fold_rows(in_blocks(first, second, size))
    assert len(F) <= 7
    both, folded = np.hstack([first, second]), np.hstack([F, S])
    # A QR factor's backward error is a modest multiple of eps times the norm.
    assert_allclose(folded.T @ folded, both.T @ both, atol=1e-13 * np.linalg.norm(both) ** 2)


@pytest.mark.parametrize(("p", "q"), [(4, 3), (3, 4), (3, 3), (1, 5)])
@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0])
def test_the_basis_has_the_two_properties_that_define_it(p, q, ridge):
    first, second = views(1, 200, p, q)
    basis = canonical_basis(*fold_rows(in_blocks(first, second, 64)), 200, ridge)
    r, moments = min(p, q), []
    for Z, B in ((first, basis.first), (second, basis.second)):
        moment = Z.T @ Z / len(Z)
        moments.append(moment + ridge * np.trace(moment) / len(moment) * np.eye(len(moment)))
        assert_allclose(B.T @ moments[-1] @ B, np.eye(r), atol=1e-12)
    cross = basis.first.T @ (first.T @ second / len(first)) @ basis.second
    assert_allclose(cross, np.diag(basis.correlations), atol=1e-12)
    assert (np.diff(basis.correlations) <= 0).all()
    # The squared correlations are the generalised eigenvalues of the textbook's problem.
    C = first.T @ second / len(first)
    textbook = eigh(C @ np.linalg.solve(moments[1], C.T), moments[0], eigvals_only=True)[::-1][:r]
    assert_allclose(basis.correlations**2, textbook, atol=1e-11)


def test_views_that_determine_each_other_correlate_perfectly():
    first, _ = views(2, 50)
    turn = np.random.default_rng(0).normal(size=(4, 4))
    assert_allclose(canonical_basis(first, first @ turn, 50, 0.0).correlations, 1.0, atol=1e-12)
    assert canonical_basis(first, first @ turn, 50, 0.1).correlations.max() < 1.0


def test_dependent_features_need_the_ridge_and_are_told_so():
    first, second = views(3, 50)
    twice = np.hstack([first, first[:, :1]])
    with pytest.raises(UsageError, match=r"first view's features are linearly dependent.*cca_ridge"):
        canonical_basis(twice, second, 50, 0.0)
    with pytest.raises(UsageError, match="second view's features are linearly dependent"):
        canonical_basis(second, twice, 50, 0.0)
    assert np.isfinite(canonical_basis(twice, second, 50, 1e-6).first).all()
    with pytest.raises(UsageError, match="cca_ridge=-1"):
        canonical_basis(first, second, 50, -1.0)
    with pytest.raises(UsageError, match="zero on every row"):
        canonical_basis(0 * first, second, 50, 0.1)


def labelled(seed, n=30, r=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, r)), rng.normal(size=n), np.sort(rng.uniform(size=r))[::-1].copy()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-5, 0.1, 10.0]), st.integers(1, 40))
@settings(max_examples=50)
def test_the_gradient_of_equation_9_vanishes(seed, ridge, n):
    Z, y, lam = labelled(seed, n)
    beta = canonical_ridge(Z, y, lam, ridge)
    penalty = (1 - lam) / lam + ridge
    gradient = Z.T @ (Z @ beta - y) / n + penalty * beta
    assert_allclose(gradient, 0, atol=1e-11 * (1 + np.abs(y).max() * np.abs(Z).max() * np.abs(penalty).max()))


def test_perfect_correlations_and_no_ridge_are_least_squares():
    Z, y, _ = labelled(1)
    expected = lstsq(Z, y)[0]
    assert_allclose(canonical_ridge(Z, y, np.ones(5), 0.0), expected, rtol=1e-12)
    assert_allclose(canonical_ridge(Z, y, np.ones(5), 1e-13), expected, rtol=1e-10)
    few = canonical_ridge(Z[:3], y[:3], np.ones(5), 0.0)  # fewer rows than features: least norm
    assert_allclose(few, lstsq(Z[:3], y[:3])[0], rtol=1e-10)


def test_on_whitened_rows_it_is_the_shrinkage_of_equation_4():
    Z, y, lam = labelled(2)
    white = np.sqrt(len(Z)) * np.linalg.qr(Z)[0]
    assert_allclose(canonical_ridge(white, y, lam, 0.0), lam / len(y) * (white.T @ y), rtol=1e-12)


def test_what_does_not_correlate_is_not_used():
    Z, y, lam = labelled(3)
    lam[-2:] = [5e-324, 0.0]
    beta = canonical_ridge(Z, y, lam, 0.1)
    assert beta[-1] == 0.0
    assert abs(beta[-2]) < 1e-300
    assert_allclose(beta[:3], canonical_ridge(Z[:, :3], y, lam[:3], 0.1), rtol=1e-12)
    assert (canonical_ridge(Z, y, np.zeros(5), 0.1) == 0).all()
