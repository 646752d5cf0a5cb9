"""coreg_core/agreement/rounds.py: steps on exact sums alone reach the closed form, and a sum of no
honest sites ends them.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_array_equal
from problems import Problem, random_site

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import largest, powered, stays
from coreg_core.agreement.rounds import Rounds
from coreg_core.agreement.solvers import SOLVER_NAMES
from coreg_core.errors import BadData, UsageError
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.secure.sums import opened, summand
from coreg_core.secure.tally import COLUMNS, ROWS, read, tally, width_for
from coreg_core.terms import Iteration

NONE = np.zeros((0, 0))


def carried_out(rounds, answer, spoil=lambda asked, values, scalars: (values, scalars)):
    """The states, each after a sum of the words of those who are asked; ``spoil`` changes a sum."""
    states = [rounds.start()]
    while states[-1].outcome is None:
        asked = rounds.ask(states[-1])
        answering = range(rounds.n_sites)
        if asked.site is not None:
            answering = [asked.site]
        total = 0
        for v in answering:
            numbers, scalars = answer(v, asked)
            total += summand(asked.layout, numbers, scalars, asked.exponents, rounds.n_sites)
        values, scalars = opened(asked.layout, total, asked.exponents)
        states.append(rounds.step(states[-1], asked, *spoil(asked, values, scalars)))
    return states


def answers_of(rounds, views, sites):
    """What `site_agent.machine.agreement` answers, in the clear."""

    def answer(v, asked):
        view = views[v]
        weights = rounds.weights
        if asked.kind != "sizes":
            return view.respond(asked.targets, weights, asked.part), ()
        y = sites[v].y
        kept = stays(view.bound(), weights.tolist())
        return NONE, (powered(view.bound()), float(y @ y), float(len(y)), *kept)

    return answer


def agreement(problem, name="conjugate-gradients", coupling=None, **changes):
    views = problem.views()
    terms = Agreement(coupling=coupling or (problem.coupling,))
    limits = {"tolerance": 1e-14, "prediction_tolerance": 1e-7, "max_rounds": 20_000}
    iteration = Iteration(**({"name": name} | limits | changes))
    rounds = Rounds(terms, iteration, len(views), problem.n_unlabelled)
    return rounds, views, answers_of(rounds, views, problem.sites)


@pytest.mark.parametrize("name", SOLVER_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_sums_alone_lead_to_the_closed_form(name, seed):
    problem = small(seed)
    rounds, views, answer = agreement(problem, name)

    state = carried_out(rounds, answer)[-1]

    models = rounds.models(state)
    predictions = [
        view.respond(models.of(v), models.weights, "affine")[:, 0] for v, view in enumerate(views)
    ]
    expected = consensus_closed_form(views, problem.coupling)
    largest_label = max(float(np.abs(site.y).max()) for site in problem.sites)
    errors = np.mean(predictions, axis=0) - expected
    assert np.abs(errors).max() < 1e-5 * max(largest_label, 1.0)
    [column] = rounds.columns
    assert column.coupling == problem.coupling


def small(seed=0):
    rng = default_rng(seed)
    return Problem(tuple(random_site(rng, 5, 7) for _ in range(3)), 0.1)


@given(st.lists(st.floats(0.0, 1e37), min_size=1, max_size=100))
def test_a_sum_of_powers_tells_the_largest(values):
    bound = largest(sum(map(powered, values)))
    assert bound >= max(values)
    if max(values) >= 1e-30:
        assert bound <= max(values) * len(values) ** (1 / 8) * (1 + 1e-11)


@pytest.mark.parametrize("value", [1.1e37, 1e60, float("inf"), float("nan")])
def test_a_bound_whose_power_would_overflow_is_refused(value):
    with pytest.raises(UsageError, match="too large to be summed"):
        powered(value)


@pytest.fixture(scope="module")
def path():
    """Rounds of two couplings, and their states."""
    rounds, _, answer = agreement(small(), coupling=(0.01, 1.0))
    return rounds, answer, carried_out(rounds, answer)


def questions(rounds, states):
    asked = [rounds.ask(state) for state in states[:-1]]
    return [(question.about, question.targets.tobytes()) for question in asked]


def test_a_step_changes_nothing_that_it_is_given_and_is_the_same_bits_again(path):
    """What every site relies on: a state may be shared, and asked twice."""
    rounds, answer, states = path
    again = carried_out(rounds, answer)
    assert questions(rounds, states) == questions(rounds, again)
    targets = rounds.models(states[-1]).targets
    assert targets.tobytes() == rounds.models(again[-1]).targets.tobytes()


def test_no_two_questions_of_a_run_are_alike(path):
    rounds, _, states = path
    asked = questions(rounds, states)
    assert len(set(asked)) == len(asked)


def test_other_targets_of_another_length_are_another_question():
    """Sites that ask otherwise have other masks: their sum cannot be opened."""
    rounds, _, answer = agreement(small())
    state = carried_out(rounds, answer)[-2]
    elsewhere = replace(state.inner, z=state.inner.z + 1.0)

    asked = rounds.ask(state)
    other = rounds.ask(replace(state, inner=elsewhere))

    assert other.about != asked.about
    length = float(np.linalg.norm(other.targets))
    assert json.loads(other.about)[1] == [pytest.approx(length)]


@pytest.mark.parametrize(
    ("stage", "change", "told"),
    [
        ("sizes", lambda v, s: (v, (-1.0, *s[1:])), "a size below zero"),
        ("sizes", lambda v, s: (v, (s[0], float("inf"), *s[2:])), "not finite"),
        ("respond", lambda v, s: (1e9 * v, s), "longer than the question allows"),
    ],
)
def test_a_sum_of_no_honest_sites_ends_an_agreement_and_names_nobody(stage, change, told):
    def spoil(asked, values, scalars):
        meant = asked.kind.startswith(stage) and (not values.size or asked.part == "linear")
        if meant:
            return change(values, scalars)
        return (values, scalars)

    rounds, _, answer = agreement(small())
    with pytest.raises(BadData, match=told):
        carried_out(rounds, answer, spoil)


def test_an_outcome_comes_with_the_last_sum(path):
    _, _, states = path
    *before, last = [state.outcome for state in states]
    assert set(before) == {None}
    assert last is Outcome.CONVERGED


def test_each_sum_is_a_round(path):
    _, _, states = path
    rounds = [state.round for state in states[1:]]
    assert rounds == list(range(len(rounds)))


# --- the tally of an alignment: a sum tells every count, and a sum of no tallies is noticed -------

MARKS = st.integers(0, 2**64 - 1)


@given(st.lists(st.frozensets(MARKS, max_size=40), min_size=1, max_size=6))
def test_a_sum_tells_how_many_have_each_mark(sites):
    everything = sorted(set().union(*sites))
    width = width_for(len(everything))
    tallies = [tally(np.array(sorted(site), dtype=np.uint64), width) for site in sites]
    counts = read(sum(tallies))
    assert counts.marks.tolist() == everything
    expected = [sum(mark in site for site in sites) for mark in everything]
    assert counts.sites.tolist() == expected


def test_a_large_table_is_read():
    rng = default_rng(0)
    n = 50_000
    marks = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    total = 0
    expected = np.zeros(n, dtype=int)
    for _ in range(4):
        listed = rng.random(n) < 0.6
        total += tally(marks[listed], width_for(n))
        expected += listed
    counts = read(total)
    assert_array_equal(counts.of(marks), expected)
    unknown = np.arange(5, dtype=np.uint64)
    assert_array_equal(counts.of(unknown), 0)


def changed_tally():
    total = tally(np.arange(30, dtype=np.uint64), width_for(30))
    occupied = np.flatnonzero(total[:, 0])
    total[occupied[0], 2] += np.uint64(1)
    return total


def full_tally():
    return np.ones((ROWS * width_for(3), COLUMNS), dtype=np.uint64)


def crowded_tally():
    return tally(np.arange(9_000, dtype=np.uint64), width_for(30))


@pytest.mark.parametrize("wrong", [changed_tally, full_tally, crowded_tally])
def test_a_sum_that_is_none_is_noticed(wrong):
    with pytest.raises(BadData, match="a tally that cannot be read"):
        read(wrong())
