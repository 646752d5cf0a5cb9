"""Whole simulated runs: masks and shared work change no bit."""

import cProfile
import pstats
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest

from coordinator.transports.in_process import InProcess
from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import Refused
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_core.protocol.messages import Step
from coreg_core.protocol.outcomes import Outcome
from coreg_sim.federation.problems import generated
from coreg_sim.federation.simulate import Hosted, SharedFold, plan_for, simulate, simulated_site, typical_size

PROBLEM = generated(4, 8, 20, 2, seed=1)
PLANS = {
    name: (Agreement(form="semi-parametric", coupling=(0.1,)), Iteration(name, 1e-8, 1e-3)) for name in SCHEDULE_NAMES
}


def bits(run):
    coefficients = [s.function.coef.tobytes() for s in (*run.solutions, *run.alone)]
    return run.outcome, run.rounds, run.certified_gap, coefficients


class Counting(SharedFold):
    def __init__(self):
        super().__init__()
        self.asked, self.made = Counter(), Counter()

    def __call__(self, key, make):
        def counted():
            self.made[key] += 1
            return make()

        self.asked[key] += 1
        return super().__call__(key, counted)


def hosting(fold_of):
    @contextmanager
    def hosted(data):
        sites = {name: simulated_site(name, private, fold_of()) for name, private in data.items()}
        yield Hosted(InProcess(sites), lambda name: sites[name].result)

    return hosted


@pytest.mark.parametrize("name", PLANS)
def test_sealed_or_in_the_clear_and_worked_out_once_or_by_each_a_run_ends_on_the_same_bits(name):
    clear = simulate(PROBLEM, plan_for(PROBLEM, *PLANS[name]))
    assert clear.outcome is Outcome.CONVERGED
    sealed, counting = plan_for(PROBLEM, *PLANS[name], aggregation="secure"), Counting()
    shared = simulate(PROBLEM, sealed, hosting=hosting(lambda: counting))
    apart = simulate(PROBLEM, sealed, hosting=hosting(SharedFold))
    assert bits(shared) == bits(apart) == bits(clear)
    assert shared.numbers_sent > clear.numbers_sent
    assert set(counting.made.values()) == {1}, "what all members work out alike is worked out once"
    assert set(counting.asked.values()) == {len(PROBLEM.sites)}


def calls_of_four_rounds(n_sites):
    """Function calls and turns of generators in four rounds among so many sites."""
    counts = []
    for rounds in (3, 7):  # the last one verifies
        problem, profile = generated(n_sites, 4, 10, 2, seed=1), cProfile.Profile()
        iteration = Iteration("conjugate-gradients", 0.0, 0.0, max_rounds=rounds)
        plan = plan_for(problem, Agreement(form="semi-parametric", coupling=(0.01,)), iteration)
        run = profile.runcall(simulate, problem, plan)
        assert (run.outcome, run.rounds) == (Outcome.MAX_ROUNDS, rounds)
        counts.append(pstats.Stats(profile).total_calls)
    return counts[1] - counts[0]


def test_the_work_of_a_round_is_proportional_to_the_number_of_sites():
    """1,000 sites took 5 s a round: each built the schedule again, whose terms have one number for each site."""
    calls_of_four_rounds(16)  # fills caches and imports
    ratio = calls_of_four_rounds(64) / calls_of_four_rounds(16)
    assert 2.0 < ratio < 4.4, "4 where each site does the same; 16 where each does something for each other site"


def test_a_breach_ends_a_simulation_at_once_and_is_its_reason():
    """It was waited for as a site that is slow: a day."""

    @contextmanager
    def breaching(data):
        sites = {name: simulated_site(name, private, SharedFold()) for name, private in data.items()}
        first = min(sites)
        answer, sites[first].handle = sites[first].handle, lambda message: handled(sites[first], answer, message)
        yield Hosted(InProcess(sites), lambda name: sites[name].result)

    def handled(site, answer, message):
        if isinstance(message, Step):
            site.breach = "asked for another run."
            return []
        return answer(message)

    with pytest.raises(Refused, match=r"the site ended: the coordinator asked for another run\."):
        simulate(PROBLEM, plan_for(PROBLEM, *PLANS["conjugate-gradients"]), hosting=breaching)


@pytest.mark.parametrize(
    ("sites", "unlabelled", "form", "scale", "most"),
    [(4, 50_000, "semi-parametric", 1.0, 50), (16, 300, "exact", 1.0, 35), (16, 300, "exact", 1000.0, 35)],
)
def test_a_run_with_default_tolerances_ends_well_and_soon_in_any_unit(sites, unlabelled, form, scale, most):
    """148 and 127 rounds, both STAGNATED, when the tolerance had the unit of the labels."""
    problem = generated(sites, 50, unlabelled, 5, seed=0)
    scaled = {name: replace(data, y=scale * data.y) for name, data in problem.sites.items()}
    run = simulate(replace(problem, sites=scaled), plan_for(problem, Agreement(form=form), Iteration()))
    assert (run.outcome, run.rounds <= most) == (Outcome.CONVERGED, True)
    assert run.certified_prediction_bound <= 1e-6 * typical_size(replace(problem, sites=scaled), Agreement())
