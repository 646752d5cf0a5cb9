"""A federation in one process, through the real machines, and beside the closed form.

Knows both machines and the in-process transport; prints nothing.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coordinator.driver import Lap, NoMemory, drive
from coordinator.federation import begin
from coordinator.jobs.phases import Clocks
from coordinator.jobs.recorded import Recorded
from coordinator.notices import Notice, QuestionAnswered
from coordinator.transports.in_process import InProcess
from coordinator.wording import worded
from coreg_core.additive.terms import Additive
from coreg_core.arrays import Arr
from coreg_core.closed_form import consensus_closed_form
from coreg_core.errors import Refused
from coreg_core.messages import PlanRefused
from coreg_core.objective import consensus_weight, disagreement, objective
from coreg_core.outcomes import Outcome, told
from coreg_core.plan import Agreement, Iteration, Membership, Plan
from coreg_core.threads import pin_threads
from coreg_core.views import Solution, View
from coreg_sim.problems import Problem
from site_agent.federation import Site


@dataclass
class Steps:
    """An observer that keeps what it is told."""

    taken: list[QuestionAnswered] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def notice(self, notice: Notice, measured: Lap) -> None:  # noqa: ARG002 - a simulation has no wire to time
        """Kept."""
        if isinstance(notice, QuestionAnswered):
            self.taken.append(notice)
        else:
            self.notes.append(worded(notice))


@dataclass(frozen=True)
class Simulated:
    """What a run came to. ``true_gap`` and ``true_error`` are against the closed form, when it was computed."""

    schedule: str
    outcome: Outcome
    rounds: int
    steps_in_series: int
    numbers_sent: int
    seconds: float
    certified_gap: float
    certified_prediction_bound: float
    objective: float
    predictions: Arr
    solutions: tuple[Solution, ...]
    alone: tuple[Solution, ...]


def plan_for(
    problem: Problem,
    objective: Agreement | Additive | None = None,
    iteration: Iteration | None = None,
    run: str = "simulation",
) -> Plan:
    """A plan for the sites of a problem; the defaults are the service's own, but for the number of rounds."""
    names = tuple(sorted(problem.sites))
    rounds = iteration or Iteration(max_rounds=10_000)
    return Plan(run, "simulation", Membership(names, len(names)), objective or Agreement(), rounds)


def simulate(problem: Problem, plan: Plan, reporter: Steps | None = None) -> Simulated:
    """Run the federation to its end.

    Raises:
        Refused: a site refused the plan; the message says why.
    """
    pin_threads(plan.iteration.threads)
    sites = {name: Site(name, data) for name, data in problem.sites.items()}
    transport, steps = InProcess(sites), reporter or Steps()
    started = time.perf_counter()
    end = asyncio.run(drive(begin(Recorded(plan), Clocks()), transport, NoMemory(), steps))[plan.run]
    seconds = time.perf_counter() - started
    results = [sites[name].result for name in sorted(sites)]
    if end.outcome is Outcome.REFUSED or any(r is None or not r.solutions or r.alone is None for r in results):
        raise Refused(told(end.outcome, end.reason))
    solutions = tuple(r.solutions[0] for r in results if r is not None)
    alone = tuple(r.alone for r in results if r is not None and r.alone is not None)
    predictions = np.array([s.prediction for s in solutions])
    last = next(s.progress for s in reversed(steps.taken) if s.progress is not None and s.progress.verified)
    return Simulated(
        schedule=plan.iteration.name,
        outcome=end.outcome,
        rounds=last.round,
        steps_in_series=len(steps.taken),
        numbers_sent=(transport.traffic.sent + transport.traffic.received) // 8,
        seconds=seconds,
        certified_gap=float(last.gap.max()),
        certified_prediction_bound=float(last.prediction_bound.max()),
        objective=objective([s.local_objective for s in solutions], predictions, plan.couplings[0]),
        predictions=predictions,
        solutions=solutions,
        alone=alone,
    )


@dataclass(frozen=True)
class ClosedForm:
    """The centralised solution of the same problem."""

    seconds: float
    objective: float
    disagreement: float
    predictions: Arr


def closed_form(problem: Problem, plan: Plan) -> ClosedForm:
    """Factor every site's data as the sites do, and solve for all of them at once.

    Raises:
        Refused: a site would refuse the plan.
    """
    pin_threads(plan.iteration.threads)
    started = time.perf_counter()
    views: list[View] = []
    for name in sorted(problem.sites):
        site = Site(name, problem.sites[name])
        [answer] = site.handle(plan)
        if isinstance(answer, PlanRefused) or site.view is None:
            raise Refused(f"{name}: {answer}")
        views.append(site.view)
    z = consensus_closed_form(views, plan.couplings[0])
    weight = consensus_weight(plan.couplings[0], len(views))
    solutions = [view.solve(z, weight) for view in views]
    predictions = np.array([s.prediction for s in solutions])
    return ClosedForm(
        time.perf_counter() - started,
        objective([s.local_objective for s in solutions], predictions, plan.couplings[0]),
        disagreement(predictions),
        predictions,
    )


def rmse(prediction: Arr, y: Arr) -> float:
    """Root mean square error."""
    return float(np.sqrt(np.mean(np.square(prediction - y))))


def held_out_errors(problem: Problem, solutions: Sequence[Solution]) -> tuple[list[float], float]:
    """Each site's error on the held-out rows in its own units (targets centred by its own mean), and that of the mean."""
    names = sorted(problem.sites)
    predictions = np.array(
        [
            s.predict(X) + problem.sites[name].y.mean()
            for s, X, name in zip(solutions, problem.held_out, names, strict=True)
        ]
    )
    return [rmse(p, problem.held_out_y) for p in predictions], rmse(predictions.mean(axis=0), problem.held_out_y)
