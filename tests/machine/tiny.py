"""A federation small enough to reason about: six shared instances, sites a to d, and a pump instead of a network."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
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
    Send,
    SiteJoined,
)
from coordinator.machine.phases import Phase, Timeouts
from coordinator.machine.records import Record, StepTaken
from coordinator.machine.run import Run
from coordinator.machine.state import RunState, resume
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Ask,
    Finished,
    FromSite,
    Hello,
    PlanAccepted,
    Rejected,
    ToSite,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Iteration, Membership, Plan, Privacy
from coreg_core.protocol.vectors import Vector
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.machine.training import Remembered

UNLABELLED = 6
IDS = "digest-of-the-ids"
TIMEOUTS = Timeouts(join=1.0, plan=2.0, round=3.0, stall=4.0)
SCHEDULES = ("conjugate-gradients", "block-coordinate-descent", "consensus")


def make_plan(**changes: Any) -> Plan:
    """A small plan; ``changes`` are fields of whichever part of it has them (``schedule`` is the iteration's name)."""
    parts = {
        "membership": Membership(sites=("a", "b", "c"), min_sites=2),
        "objective": Agreement(
            form="semi-parametric", bandwidth=3.0, ridge=1.0, landmarks=3, coupling=(0.1, 1.0), label_units="centred"
        ),
        "iteration": Iteration(tolerance=1e-9, prediction_tolerance=1e-3, max_rounds=300),
        "privacy": Privacy(aggregation="plaintext"),
    }
    if "schedule" in changes:
        changes["name"] = changes.pop("schedule")
    whole = {"run": changes.pop("run", "run-1"), "federation": changes.pop("federation", "tiny")}
    for key, part in parts.items():
        mine = {f.name: changes.pop(f.name) for f in fields(part) if f.name in changes}
        parts[key] = replace(part, **mine)
    assert not changes, f"no part of a plan has {changes}"
    return Plan(**whole, **parts)


def private_data(name: str, seed: int = 0) -> PrivateData:
    """Four labelled rows; every site sees two features of its own."""
    rng = np.random.default_rng([seed, *name.encode()])
    X, Z = rng.normal(size=(4, 2)), rng.normal(size=(UNLABELLED, 2))
    return PrivateData(X, X.sum(axis=1) + rng.normal(size=4), Z, IDS, salt=name.encode())


def make_site(name: str, seed: int = 0, **terms: Any) -> Site:
    return Site(name, private_data(name, seed), Terms(**terms))


def make_sites(names: Iterable[str]) -> dict[str, Site]:
    return {name: make_site(name) for name in names}


def restarted(site: Site) -> Site:
    """The agent in another process: of what it answered it knows what its ledger tells, and nothing else."""
    known = {run: training.remembered for run, training in site.runs.items()}
    before = site._terms.recall

    def recall(plan: Plan, ids_digest: str) -> Remembered:
        return known[plan.run] if plan.run in known else before(plan, ids_digest)

    return make_site(site.name, recall=recall)


def altered(site: Site, change: Callable[[ToSite, Any], Any]) -> Site:
    """A site whose answers are changed: ``change`` receives the message and one of its answers."""
    honest = site.handle
    site.handle = lambda message: [change(message, answer) for answer in honest(message)]  # type: ignore[method-assign]
    return site


def all_restarted(sites: Mapping[str, Site]) -> dict[str, Site]:
    return {name: restarted(site) for name, site in sites.items()}


def hello(site: str, **changes: Any) -> Hello:
    return replace(Hello(site, PROTOCOL_VERSION, "test"), **changes)


def acceptance(site: str, plan: Plan, **changes: Any) -> PlanAccepted:
    threads = plan.iteration.threads
    accepted = PlanAccepted(plan.run, plan.digest, UNLABELLED, IDS, f"data-of-{site}", 2.0, 5.0, threads)
    return replace(accepted, **changes)


def column(*numbers: float) -> Vector:
    return Vector(np.array(numbers, dtype=float)[:, None])


class Machine:
    """A federation of one run, held as a variable: for tests that follow it event by event. The value is ``federation``."""

    def __init__(self, plan: Plan, timeouts: Timeouts = TIMEOUTS, records: Iterable[Record] = ()):
        self.plan, self.timeouts, self.records = plan, timeouts, list(records)
        self.federation = federations.Federation()

    def start(self) -> list[Action]:
        return self.begin(resume(self.plan, self.records))

    def begin(self, recorded: RunState) -> list[Action]:
        self.federation, actions = federations.begin(recorded, self.timeouts)
        return actions

    def handle(self, event: Event) -> list[Action]:
        self.federation, actions = federations.handle(self.federation, event)
        return actions

    @property
    def run(self) -> Run:
        return self.federation.runs[self.plan.run]

    @property
    def phase(self) -> Phase:
        return self.run.phase

    @property
    def awaited(self) -> tuple[str, ...]:
        return self.run.awaited

    @property
    def participants(self) -> tuple[str, ...]:
        return self.run.recorded.participants

    @property
    def token(self) -> int:
        return self.run.live.token

    @property
    def deadline(self) -> DeadlinePassed:
        """Of the timer that counts."""
        return DeadlinePassed(self.plan.run, self.token)


class Pump:
    """The machine and its sites, wired by a queue of events.

    ``shuffle`` takes the next event at random; ``kill_after`` so many records the coordinator does nothing more.
    """

    def __init__(
        self,
        plan: Plan,
        sites: Mapping[str, Site],
        records: Iterable[Record] = (),
        shuffle: random.Random | None = None,
        kill_after: int | None = None,
    ):
        self.machine, self.sites, self._shuffle = Machine(plan, TIMEOUTS, records), dict(sites), shuffle
        self.kill_after, self.killed = kill_after, False
        self.events: deque[Event] = deque()
        self.records: list[Record] = []
        self.models: dict[str, Finished] = {}
        self.end: Finish | None = None
        self.carry_out(self.machine.start())

    def join(self, *names: str) -> "Pump":
        self.events.extend(SiteJoined(self.sites[name].hello()) for name in names or tuple(self.sites))
        return self

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if self.killed:
                return
            match action:
                case Send(name, message):
                    if isinstance(message, Finished):
                        self.models[name] = message
                    self.events.extend(Received(name, answer) for answer in self.sites[name].handle(message))
                case Reject(name, reason):
                    self.sites[name].handle(Rejected(reason))
                case Persist(record=record):
                    self.records.append(record)
                    self.killed = len(self.records) == self.kill_after
                case Finish():
                    self.end = action

    def step(self) -> None:
        if self._shuffle is not None:
            self.events.rotate(self._shuffle.randrange(len(self.events)))
        self.carry_out(self.machine.handle(self.events.popleft()))

    def run(self) -> "Pump":
        while self.events and self.end is None and not self.killed:
            self.step()
        return self

    def steps(self, count: int) -> "Pump":
        """Until so many questions are answered; the answers to the next may be on their way."""
        while sum(isinstance(r, StepTaken) for r in self.records) < count:
            self.step()
        return self

    def out_of_time(self) -> "Pump":
        """All is quiet, and then the deadline passes."""
        self.run()
        self.carry_out(self.machine.handle(self.machine.deadline))
        return self

    @property
    def outcome(self) -> Outcome:
        assert self.end is not None, f"still {self.machine.phase}"
        return self.end.outcome

    def without(self, site: str) -> "Pump":
        """What is on its way to or from this site is lost."""
        self.events = deque(event for event in self.events if getattr(event, "site", None) != site)
        return self

    @property
    def bits(self) -> dict[str, tuple[Any, ...]]:
        """Everything that the sites end with, equal only when every bit is."""
        return {name: (m.outcome, m.columns, m.targets) for name, m in sorted(self.models.items())}


def undisturbed(plan: Plan, names: Iterable[str] | None = None) -> Pump:
    """The run in which nothing goes wrong."""
    return Pump(plan, make_sites(names or plan.sites)).join().run()


class Watched(Site):
    """A site that counts what it is asked, and answers only ``when`` it likes; what it did not say it says ``late``."""

    def __init__(self, site: Site, when: Callable[[Ask], bool] = lambda ask: True):
        self.__dict__.update(site.__dict__)
        self.when, self.late = when, list[FromSite]()
        self.asked: list[Ask] = []

    def handle(self, message: ToSite) -> list[FromSite]:
        answers = super().handle(message)
        if not isinstance(message, Ask):
            return answers
        self.asked.append(message)
        if self.when(message):
            return answers
        self.late += answers
        return []

    @property
    def label_bearing(self) -> int:
        """How often labels left it, to conjugate gradients."""
        return sum(ask.part == "affine" for ask in self.asked)


def watched(plan: Plan, names: Iterable[str] | None = None) -> dict[str, Watched]:
    return {name: Watched(site) for name, site in make_sites(names or plan.sites).items()}
