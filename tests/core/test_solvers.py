"""The three solvers, stepped from outside: what they ask, when they stop, and that a state is all
there is.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_allclose, assert_array_equal
from problems import EPS, Problem, problems, random_site, reference, terms

from coreg_core.agreement.solver import Stop, overall_stop
from coreg_core.agreement.solvers import SOLVER_NAMES, make_solver, run_in_memory

every_solver = pytest.mark.parametrize("name", SOLVER_NAMES)


def problem_of(M, n, m, coupling, *, span="exact", seed=0):
    rng = np.random.default_rng(seed)
    return Problem(tuple(random_site(rng, n, m, span=span) for _ in range(M)), coupling)


def answer(views, query):
    asked = views
    if query.site is not None:
        asked = [views[query.site]]
    total = asked[0].respond(query.targets, query.weights, query.part)
    for view in asked[1:]:
        total = total + view.respond(query.targets, query.weights, query.part)
    return total


def arrays_of(state):
    return {name: value for name, value in vars(state).items() if isinstance(value, np.ndarray)}


@every_solver
@settings(max_examples=10)
@given(problems(sites=(1, 3)))
def test_no_method_changes_the_state_that_it_is_given(name, problem):
    views = problem.views()
    solver = make_solver(
        name, terms(problem, views, coupling=(problem.coupling, 0.0), max_rounds=25)
    )
    state = solver.start(problem.n_unlabelled)
    assert solver.progress(state) is solver.models(state) is None, (
        "before the first round there is nothing to show"
    )
    while not solver.finished(state):
        before = {k: a.copy() for k, a in arrays_of(state).items()}
        for a in arrays_of(state).values():
            a.setflags(write=False)  # an attempt raises; the bytes are compared all the same
        query = solver.query(state)
        total = answer(views, query)
        kept = total.copy()
        after = solver.step(state, total)
        solver.progress(state), solver.models(state), solver.finished(state)
        assert_array_equal(total, kept)
        for k, a in arrays_of(state).items():
            assert_array_equal(a, before[k], err_msg=k)
        state = after


# --- what is asked --------------------------------------------------------------------------------


def queries(solver, views, state):
    asked = []
    while not solver.finished(state):
        asked.append(solver.query(state))
        state = solver.step(state, answer(views, asked[-1]))
    return asked, state


@settings(max_examples=25)
@given(problems(sites=(2, 4)))
def test_labels_leave_a_site_once_and_directions_have_size_one(problem):
    views = problem.views()
    solver = make_solver(
        "conjugate-gradients",
        terms(problem, views, tolerance=0.0, coupling=(problem.coupling, 0.0), max_rounds=50),
    )
    state = solver.start(problem.n_unlabelled)
    verifications = 0
    first = True
    while not solver.finished(state):
        query = solver.query(state)
        assert query.site is None
        part = "linear"
        if first:
            part = "affine"
        assert query.part == part
        if first:
            assert not query.targets.any()
        elif query.targets is state.z:
            verifications += 1
        else:
            sizes = np.abs(query.targets).max(axis=0)
            assert all(s in (0.0, 1.0) for s in sizes)
            assert sizes.any()
        state = solver.step(state, answer(views, query))
        first = False
    assert verifications >= 1


def test_algorithm_1_is_the_papers():
    """ŷ_v ← respond_v(mean of the others, 2λ(M−1)) in order, from 0: written out beside the
    solver.
    """
    problem = problem_of(3, 5, 6, 0.2)
    views = problem.views()
    solver = make_solver("block-coordinate-descent", terms(problem, views, max_rounds=7))
    asked, state = queries(solver, views, solver.start(6))
    yhat = np.zeros((3, 6))
    i = 0
    for _ in range(7):
        for v in range(3):
            target = (yhat.sum(axis=0) - yhat[v]) / 2
            assert_allclose(asked[i].targets[:, 0], target, rtol=0, atol=1e-14)
            yhat[v] = views[v].solve(target, 0.8).prediction
            i += 1
    assert i == len(asked)
    assert_allclose(state.predictions[:, :, 0], yhat, rtol=0, atol=1e-13)


# --- when it stops --------------------------------------------------------------------------------


@every_solver
@pytest.mark.parametrize("max_rounds", [1, 2, 3, 21, 22, 23, 44])
def test_max_rounds_is_respected(name, max_rounds):
    problem = problem_of(3, 8, 20, 10.0)
    views = problem.views()
    limits = {"tolerance": 0.0, "prediction_tolerance": 0.0, "max_rounds": max_rounds}
    solver = make_solver(name, terms(problem, views, **limits))
    state = solver.start(20)
    asked, state = queries(solver, views, state)
    progress = solver.progress(state)
    assert progress.stops == (Stop.MAX_ROUNDS,)
    assert progress.verified
    a_round = 1
    if name == "block-coordinate-descent":
        a_round = 3
    assert progress.round == len(asked) // a_round
    if (
        name == "conjugate-gradients"
    ):  # a direction needs a verification: where one round is left it is not begun
        assert max_rounds - 1 <= progress.round <= max_rounds
    else:
        assert progress.round == max_rounds


@pytest.mark.parametrize("coupling", [0.0, 1e-3, 1e2, 1e6])
@pytest.mark.parametrize("span", ["exact", "semi-parametric"])
def test_conjugate_gradients_end_at_the_rounding_and_say_so(span, coupling):
    """μb up to 1e9: the stop is STAGNATED, soon, and what was certified is as good as μb · eps
    allows.
    """
    for seed in range(3):
        problem = problem_of(4, 8, 30, coupling, span=span, seed=seed)
        views = problem.views()
        solver = make_solver(
            "conjugate-gradients", terms(problem, views, tolerance=0.0, prediction_tolerance=0.0)
        )
        gaps = []

        def look(state, gaps=gaps, solver=solver):
            gaps.append(float(solver.progress(state).gap[0]))

        progress = solver.progress(run_in_memory(solver, views, on_step=look))
        expected = Stop.CONVERGED
        if coupling:
            expected = Stop.STAGNATED
        assert progress.stops == (expected,)
        assert progress.verified
        # Three strikes of 21 rounds after the last gain; the gain itself takes some multiple of the
        # 32 labelled rows.
        assert progress.round <= 500
        # Rounding in the answers is amplified by 1 + μb, once in the residual's own certificate.
        # 1000: constants.
        mu_b = 2 * coupling * 4 * max(solver.terms.bounds)
        assert progress.prediction_bound[0] <= 1000 * EPS * (1 + mu_b) * (
            1 + np.sqrt(problem.scale)
        )
        # It never diverges: no gap on the way is far above the first.
        assert max(gaps) <= 1e3 * (1 + mu_b) * (gaps[0] + 1e-300)


@every_solver
@settings(max_examples=15)
@given(problems(sites=(1, 4), couplings=(-3.0, 0.0)))
def test_columns_stop_by_themselves_and_agree_with_closed_forms(name, problem):
    views = problem.views()
    couplings = (problem.coupling, 0.0, problem.coupling / 50, problem.coupling * 2)
    solver = make_solver(name, terms(problem, views, coupling=couplings, max_rounds=3000))
    stopped = {}
    frozen = {}

    def look(state):
        progress = solver.progress(state)
        models = solver.models(state)
        if progress is None:
            return
        for j, stop in enumerate(progress.stops):
            targets = np.array([models.of(v)[:, j] for v in range(len(views))])
            if stop is not None and j not in stopped:
                stopped[j] = progress.round
                frozen[j] = (targets, progress.gap[j])
            elif j in stopped:  # what has stopped stays as it was certified
                assert_array_equal(targets, frozen[j][0])
                assert progress.gap[j] == frozen[j][1]

    state = run_in_memory(solver, views, on_step=look)
    models = solver.models(state)
    progress = solver.progress(state)
    assert overall_stop(progress.stops) is not None
    for j, coupling in enumerate(couplings):
        expected, _ = reference(problem.with_coupling(coupling))
        found = np.array(
            [
                view.solve(models.of(v)[:, j], models.weights[j]).prediction
                for v, view in enumerate(views)
            ]
        )
        error = np.linalg.norm(found - expected, axis=1).max()
        assert error <= progress.prediction_bound[j] + 1e-11
        if progress.stops[j] is Stop.CONVERGED:
            assert error <= solver.terms.prediction_tolerance + 1e-11
    assert stopped[1] <= min(stopped.values()) + 1  # λ = 0 has nothing to agree on


def test_columns_that_stop_differently_have_the_most_severe_stop():
    assert overall_stop((Stop.CONVERGED, Stop.MAX_ROUNDS, Stop.STAGNATED)) is Stop.MAX_ROUNDS
    assert overall_stop((Stop.CONVERGED, None)) is None
