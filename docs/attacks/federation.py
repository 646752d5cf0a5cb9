"""What the attacks share: four sites of the agent's own code, and whoever holds the coordinator, who may ask what it likes.

Sites are `site_agent.machine.site.Site` with the policy's checks in place; the coordinator here is the attacker. It keeps every
answer that reaches it, and departs from its program where an attack wants it to. Run any of these scripts with `python
docs/attacks/NAME.py`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "proto")]

import numpy as np  # noqa: E402

from coreg_core.agreement.columns import Column  # noqa: E402
from coreg_core.agreement.question_rules import weight_of  # noqa: E402
from coreg_core.masking.fixed_point import decode, exponent_for  # noqa: E402
from coreg_core.masking.sums import Layout, opened, total  # noqa: E402
from coreg_core.protocol.messages import Ask, Fault, Masked, Participant, PlanAccepted, PlanRefused, Prediction, Roster  # noqa: E402
from coreg_core.protocol.plan import Aggregation, Agreement, Form, Iteration, Membership, Plan, Privacy  # noqa: E402
from coreg_core.protocol.vectors import Vector  # noqa: E402
from coreg_sim.federation.masks import simulated_keys  # noqa: E402
from site_agent.machine.site import Site, Terms  # noqa: E402
from site_agent.machine.site_data import PrivateData  # noqa: E402

SITES = ("a", "b", "c", "d")
LABELLED, SHARED, FEATURES, COUPLING = 5, 24, 6, 0.5


class RefusedByASite(Exception):
    """What a site said instead of an answer."""


def plan_of(
    answers: Aggregation,
    sites: tuple[str, ...] = SITES,
    form: Form = "linear",
    run: str = "run-1",
    coupling: float = COUPLING,
    **changes: Any,
) -> Plan:
    """A plan of the paper's objective, with the default schedule."""
    objective = Agreement(form=form, ridge=0.5, bandwidth=8.0, coupling=(coupling,), label_units="raw")
    privacy = Privacy(answers, **changes)
    return Plan(run, "attacked", Membership(sites, 3), objective, Iteration(max_rounds=200), privacy)


def data_of(name: str) -> PrivateData:
    """What a site has: five labelled rows, and its own columns of the shared ones."""
    rng = np.random.default_rng([3, *name.encode()])
    X, Z = rng.normal(size=(LABELLED, FEATURES)), rng.normal(size=(SHARED, FEATURES))
    return PrivateData(X, 3.0 * rng.normal(size=LABELLED), Z, "ids", salt=name.encode())


def site_of(name: str, **terms: Any) -> Site:
    """A site as its operator starts it."""
    return Site(name, data_of(name), Terms(**({"keys": simulated_keys(name)} | terms)))


@dataclass
class Attacker:
    """Whoever holds the coordinator."""

    plan: Plan
    sites: dict[str, Site] = field(default_factory=lambda: {name: site_of(name) for name in SITES})
    attempt: int = 0
    question: int = 0
    accepted: dict[str, PlanAccepted] = field(default_factory=dict)

    def begin(self) -> "Attacker":
        """The plan, accepted by everybody."""
        for name in self.plan.sites:
            [answer] = self.sites[name].handle(self.plan)
            if isinstance(answer, PlanRefused):
                raise RefusedByASite(answer.reason)
            assert isinstance(answer, PlanAccepted)
            self.accepted[name] = answer
        return self

    def gather(self, *names: str, forge: Callable[[Participant], Participant] = lambda p: p) -> "Attacker":
        """A roster for these sites under the next attempt's number; ``forge`` changes what it says of a site."""
        self.names = names or self.plan.sites
        told = [(name, self.accepted[name]) for name in self.names]
        participants = tuple(forge(Participant(name, a.key, a.signature, a.identity)) for name, a in told)
        if self.plan.masked:
            for name in self.names:
                for answer in self.sites[name].handle(Roster(self.plan.run, self.attempt, participants)):
                    assert isinstance(answer, PlanRefused)
                    raise RefusedByASite(answer.reason)
        return self

    def ask(self, part: Any, target: Any) -> dict[str, Any]:
        """One question to everybody on the roster: each site's answer, as it arrives."""
        M = len(self.names)
        own = 2.0 ** max(a.reach for a in self.accepted.values()) if part == "affine" else 0.0
        self.exponents = (exponent_for(own + float(np.linalg.norm(target)), M),)
        [coupling] = self.plan.couplings
        column = (Column(coupling, weight_of("conjugate-gradients", coupling, M)),)
        targets = Vector(np.ascontiguousarray(target, dtype=np.float64).reshape(-1, 1))
        asked = Ask(self.plan.run, self.question, self.attempt, part, column, False, targets, self.exponents)
        self.question += 1
        answers: dict[str, Any] = {}
        for name in self.names:
            [answers[name]] = self.sites[name].handle(asked)
            if isinstance(answers[name], Fault):
                raise RefusedByASite(answers[name].reason)
        return answers

    def read(self, answer: Prediction | Masked) -> Any:
        """What can be read of one site's answer: all of it in the clear, words that look like nothing under masks."""
        if isinstance(answer, Prediction):
            return answer.values.values[:, 0]
        return decode(answer.words.values[:SHARED], (SHARED, 1), self.exponents)[:, 0]

    def sum(self, answers: dict[str, Any]) -> Any:
        """The sum, as the coordinator's own program takes it."""
        if not self.plan.masked:
            return np.sum([self.read(a) for a in answers.values()], axis=0)
        layout = Layout(SHARED, 1, 4)
        return opened(layout, total(layout, [a.words.values for a in answers.values()]), self.exponents)[0][:, 0]


def m0_of(name: str, form: Form = "linear") -> Any:
    """The site's own predictions on the shared instances: what the attacks are after."""
    view = _view(name, form)
    return view.respond(np.zeros((SHARED, 1)), np.zeros(1))[:, 0]


def respond_of(name: str, target: Any, n_sites: int, form: Form = "linear") -> Any:
    """The site's linear answer, as it is."""
    weight = np.array([weight_of("conjugate-gradients", COUPLING, n_sites)])
    return _view(name, form).respond(np.asarray(target).reshape(-1, 1), weight, "linear")[:, 0]


def _view(name: str, form: Form) -> Any:
    site = Site(name, data_of(name), Terms(keys=simulated_keys(name)))
    site.handle(plan_of("secure", form=form))
    assert site.view is not None
    return site.view


def off(found: Any, truth: Any) -> float:
    """Relative error; 1 is what guessing zero gives."""
    return float(np.linalg.norm(np.asarray(found) - truth) / np.linalg.norm(truth))
