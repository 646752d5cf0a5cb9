"""coreg-sim compare: rounds to one true error, against runs that are cut short there; and what the command tells."""

import numpy as np

from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_sim.cli.compare import rounds_to
from coreg_sim.federation.problems import generated
from coreg_sim.federation.simulate import closed_form, factored, plan_for, simulate

NOTHING_MEETS = 1e-300


def test_a_run_that_stops_after_so_many_rounds_is_that_near_and_one_that_stops_before_is_not():
    schedule, problem = "block-coordinate-descent", generated(3, 12, 30, 3, seed=4)
    objective = Agreement(form="semi-parametric", coupling=(0.1,))

    def off(rounds):
        iteration = Iteration(schedule, NOTHING_MEETS, NOTHING_MEETS, rounds)
        found = simulate(problem, plan_for(problem, objective, iteration))
        return float(np.linalg.norm(found.predictions - truth, axis=1).max())

    plan = plan_for(problem, objective, Iteration(schedule))
    truth = closed_form(problem, plan).predictions
    views = factored(problem.sites, plan)
    for error in (1e-1, 1e-4):
        rounds = rounds_to(error, views, plan, truth, 500)
        assert rounds is not None
        assert off(rounds) <= error < off(rounds - 1)
    assert rounds_to(1e-4, views, plan, truth, 3) is None
