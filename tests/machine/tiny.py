"""A federation small enough to reason about: six shared instances, sites a to d, and a pump instead of a network."""

import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.events import (
    Action,
    Ended,
    Event,
    Finish,
    Membership,
    Persist,
    Received,
    Record,
    Reject,
    Resumption,
    Send,
    SiteJoined,
    Snapshot,
    StepTaken,
)
from coordinator.machine import Coordinator
from coordinator.phases import Timeouts
from coreg_core.messages import PROTOCOL_VERSION, Finished, Hello, Plan, PlanAccepted, Rejected, Vector
from site_agent.machine import PrivateData, Site

UNLABELLED = 6
IDS = "digest-of-the-ids"
TIMEOUTS = Timeouts(join=1.0, plan=2.0, round=3.0, stall=4.0)
SCHEDULES = ("conjugate-gradients", "block-coordinate-descent", "consensus")


def make_plan(**changes: Any) -> Plan:
    terms: dict[str, Any] = {
        "run": "run-1",
        "federation": "tiny",
        "sites": ("a", "b", "c"),
        "min_sites": 2,
        "on_lost": "wait",
        "form": "semi-parametric",
        "kernel": "gaussian",
        "bandwidth": 3.0,
        "ridge": 1.0,
        "degree": 3,
        "offset": 1.0,
        "landmarks": 3,
        "seed": 0,
        "coupling": (0.1, 1.0),
        "schedule": "conjugate-gradients",
        "tolerance": 1e-9,
        "prediction_tolerance": 1e-3,
        "max_rounds": 300,
        "target": "centred",
        "bound": "tight",
        "threads": 1,
    }
    return Plan(**(terms | changes))


def private_data(name: str, seed: int = 0) -> PrivateData:
    """Four labelled rows; every site sees two features of its own."""
    rng = np.random.default_rng([seed, *name.encode()])
    X, Z = rng.normal(size=(4, 2)), rng.normal(size=(UNLABELLED, 2))
    return PrivateData(X, X.sum(axis=1) + rng.normal(size=4), Z, IDS, salt=name.encode())


def make_site(name: str, seed: int = 0, **changes: Any) -> Site:
    return Site(name, private_data(name, seed), **changes)


def make_sites(names: Iterable[str]) -> dict[str, Site]:
    return {name: make_site(name) for name in names}


def hello(site: str, **changes: Any) -> Hello:
    return replace(Hello(site, PROTOCOL_VERSION, UNLABELLED, IDS), **changes)


def acceptance(site: str, plan: Plan, **changes: Any) -> PlanAccepted:
    return replace(PlanAccepted(plan.run, plan.digest, f"data-of-{site}", 2.0, 5.0, plan.threads), **changes)


def column(*numbers: float) -> Vector:
    return Vector(np.array(numbers, dtype=float)[:, None])


def resumption_of(records: Iterable[Record]) -> Resumption | None:
    """What `RunStore.unfinished` makes of the same records, without a file."""
    membership: Membership | None = None
    round_, state, totals = 0, {}, []
    for record in records:
        match record:
            case Membership():
                membership, round_, state, totals = record, record.round, record.state, []
            case Snapshot():
                round_, state, totals = record.round, record.state, []
            case StepTaken():
                totals.append(record.total)
            case Ended():
                totals = []
    return None if membership is None else Resumption(replace(membership, state={}), round_, state, tuple(totals))


class Pump:
    """The machine and its sites, wired by a queue of events. ``shuffle`` takes the next event at random."""

    def __init__(self, machine: Coordinator, sites: Mapping[str, Site], shuffle: random.Random | None = None):
        self.machine, self.sites, self._shuffle = machine, dict(sites), shuffle
        self.events: deque[Event] = deque()
        self.records: list[Record] = []
        self.models: dict[str, Finished] = {}
        self.end: Finish | None = None
        self.carry_out(machine.start())

    def join(self, *names: str) -> "Pump":
        self.events.extend(SiteJoined(self.sites[name].hello()) for name in names or tuple(self.sites))
        return self

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(name, message):
                    if isinstance(message, Finished):
                        self.models[name] = message
                    self.events.extend(Received(name, answer) for answer in self.sites[name].handle(message))
                case Reject(name, reason):
                    self.sites[name].handle(Rejected(reason))
                case Persist(record):
                    self.records.append(record)
                case Finish():
                    self.end = action

    def step(self) -> None:
        if self._shuffle is not None:
            self.events.rotate(self._shuffle.randrange(len(self.events)))
        self.carry_out(self.machine.handle(self.events.popleft()))

    def run(self) -> "Pump":
        while self.events and self.end is None:
            self.step()
        return self

    @property
    def bits(self) -> dict[str, tuple[Any, ...]]:
        """Everything that the sites end with, equal only when every bit is."""
        return {name: (m.stop, m.weights, m.targets) for name, m in sorted(self.models.items())}


def undisturbed(plan: Plan, names: Iterable[str] | None = None) -> Pump:
    """The run in which nothing goes wrong."""
    return Pump(Coordinator(plan, TIMEOUTS), make_sites(names or plan.sites)).join().run()
