r"""The centralised closed form of a simulated agreement, and the distance of a run from it.

A closed form needs the data of all sites in one place. So only a simulation can compute it. It is
the oracle of a federation: the models of a converged run are those of the closed form, up to the
tolerance of the plan.

The closed form is solved in this process, wherever the sites of the run live. `closed_form_fault`
estimates the memory for it before anything is computed:

- exact form: for each site a matrix of m × m, a factor for each λ above 0, and two for the sum
- finite spans of r numbers a site: the maps of m × Σr, and a system of Σr × Σr
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from coreg_core.agreement.closed_form import solved
from coreg_core.agreement.objective import objective
from coreg_core.agreement.views import Solution, View
from coreg_core.arrays import Arr
from coreg_core.errors import Refused
from coreg_core.messages import PlanRefused, Proposal
from coreg_core.objectives.agreement import Agreement
from coreg_core.plan import Plan
from coreg_core.threads import pin_threads
from coreg_sim.problems import Problem
from coreg_sim.simulate import SharedFold, Simulated, SimulatedSite
from site_agent.machine.agreement import AgreementComputation

MEMORY = 2.0  # GiB that a closed form can take beside the run


@dataclass(frozen=True)
class ClosedForm:
    """The centralised solution of the same problem.

    ``solutions``: for each λ of the plan, one of each site, in the plan's order.
    """

    seconds: float
    objective: float  # Q at the first λ
    solutions: tuple[tuple[Solution, ...], ...]

    @property
    def predictions(self) -> Arr:
        """(sites, shared instances) at the first λ."""
        return np.array([solution.prediction for solution in self.solutions[0]])


def closed_form(problem: Problem, plan: Plan) -> ClosedForm:
    """Factor every site's data as the sites do, and solve for all of them at once.

    Raises
    ------
    Refused
        a site would refuse the plan.
    SingularSystem
        the system has no solution in floating point.
    """
    pin_threads(plan.iteration.threads)
    started = time.perf_counter()
    views = list[View]()
    for name in sorted(problem.sites):
        site = SimulatedSite(name, problem.sites[name], SharedFold())
        [answer] = site.handle(Proposal(plan.run, 0, plan))
        computation = site.participant.computation
        if isinstance(answer, PlanRefused) or not isinstance(computation, AgreementComputation):
            raise Refused(f"{name}: {answer}")
        views.append(computation.view)
    solutions = tuple(tuple(solved(views, coupling)) for coupling in plan.couplings)
    first = solutions[0]
    predictions = np.array([solution.prediction for solution in first])
    value = objective([s.local_objective for s in first], predictions, plan.couplings[0])
    return ClosedForm(time.perf_counter() - started, value, solutions)


def closed_form_fault(problem: Problem, plan: Plan) -> str:
    """A sentence if the closed form would take more than `MEMORY`; empty if it fits."""
    needed = 8.0 * _numbers(problem, plan) / 2**30
    if needed <= MEMORY:
        return ""
    return (
        f"The centralised closed form was not computed: it needs about {needed:,.3g} GiB in one"
        f" place, and its limit is {MEMORY:g} GiB. Use fewer sites or shared instances."
    )


def _numbers(problem: Problem, plan: Plan) -> int:
    """The largest count of numbers in memory at once."""
    terms = plan.objective
    assert isinstance(terms, Agreement)
    m = problem.n_unlabelled
    if terms.form == "exact":
        factors = sum(coupling > 0.0 for coupling in terms.coupling)
        return (len(problem.sites) * (1 + factors) + 2) * m * m
    rank = 0
    for data in problem.sites.values():
        labelled, columns = data.X.shape
        rank += columns if terms.form == "linear" else min(labelled, terms.landmarks)
    return m * rank + rank * rank


# --- distances ------------------------------------------------------------------------------------


def distance_from_closed_form(problem: Problem, run: Simulated, exact: ClosedForm) -> float:
    """The largest difference of a prediction of the run from the closed form, at all sites and λ.

    Predictions are of the shared and of the held-out rows. The unit is the standard deviation of
    the labels.
    """
    return largest_distance(_predicted(problem, run, exact), label_deviation(problem))


def largest_distance(pairs: Iterable[tuple[Arr, Arr]], unit: float) -> float:
    """The largest |a − b| of all pairs of predictions, divided by the unit."""
    largest = max(float(np.abs(one - other).max(initial=0.0)) for one, other in pairs)
    return largest / unit


def label_deviation(problem: Problem) -> float:
    """The standard deviation of all sites' labels; 1 if they are equal."""
    labels = np.concatenate([data.y for data in problem.sites.values()])
    return float(labels.std()) or 1.0


def _predicted(problem: Problem, run: Simulated, exact: ClosedForm) -> Iterator[tuple[Arr, Arr]]:
    """Each site's predictions by the run and by the closed form."""
    for v, result in enumerate(run.agreements):
        for own, central in zip(result.solutions, exact.solutions, strict=True):
            held_out = problem.held_out[v]
            yield own.prediction, central[v].prediction
            yield own.predict(held_out), central[v].predict(held_out)
