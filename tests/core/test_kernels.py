"""Kernels against scikit-learn's, the paper's rules against sums over all n² pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose
from problems import EPS, gram

from coreg_core import kernels, selection
from coreg_core.errors import UsageError

ALL = [kernels.Gaussian(1.7), kernels.Linear()]
seeds = st.integers(0, 2**32 - 1)


def rows(seed, n, d, offset=0.0):
    return default_rng(seed).normal(size=(n, d)) + offset


@pytest.mark.parametrize("kernel", ALL, ids=repr)
@given(seeds, st.integers(0, 7), st.integers(0, 7), st.integers(1, 5))
def test_scikit_learn_agrees(kernel, seed, a, b, d):
    A = rows(seed, a, d)
    B = rows(seed + 1, b, d)
    K = kernel(A, B)
    assert K.shape == (a, b)
    # Squared distances of order 10 carry some eps of ‖a‖² + ‖b‖²; a cube of order 100 three times
    # as many.
    assert_allclose(K, gram(kernel, A, B), rtol=1e-12, atol=1e-12)
    assert_allclose(kernel.diagonal(A), np.diag(gram(kernel, A, A)), rtol=1e-12, atol=1e-12)


@given(seeds, st.floats(-1e6, 1e6))
def test_a_gaussian_far_from_the_origin_keeps_its_digits(seed, offset):
    A = rows(seed, 6, 3)
    B = rows(seed + 1, 5, 3)
    # The shift itself rounds the rows by eps · |offset|, and distances of order 10 by 20 times
    # that; no eps · offset².
    kernel = kernels.Gaussian(2.0)
    atol = 1e-13 + 40 * EPS * abs(offset)
    assert_allclose(kernel(A + offset, B + offset), kernel(A, B), rtol=0, atol=atol)


@given(seeds, st.integers(2, 12), st.integers(1, 4), st.floats(-100, 100))
def test_the_rules_are_sums_over_all_pairs(seed, n, d, offset):
    X = rows(seed, n, d, offset)
    differences = X[:, None] - X[None]
    squared = np.sum(differences**2, axis=2)
    pairs = squared[np.triu_indices(n, 1)]
    # 1e-9: rows at up to 100 with differences of order 1 or (rarely) 1e-3.
    assert selection.paper_bandwidth(X) == pytest.approx(squared.sum() / n**2, rel=1e-9)
    assert selection.median_bandwidth(X) == pytest.approx(np.median(pairs), rel=1e-9)


@given(seeds, st.integers(2, 12), st.integers(1, 4), st.floats(-100, 100))
def test_the_paper_s_ridge_is_the_inverse_of_the_mean_norm(seed, n, d, offset):
    X = rows(seed, n, d, offset)
    norms = np.linalg.norm(X, axis=1)
    assert selection.paper_ridge(X) == pytest.approx(n / norms.sum(), rel=1e-12)


IDENTICAL = pytest.mark.parametrize(
    "X", [np.ones((1, 3)), np.ones((4, 3)), np.full((5, 2), 0.1), np.zeros((3, 1))]
)
RULES = pytest.mark.parametrize("rule", ["paper", "median"])


@RULES
@IDENTICAL
def test_no_bandwidth_for_one_row_or_identical_rows(rule, X):
    with pytest.raises(UsageError, match="bandwidth="):
        selection.resolve_bandwidth(rule, X, "gaussian")


@RULES
@IDENTICAL
def test_rounded_means_make_no_bandwidth_out_of_nothing(rule, X):
    """0.1 has no exact mean."""
    with pytest.raises(UsageError, match="bandwidth="):
        selection.resolve_bandwidth(rule, X * 1e5 / 3, "gaussian")


@RULES
@IDENTICAL
def test_a_given_bandwidth_needs_no_rule_and_a_linear_kernel_has_none(rule, X):
    assert selection.resolve_bandwidth(0.7, X, "gaussian") == 0.7
    assert selection.resolve_bandwidth(rule, X, "linear") == 1.0


@pytest.mark.parametrize("value", ["other", 0.0, np.nan, np.inf])
def test_rules_that_are_none(value):
    with pytest.raises(UsageError, match="bandwidth="):
        selection.resolve_bandwidth(value, rows(0, 4, 2), "gaussian")
    with pytest.raises(UsageError, match="ridge="):
        selection.resolve_ridge(value, rows(0, 4, 2))


def test_kernels_by_name():
    assert kernels.make_kernel("gaussian", bandwidth=2.0) == kernels.Gaussian(2.0)
    assert kernels.make_kernel("linear", bandwidth=2.0) == kernels.Linear()


def test_an_unknown_kernel_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match=r"'sigmoid'.*'gaussian'"):
        kernels.make_kernel("sigmoid")


def test_a_bandwidth_of_zero_is_refused():
    with pytest.raises(UsageError):
        kernels.make_kernel("gaussian", bandwidth=0.0)


@pytest.mark.parametrize("power", [-60, -20, 0, 40])
def test_the_widths_to_try_follow_the_scale_of_the_columns(power):
    """An absolute threshold dropped every distance of columns in small units."""
    points = default_rng(0).normal(size=(12, 3))
    points[6:] = points[:6]  # repeated rows have no part in the median
    unit = 2.0**power
    plain = selection.widths(points, "gaussian")
    scaled = selection.widths(points * unit, "gaussian")
    assert scaled == tuple(width * unit**2 for width in plain)
