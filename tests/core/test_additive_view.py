"""One site's algebra for the additive objective, and the dense oracle: identities, and numerical gradients of J."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import Algebra, algebras, own_intercepts, random_view
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge

from coreg_core.additive.closed_form import noise_of, objective, solve_dense
from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import split, stack


def fixed_point(problem, dense):
    """x at the dense solution."""
    s = problem.score(dense.w)
    q, offset = np.zeros_like(s), 0
    for view in problem.views:
        alpha = dense.alpha[offset : offset + view.n_labelled]
        q = q + view.coupling.backward(alpha[:, None])[:, 0]
        offset += view.n_labelled
    return stack(s[:, None], q[:, None], np.array([dense.intercept]))


def applied(problem, x, part="affine"):
    total = np.sum(
        [
            view.answer(x, view.y[:, None] if part == "affine" else None, hyper)
            for view, hyper in zip(problem.views, problem.hypers, strict=True)
        ],
        axis=0,
    )
    total[-1] *= problem.intercept_prior
    return total


@given(algebras())
def test_the_dense_solution_is_the_fixed_point_of_the_messages(problem):
    dense = solve_dense(problem.views, problem.hypers, problem.intercept_prior)
    x = fixed_point(problem, dense)
    # The sum of the answers cancels: T has a spectral radius of some hundreds, and K a condition number of some thousands.
    assert_allclose(applied(problem, x), x, atol=1e-9 * (1 + np.abs(x).max()))
    for view, hyper, w in zip(problem.views, problem.hypers, dense.w, strict=True):
        _, found = view.solve(x, view.y[:, None], hyper)
        assert_allclose(found[:, 0], w, atol=1e-9 * (1 + np.abs(x).max()))


@given(algebras(rows=(1, 6)), st.integers(0, 2**32 - 1))
def test_the_dense_solution_minimises_J(problem, seed):
    """J is quadratic: J(w* + t d) − J* = t² times a positive number, for every direction d."""
    c = problem.intercept_prior
    dense = solve_dense(problem.views, problem.hypers, c)
    best = objective(problem.views, problem.hypers, dense.w, dense.intercept, c)
    rng = np.random.default_rng(seed)
    step = [rng.normal(size=w.shape) for w in dense.w]
    da = float(rng.normal())

    def along(t):
        moved = [w + t * d for w, d in zip(dense.w, step, strict=True)]
        return objective(problem.views, problem.hypers, moved, dense.intercept + t * da, c) - best

    curvature = 0.5 * (along(1.0) + along(-1.0))
    assert curvature > 0
    # The slope at the optimum is 0: its rounding is that of J's own sums.
    assert abs(along(1.0) - along(-1.0)) <= 1e-9 * (curvature + best)


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 15))
def test_one_site_is_ridge_regression(seed, n, m):
    """Ψw + S Z w = Φw: nobody else is there to be smoothed. The intercept is one feature √c under the same prior."""
    rng = np.random.default_rng(seed)
    view, hyper, c = replace(random_view(rng, n, m), random_intercept=0.5), Hyper(0.3, 0.7), 1.5
    dense = solve_dense([view], [hyper], c)
    c = 2.0  # both intercepts are that of the one site
    rows = np.c_[view.labelled * np.sqrt(hyper.prior), np.full(n, np.sqrt(c))]
    ridge = Ridge(alpha=hyper.noise, fit_intercept=False, solver="svd").fit(rows, view.y)
    assert_allclose(dense.w[0], ridge.coef_[:-1] * np.sqrt(hyper.prior), atol=1e-10)
    both = dense.intercept + own_intercepts([view], dense)[0]
    assert both == pytest.approx(ridge.coef_[-1] * np.sqrt(c), abs=1e-10)


@given(algebras(rows=(1, 6), unlabelled=(0, 0)))
def test_without_shared_instances_the_sites_share_an_intercept_alone(problem):
    """m = 0: J falls apart but for a, so that the other sites' labels move this one's part only through a."""
    views = [replace(view, random_intercept=0.0) for view in problem.views]
    dense = solve_dense(views, problem.hypers, problem.intercept_prior)
    for view, hyper, w in zip(views, problem.hypers, dense.w, strict=True):
        ridge = Ridge(alpha=hyper.noise / hyper.prior, fit_intercept=False, solver="svd")
        assert_allclose(w, ridge.fit(view.labelled, view.y - dense.intercept).coef_, atol=1e-8)


def test_equal_views_learn_equal_parts():
    view, hyper = random_view(np.random.default_rng(0), 7, 20), Hyper(0.2, 0.5)
    dense = solve_dense([view, view], [hyper, hyper])
    assert_allclose(dense.w[0], dense.w[1], atol=1e-12)
    assert np.abs(dense.w[0]).max() > 0.01


def test_a_site_without_labels_learns_from_what_the_others_need():
    rng = np.random.default_rng(0)
    with_labels, without = random_view(rng, 9, 20), random_view(rng, 0, 20)
    problem = Algebra([with_labels, without], [Hyper(0.1, 1.0), Hyper(1.0, 1.0)], 1.0)
    dense = solve_dense(problem.views, problem.hypers)
    assert np.abs(dense.w[1]).max() > 1e-3
    alpha, w = without.solve(fixed_point(problem, dense), np.zeros((0, 1)), problem.hypers[1])
    assert alpha.shape == (0, 1)
    assert_allclose(w[:, 0], dense.w[1], atol=1e-10)


@given(algebras(), st.integers(0, 2**32 - 1))
def test_labels_are_in_the_affine_part_alone(problem, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2 * problem.n_unlabelled + 1, 3))
    for view, hyper in zip(problem.views, problem.hypers, strict=True):
        y = np.tile(view.y[:, None], 3)
        at_zero = view.answer(np.zeros_like(x), y, hyper)
        linear = view.answer(x, None, hyper)
        assert_allclose(view.answer(x, y, hyper), at_zero + linear, atol=1e-9 * (1 + np.abs(linear).max()))
        other = replace(view, y=rng.normal(size=view.n_labelled))
        assert np.array_equal(other.answer(x, None, hyper), linear)


@given(algebras(rows=(1, 9)))
def test_the_factor_solves_what_it_says(problem):
    """(N + τ²ΨΨᵀ)α = the right-hand side, formed and solved densely."""
    rng = np.random.default_rng(0)
    for view, hyper in zip(problem.views, problem.hypers, strict=True):
        x = rng.normal(size=(2 * problem.n_unlabelled + 1, 2))
        s, q, a = split(x)
        y = rng.normal(size=(view.n_labelled, 2))
        alpha, _ = view.solve(x, y, hyper)
        K = noise_of([view], [hyper]) + hyper.prior * view.psi @ view.psi.T
        right = y - a - view.coupling.forward(s) - hyper.prior * view.psi @ (view.shared.T @ q)
        assert_allclose(alpha, np.linalg.solve(K, right), rtol=1e-7, atol=1e-9 * (1 + np.abs(right).max()))
        assert view._factor[0].size <= view.psi.size  # memory is bounded in n: no (n, n) matrix
