"""A process of Ray with many sites, and the partition of the sites over such processes.

A host is a plain class that handles one batch of messages after another. Ray makes an actor of it; a test calls it directly.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.transports.in_process import SiteFunction
from coreg_core.protocol.messages import Answer, FromSite, Hello, ToSite
from coreg_sim.federation.simulate import SharedFold
from coreg_sim.ray_cluster import Cluster

START_SECONDS = 180.0  # timeout for an actor's start: a process that imports numpy and reads its data


class Maker(Protocol):
    """Makes a site from its data."""

    def __call__(self, name: str, data: Any, fold: SharedFold) -> SiteFunction:
        """A site: a function from a message to a list of messages."""
        ...


@dataclass(frozen=True)
class BatchAnswers:
    """The result of a batch: answers by site, in the order of its messages, and results of the sites that sent their last answer.

    ``seconds`` are of all sites together.
    """

    answers: list[tuple[str, list[FromSite]]]
    results: dict[str, Any]
    seconds: float


class Host:
    """One process, many sites."""

    def __init__(self, make: Maker, data: Mapping[str, Any]):
        fold = SharedFold()
        self._sites = {name: make(name, one, fold) for name, one in data.items()}

    def hello(self) -> list[Hello]:
        return [site.hello() for site in self._sites.values()]

    def handle(self, batch: Sequence[tuple[str, int]], *messages: ToSite) -> BatchAnswers:
        """Each site's answers to its message; ``batch`` has each site, and the number of its message."""
        since = time.perf_counter()
        answers, results = [], {}
        for name, which in batch:
            message, site = messages[which], self._sites[name]
            answered = list(site.handle(message))
            answers.append((name, answered))
            if any(isinstance(answer, Answer) and answer.report.outcome for answer in answered):
                results[name] = getattr(site, "result", None)  # before the coordinator ends the run
        return BatchAnswers(answers, results, time.perf_counter() - since)


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
        "Other work probably uses its cores. Wait for that work, or add nodes."
    )
