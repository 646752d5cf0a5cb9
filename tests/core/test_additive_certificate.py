"""What a training of the additive objective certifies is true: at every point of a solve, and to the last digit."""

import numpy as np
import pytest
from additive_problems import Algebra, algebras, random_view
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import Column
from coreg_core.additive.reference.closed_form import objective, solve_dense
from coreg_core.additive.solver.block_gmres import BlockGmres
from coreg_core.additive.solver.certificate import certify, gradient_question, residual_of

EPS = float(np.finfo(float).eps)


def certificate_at(problem, x, affine, rho):
    """The three exchanges, over sums."""
    c, pairs = problem.intercept_prior, list(zip(problem.views, problem.hypers, strict=True))
    residual = residual_of(x, affine, rho)
    m = problem.n_unlabelled
    smoothed = np.sum([view.smoothed(rho[:m, None], hyper) for view, hyper in pairs], axis=0)[:, 0]
    norms = [(view.coupling_norm, hyper.noise, view.n_labelled) for view, hyper in pairs]
    sizes = (sum(s * s / noise for s, noise, _ in norms), sum(s * np.sqrt(n) / noise for s, noise, n in norms))
    targets, rounding = gradient_question(residual, smoothed, sizes[0])
    gradients = sum(view.gradient_norm(targets[:, 0], targets[:, 1], hyper, *rounding) for view, hyper in pairs)
    reach = sum(view.reach(hyper) for view, hyper in pairs)
    return certify(residual, smoothed, sizes, gradients, reach, c)


def check(problem, x, affine, rho):
    c, m = problem.intercept_prior, problem.n_unlabelled
    found = certificate_at(problem, x, affine, rho)
    dense = solve_dense(problem.views, problem.hypers, c)
    w = [
        view.solve(x[:, None], view.y[:, None], hyper)[1][:, 0]
        for view, hyper in zip(problem.views, problem.hypers, strict=True)
    ]
    best = objective(problem.views, problem.hypers, dense.w, dense.intercept, c)
    here = objective(problem.views, problem.hypers, w, float(x[-1]), c)
    # J is a sum of squares, each of a difference that is rounded at eps times what it is taken of.
    scale = sum(float(v.y @ v.y) / h.noise for v, h in zip(problem.views, problem.hypers, strict=True))
    size = sum(float(np.sum(part**2)) / h.prior for part, h in zip(w, problem.hypers, strict=True)) + here + scale
    assert here - best <= found.gap + 1e3 * EPS * size
    distance = sum(
        float(np.sum((mine - its) ** 2)) / h.prior for mine, its, h in zip(w, dense.w, problem.hypers, strict=True)
    )
    distance += (float(x[-1]) - dense.intercept) ** 2 / c
    # The oracle's own w carries K's condition number, at most some 1e4 here: 1e-11 of w, squared beside the true distance.
    floor = 1e-11 * np.sqrt(size + 1.0)
    assert np.sqrt(distance) <= np.sqrt(found.gap) + floor
    score = problem.score(w) if m else np.zeros(0)
    reach = np.sqrt(sum(v.reach(h) for v, h in zip(problem.views, problem.hypers, strict=True)))
    assert np.linalg.norm(score - problem.score(dense.w)) <= found.score_bound + floor * (1.0 + reach)
    assert abs(float(x[-1]) - dense.intercept) <= found.intercept_bound + floor * np.sqrt(c)
    return found


@given(algebras(), st.integers(0, 2**32 - 1))
def test_any_point_is_certified(problem, seed):
    """No solver need have been there: x is random, its residual as the coordinator knows it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=2 * problem.n_unlabelled + 1)
    affine = linear = np.zeros_like(x)
    for view, hyper in zip(problem.views, problem.hypers, strict=True):
        affine = affine + view.answer(np.zeros((len(x), 1)), view.y[:, None], hyper)[:, 0]
        linear = linear + view.answer(x[:, None], None, hyper)[:, 0]
    affine[-1] *= problem.intercept_prior
    linear[-1] *= problem.intercept_prior
    check(problem, x, affine, affine + linear - x)


@settings(max_examples=25)
@given(algebras(rows=(1, 9)), st.sampled_from([1e-1, 1e-3, 1e-6, 1e-30]))
def test_every_end_of_a_solve_is_certified(problem, tolerance):
    """1e-30 ends where arithmetic does, and the bounds hold even there."""
    solver = BlockGmres((Column(),), (tolerance,), problem.intercept_prior)
    state = problem.solve(solver)
    found = check(problem, state.x[:, 0], state.affine[:, 0], state.rho[:, 0])
    if tolerance <= 1e-6:
        scale = sum(float(v.y @ v.y) / h.noise for v, h in zip(problem.views, problem.hypers, strict=True))
        assert found.gap <= 1e-3 * (1 + scale)


def test_the_gap_falls_to_rounding():
    rng = np.random.default_rng(0)
    problem = Algebra([random_view(rng, 8, 20) for _ in range(3)], [Hyper(0.1, 1.0)] * 3, 1.0)
    gaps = []
    for tolerance in (1e-1, 1e-3, 1e-6, 1e-30):
        solver = BlockGmres((Column(),), (tolerance,))
        state = problem.solve(solver)
        gaps.append(check(problem, state.x[:, 0], state.affine[:, 0], state.rho[:, 0]).gap)
    assert_allclose(gaps, sorted(gaps, reverse=True))
    assert gaps[-1] == pytest.approx(0.0, abs=1e-18)
