"""A federation that stands: sessions for months, a queue of runs, and whatever was left unfinished taken up by itself.

A task beside the driver looks into the store a few times a second: what was submitted, cancelled or revoked by other
processes becomes an event; nothing else reaches into the driver. Runs with one thread count overlap, up to
``most_runs``; others wait, in order.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.authority.authorised import ALLOW_LIST
from coordinator.config.federation_toml import Configuration, read_configuration
from coordinator.driver import Lap, Memory, Observer, drive, utc_now
from coordinator.machine import notices
from coordinator.machine.events import Cancelled, Draining, Event, Finish, Interrupted, Relisted, Submitted
from coordinator.machine.federation import Federation
from coordinator.machine.wording import for_long
from coordinator.observers.log import LogLines
from coordinator.observers.metrics import Metrics
from coordinator.service.access import Door
from coordinator.service.certificates import Certificates
from coordinator.store.history import Chronicle, Chronicler
from coordinator.store.queue import Queue
from coordinator.store.runs import RunStore
from coordinator.store.schema import exclusive
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import CoregError
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring
from coreg_wire.terminal.logs import Log
from coreg_wire.transport.release import release

LOOK = 0.2  # seconds between two looks at the store
TELL = 2.0  # seconds between two words to whoever asks for the status
REMIND = 60.0  # seconds after which the log says again who is waited for
NOT_TAKEN_UP = (
    "a scoring is not taken up: its rows were with agents that its sites had started for it. Score again: "
    "`coreg-coordinator score`, and `coreg-agent score` at each site"
)
# A run that ended so is not over: it goes on when its sites are back.
PARKED = (Outcome.STALLED, Outcome.TOO_FEW_SITES)


@dataclass(frozen=True)
class Standing:
    """What the operator asked for, beside the configuration."""

    insecure: bool = False
    port_file: Path | None = None
    follow: bool = False
    metrics: str | None = None
    web: str | None = None
    web_token: str | None = None


class Several:
    """One observer that is many."""

    def __init__(self, *observers: Observer):
        self._observers = observers

    def notice(self, notice: notices.Notice, measured: Lap) -> None:
        for observer in self._observers:
            observer.notice(notice, measured)


def stand(path: Path, configuration: Configuration, standing: Standing, log: Log, *others: Observer) -> int:
    """Serve the federation until a signal ends it; the exit code.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    service = configuration.service
    certificates = None if standing.insecure else Certificates(service.identity, log)
    door = Door.of(service.identity, insecure=True) if certificates is None else certificates.door
    service.store.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(service.store):
        store, queue, books = RunStore(service.store), Queue(service.store), RunStore(service.store)
        chronicle = Chronicle(service.store)
        try:
            transport = door.transport(service.listen, configuration.timeouts)
            keeper = _Keeper(path, configuration, standing, log, transport, queue, books, chronicle, certificates)
            lines = LogLines(log, follow=standing.follow)
            observer = Several(lines, keeper, keeper.metrics, keeper.chronicler, *others)
            federation = Federation(standing=configuration.federation.sites, clocks=configuration.clocks())
            with _shown(standing, keeper.metrics, service.store, log):
                asyncio.run(keeper.drive(federation, keeper.metrics.timed(store), observer))
            return 0
        finally:
            books.close()
            queue.close()
            chronicle.close()
            store.close()


class _Keeper:
    """What is done beside the driver: the queue, the list of sites, signals, and what is told of it all."""

    def __init__(
        self,
        path: Path,
        configuration: Configuration,
        standing: Standing,
        log: Log,
        transport: GrpcServer,
        queue: Queue,
        books: RunStore,
        chronicle: Chronicle,
        certificates: Certificates | None,
    ):
        self._path, self._configuration, self._standing = path, configuration, standing
        self._log, self._transport, self._queue, self._books = log, transport, queue, books
        self._chronicle, self._certificates = chronicle, certificates
        self.metrics, self.chronicler = Metrics(), Chronicler()
        self.metrics.listed(configuration.federation.sites)
        self._emit: Callable[[Event], None] = lambda _event: None
        self._federation = Federation()
        self._left: list[Plan] = []  # what an earlier process left unfinished, in order
        self._under_way: dict[str, Plan] = {}  # submitted to the driver and not finished
        self._parked: dict[str, tuple[Plan, float]] = {}  # stalled runs, and since when
        self._cancelling: set[str] = set()
        self._attended: list[Callable[[], None]] = []  # to be written at the next look
        self._draining, self._started = False, utc_now()
        self._listed = _stamp(self._allow_list)
        self._reminded: dict[str, tuple[object, float, float]] = {}
        self._failure: Exception | None = None

    async def drive(self, federation: Federation, store: Memory, observer: Observer) -> None:
        """The driver, with the task beside it."""
        tending: list[asyncio.Task[None]] = []

        def on_listening(emit: Callable[[Event], None]) -> None:
            self._emit = emit
            self._listen_to_signals()
            listen, port = self._configuration.service.listen, self._transport.port
            self._log.info("listening", host=listen.rpartition(":")[0], port=port, release=release())
            if self._standing.port_file is not None:
                self._standing.port_file.write_text(f"{port}\n", encoding="ascii")
            tending.append(asyncio.create_task(self._tend()))

        self._left = left_to_take_up(self._books, self._log)
        self._queue.all_ended(self._queue.said().get("told", self._started))  # of one that was killed, its last word
        self._say("starting")
        try:
            await drive(
                (federation, []), self._transport, store, observer,
                on_start=on_listening, on_finish=self._finished, on_change=self._changed,
                on_event=self.chronicler.heard,
            )  # fmt: skip
        finally:
            for task in tending:
                task.cancel()
            await asyncio.gather(*tending, return_exceptions=True)
            self._flush()
            self._queue.all_ended(utc_now())
            self._say("stopped")
            self._log.info("stopped")
        if self._failure is not None:
            raise self._failure

    # --- what the driver tells ------------------------------------------------------------------------------------

    def notice(self, notice: notices.Notice, _measured: Lap) -> None:
        """Who is there, for `coreg-coordinator sites`."""
        at, listed = utc_now(), self._configuration.federation.sites
        match notice:
            case notices.SessionOpened(site, told, until):
                self._attended.append(lambda: self._queue.opened(site, told, until, at))
            case notices.SessionEnded(site, _):
                self._attended.append(lambda: self._queue.ended(site, at))
            case notices.SessionTurnedAway(site, reason) | notices.SessionRejected(site, reason) if site in listed:
                self._attended.append(lambda: self._queue.turned_away(site, reason, at))
            case _:
                pass

    def _changed(self, federation: Federation) -> None:
        self._federation = federation

    def _finished(self, finish: Finish) -> None:
        plan = self._under_way.pop(finish.run)
        self._cancelling.discard(finish.run)
        self.metrics.ended(finish.run, finish.outcome.name)
        self._log.info("run_finished", run=finish.run, study=plan.study, stop=finish.outcome.name)
        if finish.outcome in PARKED and not self._draining:
            self._parked[finish.run] = (plan, time.monotonic())

    # --- beside it ------------------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        try:
            told = -TELL
            while True:
                await self._look()
                if time.monotonic() - told >= TELL:
                    told = time.monotonic()
                    if self._certificates is not None:
                        await asyncio.to_thread(self._certificates.look)
                    await asyncio.to_thread(self._say, "draining" if self._draining else "ready")
                await asyncio.sleep(LOOK)
        except Exception as error:  # noqa: BLE001 - the store is gone, or a defect of ours: nothing can be promised any more
            self._failure = error
            self._emit(Interrupted())

    async def _look(self) -> None:
        await asyncio.to_thread(self._flush)
        if (stamp := _stamp(self._allow_list)) != self._listed:
            self._listed = stamp
            self._transport.check_again()
        for run, reason in (await asyncio.to_thread(self._queue.cancelled)).items():
            await self._cancel(run, reason)
        for plan, reason in await asyncio.to_thread(self._queue.cancelled_in_the_queue):
            await asyncio.to_thread(self._close_queued, plan, reason)
        if not self._draining:
            await self._begin_what_may()
        self._remind()

    async def _cancel(self, run: str, reason: str) -> None:
        if run in self._under_way:
            if run not in self._cancelling:
                self._cancelling.add(run)
                self._emit(Cancelled(run, reason))
            return
        self._parked.pop(run, None)
        self._left = [plan for plan in self._left if plan.run != run]
        await asyncio.to_thread(self._books.abandon, run, utc_now(), Outcome.CANCELLED, reason)

    def _close_queued(self, plan: Plan, reason: str) -> None:
        """It never began; `runs` shows it all the same."""
        self._queue.begin(plan, utc_now())
        self._books.abandon(plan.run, utc_now(), Outcome.CANCELLED, reason)

    async def _begin_what_may(self) -> None:
        for plan in self._left[:]:
            if not self._fits(plan):
                return
            self._left.remove(plan)
            await self._take_up(plan)
        for run, (plan, since) in list(self._parked.items()):
            if self._back(plan, since) and self._fits(plan):
                del self._parked[run]
                await self._take_up(plan)
        waiting = await asyncio.to_thread(self._queue.waiting)
        self.metrics.stock(len(waiting), len(self._under_way), self._queue.path)
        for plan, _submitted in waiting:
            if not self._fits(plan):
                return
            await asyncio.to_thread(self._queue.begin, plan, utc_now())
            self._put_in(plan, Submitted(plan))

    def _fits(self, plan: Plan) -> bool:
        """Runs overlap where every site computes under the same number of threads in all of them."""
        threads = {other.iteration.threads for other in self._under_way.values()}
        return len(self._under_way) < self._configuration.service.most_runs and threads <= {plan.iteration.threads}

    def _back(self, plan: Plan, since: float) -> bool:
        here = set(plan.sites) & self._federation.sessions.keys()
        rested = time.monotonic() - since >= min(self._configuration.timeouts.round, 5.0)
        return rested and (
            here == set(plan.sites)
            or (len(here) >= plan.membership.min_sites and plan.membership.on_lost == "continue")
        )

    async def _take_up(self, plan: Plan) -> None:
        records = await asyncio.to_thread(self._books.records, plan.run)
        self._put_in(plan, Submitted(plan, tuple(records)))

    def _put_in(self, plan: Plan, submitted: Submitted) -> None:
        if not self._under_way:
            pin_threads(plan.iteration.threads)
        self._under_way[plan.run] = plan
        self.metrics.began(plan.run, plan.study)
        self._log.info("run_put_in", run=plan.run, study=plan.study, taken_up=bool(submitted.records))
        self._emit(submitted)

    # --- what is told ---------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        attended, self._attended = self._attended, []
        for write in attended:
            write()
        self.chronicler.flush(self._chronicle)

    def _say(self, state: str) -> None:
        told = {
            "state": state,
            "federation": self._configuration.federation.name,
            "sites": list(self._configuration.federation.sites),
            "started": self._started,
            "listen": f"{self._configuration.service.listen.rpartition(':')[0]}:{self._transport.port}",
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "release": release(),
            "runs": sorted(self._under_way),
            "parked": sorted(self._parked),
            "certificates": [] if self._certificates is None else self._certificates.warnings,
            "awaited": {name: list(run.awaited) for name, run in self._federation.runs.items()},
        }
        self._queue.say(told, utc_now())

    def _remind(self) -> None:
        """Say again, once a minute, for whom a run waits, and for how much longer."""
        now = time.monotonic()
        waits = {name: (run.phase, run.live.token) for name, run in self._federation.runs.items()}
        for name, wait in waits.items():
            known, began, said = self._reminded.get(name, (None, now, now))
            if wait != known:
                self._reminded[name] = (wait, now, now)
            elif now - said >= REMIND and (run := self._federation.runs[name]).awaited:
                self._reminded[name] = (wait, began, now)
                text = f"{run.phase.value}, {for_long(max(0.0, round(run.patience - (now - began))))}"
                self._log.info("waiting", run=name, sites=" ".join(run.awaited), text=text)
        self._reminded = {name: seen for name, seen in self._reminded.items() if name in waits}

    # --- signals --------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._drain)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _drain(self) -> None:
        """Nothing new begins; what is over is delivered; the rest is left on record. A second signal waits for nothing."""
        if self._draining:
            self._emit(Interrupted())
            return
        self._draining = True
        self._log.info("draining", runs=" ".join(sorted(self._under_way)))
        self._emit(Draining())

    def _reload(self) -> None:
        """Read certificates, who takes part, how many runs overlap; where to listen and the clocks stay until the next start."""
        try:
            read = read_configuration(self._path)
            if self._certificates is not None:
                self._certificates.reload()
        except CoregError as error:
            self._log.error("not_reloaded", text=str(error))
            return
        service = self._configuration.service.model_copy(update={"most_runs": read.service.most_runs})
        self._configuration = self._configuration.model_copy(update={"federation": read.federation, "service": service})
        self._emit(Relisted(read.federation.sites))
        self.metrics.listed(read.federation.sites)
        self._transport.check_again()
        self._log.info("reloaded", sites=" ".join(read.federation.sites), most_runs=service.most_runs)

    @property
    def _allow_list(self) -> Path:
        return self._configuration.service.identity / ALLOW_LIST


def left_to_take_up(books: RunStore, log: Log) -> list[Plan]:
    """What an earlier process left unfinished, in order; a scoring among it is closed, with a sentence.

    Agents that serve train. A scoring's rows are with agents that each site starts for it, and they are gone.
    """
    left = list[Plan]()
    for plan in books.left_unfinished():
        if isinstance(plan.objective, Scoring):
            books.abandon(plan.run, utc_now(), Outcome.CANCELLED, NOT_TAKEN_UP)
            log.warning("not_taken_up", run=plan.run, text=NOT_TAKEN_UP)
        else:
            left.append(plan)
    return left


@contextmanager
def _shown(standing: Standing, metrics: Metrics, store: Path, log: Log) -> Iterator[None]:
    """What is looked at from elsewhere, while the federation stands: numbers for Prometheus, pages for a browser."""
    with ExitStack() as ends:
        if standing.metrics is not None:
            ends.callback(metrics.listen(standing.metrics))
            log.info("metrics", address=standing.metrics)
        if standing.web is not None:
            from coordinator.web.server import show

            ends.callback(show(standing.web, store, standing.web_token))
            log.info("web", address=standing.web)
        yield


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
