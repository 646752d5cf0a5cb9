"""A process of Ray with many sites in it, and the partition of the sites over such processes.

A host is a plain class that handles one batch of messages after another. Ray makes an actor of it; a test calls it directly.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.transports.in_process import SiteFunction
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.site_state import SiteMemory
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.messages import Ask, Finished, FromSite, Hello, Inquiry, ToSite
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.masks import simulated_keys
from coreg_sim.ray_cluster import Cluster
from site_agent.machine.memory import Remembered, Verified
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.machine.training import question_digest

START_SECONDS = 180.0  # for an actor to be there with its sites: a process that imports numpy and reads its data


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question that a site answered, as its ledger would have it."""

    run: str
    number: tuple[int, int]
    digest: str
    verified: Verified | None
    kept: SiteMemory | None = None


def answered_question(ask: Ask | Inquiry, kept: SiteMemory | None = None) -> AnsweredQuestion:
    """The record of a question; ``kept`` is what the site has to remember of the training with it."""
    number = (ask.question, ask.attempt)
    if isinstance(ask, Ask):
        verified = Verified(ask.targets.digest, ask.columns) if ask.is_candidate else None
        return AnsweredQuestion(ask.run, number, question_digest(ask), verified)
    verified = Verified(ask.targets.digest, ()) if ask.kind is Kind.MODEL and ask.targets is not None else None
    return AnsweredQuestion(ask.run, number, ask.digest, verified, kept)


class Maker(Protocol):
    """Makes a site from its data and from the questions that it answered before a restart."""

    def __call__(self, name: str, data: Any, ledger: Sequence[AnsweredQuestion]) -> SiteFunction:
        """A site: a function from a message to a list of messages."""
        ...


def make_site(name: str, data: PrivateData, ledger: Sequence[AnsweredQuestion]) -> Site:
    """The agent's own site. After a restart it recalls its answers, as from its ledger."""

    def recall(plan: Plan, _ids_digest: str) -> Remembered:
        mine = [entry for entry in ledger if entry.run == plan.run]
        verified = tuple(entry.verified for entry in mine if entry.verified is not None)
        kept = mine[-1].kept if mine else None
        asked = {entry.number: entry.digest for entry in mine}
        participants = plan.sites if plan.masked and mine else ()  # in a simulation all sites take part
        return Remembered(len(ledger), asked, verified[-2:], kept, participants=participants)

    return Site(name, data, Terms(pin_threads=pin_threads, recall=recall, keys=simulated_keys(name)))


@dataclass(frozen=True)
class BatchAnswers:
    """The result of a batch: answers by site, in the order of its messages, and results of the sites whose run ended.

    ``kept`` is, for each site, what it has to remember of its training; ``seconds`` are of all sites together.
    """

    answers: list[tuple[str, list[FromSite]]]
    kept: list[SiteMemory | None]
    results: dict[str, Any]
    seconds: float


class Host:
    """One process, many sites."""

    def __init__(self, make: Maker, data: Mapping[str, Any], ledgers: Mapping[str, Sequence[AnsweredQuestion]]):
        self._sites = {name: make(name, one, ledgers.get(name, ())) for name, one in data.items()}

    def hello(self) -> list[Hello]:
        return [site.hello() for site in self._sites.values()]

    def handle(self, batch: Sequence[tuple[str, int]], *messages: ToSite) -> BatchAnswers:
        """Each site's answers to its message; ``batch`` has each site, and the number of its message."""
        since = time.perf_counter()
        answers, kept, results = [], [], {}
        for name, which in batch:
            message, site = messages[which], self._sites[name]
            answers.append((name, list(site.handle(message))))
            remembered = site.kept(message.run) if isinstance(message, Inquiry) and isinstance(site, Site) else None
            kept.append(None if remembered is None else remembered.kept)
            if isinstance(message, Finished):
                results[name] = getattr(site, "result", None)
        return BatchAnswers(answers, kept, results, time.perf_counter() - since)


def partition(sites: Sequence[str], cpus: int, sites_per_actor: int | None) -> list[tuple[str, ...]]:
    """The sites in groups, one group an actor; by default as many groups as cores."""
    size = sites_per_actor or max(1, math.ceil(len(sites) / cpus))
    return [tuple(sites[start : start + size]) for start in range(0, len(sites), size)]


def share(actors: int, cpus: int) -> float:
    """Cores that each actor requests, so that all actors start whatever the size of the nodes."""
    return 1.0 / max(1, math.ceil(actors / cpus))


def late(cluster: Cluster) -> str:
    """The message about actors that do not start."""
    return (
        f"an actor did not start on {cluster.where} within {START_SECONDS:g} s. "
        "Are its cores taken by other work? Wait for it, or add nodes."
    )
