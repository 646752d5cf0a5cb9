"""What a solver certifies is true: at every verified round, against 60-digit solutions and
against a dense SVD.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from problems import (
    EPS,
    GOLDEN,
    amplification,
    golden,
    golden_problem,
    problems,
    reference,
    terms,
    value,
)

from coreg_core.agreement.objective import ROUNDING, consensus_certificate
from coreg_core.agreement.solvers import SOLVER_NAMES, make_solver, run_in_memory

FORMS = ("exact", "semi-parametric")


def verified_rounds(solver, views):
    """(progress, models) of every verified round of a run."""
    seen = []

    def look(state):
        progress = solver.progress(state)
        models = solver.models(state)
        # Algorithm 1 steps M times a round, and shows the last sweep meanwhile.
        if (
            progress is not None
            and progress.verified
            and (not seen or seen[-1][0].round != progress.round)
        ):
            seen.append((progress, models))

    run_in_memory(solver, views, on_step=look)
    return seen


def check_certificates(problem, best, Q_best, name, **changes):
    views = problem.views()
    solver = make_solver(name, terms(problem, views, **changes))
    seen = verified_rounds(solver, views)
    assert seen, "not one verified round"
    condition = max(float(np.linalg.norm(s.kernel(s.X, s.X), 2)) / s.ridge for s in problem.sites)
    for progress, models in seen:
        solutions = [
            view.solve(models.of(v)[:, 0], models.weights[0]) for v, view in enumerate(views)
        ]
        predictions = np.array([s.prediction for s in solutions])
        errors = np.linalg.norm(predictions - best, axis=1)
        # Both solutions have their own rounding: eps times the condition numbers of what is solved,
        # 1 + μb of the coupled system and λ_max(K)/ν of each site's, times what a finite span's
        # features make of a kernel that is rounded. Four times the constant: each solution is a
        # chain of some products and triangular solves.
        mu = 2 * problem.coupling * len(views)
        mu_b = mu * max(solver.terms.bounds)
        size = 1.0 + np.linalg.norm(predictions) + np.linalg.norm(best)
        of_one = 4 * ROUNDING * amplification(problem) * size
        rounding = of_one * (1.0 + mu_b + condition)
        # Q is a sum of a few dozen squares, each rounded; f = Kc with ‖c‖ ≤ ‖y‖/ν is off by eps
        # ‖K‖/ν ‖y‖ as it is computed. The gap is c r² with c ≤ μM(1 + μb), so of a residual that is
        # off by δ it is off by 2 √(c gap) δ. With one shared instance the gap has no other slack.
        slope = 2.0 * np.sqrt(mu * len(views) * (1.0 + mu_b) * progress.gap[0])
        Q = value(solutions, problem.coupling)
        of_values = (100 + 4 * condition) * amplification(problem) * EPS * (Q + problem.scale)
        assert Q - Q_best <= progress.gap[0] + of_values + slope * of_one * (1.0 + condition)
        assert errors.max() <= progress.prediction_bound[0] + rounding


@pytest.mark.parametrize("name", SOLVER_NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, form, name):
    truth = golden(case)[form.replace("-", "_")]
    check_certificates(
        golden_problem(case, form),
        np.array(truth["predictions_unlabelled"]),
        truth["objective"],
        name,
        max_rounds=400,  # the slow solvers' later rounds say nothing new
    )


@pytest.mark.parametrize("name", SOLVER_NAMES)
@settings(max_examples=40)
@given(problems(kernels=("gaussian",), mixed=True) | problems(sites=(2, 4), couplings=(1.0, 4.0)))
def test_random_problems(name, problem):
    check_certificates(problem, *reference(problem), name, max_rounds=60)


@settings(max_examples=15)
@given(problems(sites=(2, 4), couplings=(-2.0, 2.0)))
def test_to_the_last_digit(problem):
    """With tolerance 0 the run ends where arithmetic does; the certificates hold even there."""
    best, Q_best = reference(problem)
    check_certificates(
        problem, best, Q_best, "conjugate-gradients", tolerance=0.0, prediction_tolerance=0.0
    )


def test_algorithm_1_certifies_by_the_gradient():
    """Q − Q* ≤ ¼ Σ_v b_v ‖g_v‖² = gap with g_v = 4λ(M ŷ_v − Σ_u ŷ_u) − 2μ(ŷ_v − t_v), ‖ŷ_v − ŷ_v*‖
    ≤ √(b_v · gap).
    """
    problem = golden_problem("three-sites", "exact")
    views = problem.views()
    bounds = np.array([view.bound() for view in views])
    lam = problem.coupling
    solver = make_solver("block-coordinate-descent", terms(problem, views, max_rounds=8))
    for progress, models in verified_rounds(solver, views):
        mu = models.weights[0]
        targets = []
        answers = []
        for v, view in enumerate(views):
            target = models.of(v)
            targets.append(target[:, 0])
            answers.append(view.respond(target, models.weights)[:, 0])
        y = np.array(answers)
        disagreement = 3 * y - y.sum(axis=0)
        g = 4 * lam * disagreement - 2 * mu * (y - np.array(targets))
        gap = 0.25 * float(bounds @ np.sum(g**2, axis=1))
        assert progress.gap[0] == pytest.approx(gap, rel=1e-6)
        assert progress.prediction_bound[0] == pytest.approx(np.sqrt(bounds.max() * gap), rel=1e-6)


BOUNDS = arrays(np.float64, st.integers(1, 6), elements=st.floats(1e-6, 1e6))


@given(BOUNDS, st.floats(1e-6, 1e6))
def test_at_a_common_target_the_bounds_are_attained(bounds, weight):
    """One instance and one coordinate a site, N_v = 1/(1 + μb_v): the residual's effect is then
    known in closed form.
    """
    M = len(bounds)
    stays = np.sum(1 / (1 + weight * bounds))

    certificate = consensus_certificate(1.0, 0.0, weight, bounds)

    # Φ(z) − Φ* = μ δ² ΣN with δ = z − z* = M r/ΣN, less what Q gains by the mean answer for z: μM
    # r². At r = 1.
    delta = M / stays
    effect = delta**2 * stays
    gap = weight * (effect - M)
    assert certificate.gap == pytest.approx(gap, rel=1e-7, abs=1e-9 * weight * effect)
    bound = delta * (1 - 1 / (1 + weight * bounds.max()))
    assert certificate.prediction_bound == pytest.approx(bound, rel=1e-7, abs=1e-9 * delta)


@given(BOUNDS, st.floats(1e-6, 1e6))
def test_a_gap_is_no_looser_than_the_general_one(bounds, weight):
    certificate = consensus_certificate(1.0, 0.0, weight, bounds)
    general = weight**2 * bounds.sum()
    assert certificate.gap <= general * (1 + 1e-12)


@given(BOUNDS, st.floats(1e-6, 1e6))
def test_the_sum_over_the_sites_certifies_as_each_bound_does(bounds, weight):
    """A federation knows the sum in place of each b_v: the same gap, and rounding of the sum."""
    M = len(bounds)
    stays = float(np.sum(1 / (1 + weight * bounds)))
    largest_alone = np.zeros(M)
    largest_alone[0] = bounds.max()

    certificate = consensus_certificate(1.0, 0.0, weight, bounds)
    of_sum = consensus_certificate(1.0, 0.0, weight, largest_alone, stays)

    rounding = 2 * weight * M * ROUNDING * M / stays
    assert of_sum.gap >= certificate.gap * (1 - 1e-9)
    assert of_sum.gap <= certificate.gap * (1 + 1e-6) + rounding


@given(problems(kernels=("gaussian", "linear"), mixed=True))
def test_the_bounds_hold(problem):
    """b_v ≥ the largest s², which is that of R's eigenvalues μs²/(1 + μs²): computed from R itself
    by dense eigh.
    """
    for view in problem.views():
        m = problem.n_unlabelled
        # A small weight keeps 1 − largest away from 0, and R is about μ P Pᵀ: s² to nearly full
        # precision.
        mu = 0.1 / max(view.bound(), 1e-300)
        R = view.respond(np.eye(m), np.full(m, mu), "linear")
        largest = float(np.linalg.eigvalsh((R + R.T) / 2).max())
        s2 = largest / (1 - largest) / mu
        assert view.bound() >= s2 * (1 - 1e-12) - 1e-300
