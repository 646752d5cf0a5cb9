"""What a schedule certifies is true: at every verified round, against 60-digit solutions and against a dense SVD."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from problems import EPS, GOLDEN, amplification, golden, golden_problem, problems, reference, terms, value

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import (
    ROUNDING,
    Certificate,
    consensus_factors,
    consensus_weight,
    disagreement,
    objective,
)
from coreg_core.agreement.schedules import SCHEDULE_NAMES, make_schedule, run_in_memory

FORMS = ("exact", "semi-parametric")


def certificate(gradient, bounds):
    """Q − Q* ≤ ¼ Σ_v b_v ‖g_v‖² = gap, and ‖ŷ_v − ŷ_v*‖ ≤ √(b_v · gap), the largest over v."""
    gap = 0.25 * float(bounds @ np.einsum("vm,vm->v", gradient, gradient))
    return Certificate(gap, float(np.sqrt(bounds.max() * gap)))


def gradient_on_unlabelled(predictions, targets, weights, coupling):
    """g_v = 4λ(M ŷ_v − Σ_u ŷ_u) − 2μ_v(ŷ_v − t_v): ∇Q of models that answer (t_v, μ_v), seen on Z."""
    pull = 4.0 * coupling * (len(predictions) * predictions - predictions.sum(axis=0))
    return pull - 2.0 * weights[:, None] * (predictions - targets)


def verified_rounds(schedule, views):
    """(progress, models) of every verified round of a run."""
    seen = []

    def look(state):
        progress, models = schedule.progress(state), schedule.models(state)
        # Algorithm 1 steps M times a round, and shows the last sweep meanwhile.
        if progress is not None and progress.verified and (not seen or seen[-1][0].round != progress.round):
            seen.append((progress, models))

    run_in_memory(schedule, views, on_step=look)
    return seen


def check_certificates(problem, best, Q_best, name, **changes):
    views = problem.views()
    schedule = make_schedule(name, terms(problem, views, **changes))
    seen = verified_rounds(schedule, views)
    assert seen, "not one verified round"
    condition = max(float(np.linalg.norm(s.kernel(s.X, s.X), 2)) / s.ridge for s in problem.sites)
    for progress, models in seen:
        solutions = [view.solve(models.of(v)[:, 0], models.weights[0]) for v, view in enumerate(views)]
        predictions = np.array([s.prediction for s in solutions])
        # Q is a sum of a few dozen squares, each rounded; f = Kc with ‖c‖ ≤ ‖y‖/ν is off by eps ‖K‖/ν ‖y‖ as it is computed.
        Q = value(solutions, problem.coupling)
        assert Q - Q_best <= progress.gap[0] + (100 + 4 * condition) * EPS * (Q + problem.scale)
        errors = np.linalg.norm(predictions - best, axis=1)
        # Both solutions have their own rounding: eps times the condition numbers of what is solved, 1 + μb of the coupled
        # system and λ_max(K)/ν of each site's, times what a finite span's features make of a kernel that is rounded. Four
        # times the constant: each solution is a chain of some products and triangular solves.
        mu_b = 2 * problem.coupling * len(views) * max(schedule.terms.bounds)
        size = 1.0 + np.linalg.norm(predictions) + np.linalg.norm(best)
        assert (
            errors.max()
            <= progress.prediction_bound[0] + 4 * ROUNDING * (1.0 + mu_b + condition) * amplification(problem) * size
        )
    return seen


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, form, name):
    truth = golden(case)[form.replace("-", "_")]
    seen = check_certificates(
        golden_problem(case, form),
        np.array(truth["predictions_unlabelled"]),
        truth["objective"],
        name,
        max_rounds=400,  # the slow schedules' later rounds say nothing new
    )
    first, last = seen[0][0], seen[-1][0]
    assert last.gap[0] <= first.gap[0]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@settings(max_examples=25)
@given(problems(kernels=("gaussian", "laplacian", "polynomial"), mixed=True))
def test_random_problems(name, problem):
    check_certificates(problem, *reference(problem), name, max_rounds=60)


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@settings(max_examples=15)
@given(problems(sites=(2, 4), couplings=(1.0, 4.0)))
def test_strong_coupling(name, problem):
    check_certificates(problem, *reference(problem), name, max_rounds=45)


@settings(max_examples=15)
@given(problems(sites=(2, 4), couplings=(-2.0, 2.0)))
def test_to_the_last_digit(problem):
    """With tolerance 0 the run ends where arithmetic does; the certificates hold even there."""
    best, Q_best = reference(problem)
    check_certificates(problem, best, Q_best, "conjugate-gradients", tolerance=0.0, prediction_tolerance=0.0)


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@settings(max_examples=15)
@given(problems(sites=(2, 4)))
def test_the_general_formula_agrees_with_the_schedules_own(name, problem):
    views = problem.views()
    bounds = np.array([view.bound() for view in views])
    schedule = make_schedule(name, terms(problem, views, max_rounds=8))
    for progress, models in verified_rounds(schedule, views):
        targets = np.array([models.of(v)[:, 0] for v in range(len(views))])
        weights = np.full(len(views), models.weights[0])
        predictions = np.array(
            [view.respond(t[:, None], models.weights)[:, 0] for view, t in zip(views, targets, strict=True)]
        )
        general = certificate(gradient_on_unlabelled(predictions, targets, weights, problem.coupling), bounds)
        # The general formula subtracts numbers of size λM‖ŷ‖ which nearly cancel; the schedules' own add ROUNDING
        # times what they subtract. In √gap both are a norm plus such a floor.
        floor = 4 * ROUNDING * problem.coupling * len(views) ** 2 * np.sqrt(bounds.sum())
        floor *= np.linalg.norm(predictions) + np.linalg.norm(targets)
        coarse = floor * np.sqrt(bounds.max()) + ROUNDING * 10 * (1 + np.abs(predictions).sum())
        if name == "block-coordinate-descent":
            assert np.sqrt(progress.gap[0]) == pytest.approx(np.sqrt(general.gap), rel=1e-9, abs=floor)
            assert progress.prediction_bound[0] == pytest.approx(general.prediction_bound, rel=1e-9, abs=coarse)
        else:  # at a common z more is known, and never less
            assert np.sqrt(progress.gap[0]) <= np.sqrt(general.gap) * (1 + 1e-9) + floor
            assert progress.prediction_bound[0] <= general.prediction_bound * (1 + 1e-9) + coarse


@given(arrays(np.float64, st.integers(1, 6), elements=st.floats(1e-6, 1e6)), st.floats(1e-6, 1e6))
def test_at_a_common_target_the_bounds_are_attained_and_no_looser_than_the_general_ones(bounds, weight):
    """One instance and one coordinate a site, N_v = 1/(1 + μb_v): the residual's effect is then known in closed form."""
    M, stays = len(bounds), (1 / (1 + weight * bounds)).sum()
    root, apart = consensus_factors(weight, bounds)
    # Φ(z) − Φ* = μ δ² ΣN with δ = z − z* = M r/ΣN, less what Q gains by the mean answer for z: μM r². At r = 1.
    delta = M / stays
    gap = weight * (delta**2 * stays - M)
    assert root**2 == pytest.approx(gap, rel=1e-7, abs=1e-9 * weight * delta**2 * stays)
    assert apart == pytest.approx(delta * (1 - 1 / (1 + weight * bounds.max())), rel=1e-7, abs=1e-9 * delta)
    assert root <= weight * np.sqrt(bounds.sum()) * (1 + 1e-12)


@given(problems(unlabelled=(1, 8)), st.integers(0, 2**32 - 1))
def test_the_gradient_certifies_any_models_and_vanishes_at_the_optimum(problem, seed):
    """Models that answer different targets at different weights: no schedule asks this, the formula allows it."""
    views, rng = problem.views(), np.random.default_rng(seed)
    M, m = len(views), problem.n_unlabelled
    best, Q_best = reference(problem)
    bounds = np.array([view.bound() for view in views])
    targets, weights = rng.normal(size=(M, m)), rng.uniform(0, 5, size=M)
    solutions = [view.solve(t, w) for view, t, w in zip(views, targets, weights.tolist(), strict=True)]
    predictions = np.array([s.prediction for s in solutions])
    c = certificate(gradient_on_unlabelled(predictions, targets, weights, problem.coupling), bounds)
    Q = value(solutions, problem.coupling)
    assert Q - Q_best <= c.gap + 100 * EPS * (Q + problem.scale)
    assert np.linalg.norm(predictions - best, axis=1).max() <= c.prediction_bound + 1e-10

    z = consensus_closed_form(views, problem.coupling)
    weight = consensus_weight(problem.coupling, M)
    at_best = np.array([view.solve(z, weight).prediction for view in views])
    gradient = gradient_on_unlabelled(at_best, np.tile(z, (M, 1)), np.full(M, weight), problem.coupling)
    # The models at z*: r = mean − z* is rounding, amplified by the closed form's condition number 1 + μb.
    condition = 1 + weight * bounds.max()
    floor = 100 * EPS * condition * problem.coupling * 4 * M * (1 + np.linalg.norm(z)) * M
    assert np.abs(gradient).max() <= floor


@given(problems(kernels=("gaussian", "laplacian", "polynomial", "linear"), rows=(1, 12), mixed=True))
def test_the_bounds_hold(problem):
    """b_v ≥ the largest s², which is that of R's eigenvalues μs²/(1 + μs²): computed from R itself by dense eigh."""
    for view in problem.views():
        m = problem.n_unlabelled
        # A small weight keeps 1 − largest away from 0, and R is about μ P Pᵀ: s² to nearly full precision.
        mu = 0.1 / max(view.bound(), 1e-300)
        R = view.respond(np.eye(m), np.full(m, mu), "linear")
        largest = float(np.linalg.eigvalsh((R + R.T) / 2).max())
        s2 = largest / (1 - largest) / mu
        assert view.bound() >= s2 * (1 - 1e-12) - 1e-300


@given(problems(sites=(1, 6)))
def test_disagreement_is_the_double_sum(problem):
    predictions = np.array([site.Z.sum(axis=1) + site.ridge for site in problem.sites])
    double_sum = sum(float(np.sum((u - v) ** 2)) for u in predictions for v in predictions)
    assert disagreement(predictions) == pytest.approx(double_sum, rel=1e-12, abs=1e-12)
    assert_allclose(objective([1.0, 2.0], predictions, 3.0), 3.0 + 3.0 * double_sum, rtol=1e-12)
