"""A simulated federation, through the real machines, and beside the closed form.

Where the sites are is a `Carry`: in this very process, or in Ray's (`coreg_sim.over_ray`), which ends on the same bits.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice, QuestionAnswered
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coordinator.machine.wording import worded
from coordinator.transports import Transport
from coordinator.transports.in_process import InProcess
from coreg_core.additive.model.terms import Additive
from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import consensus_weight, disagreement, objective
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.agreement.views import Solution, View
from coreg_core.errors import Refused
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.messages import PlanRefused
from coreg_core.protocol.outcomes import Outcome, told
from coreg_core.protocol.plan import Agreement, Answers, Iteration, Membership, Plan, Privacy
from coreg_sim.federation.masks import simulated_keys
from coreg_sim.federation.problems import Problem
from site_agent.machine.memory import SiteResult
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData


@dataclass
class Steps:
    """An observer that keeps what it is told."""

    taken: list[QuestionAnswered] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def notice(self, notice: Notice, measured: Lap) -> None:  # noqa: ARG002 - a simulation has no wire to time
        if isinstance(notice, QuestionAnswered):
            self.taken.append(notice)
        else:
            self.notes.append(worded(notice))


# A simulation is given the time that it takes: a site that factors an exact view of 10⁴ instances is not lost. What is
# lost is noticed by whoever carries the sites.
PATIENT = Clocks(join=600.0, plan=86_400.0, round=86_400.0, stall=86_400.0)


@dataclass(frozen=True)
class Carried:
    """Where the sites of one run are.

    Parameters
    ----------
    transport
        Not started yet.
    result
        What a site has once the run is over: a `SiteResult`, or None.
    failure
        Why the sites could not be carried on, where that is so; the run was interrupted then.
    """

    transport: Transport
    result: Callable[[str], Any]
    failure: Callable[[], Exception | None] = lambda: None


Carry: TypeAlias = Callable[[Mapping[str, PrivateData]], AbstractContextManager[Carried]]


@contextmanager
def in_process(data: Mapping[str, PrivateData]) -> Iterator[Carried]:
    """Every site in this process, one after another."""
    sites = {name: Site(name, private, Terms(keys=simulated_keys(name))) for name, private in data.items()}
    yield Carried(InProcess(sites), lambda name: sites[name].result)


@dataclass(frozen=True)
class Simulated:
    """What a run came to. ``true_gap`` and ``true_error`` are against the closed form, when it was computed."""

    schedule: str
    outcome: Outcome
    rounds: int
    steps_in_series: int
    numbers_sent: int
    bytes_sent: int
    seconds: float
    certified_gap: float
    certified_prediction_bound: float
    objective: float
    predictions: Arr
    solutions: tuple[Solution, ...]
    alone: tuple[Solution, ...]


def close_enough(problem: Problem, asked: float | None = None) -> float:
    """A bound on the predictions' error (2-norm): what was asked for, or 1e-5 √m, that is 1e-5 an instance.

    A fixed number cannot serve: rounding alone, which the certificate counts, grows with the instances and the sites.
    """
    return asked if asked is not None else 1e-5 * float(np.sqrt(len(next(iter(problem.sites.values())).Z)))


def plan_for(
    problem: Problem,
    objective: Agreement | Additive | None = None,
    iteration: Iteration | None = None,
    run: str = "simulation",
    answers: Answers = "clear",
) -> Plan:
    """A plan for the sites of a problem; the defaults are the service's own, but for the number of rounds.

    In the clear, since masks change no bit and one owner has nobody to hide from; with "sums" the work of masking is
    simulated too. (Where search directions travel in float32, answers in the clear are rounded, and masked ones are not.)
    """
    names = tuple(sorted(problem.sites))
    rounds = iteration or Iteration(max_rounds=10_000)
    members = Membership(names, len(names))
    return Plan(run, "simulation", members, objective or Agreement(), rounds, Privacy(answers))


@dataclass(frozen=True)
class Federated:
    """A whole run: every site's result in site order, with one solution for each coupling of the plan."""

    outcome: Outcome
    results: tuple[SiteResult, ...]
    last: Progress  # of the last verified round
    numbers_sent: int
    bytes_sent: int
    seconds: float


def federate(problem: Problem, plan: Plan, reporter: Steps | None = None, carry: Carry = in_process) -> Federated:
    """Run the federation to its end.

    Raises
    ------
    Refused
        A site refused the plan; the message says why.
    Unreachable
        The sites could not be carried on.
    """
    pin_threads(plan.iteration.threads)
    steps = reporter or Steps()
    started = time.perf_counter()
    with carry(problem.sites) as carried:
        transport = carried.transport
        end = asyncio.run(drive(begin(Recorded(plan), PATIENT), transport, NoMemory(), steps))[plan.run]
        if (failure := carried.failure()) is not None:
            raise failure
        results: list[SiteResult | None] = [carried.result(name) for name in sorted(problem.sites)]
    seconds = time.perf_counter() - started
    if end.outcome is Outcome.REFUSED or any(r is None or not r.solutions or r.alone is None for r in results):
        raise Refused(told(end.outcome, end.reason))
    last = next(s.progress for s in reversed(steps.taken) if s.progress is not None and s.progress.verified)
    traffic = transport.traffic
    found = tuple(r for r in results if r is not None)
    return Federated(end.outcome, found, last, traffic.numbers, traffic.sent + traffic.received, seconds)


def simulate(problem: Problem, plan: Plan, reporter: Steps | None = None, carry: Carry = in_process) -> Simulated:
    """Run the federation to its end, and tell what its first coupling came to.

    Raises
    ------
    Refused
        A site refused the plan; the message says why.
    Unreachable
        The sites could not be carried on.
    """
    steps = reporter or Steps()
    run = federate(problem, plan, steps, carry)
    solutions = tuple(r.solutions[0] for r in run.results)
    predictions = np.array([s.prediction for s in solutions])
    return Simulated(
        schedule=plan.iteration.name,
        outcome=run.outcome,
        rounds=run.last.round,
        steps_in_series=len(steps.taken),
        numbers_sent=run.numbers_sent,
        bytes_sent=run.bytes_sent,
        seconds=run.seconds,
        certified_gap=float(run.last.gap.max()),
        certified_prediction_bound=float(run.last.prediction_bound.max()),
        objective=objective([s.local_objective for s in solutions], predictions, plan.couplings[0]),
        predictions=predictions,
        solutions=solutions,
        alone=tuple(r.alone for r in run.results if r.alone is not None),
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

    Raises
    ------
    Refused
        A site would refuse the plan.
    """
    pin_threads(plan.iteration.threads)
    started = time.perf_counter()
    views = factored(problem.sites, plan)
    z = consensus_closed_form(views, plan.couplings[0])
    weight = consensus_weight(plan.couplings[0], len(views))
    return solved([view.solve(z, weight) for view in views], plan, started)


def factored(data: Mapping[str, PrivateData], plan: Plan) -> list[View]:
    """The sites' views under a plan, in site order, as the sites themselves make them.

    Raises
    ------
    Refused
        A site would refuse the plan.
    """
    views: list[View] = []
    for name in sorted(data):
        site = Site(name, data[name], Terms(keys=simulated_keys(name)))
        [answer] = site.handle(plan)
        if isinstance(answer, PlanRefused) or site.view is None:
            raise Refused(f"{name}: {answer}")
        views.append(site.view)
    return views


def solved(solutions: Sequence[Solution], plan: Plan, started: float) -> ClosedForm:
    """What the sites' solutions, in site order, come to."""
    predictions = np.array([s.prediction for s in solutions])
    return ClosedForm(
        time.perf_counter() - started,
        objective([s.local_objective for s in solutions], predictions, plan.couplings[0]),
        disagreement(predictions),
        predictions,
    )


def rmse(prediction: Arr, y: Arr) -> float:
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
