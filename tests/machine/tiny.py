"""A federation small enough to reason about: six shared instances, sites a to d, and a pump instead
of a network.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from itertools import count
from typing import Any

import numpy as np

from coordinator.machine import federation as federations
from coordinator.machine.events import (
    Action,
    DeadlinePassed,
    Event,
    Finish,
    Persist,
    Received,
    Reject,
    SendToSite,
    SiteJoined,
    SiteLost,
)
from coordinator.machine.records import NOT_BEGUN, AttemptBegan, Begun, Record, StepDone, Timeouts
from coordinator.machine.run import Run
from coreg_core import messages as m
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Iteration, Membership, Privacy
from coreg_sim.simulate import simulated_keys
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.objection import refusal
from site_agent.consent.participant import Means, Participant
from site_agent.consent.policy import Policy
from site_agent.disclosure import Disclosure
from site_agent.identity.run_keys import RunKeys
from site_agent.ledger.ledger import entry_for
from site_agent.machine.agent import RESUMABLE
from site_agent.machine.alignment import IdList
from site_agent.machine.results import AdditiveResult, AgreementResult, Result, ScoringResult
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Missed, Send
from site_agent.site_data import PrivateData

UNLABELLED = 6
IDS = "digest-of-the-ids"
TIMEOUTS = Timeouts(join=1.0, plan=2.0, approval=500.0, round=3.0, stall=4.0)
SOLVERS = ("conjugate-gradients", "block-coordinate-descent")


def make_plan(**changes: Any) -> Plan:
    """A small plan; ``changes`` are fields of whichever part of it has them (``solver`` is the
    iteration's name).
    """
    parts = {
        "membership": Membership(sites=("a", "b", "c"), min_sites=2),
        "objective": Agreement(
            form="semi-parametric",
            bandwidth=3.0,
            ridge=1.0,
            landmarks=3,
            coupling=(0.1, 1.0),
            label_units="centred",
        ),
        "iteration": Iteration(tolerance=1e-9, prediction_tolerance=1e-3, max_rounds=300),
        "privacy": Privacy(aggregation="plaintext"),
    }
    if "solver" in changes:
        changes["name"] = changes.pop("solver")
    whole = {"run": changes.pop("run", "run-1"), "federation": changes.pop("federation", "tiny")}
    for key, part in parts.items():
        mine = {f.name: changes.pop(f.name) for f in fields(part) if f.name in changes}
        parts[key] = replace(part, **mine)
    assert not changes, f"no part of a plan has {changes}"
    return Plan(**whole, **parts)


def sealed(plan: Plan) -> Plan:
    return replace(plan, privacy=replace(plan.privacy, aggregation="secure"))


def private_data(name: str, seed: int = 0) -> PrivateData:
    """Four labelled rows; every site sees two features of its own."""
    rng = np.random.default_rng([seed, *name.encode()])
    X = rng.normal(size=(4, 2))
    Z = rng.normal(size=(UNLABELLED, 2))
    return PrivateData(X, X.sum(axis=1) + rng.normal(size=4), Z, IDS, salt=name.encode())


_processes = count()


def allowing(**keys: Any) -> Policy:
    """A policy that allows what tests do, but for these keys."""
    least = {
        "rows_per_feature": 5,
        "noise": 0.0,
        "label_noise": 0.0,
        "least_labels": 3,
        "least_rows": 10,
    }
    allowed = {"aggregation": "plaintext", "scores_of_two": True}
    return Policy(**(allowed | least | keys))


def against(policy: Policy | None, plan: Plan, data: PrivateData | None = None) -> str | None:
    """The refusal of a plan by one of its sites, or None."""
    consent = Consent(policy, Memory(), lambda: 0.0)
    return refusal(consent.objections(plan, plan.sites[0], data, "ids"), policy)


def summed_before(ids: str, *sets: Iterable[str], may_change: bool) -> Memory:
    """The memory of a site that was summed with these sets of sites on such instances."""
    memory = Memory()
    memory.add(
        {"kind": "Offer", "run": "before", "plan": "another", "ids_digest": ids, "data_digest": ""}
    )
    answer = {"kind": "Answer", "run": "before", "numbers": 1, "question": "respond linear"}
    for sites in sets:
        memory.add(answer | {"participants": list(sites), "may_change": may_change})
    return memory


class TinySite:
    """A site without a session: what it says is remembered as its ledger would have it."""

    def __init__(
        self, name: str, data: PrivateData | Batch | IdList, consent: Consent, means: Means
    ):
        self.name = name
        self.data = data
        self.consent = consent
        self.means = means
        self.participant = Participant(name, data, consent, means)
        self.missed = ""  # why it has no result of a run that ended with one
        self.disclosed = list[Disclosure]()  # of each answer that left

    def sign_with(self, keys: RunKeys) -> None:
        """Take other keys, before a run."""
        self.means = replace(self.means, keys=keys)
        self.participant = Participant(self.name, self.data, self.consent, self.means)

    @property
    def result(self) -> Result | None:
        return self.participant.result

    @property
    def computation(self) -> Any:
        return self.participant.computation

    @property
    def attempt(self) -> Any:
        """Keys and state of the attempt, for what an attacker who has them can do."""
        return self.participant.site.attempt

    def hello(self) -> m.Hello:
        return hello(self.name)

    def handle(self, message: m.ToSite) -> list[m.FromSite]:
        if not isinstance(message, m.Proposal | m.Step | m.Finished):
            return []
        said = list[m.FromSite]()
        for action in self.participant.handle(message):
            match action:
                case Send(answer, disclosure):
                    self.consent.memory.add(entry_for(answer, disclosure))
                    if disclosure is not None and disclosure.numbers:
                        self.disclosed.append(disclosure)
                    said.append(answer)
                case Missed(reason):
                    self.missed = reason
        return said


def site_with(
    name: str,
    data: PrivateData | Batch | IdList,
    policy: Policy | None = None,
    memory: Memory | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    **changes: Any,
) -> TinySite:
    """``changes`` are fields of `Means`."""
    if memory is None:
        memory = Memory()
    consent = Consent(policy, memory, clock)
    token = f"{next(_processes)}"
    keys = simulated_keys(name)
    means = Means(keys, pin_threads=int, random_bytes=os.urandom, release="test", token=token)
    return TinySite(name, data, consent, replace(means, **changes))


def make_site(name: str, seed: int = 0, **rules: Any) -> TinySite:
    return site_with(name, private_data(name, seed), **rules)


def make_sites(names: Iterable[str]) -> dict[str, TinySite]:
    return {name: make_site(name) for name in names}


def restarted(site: TinySite) -> TinySite:
    """The agent in another process: it has its rows and its ledger, and no key."""
    means = replace(site.means, token=f"{next(_processes)}")
    return TinySite(site.name, site.data, site.consent, means)


def all_restarted(sites: Mapping[str, TinySite]) -> dict[str, TinySite]:
    return {name: restarted(site) for name, site in sites.items()}


def altered(site: TinySite, change: Callable[[m.ToSite, Any], Any]) -> TinySite:
    """A site whose answers are changed: ``change`` receives the message and one of its answers;
    None is none.
    """
    honest = site.handle

    def handle(message: m.ToSite) -> list[m.FromSite]:
        return [told for answer in honest(message) if (told := change(message, answer)) is not None]

    site.handle = handle  # type: ignore[method-assign]
    return site


def hello(site: str, **changes: Any) -> m.Hello:
    return replace(m.Hello(site, m.PROTOCOL_VERSION, "test"), **changes)


def offer_of(site: str, plan: Plan, attempt: int = 0, /, **changes: Any) -> m.Offer:
    """What a site offers, but for its keys, whose place a text takes."""
    names = ("key", "identity", "signature")
    keys = dict.fromkeys(names, "")
    if plan.masked:
        keys = {name: f"{name} of {site} for {attempt}" for name in names}
    rows = {"n_unlabelled": UNLABELLED, "ids_digest": IDS, "data_digest": f"data-of-{site}"}
    offer = m.Offer(
        run=plan.run,
        attempt=attempt,
        plan_digest=plan.digest,
        site=site,
        release="test",
        **rows,
        **keys,
    )
    return replace(offer, **changes)


def bits(result: Result | None) -> tuple[Any, ...] | None:
    """Everything that a site ends with, equal only where every bit is; None without a result."""
    match result:
        case AgreementResult() if result.solutions:
            models = [(s.function.coef.tobytes(), s.prediction.tobytes()) for s in result.solutions]
            return result.outcome, result.couplings, models
        case AdditiveResult():
            own = result.model
            models = getattr(own, "models", (own,))
            coefs = [model.weights.coef.tobytes() for model in models]
            return result.outcome, [(m.intercept, m.joined.tobytes()) for m in models], coefs
        case ScoringResult() if result.scores is not None:
            return result.outcome, result.scores.tobytes()
        case _:
            return None


def begun_by(records: Iterable[Record]) -> Begun:
    """What a store has of a run with these records."""
    begun = NOT_BEGUN
    for record in records:
        match record:
            case AttemptBegan(attempt, participants):
                begun = replace(begun, attempt=attempt, participants=participants)
            case StepDone(number=number):
                begun = replace(begun, steps=number + 1)
    return begun


class Machine:
    """A federation of one run, held as a variable: for tests that follow it event by event.

    The value is ``federation``.
    """

    def __init__(self, plan: Plan, timeouts: Timeouts = TIMEOUTS, begun: Begun = NOT_BEGUN):
        self.plan = plan
        self.timeouts = timeouts
        self.begun = begun
        self.federation = federations.FederationState()

    def start(self) -> list[Action]:
        self.federation, actions = federations.begin(self.plan, self.timeouts, self.begun)
        return actions

    def handle(self, event: Event) -> list[Action]:
        self.federation, actions = federations.handle(self.federation, event)
        return actions

    def __getattr__(self, name: str) -> Any:
        """What the run itself has."""
        return getattr(self.federation.runs[self.plan.run], name)

    @property
    def run(self) -> Run:
        return self.federation.runs[self.plan.run]

    @property
    def deadline(self) -> DeadlinePassed:
        """Of the timer that counts."""
        return DeadlinePassed(self.plan.run, self.token)


class Pump:
    """The machine and its sites, wired by a queue of events.

    ``records`` are those of earlier processes and of this one; ``kill_after`` so many records the
    coordinator does nothing more; ``wire`` tells what becomes of a message to a site. ``bits`` are
    what each site ended with, ``sent`` is everything that the coordinator said.
    """

    def __init__(
        self,
        plan: Plan,
        sites: Mapping[str, TinySite],
        records: Iterable[Record] = (),
        kill_after: int | None = None,
        wire: Callable[[str, m.ToSite], m.ToSite | None] = lambda site, message: message,
    ):
        self.records = list(records)
        self.sites = dict(sites)
        self.machine = Machine(plan, TIMEOUTS, begun_by(self.records))
        self.kill_after = kill_after
        self.killed = False
        self._wire = wire
        self.events: deque[Event] = deque()
        self.sent: list[SendToSite] = []
        self.end: Finish | None = None
        self.bits: dict[str, Any] = {}
        self.carry_out(self.machine.start())

    def join(self, *names: str) -> "Pump":
        self.events.extend(
            SiteJoined(self.sites[name].hello()) for name in names or tuple(self.sites)
        )
        return self

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if self.killed:
                return
            match action:
                case SendToSite(name, message) if (
                    message := self._wire(name, message)
                ) is not None:
                    self.sent.append(SendToSite(name, message))
                    self.events.extend(
                        Received(name, answer) for answer in self.sites[name].handle(message)
                    )
                    if (found := bits(self.sites[name].result)) is not None:
                        self.bits[name] = found
                    if (
                        isinstance(message, m.Finished | m.Dismissed)
                        and message.outcome in RESUMABLE
                    ):
                        self.sites[name] = restarted(
                            self.sites[name]
                        )  # an agent forgets a run that is over
                case Reject(name, reason):
                    self.sites[name].handle(m.Rejected(reason))
                case Persist(record=record):
                    self.records.append(record)
                    self.killed = len(self.records) == self.kill_after
                case Finish():
                    self.end = action

    def step(self) -> None:
        self.carry_out(self.machine.handle(self.events.popleft()))

    def run(self) -> "Pump":
        while self.events and self.end is None and not self.killed:
            self.step()
        return self

    def steps(self, count: int) -> "Pump":
        """Until so many steps are answered by all; the answers to the next are on their way."""
        while sum(isinstance(r, StepDone) for r in self.records) < count:
            self.step()
        return self

    def out_of_time(self) -> "Pump":
        """All is quiet, and then the deadline passes."""
        self.run()
        self.carry_out(self.machine.handle(self.machine.deadline))
        return self

    def lose(self, name: str) -> "Pump":
        """The session breaks, with whatever was on its way."""
        self.events = deque(event for event in self.events if getattr(event, "site", None) != name)
        self.carry_out(self.machine.handle(SiteLost(name, "its stream ended")))
        return self

    def kill(self, name: str) -> "Pump":
        """The agent is gone, and comes back in another process."""
        self.sites[name] = restarted(self.sites[name])
        return self.lose(name).join(name)

    def restarted(self) -> "Pump":
        """The coordinator in another process; the agents are who they are."""
        again = Pump(self.machine.plan, self.sites, self.records)
        again.bits = self.bits
        return again

    @property
    def outcome(self) -> Outcome:
        assert self.end is not None, f"still {self.machine.phase}"
        return self.end.outcome

    @property
    def missed(self) -> dict[str, str]:
        """The sites that missed the result of the run, and why."""
        return {name: site.missed for name, site in self.sites.items() if site.missed}


def undisturbed(plan: Plan, names: Iterable[str] | None = None) -> Pump:
    """The run in which nothing goes wrong."""
    return Pump(plan, make_sites(names or plan.sites)).join().run()
