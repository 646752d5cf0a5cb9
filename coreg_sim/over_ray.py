r"""A federation over Ray: many sites in each process, on this machine or a cluster.

All messages of one turn of the event loop become one call for each actor. A vector for a thousand
sites is sent to each actor once, and is read from the object store without a copy. An actor that
dies ends the simulation.
"""

import asyncio
import contextlib
import copy
import itertools
import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from coordinator.machine.events import Interrupted, Received, SiteJoined
from coordinator.transports import Emit, SiteFunction, Traffic, Transport, bytes_of
from coreg_core.errors import Unreachable, UsageError
from coreg_core.messages import Answer, FromSite, Hello, Leaving, Rejected, ToSite
from coreg_sim.simulate import Hosted, SharedFold, SimulatedSite
from site_agent.site_data import PrivateData

HEALTH_SECONDS = 30.0  # timeout of the health check: Ray itself would retry for minutes


@dataclass(frozen=True)
class Cluster:
    """A running Ray: the module, the cores of all its nodes, and its location for messages (this
    machine, or the address).
    """

    ray: Any
    cpus: int
    where: str


@contextlib.contextmanager
def connected(address: str | None = None, *, instead: str) -> Iterator[Cluster]:
    """A running Ray, here or (auto, HOST:PORT) of a cluster, while the block lasts.

    ``instead``: advice in its errors.
    """
    # Set before Ray is imported; its processes inherit it.
    # Otherwise Ray warns of a future change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    # Ray reports processes that died on standard output, where a --json run has its rows. The
    # transport reports them.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UsageError(
            f"Ray is not installed: pip install '.[sim]' in the clone of coreg, or {instead}."
        ) from None
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            # A separate folder: Ray finds no other session, and no files remain.
            folder = tempfile.TemporaryDirectory(prefix="coreg-ray-", ignore_cleanup_errors=True)
            options |= {"address": "local", "_temp_dir": stack.enter_context(folder)}
            options["include_dashboard"] = False
        else:
            _require_health(address, instead)
            options["address"] = address
        try:
            ray.init(**options)
        except Exception as error:  # noqa: BLE001 - it fails in many ways, with the same remedy
            where = "here"
            if address is not None:
                where = f"at {address}"
            raise Unreachable(
                f"Ray does not start {where} ({error}). {instead[0].upper()}{instead[1:]}."
            ) from None
        stack.callback(ray.shutdown)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = int(resources.get("CPU", 0))
        if there < 1:
            raise Unreachable(
                f"Ray at {address} has no core for actors. Add a node with cores, or {instead}."
            )
        place = "this machine"
        if address is not None:
            place = f"the cluster at {address}"
        yield Cluster(ray, there, place)


def _require_health(address: str, instead: str) -> None:
    """Check the cluster in a process with a timeout: joining a cluster that is down would hang for
    minutes.
    """
    if "://" in address:
        raise UsageError(
            f"--address {address}: give auto or HOST:PORT, and run this on a node of the cluster."
        )
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        subprocess.run(command, capture_output=True, timeout=HEALTH_SECONDS, check=True)  # noqa: S603 - our own arguments
    except (subprocess.SubprocessError, OSError):
        raise Unreachable(
            f"no Ray cluster answers at {address}. Start one (ray start --head), check the address,"
            f" or {instead}."
        ) from None


# Timeout for an actor's start: a process that imports numpy and reads its data.
START_SECONDS = 180.0

# A site from its name and its data.
Maker: TypeAlias = Callable[[str, Any, SharedFold], SiteFunction]

# Answers in the order of the messages, and results of the sites that sent their last one.
BatchAnswers: TypeAlias = tuple[list[tuple[str, list[FromSite]]], dict[str, Any]]


class Host:
    """One process, many sites."""

    def __init__(self, make: Maker, data: Mapping[str, Any]):
        fold = SharedFold()
        self.sites = {name: make(name, one, fold) for name, one in data.items()}

    def hello(self) -> list[Hello]:
        return [site.hello() for site in self.sites.values()]

    def handle(self, batch: Sequence[tuple[str, ToSite]]) -> BatchAnswers:
        """Each site's answers to its message."""
        answers = []
        results = {}
        for name, message in batch:
            site = self.sites[name]
            answered = list(site.handle(message))
            answers.append((name, answered))
            if any(isinstance(answer, Answer) and answer.report.outcome for answer in answered):
                results[name] = getattr(site, "result", None)  # before the coordinator ends the run
        return answers, results


def partition(sites: Sequence[str], cpus: int) -> list[tuple[str, ...]]:
    """The sites in groups, one group an actor of one core: at most as many groups as cores."""
    size = max(1, math.ceil(len(sites) / cpus))
    return [tuple(sites[start : start + size]) for start in range(0, len(sites), size)]


PLACED = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}


def late(cluster: Cluster) -> str:
    """The message about actors that do not start."""
    return (
        f"an actor did not start on {cluster.where} within {START_SECONDS:g} s. "
        "Other work probably uses its cores. Wait for that work, or add nodes."
    )


CLOSE_SECONDS = 10.0  # to deliver the queued messages at the end


@dataclass(eq=False)
class _Actor:
    """One process and its sites."""

    sites: tuple[str, ...]
    data: Any  # a reference into the object store
    handle: Any = None
    calls: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)  # references to answers


class RayActors(Transport):
    """The transport; sites join in order when all actors run.

    ``results``: of each site, after its run.
    """

    def __init__(
        self,
        cluster: Cluster,
        sites: Mapping[str, Any],
        *,
        make: Maker = SimulatedSite,
    ):
        self.traffic = Traffic()
        self.results = dict[str, Any]()
        self.failure: Exception | None = None
        self._cluster = cluster
        self._ray = cluster.ray
        self._make = make
        groups = partition(list(sites), cluster.cpus)
        self.actors = []
        self.home = dict[str, _Actor]()
        for group in groups:
            actor = _Actor(group, self._ray.put({name: sites[name] for name in group}))
            self.actors.append(actor)
            self.home |= dict.fromkeys(group, actor)
        self._open: set[str] = set()
        self._outbox: list[tuple[str, ToSite]] = []
        self._turn: asyncio.Handle | None = None
        self._listeners: list[asyncio.Task[None]] = []
        self._emit: Emit = lambda _event, _handled=None: None

    async def start(self, emit: Emit) -> None:
        """Start every actor; then every site joins.

        Unreachable: an actor does not start in time, or dies at the start.
        """
        self._emit = emit
        options = {**PLACED, "max_restarts": 0}
        for actor in self.actors:
            actor.handle = self._ray.remote(Host).options(**options).remote(self._make, actor.data)
        hellos = await asyncio.gather(*(self._hello(actor) for actor in self.actors))
        for hello in itertools.chain.from_iterable(hellos):
            self._open.add(hello.site)
            emit(SiteJoined(hello))
        self._listeners = [asyncio.create_task(self._listen(actor)) for actor in self.actors]

    async def send(self, site: str, message: ToSite) -> None:
        """Send at the loop's next turn, with all other messages of this turn."""
        if site not in self._open:
            return
        self.traffic.sent += bytes_of(message)
        self._outbox.append((site, message))
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._flush)

    async def reject(self, site: str, reason: str) -> None:
        """Tell the site the reason, and ignore it from now on."""
        await self.send(site, Rejected(reason))
        self._open.discard(site)

    async def close(self) -> None:
        """Deliver the queued messages within `CLOSE_SECONDS`, and end the actors."""
        if self._turn is not None:
            self._turn.cancel()
            self._flush()
        self._open.clear()
        with contextlib.suppress(TimeoutError):  # after a failure no listener takes answers
            waiting = 0.0 if self.failure else CLOSE_SECONDS
            delivered = asyncio.gather(*(actor.calls.join() for actor in self.actors))
            await asyncio.wait_for(delivered, waiting)
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        for actor in self.actors:
            if actor.handle is not None:
                self._ray.kill(actor.handle)

    # --- one actor --------------------------------------------------------------------------------

    async def _hello(self, actor: _Actor) -> Any:
        try:
            return await asyncio.wait_for(_result(actor.handle.hello.remote()), START_SECONDS)
        except TimeoutError:
            raise Unreachable(late(self._cluster)) from None
        except self._ray.exceptions.RayActorError as error:
            raise Unreachable(
                f"an actor of {len(actor.sites)} sites died at its start: {_why(error)}"
            ) from None

    def _flush(self) -> None:
        """One call for each actor. Ray pickles a message once that several of its sites receive."""
        self._turn = None
        batches: dict[_Actor, list[tuple[str, ToSite]]] = {}
        for site, message in self._outbox:
            batches.setdefault(self.home[site], []).append((site, message))
        self._outbox = []
        for actor, batch in batches.items():
            actor.calls.put_nowait(actor.handle.handle.remote(batch))

    async def _listen(self, actor: _Actor) -> None:
        """Handle an actor's answers in the order of its calls; if it dies, end the run."""
        try:
            while True:
                answers = await actor.calls.get()
                try:
                    self._received(await _result(answers))
                except self._ray.exceptions.RayActorError as error:
                    raise Unreachable(
                        f"an actor died with {actor.sites[0]} (sites: {len(actor.sites)}), probably"
                        f" of too little memory: {_why(error)} Use fewer sites, a smaller form, or"
                        " more nodes (--address)."
                    ) from None
                finally:
                    actor.calls.task_done()
        except Exception as error:  # noqa: BLE001 - a defect in a site, or Ray: it ends the run
            self.failure = error
            self._emit(Interrupted())

    def _received(self, done: BatchAnswers) -> None:
        all_answers, results = done
        self.results.update(copy.deepcopy(results))  # the object store ends with Ray
        for site, answers in all_answers:
            if site not in self._open:
                continue
            for answer in answers:
                self.traffic.received += bytes_of(answer)
                self._emit(Received(site, answer))
                if isinstance(answer, Leaving):
                    self._open.discard(site)


async def _result(reference: Any) -> Any:
    return await reference


def _why(error: Exception) -> str:
    """Ray's message on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines:
        return " ".join(lines)[:300]
    return type(error).__name__


@dataclass(frozen=True)
class OverRay:
    """A `Hosting` in actors of a running Ray."""

    cluster: Cluster

    @contextlib.contextmanager
    def __call__(self, data: Mapping[str, PrivateData]) -> Iterator[Hosted]:
        transport = RayActors(self.cluster, data)
        yield Hosted(transport, transport.results.get, lambda: transport.failure)
