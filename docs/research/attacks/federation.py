"""Shared by the attacks: four sites of the agent's own code, an honest run among them, and the view
of each party.

The coordinator sees messages. A member also sees the sums, and the questions that they answer.
Sites are the agent's own (`site_agent.consent.participant`). To run an attack, type `python
docs/research/attacks/NAME.py`.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[3]),
    str(Path(__file__).resolve().parents[3] / "proto"),
]

import numpy as np  # noqa: E402

from coordinator.driver import Driver  # noqa: E402
from coordinator.machine.federation import begin  # noqa: E402
from coordinator.machine.records import Timeouts  # noqa: E402
from coordinator.transports import InProcess  # noqa: E402
from coreg_core.agreement.rounds import RoundQuestion  # noqa: E402
from coreg_core.messages import Answer, FromSite, PlanRefused, Proposal, ToSite  # noqa: E402
from coreg_core.objectives.agreement import Agreement, Form  # noqa: E402
from coreg_core.plan import Plan  # noqa: E402
from coreg_core.secure.sums import opened  # noqa: E402
from coreg_core.terms import (  # noqa: E402
    Aggregation,
    Iteration,
    Membership,
    Privacy,
)
from coreg_core.threads import pin_threads  # noqa: E402
from coreg_sim.simulate import SharedFold, SimulatedSite, simulated_keys  # noqa: E402
from site_agent.consent.consent import Consent  # noqa: E402
from site_agent.consent.participant import Means, Participant  # noqa: E402
from site_agent.machine.agreement import AgreementComputation  # noqa: E402
from site_agent.machine.objective import Answers, Question  # noqa: E402
from site_agent.machine.seal import Keys  # noqa: E402
from site_agent.site_data import PrivateData  # noqa: E402

SITES = ("a", "b", "c", "d")
LABELLED = 5
SHARED = 24
FEATURES = 2
COUPLING = 0.5
VICTIM = "b"


def plan_of(
    aggregation: Aggregation,
    sites: tuple[str, ...] = SITES,
    form: Form = "linear",
    run: str = "run-1",
    coupling: tuple[float, ...] = (COUPLING,),
    **changes: Any,
) -> Plan:
    """A plan of the paper's objective that runs until rounding stops its progress."""
    objective = Agreement(form=form, ridge=0.5, bandwidth=8.0, coupling=coupling)
    iteration = Iteration(tolerance=0.0, prediction_tolerance=0.0, max_rounds=200)
    return Plan(
        run, "attacked", Membership(sites, 3), objective, iteration, Privacy(aggregation, **changes)
    )


def data_of(name: str) -> PrivateData:
    """The data of a site: five labelled rows, and its own columns of the shared ones."""
    rng = np.random.default_rng([3, *name.encode()])
    X = rng.normal(size=(LABELLED, FEATURES))
    Z = rng.normal(size=(SHARED, FEATURES))
    ids = tuple(f"p{i:02}" for i in range(SHARED))
    y = 3.0 * rng.normal(size=LABELLED)
    return PrivateData(X, y - y.mean(), Z, "ids", salt=name.encode(), ids=ids)


class Site(SimulatedSite):
    """A site with its operator's consent, and keys that an attack can choose."""

    def __init__(self, name: str, data: Any, consent: Consent, keys: Keys):
        super().__init__(name, data, SharedFold())
        means = Means(keys, pin_threads, os.urandom)
        self.participant = Participant(name, data, consent, means)

    @property
    def computation(self) -> Any:
        """What the site computes with, for what a member knows."""
        return self.participant.computation


def site_of(
    name: str,
    data: Any = None,
    consent: Consent | None = None,
    keys: Keys | None = None,
) -> Site:
    """A site as its operator starts it."""
    own = data_of(name) if data is None else data
    return Site(name, own, consent or Consent.simulated(), keys or simulated_keys(name))


@dataclass
class Seen:
    """A run and its observers: the coordinator saw every answer, and each member every question and
    its sum (m, k).
    """

    reason: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    rounds: list[tuple[RoundQuestion, Any]] = field(default_factory=list)

    def words(self, number: int) -> dict[str, Any]:
        """Each site's answer to that question as the coordinator receives it, read as numbers."""
        asked = self.rounds[number][0]
        found = {}
        for name, answers in self.answers.items():
            rows = [answer.summed.values for answer in answers if answer.summed is not None]
            words = rows[number]
            found[name] = opened(asked.layout, words[: asked.layout.size], asked.exponents)[0]
        return found


def watched(
    plan: Plan,
    sites: Mapping[str, Site] | None = None,
    forge: Callable[[str, ToSite], ToSite] = lambda _site, message: message,
) -> Seen:
    """Run the plan; ``forge`` replaces a message, for a dishonest coordinator."""
    held = dict(sites or {name: site_of(name) for name in plan.sites})
    seen = Seen()
    overheard = list[AgreementComputation]()
    first = next(iter(held))

    def listening(name: str, site: Site) -> Callable[[ToSite], list[FromSite]]:
        handle = site.handle

        def handled(message: ToSite) -> list[FromSite]:
            answers = handle(forge(name, message))
            seen.answers.setdefault(name, []).extend(a for a in answers if isinstance(a, Answer))
            for answer in answers:
                if isinstance(answer, PlanRefused):
                    seen.refused[name] = answer.reason
            own = site.computation
            if name == first and isinstance(own, AgreementComputation) and own not in overheard:
                overheard.append(own)
                overhear(own, seen)
            return answers

        return handled

    for name, site in held.items():
        site.handle = listening(name, site)  # type: ignore[method-assign]
    ends = asyncio.run(
        Driver(InProcess(held), None, lambda _: None).drive(*begin(plan, Timeouts()))
    )
    seen.reason = ends[plan.run].reason
    return seen


def overhear(computation: AgreementComputation, seen: Seen) -> None:
    """Keep the sums that this member opens."""
    take = computation.take

    def heard(question: Question, answers: Answers, chain: bytes) -> None:
        asked = computation._place.round_question
        total = None
        if asked.exponents:
            total = opened(asked.layout, answers.total, asked.exponents)[0]
        seen.rounds.append((asked, total))
        take(question, answers, chain)

    computation.take = heard  # type: ignore[method-assign]


def operator(directions: Any, answers: Any) -> Any:
    """R from R P, where P spans its range: (RP)(PᵀRP)⁺(RP)ᵀ."""
    inner = directions.T @ answers
    return answers @ np.linalg.pinv((inner + inner.T) / 2, rcond=1e-11) @ answers.T


def linear(seen: Seen, column: int = 0) -> tuple[list[int], Any]:
    """Rounds that asked for a linear answer, and their targets (m, r)."""
    numbers = [i for i, (asked, _) in enumerate(seen.rounds) if _is_linear(asked)]
    return numbers, np.stack([seen.rounds[i][0].targets[:, column] for i in numbers], axis=1)


def _is_linear(asked: RoundQuestion) -> bool:
    return asked.part == "linear" and bool(asked.targets.size)


def member_operator(seen: Seen, column: int = 0) -> Any:
    """ΣR, as a member has it."""
    numbers, P = linear(seen, column)
    return operator(P, np.stack([seen.rounds[i][1][:, column] for i in numbers], axis=1))


def view_of(name: str, plan: Plan, data: PrivateData | None = None) -> Any:
    """The site's own view of its data under the plan: the truth for comparison with attacks."""
    site = site_of(name, data)
    site.handle(Proposal(plan.run, 0, plan))
    return site.computation.view


def truth(name: str, plan: Plan, coupling: float = COUPLING) -> Any:
    """R of one site."""
    weight = np.full(SHARED, 2.0 * coupling * len(plan.sites))
    return view_of(name, plan).respond(np.eye(SHARED), weight, "linear")


def off(found: Any, truth: Any) -> float:
    """Relative error; guessing zero gives 1."""
    return float(np.linalg.norm(np.asarray(found) - truth) / np.linalg.norm(truth))


def reported(attack: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Decorates a script's last function, which returns or yields its findings.

    A script that is run prints them.
    """
    if attack.__module__ == "__main__":
        print(cleandoc(attack.__doc__ or ""), flush=True)  # noqa: T201
        found = attack()
        for name, value in found.items() if isinstance(found, dict) else found:
            print(*lines(name, value), sep="\n", flush=True)  # noqa: T201
    return lambda **given: dict(attack(**given))


def lines(name: str, value: Any) -> Iterator[str]:
    """`name: value`, with three significant digits; of a dict one for each of its values, of a long
    list the ends.
    """
    if isinstance(value, dict):
        for inner, each in value.items():
            yield from lines(f"{name}, {inner}", each)
    else:
        said = [
            f"{each:.3g}" if isinstance(each, float) else str(each)
            for each in np.atleast_1d(value).tolist()
        ]
        said = (
            said[:1] if len({*said}) == 1 else said if len(said) < 7 else [*said[:6], "…", said[-1]]
        )
        yield f"{name}: {' '.join(said)}"
