"""coreg_core/agreement/rounds.py: steps on exact sums alone reach the closed form, and a sum of no
honest sites ends them.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from problems import Problem, random_site

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import largest, powered, stays
from coreg_core.agreement.rounds import Rounds
from coreg_core.agreement.schedules import SCHEDULE_NAMES
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
        answering = range(rounds.n_sites) if asked.site is None else [asked.site]
        told = [answer(v, asked) for v in answering]
        words = sum(summand(asked.layout, *each, asked.exponents, rounds.n_sites) for each in told)
        values, scalars = opened(asked.layout, words, asked.exponents)
        states.append(rounds.step(states[-1], asked, *spoil(asked, values, scalars)))
    return states


def answers_of(rounds, views, sites):
    """What `site_agent.machine.agreement` answers, in the clear."""
    norms = [float(site.y @ site.y) for site in sites]
    labels = [len(site.y) for site in sites]

    def answer(v, asked):
        view = views[v]
        weights = rounds.weights
        match asked.kind:
            case "sizes":
                kept = stays(view.bound(), weights.tolist())
                return NONE, (powered(view.bound()), norms[v], float(labels[v]), *kept)
            case _:
                return view.respond(asked.targets, weights, asked.part), ()

    return answer


def agreement(problem, name="conjugate-gradients", coupling=None, **changes):
    views = problem.views()
    terms = Agreement(coupling=coupling or (problem.coupling,))
    limits = {"tolerance": 1e-14, "prediction_tolerance": 1e-7, "max_rounds": 20_000}
    iteration = Iteration(**({"name": name} | limits | changes))
    rounds = Rounds(terms, iteration, len(views), problem.n_unlabelled)
    return rounds, views, answers_of(rounds, views, problem.sites)


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_sums_alone_lead_to_the_closed_form(name, seed):
    problem = small(seed)
    rounds, views, answer = agreement(problem, name)
    state = carried_out(rounds, answer)[-1]
    models = rounds.models(state)
    [column] = rounds.columns
    found = [
        view.respond(models.of(v), models.weights, "affine")[:, 0] for v, view in enumerate(views)
    ]
    size = max(float(np.abs(site.y).max()) for site in problem.sites)
    assert np.abs(
        np.mean(found, axis=0) - consensus_closed_form(views, problem.coupling)
    ).max() < 1e-5 * max(size, 1.0)
    assert column.coupling == problem.coupling


def small(seed=0):
    rng = np.random.default_rng(seed)
    return Problem(tuple(random_site(rng, 5, 7) for _ in range(3)), 0.1)


@given(st.lists(st.floats(0.0, 1e37), min_size=1, max_size=100))
def test_a_sum_of_powers_tells_the_largest_and_tiny_bounds_are_not_lost(values):
    told = largest(sum(map(powered, values)))
    assert max(values) <= told
    assert told <= max(values) * len(values) ** (1 / 8) * (1 + 1e-11) or max(values) < 1e-30


@pytest.mark.parametrize("value", [1.1e37, 1e60, float("inf"), float("nan")])
def test_a_bound_whose_power_would_overflow_is_refused(value):
    with pytest.raises(UsageError, match="too large to be summed"):
        powered(value)


def test_a_step_changes_nothing_that_it_is_given_and_is_the_same_bits_again():
    """What every site relies on: a state may be shared, and asked twice."""
    rounds, _, answer = agreement(small(), coupling=(0.01, 1.0))
    once, again = (carried_out(rounds, answer) for _ in "12")
    asked = [[rounds.ask(state) for state in states[:-1]] for states in (once, again)]
    for one, other in zip(*asked, strict=True):
        assert one.about == other.about
        assert one.targets.tobytes() == other.targets.tobytes()
    models = [rounds.models(states[-1]) for states in (once, again)]
    assert models[0].targets.tobytes() == models[1].targets.tobytes()
    questions = [(each.about, each.targets.tobytes()) for each in asked[0]]
    assert len(set(questions)) == len(questions), "no two questions of a run are alike"


def test_other_targets_of_another_length_are_another_question():
    """Sites that ask otherwise have other masks: their sum cannot be opened."""
    rounds, _, answer = agreement(small())
    state = carried_out(rounds, answer)[-2]
    asked = rounds.ask(state)
    other = rounds.ask(replace(state, inner=replace(state.inner, z=state.inner.z + 1.0)))
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
        return change(values, scalars) if meant else (values, scalars)

    rounds, _, answer = agreement(small())
    with pytest.raises(BadData, match=told):
        carried_out(rounds, answer, spoil)


def test_an_outcome_comes_with_the_last_sum():
    rounds, _, answer = agreement(small(), coupling=(0.01, 1.0))
    states = carried_out(rounds, answer)
    outcomes = [state.outcome for state in states]
    assert outcomes == [None] * (len(states) - 1) + [Outcome.CONVERGED]
    assert [state.round for state in states[1:]] == list(range(len(states) - 1))


# --- the tally of an alignment: a sum tells every count, and a sum of no tallies is noticed -------

MARKS = st.integers(0, 2**64 - 1)


@given(st.lists(st.frozensets(MARKS, max_size=40), min_size=1, max_size=6))
def test_a_sum_tells_how_many_have_each_mark(sites):
    everything = sorted(set().union(*sites))
    width = width_for(len(everything))
    found = read(sum(tally(np.array(sorted(site), dtype=np.uint64), width) for site in sites))
    assert found.marks.tolist() == everything
    assert found.sites.tolist() == [sum(mark in site for site in sites) for mark in everything]


def test_a_large_table_is_read():
    rng = np.random.default_rng(0)
    n = 50_000
    marks = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    sites = [marks[rng.random(n) < 0.6] for _ in range(4)]
    found = read(sum(tally(site, width_for(n)) for site in sites))
    assert_array_equal(found.of(marks), sum(np.isin(marks, site).astype(int) for site in sites))
    assert_array_equal(found.of(np.arange(5, dtype=np.uint64)), 0)


def test_a_sum_that_is_none_is_noticed():
    total = tally(np.arange(30, dtype=np.uint64), width_for(30))
    changed = total.copy()
    changed[np.flatnonzero(changed[:, 0])[0], 2] += np.uint64(1)
    full = np.ones((ROWS * width_for(3), COLUMNS), dtype=np.uint64)
    crowded = tally(np.arange(9_000, dtype=np.uint64), width_for(30))
    for wrong in (changed, full, crowded):
        with pytest.raises(BadData, match="a tally that cannot be read"):
            read(wrong)
