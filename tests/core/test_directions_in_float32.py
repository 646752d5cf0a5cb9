r"""Search directions in float32: what is rounded, what it costs, and that the ends are those of float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import EPS, GOLDEN, golden, golden_problem, problems, reference, terms

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.float32 import UNIT, as_told, rounded, survives
from coreg_core.agreement.schedules import make_schedule, run_in_memory
from coreg_core.agreement.schedules.schedule import Stop, stops_of
from coreg_core.errors import BadData

SMALLEST = 2.0**-149  # of float32
numbers = st.floats(-3e38, 3e38)
columns = st.lists(numbers, min_size=1, max_size=8).map(lambda xs: np.array(xs)[:, None])
seeds = st.integers(0, 2**32 - 1)


@given(columns)
def test_a_number_is_rounded_once_to_the_nearest_and_then_survives(values):
    narrow = rounded(values)
    assert survives(narrow)
    assert survives(values) == np.array_equal(values, narrow)
    assert (np.abs(narrow - values) <= np.maximum(UNIT * np.abs(values), 0.5 * SMALLEST)).all()
    assert_array_equal(rounded(narrow), narrow)


@pytest.mark.parametrize("number", [3.5e38, -1e300, np.inf, np.nan])
def test_what_float32_does_not_hold_is_refused_and_never_becomes_infinity(number):
    values = np.array([[0.5], [number]])
    assert not survives(values)
    with pytest.raises(BadData, match="float32"):
        rounded(values)


@given(seeds, st.floats(-3.0, 9.0), st.integers(1, 5))
def test_the_curvature_is_off_by_the_root_of_what_rounding_the_answers_themselves_would_cost(seed, power, n_sites):
    """|sᵀ(Ĥ − H)s| ≤ 2⁻²⁴ ‖s‖ √(sᵀHs), H = I − mean R, for R = μS(I + μS)⁻¹ of any S ⪰ 0."""
    rng, mu = np.random.default_rng(seed), 10.0**power
    s = rounded(rng.normal(size=(9, 1)))
    exact = [s - np.linalg.solve(np.eye(9) + mu * (A @ A.T), s) for A in rng.normal(size=(n_sites, 9, 4))]
    told = [as_told(s, answer) for answer in exact]
    curvature = float(np.mean([s.T @ (s - answer) for answer in exact]))
    found = float(np.mean([s.T @ (s - answer) for answer in told]))
    size = float(np.linalg.norm(s))
    rounding = 64 * EPS * size**2  # of float64, in the inner products above
    assert abs(found - curvature) <= UNIT * size * np.sqrt(curvature) + rounding


@settings(max_examples=25)
@given(problems(sites=(2, 4)))
def test_z_moves_along_what_was_asked(problem):
    """The residual of the recursion is the true one to float64's rounding; moved along p itself, it were off by 2⁻²⁴."""
    views = problem.views()
    schedule = make_schedule(
        "conjugate-gradients",
        terms(problem, views, tolerance=0.0, prediction_tolerance=0.0, singles=True, max_rounds=12),
    )
    state = schedule.start(problem.n_unlabelled)
    while not schedule.finished(state):
        query = schedule.query(state)
        assert query.verifies or survives(query.targets)
        # Exact answers: what is seen here is the question's rounding alone.
        state = schedule.step(state, sum(v.respond(query.targets, query.weights, query.part) for v in views))
        mean = sum(v.respond(np.ascontiguousarray(state.z), schedule.weights, "linear") for v in views) / len(views)
        size = np.linalg.norm(state.b) + np.linalg.norm(state.z) + np.linalg.norm(state.p)
        assert np.linalg.norm(state.b + mean - state.z - state.r) <= 1e4 * EPS * size


def ends(problem, **changes):
    """(the state, its models' targets) with directions in float64 and in float32, to the same tolerances."""
    views = problem.views()
    for singles in (False, True):
        schedule = make_schedule("conjugate-gradients", terms(problem, views, singles=singles, **changes))
        state = run_in_memory(schedule, views)
        yield views, schedule, state


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
@pytest.mark.parametrize("name", GOLDEN)
def test_the_ends_are_those_of_sixty_digits_as_in_float64(name, form):
    truth = np.array(golden(name)[form.replace("-", "_")]["predictions_unlabelled"])
    for views, schedule, state in ends(golden_problem(name, form)):
        assert stops_of(state.stops) == (Stop.CONVERGED,)
        weight = schedule.weights
        found = np.array([v.respond(schedule.models(state).of(0), weight)[:, 0] for v in views])
        assert_allclose(found, truth, rtol=0, atol=1e-9)  # as every solver of test_golden.py


@settings(max_examples=40)
@given(problems(sites=(1, 4)))
def test_what_is_certified_holds_whichever_way_directions_travelled(problem):
    predictions, _ = reference(problem)
    z = predictions.mean(axis=0)
    for views, schedule, state in ends(problem):
        answers = np.array([v.respond(schedule.models(state).of(0), schedule.weights)[:, 0] for v in views])
        off = np.linalg.norm(answers - predictions, axis=1).max()
        # The oracle's own rounding: an SVD of all rows.
        assert off <= state.prediction_bound[0] + 1e-9 * max(1.0, np.linalg.norm(z))
        assert stops_of(state.stops)[0] in (Stop.CONVERGED, Stop.STAGNATED)


def test_strong_coupling_still_ends_where_the_closed_form_does():
    """μb ≈ 10⁶, where the answers themselves, rounded, would leave no digit of the curvature's last directions."""
    problem = golden_problem("three-sites", "semi-parametric").with_coupling(1e5)
    for views, schedule, state in ends(problem, tolerance=1e-16, prediction_tolerance=1e-6):
        assert schedule.weights[0] * max(v.bound() for v in views) > 1e6
        z = consensus_closed_form(views, problem.coupling)
        assert stops_of(state.stops) == (Stop.CONVERGED,)
        assert np.linalg.norm(state.z_verified[:, 0] - z) <= 1e-6


def test_a_path_of_couplings_travels_together_and_a_stopped_column_stays_zero():
    problem = golden_problem("two-views", "exact")
    path = (0.0, problem.coupling, 10.0)
    for views, schedule, state in ends(problem, coupling=path):
        for j in (1, 2):
            assert_allclose(state.z_verified[:, j], consensus_closed_form(views, path[j]), rtol=0, atol=1e-8)
        stopped = schedule.query(replace(state, ask=1))
        assert not stopped.targets.any()
        assert survives(stopped.targets)
