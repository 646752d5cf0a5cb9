"""What a site lets itself be asked is what the schedules ask: all of it, and nothing else."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import Problem, problems, terms

from coreg_core.agreement.columns import Column
from coreg_core.agreement.question_rules import question_fault
from coreg_core.agreement.schedules import SCHEDULE_NAMES, make_schedule

every_schedule = pytest.mark.parametrize("name", SCHEDULE_NAMES)


def fault(name, schedule, n_views, query, **changes):
    """What a site says to the query as it is put to it: column by column."""
    told = {"coupling": schedule.terms.coupling, "weights": query.weights, "targets": query.targets} | changes
    columns = tuple(Column(*pair) for pair in zip(told["coupling"], told["weights"].tolist(), strict=True))
    return question_fault(name, schedule.terms.coupling, n_views, query.part, columns, told["targets"])


@every_schedule
@settings(max_examples=20)
@given(problem=problems(sites=(1, 4)), restarts=st.lists(st.integers(0, 12), max_size=3))
def test_every_question_of_every_schedule_may_be_asked_restarts_and_fewer_sites_included(name, problem, restarts):
    most, warm, rounds = len(problem.sites), None, 0
    for steps in [*restarts, 30]:
        views = problem.views()
        schedule = make_schedule(name, terms(problem, views, max_rounds=40))
        state = schedule.start(problem.n_unlabelled, warm, rounds)
        for _ in range(steps):
            if schedule.finished(state):
                break
            query = schedule.query(state)
            assert fault(name, schedule, range(1, most + 1), query) is None
            asked = views if query.site is None else [views[query.site]]
            state = schedule.step(state, sum(v.respond(query.targets, query.weights, query.part) for v in asked))
        # A site is lost: the others go on from the last verified models.
        warm, rounds = schedule.models(state), state.round
        if len(problem.sites) > 1:
            problem = Problem(problem.sites[:-1], problem.coupling)


@every_schedule
@settings(max_examples=20)
@given(problem=problems(sites=(2, 3)), data=st.data())
def test_a_weight_that_differs_by_a_bit_is_nobodys(name, problem, data):
    assume(problem.coupling > 0)
    schedule = make_schedule(name, terms(problem, problem.views()))
    query = schedule.query(schedule.start(problem.n_unlabelled))
    n_views = range(2, len(problem.sites) + 1)
    assert fault(name, schedule, n_views, query) is None
    near = np.nextafter(query.weights, data.draw(st.sampled_from([0.0, np.inf])))
    assert "number of sites" in fault(name, schedule, n_views, query, weights=near)


@every_schedule
@given(problem=problems(sites=(2, 3)), data=st.data())
def test_columns_are_the_plans_couplings_each_once_and_in_their_order(name, problem, data):
    assume(problem.coupling > 0)
    schedule = make_schedule(name, terms(problem, problem.views()))
    query = schedule.query(schedule.start(problem.n_unlabelled))
    n_views, [lam] = range(2, len(problem.sites) + 1), schedule.terms.coupling
    wrong = data.draw(st.sampled_from([(), (lam, lam), (np.nextafter(lam, 0.0),), (0.0,)]))
    weights = np.resize(query.weights, len(wrong))
    assert "where the plan has" in fault(name, schedule, n_views, query, coupling=wrong, weights=weights)
