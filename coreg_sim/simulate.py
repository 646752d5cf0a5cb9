r"""A simulated federation through the service's state machines.

A `Hosting` runs the sites in this process or in Ray's processes (`coreg_sim.over_ray`). Both give
the same bits.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.driver import Driver, Observer
from coordinator.machine.federation import begin
from coordinator.machine.records import Timeouts
from coordinator.transports import InProcess, Transport
from coreg_core.agreement.objective import objective
from coreg_core.agreement.solver import Progress
from coreg_core.agreement.views import Solution
from coreg_core.arrays import Arr
from coreg_core.errors import Refused
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Finished,
    FromSite,
    Hello,
    Proposal,
    Step,
    ToSite,
)
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Notice, Outcome, advice, end_sentence
from coreg_core.plan import Plan
from coreg_core.terms import Aggregation, Iteration, Membership, Privacy
from coreg_core.threads import pin_threads
from coreg_sim.problems import Problem
from coreg_wire.identity.names import key_fingerprint
from site_agent.consent.consent import Consent
from site_agent.consent.participant import Means, Participant
from site_agent.identity.run_keys import RunKeys
from site_agent.machine.results import AdditiveResult, AgreementResult, Result
from site_agent.machine.site import Send
from site_agent.site_data import PrivateData

_ORDER_BELOW = 1 << 255  # every number from 1 to this is a private key of P-256


@cache
def identity_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The certificate's key of a site of this name."""
    number = (
        int.from_bytes(hashlib.sha256(b"coreg simulated site " + name.encode()).digest(), "big")
        % _ORDER_BELOW
    )
    return ec.derive_private_key(number + 1, ec.SECP256R1())


@cache
def fingerprint_of(name: str) -> str:
    return key_fingerprint(identity_of(name).public_key())


def simulated_keys(name: str) -> RunKeys:
    return RunKeys(identity_of(name), fingerprint_of)


Made = TypeVar("Made")
# Effectively no timeout: a site that factors an exact view of 10⁴ instances is slow, not lost. The
# hosting detects a process that dies.
PATIENT = Timeouts(join=600.0, plan=86_400.0, round=86_400.0, stall=86_400.0)


@dataclass(frozen=True)
class Hosted:
    """The sites of a run: transport, each `Result` after it, and the hosting's ``failure`` or
    None.
    """

    transport: Transport
    result: Callable[[str], Any]
    failure: Callable[[], Exception | None] = lambda: None


Hosting: TypeAlias = Callable[[Mapping[str, PrivateData]], AbstractContextManager[Hosted]]


class SharedFold:
    """A cache of work that is equal for all members; it keeps the latest value of each kind."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[bytes, Any]] = {}
        self.token = os.urandom(16).hex()

    def __call__(self, key: tuple[str, bytes], make: Callable[[], Made]) -> Made:
        """See `site_agent.machine.objective.Fold`."""
        what, chain = key
        latest = self._made.get(what)
        if latest is None or latest[0] != chain:
            latest = self._made[what] = (chain, make())
        value: Made = latest[1]
        return value


class SimulatedSite:
    """The agent's own machine and consent, without a policy, a ledger or a session."""

    def __init__(self, name: str, data: PrivateData, fold: SharedFold):
        means = Means(simulated_keys(name), pin_threads, os.urandom, token=fold.token, fold=fold)
        self.name = name
        self.participant = Participant(name, data, Consent.simulated(), means)

    @property
    def result(self) -> Result | None:
        return self.participant.result

    def hello(self) -> Hello:
        return Hello(self.name, PROTOCOL_VERSION)

    def handle(self, message: ToSite) -> list[FromSite]:
        if not isinstance(message, Proposal | Step | Finished):
            return []
        actions = self.participant.handle(message)
        return [action.message for action in actions if isinstance(action, Send)]


@contextmanager
def in_process(data: Mapping[str, PrivateData]) -> Iterator[Hosted]:
    """All sites in this process, one after another."""
    fold = SharedFold()
    sites = {name: SimulatedSite(name, private, fold) for name, private in data.items()}
    yield Hosted(InProcess(sites), lambda name: sites[name].result)


def plan_for(
    problem: Problem,
    objective: Agreement | Additive | None = None,
    iteration: Iteration | None = None,
    run: str = "simulation",
    aggregation: Aggregation | None = None,
) -> Plan:
    """A plan for the sites of a problem.

    An agreement is in plaintext unless asked otherwise: masks change no bit.
    """
    aggregation = aggregation or ("secure" if isinstance(objective, Additive) else "plaintext")
    names = tuple(sorted(problem.sites))
    rounds = iteration or Iteration(max_rounds=10_000)
    members = Membership(names, len(names))
    return Plan(run, "simulation", members, objective or Agreement(), rounds, Privacy(aggregation))


@dataclass(frozen=True)
class Simulated:
    """A finished run: results in site order, steps, traffic.

    Properties are of an agreement's first coupling.
    """

    plan: Plan
    outcome: Outcome
    reason: str
    results: tuple[Result, ...]
    taken: tuple[Notice, ...]
    numbers_sent: int
    bytes_sent: int
    seconds: float

    @cached_property
    def last(self) -> Progress:
        """The exact figures of the last round, which are equal at all sites."""
        assert self.results[0].progress is not None
        return self.results[0].progress

    @property
    def rounds(self) -> int:
        return self.last.round

    @property
    def certified_gap(self) -> float:
        return float(self.last.gap.max())

    @property
    def certified_prediction_bound(self) -> float:
        return float(self.last.prediction_bound.max())

    @property
    def agreements(self) -> list[AgreementResult]:
        """The sites' results, if the objective is the agreement."""
        return [result for result in self.results if isinstance(result, AgreementResult)]

    @property
    def solutions(self) -> tuple[Solution, ...]:
        return tuple(result.solutions[0] for result in self.agreements)

    @property
    def alone(self) -> tuple[Solution, ...]:
        return tuple(result.alone for result in self.agreements if result.alone is not None)

    @cached_property
    def predictions(self) -> Arr:
        return np.array([solution.prediction for solution in self.solutions])

    @property
    def objective(self) -> float:
        return objective(
            [s.local_objective for s in self.solutions], self.predictions, self.plan.couplings[0]
        )


def simulate(
    problem: Problem, plan: Plan, reporter: Observer | None = None, hosting: Hosting = in_process
) -> Simulated:
    """Run the federation to its end.

    Parameters
    ----------
    problem
        the sites' data: of `coreg_sim.problems.generated`, or of `partitioned` for a table.
    plan
        the plan of a run: `plan_for(problem, objective, iteration)`.
    reporter
        receives each notice of the coordinator.
    hosting
        where the sites live: `in_process`, or `coreg_sim.over_ray.OverRay`.

    Returns
    -------
    Simulated
        the outcome, each site's result, the steps, and what was sent.

    >>> from coreg_federation import plan_for, simulate
    >>> from coreg_sim.problems import generated
    >>> problem = generated(3, 20, 50, 2, seed=0)  # sites, labelled, unlabelled, columns of a site
    >>> simulate(problem, plan_for(problem)).outcome.name
    'CONVERGED'

    Raises
    ------
    Refused
        A site refused the plan, or the sites have no label; the message says which.
    Unreachable
        The sites could not be hosted.
    """
    pin_threads(plan.iteration.threads)
    taken: list[Notice] = []

    def observe(notice: Notice) -> None:
        if notice.name == "round":
            taken.append(notice)
        if reporter is not None:
            reporter(notice)

    started = time.perf_counter()
    with hosting(problem.sites) as hosted:
        traffic = hosted.transport.traffic
        driver = Driver(hosted.transport, None, observe, of_steps=observe)
        end = asyncio.run(driver.drive(*begin(plan, PATIENT)))[plan.run]
        failure = hosted.failure()
        if failure is not None:
            raise failure
        results: list[Result | None] = [hosted.result(name) for name in plan.sites]
    seconds = time.perf_counter() - started
    trained = tuple(
        result
        for result in results
        if isinstance(result, AdditiveResult)
        or (isinstance(result, AgreementResult) and result.solutions)
    )
    if len(trained) < len(results):
        here = "Give each site more labels (--labelled), or change the plan."
        sentence = end_sentence(end.outcome, end.reason)
        raise Refused(sentence.replace(advice(Outcome.REFUSED), here))
    sent = traffic.sent + traffic.received
    return Simulated(plan, end.outcome, end.reason, trained, tuple(taken), sent // 8, sent, seconds)


def rmse(prediction: Arr, y: Arr) -> float:
    return float(np.sqrt(np.mean(np.square(prediction - y))))


def held_out_errors(problem: Problem, solutions: Sequence[Solution]) -> list[float]:
    """Each site's error on the held-out rows in its own units (targets centred by its own mean)."""
    centres = [problem.sites[name].y.mean() for name in sorted(problem.sites)]
    held_out = zip(solutions, problem.held_out, centres, strict=True)
    return [rmse(s.predict(X) + centre, problem.held_out_y) for s, X, centre in held_out]
