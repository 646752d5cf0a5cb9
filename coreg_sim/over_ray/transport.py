r"""The third transport: sites in Ray's processes, many in each.

All messages of one turn of the event loop become one call for each actor. A vector for a thousand sites is put into the object
store once, and answers are read from there without a copy. An actor that dies is replaced by another with its sites' data. Its
sites join again, as agents do after a restart, and the run begins again. A killed actor changes no bit of the run's result.
"""

import asyncio
import contextlib
import copy
import itertools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from coordinator.machine.events import Interrupted, Received, SiteJoined, SiteLost
from coordinator.transports import Emit, Traffic
from coordinator.transports.in_process import SiteFunction, words_of
from coreg_core.errors import Unreachable
from coreg_core.protocol.messages import Answer, FromSite, Hello, Leaving, Rejected, Step, ToSite
from coreg_sim.federation.simulate import SharedFold, simulated_site
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


CLOSE_SECONDS = 10.0  # to deliver the queued messages at the end
LOST = "its actor died; another one starts"
MAX_RESTARTS = 5  # of one actor


@dataclass(eq=False)
class _Actor:
    """One process and its sites; another process replaces it when it dies."""

    sites: tuple[str, ...]
    data: Any  # a reference into the object store
    handle: Any = None
    calls: asyncio.Queue[tuple[list[tuple[str, ToSite]], Any]] = field(default_factory=asyncio.Queue)
    restarts: int = 0


class RayActors:
    """The transport; sites join in the given order when all actors run. By default there is an actor for each core.

    ``results`` has each site's result after its run, copied out of the object store. ``computing`` are the seconds that the sites
    took to answer questions; for each question the slowest actor counts.
    """

    def __init__(
        self,
        cluster: Cluster,
        sites: Mapping[str, Any],
        *,
        sites_per_actor: int | None = None,
        make: Maker = simulated_site,
    ):
        self.traffic, self.results, self.computing = Traffic(), dict[str, Any](), 0.0
        self.failure: Exception | None = None
        self._cluster, self._ray, self._make = cluster, cluster.ray, make
        groups = partition(list(sites), cluster.cpus, sites_per_actor)
        self._share = share(len(groups), cluster.cpus)
        self._actors = [_Actor(group, self._ray.put({name: sites[name] for name in group})) for group in groups]
        self._home = {name: actor for actor in self._actors for name in actor.sites}
        self._open: set[str] = set()
        self._outbox: list[tuple[str, ToSite]] = []
        self._turn: asyncio.Handle | None = None
        self._listeners: list[asyncio.Task[None]] = []
        self._slowest: tuple[tuple[int, int], float] = ((-1, -1), 0.0)
        self._emit: Emit = lambda _event, _handled=None: None

    @property
    def processes(self) -> list[int]:
        """The process number of each actor on its node."""
        pids: list[int] = self._ray.get([a.handle.__ray_call__.remote(_pid) for a in self._actors])
        return pids

    async def start(self, emit: Emit) -> None:
        """Start every actor; then every site joins.

        Raises
        ------
        Unreachable
            An actor does not start in time, or dies at the start.
        """
        self._emit = emit
        for actor in self._actors:
            self._place(actor)
        hellos = await asyncio.gather(*(self._hello(actor) for actor in self._actors))
        for hello in itertools.chain.from_iterable(hellos):
            self._open.add(hello.site)
            emit(SiteJoined(hello))
        self._listeners = [asyncio.create_task(self._listen(actor)) for actor in self._actors]

    async def send(self, site: str, message: ToSite) -> None:
        """Send at the loop's next turn, with all other messages of this turn."""
        if site not in self._open:
            return
        self.traffic.sent += 8 * words_of(message)
        self.traffic.numbers += words_of(message)
        self._outbox.append((site, message))
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._flush)

    async def reject(self, site: str, reason: str) -> None:
        """Tell the site the reason, and ignore it from now on."""
        await self.send(site, Rejected(reason))
        self._open.discard(site)

    def expect(self, run: str, words: int) -> None:
        """Nothing to do: words arrive whole."""

    def forget(self, run: str) -> None:
        """Nothing to do: no state is kept for a run."""

    def certificate(self, site: str) -> bytes:  # noqa: ARG002 - the transport's face
        return b""

    async def close(self) -> None:
        """Deliver the queued messages within `CLOSE_SECONDS`, and end the actors."""
        if self._turn is not None:
            self._turn.cancel()
            self._flush()
        self._open.clear()
        with contextlib.suppress(TimeoutError):  # after a failure no listener takes answers
            waiting = 0.0 if self.failure else CLOSE_SECONDS
            await asyncio.wait_for(asyncio.gather(*(a.calls.join() for a in self._actors)), waiting)
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        for actor in self._actors:
            if actor.handle is not None:
                self._ray.kill(actor.handle)

    # --- one actor ------------------------------------------------------------------------------------------------

    def _place(self, actor: _Actor) -> None:
        options = {"num_cpus": self._share, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor.handle = self._ray.remote(Host).options(**options).remote(self._make, actor.data)

    async def _hello(self, actor: _Actor) -> Any:
        try:
            return await asyncio.wait_for(_result(actor.handle.hello.remote()), START_SECONDS)
        except TimeoutError:
            raise Unreachable(late(self._cluster)) from None
        except self._ray.exceptions.RayActorError as error:
            raise Unreachable(f"an actor of {len(actor.sites)} sites died at its start: {_why(error)}") from None

    def _flush(self) -> None:
        """One call for each actor; each message into the object store once."""
        self._turn = None
        outbox, self._outbox = self._outbox, []
        by_actor: dict[int, list[tuple[str, ToSite]]] = {}
        for site, message in outbox:
            by_actor.setdefault(id(self._home[site]), []).append((site, message))
        references: dict[int, Any] = {}
        for actor in self._actors:
            if not (mine := by_actor.get(id(actor), [])):
                continue
            distinct: dict[int, int] = {}
            for _, message in mine:
                distinct.setdefault(id(message), len(distinct))
                if id(message) not in references:
                    references[id(message)] = self._ray.put(message)
            batch = [(site, distinct[id(message)]) for site, message in mine]
            answers = actor.handle.handle.remote(batch, *(references[key] for key in distinct))
            actor.calls.put_nowait((mine, answers))

    async def _listen(self, actor: _Actor) -> None:
        """Handle an actor's answers in the order of its calls; if it dies, replace it."""
        try:
            while True:
                sent, answers = await actor.calls.get()
                try:
                    self._received(sent, await _result(answers))
                except self._ray.exceptions.RayActorError as error:
                    await self._replace(actor, error)
                finally:
                    actor.calls.task_done()
        except Exception as error:  # noqa: BLE001 - a defect in a site, or Ray: it ends the run
            self.failure = error
            self._emit(Interrupted())

    async def _replace(self, actor: _Actor, error: Exception) -> None:
        while not actor.calls.empty():  # its queued messages are lost
            actor.calls.get_nowait()
            actor.calls.task_done()
        mine = [site for site in actor.sites if site in self._open]
        self._open.difference_update(mine)
        self._outbox = [(site, message) for site, message in self._outbox if site not in mine]
        for site in mine:
            self._emit(SiteLost(site, LOST))
        if not mine:
            return
        actor.restarts += 1
        if actor.restarts > MAX_RESTARTS:
            raise Unreachable(
                f"an actor of {len(actor.sites)} sites died {actor.restarts} times, probably of too little memory; the last "
                f"error: {_why(error)} Use fewer sites per actor, a smaller form, or more nodes (--address)."
            )
        self._place(actor)
        for hello in await self._hello(actor):
            if hello.site in mine:
                self._open.add(hello.site)
                self._emit(SiteJoined(hello))

    def _received(self, sent: Sequence[tuple[str, ToSite]], done: BatchAnswers) -> None:
        self.results.update(copy.deepcopy(done.results))  # the object store ends with Ray
        if steps := [message for _, message in sent if isinstance(message, Step)]:
            self._took((steps[0].attempt, steps[0].step), done.seconds)
        for site, answers in done.answers:
            if site not in self._open:
                continue
            for answer in answers:
                self.traffic.received += 8 * words_of(answer)
                self.traffic.numbers += words_of(answer)
                self._emit(Received(site, answer))
                if isinstance(answer, Leaving):
                    self._open.discard(site)

    def _took(self, question: tuple[int, int], seconds: float) -> None:
        number, slowest = self._slowest
        slowest = slowest if number == question else 0.0
        self.computing += max(0.0, seconds - slowest)
        self._slowest = (question, max(slowest, seconds))


async def _result(reference: Any) -> Any:
    return await reference


def _pid(_host: Any) -> int:
    return os.getpid()


def _why(error: Exception) -> str:
    """Ray's message on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] if lines else type(error).__name__
