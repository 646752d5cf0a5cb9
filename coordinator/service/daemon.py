"""The coordinator's process: the driver, the queue, the status and the signals.

`serve` runs until it is stopped and takes runs from the queue. `run` is the same process with one
study in its queue; it exits when the queue is empty. Other processes change the store and the
allow-list; the service looks for changes every second.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.authority.authorised import Authorised
from coordinator.config.federation_toml import Configuration, read_configuration
from coordinator.driver import Driver, Observer
from coordinator.machine import notices
from coordinator.machine.events import (
    Draining,
    Event,
    Finish,
    Interrupted,
    QueueChanged,
    ReadQueue,
    Reconfigured,
)
from coordinator.machine.federation import FederationState, Scheduler
from coordinator.machine.notices import NoticeName, notice
from coordinator.machine.records import HeadSigned, Phase
from coordinator.observers.metrics import Metrics
from coordinator.service.access import AccessControl
from coordinator.service.enrolment import Enrolment
from coordinator.service.floods import Floods
from coordinator.store.runs import RunStore
from coordinator.store.status import HEARTBEAT_SECONDS, Status, store_of
from coreg_core.errors import CoregError, StorageError, UsageError
from coreg_core.messages import Fetched, Hello, Renewed, ToSite
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan, aligns_for, is_on_demand, plan_from_dict
from coreg_wire.clock import timestamp
from coreg_wire.terminal.service import on_signals
from coreg_wire.transport.service import check_free, release

LOOK_SECONDS = 1.0
ABANDONED = "abandoned: a new run was requested (--new)"


@dataclass(frozen=True)
class ServiceOptions:
    """Command-line options that are not in the configuration."""

    port_file: Path | None = None
    metrics: str | None = None
    web: str | None = None
    web_token: Callable[[], str] | None = None
    listen: str | None = None  # in place of that of the configuration


def serve(
    path: Path,
    configuration: Configuration,
    options: ServiceOptions,
    observers: Sequence[Observer],
    *,
    only: Plan | None = None,
) -> Finish | None:
    """Run the federation until a signal ends it; with ``only``, until this run is over, whose end
    is returned.
    """
    service = configuration.service
    access = AccessControl(service.identity)
    _allow_all_files()
    with (
        closing(RunStore(service.store)) as store,
        closing(Status(service.store)) as status,
        ExitStack() as ending,
    ):
        daemon = Daemon(path, configuration, options, access, store, status, observers)
        if options.metrics is not None:
            ending.callback(daemon.metrics.listen(options.metrics))
        if options.web is not None:
            from coordinator.web.server import show

            ending.callback(show(options.web, service.store, options.web_token))
        return asyncio.run(daemon.drive(only))


def _allow_all_files() -> None:
    """As many open files as the system allows this process: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS says "infinity" and allows less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(
    path: Path,
    configuration: Configuration,
    plan: Plan,
    options: ServiceOptions,
    observer: Observer,
    *,
    new: bool,
) -> Finish:
    """Carry out one plan: begin its unfinished run again, or with ``new`` start another; return its
    end.
    """
    store = configuration.service.store
    with store_of(store):
        check_free(configuration.service.listen)  # before the run is queued
        with closing(RunStore(store)) as runs:
            chosen = choose_run(runs, plan, new=new)
        finish = serve(path, configuration, options, [observer], only=chosen)
        return finish or _on_record(store, chosen.run)


def _on_record(store: Path, run: str) -> Finish:
    """The end of a run that was interrupted, or was cancelled without being active."""
    with closing(RunStore(store, read_only=True)) as runs:
        try:
            summary = runs.find(run)
        except UsageError:
            return Finish(run, Outcome.INTERRUPTED, "")
    outcome = Outcome.INTERRUPTED if summary.stop is None else Outcome[summary.stop]
    return Finish(run, outcome, summary.reason or "")


def choose_run(store: RunStore, plan: Plan, *, new: bool) -> Plan:
    """The unfinished run of this plan, the queued one, or a new one, which is queued."""
    if not new:
        if (summary := store.latest(plan.digest)) is not None:
            return replace(plan, run=summary.run)
        if queued := [waiting for waiting, _ in store.waiting() if waiting.digest == plan.digest]:
            return queued[0]
    for summary in store.runs():
        if summary.ended is None and not aligns_for(summary.run):
            # A run without an attempt has nothing to lose.
            if not new and store.begun(summary.run).attempt >= 0:
                raise UsageError(
                    f"run {summary.run} in {store.path} is unfinished and has another plan. Run it"
                    " with its own configuration, or give --new to abandon it."
                )
            store.close_run(
                plan_from_dict(summary.plan), Outcome.INTERRUPTED, ABANDONED, timestamp()
            )
    store.submit(plan, timestamp())
    return plan


def _of_itself(run: str) -> bool:
    """Whether a run begins by another run, or by a site that asks, and not from the queue."""
    return bool(aligns_for(run)) or is_on_demand(run)


@dataclass
class Daemon:
    """See the module's docstring."""

    path: Path
    configuration: Configuration
    options: ServiceOptions
    access: AccessControl
    store: RunStore
    status: Status
    observers: Sequence[Observer]
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._floods = Floods()
        service = self.configuration.service
        self.transport = self.access.transport(service.listen, self.configuration.timeouts)
        # Before any plan, so that a site finds out that its ledger is an older copy before it
        # answers.
        self.transport.greetings = self._greetings
        self._driver: Driver | None = None
        self._first = FederationState()
        self._emit: Callable[[Event], None] = lambda _event: None
        self._noticed: list[tuple[Notice, str, str]] = []  # written by the next flush
        self._dirty = asyncio.Event()
        self._tasks = list[asyncio.Task[None]]()
        self._draining = False
        self._started = timestamp()
        self._failure: Exception | None = None
        self._faults: dict[str, str] = {}  # of changed files that are not in force

    async def drive(self, only: Plan | None) -> Finish | None:
        """Serve until the driver ends; the end of the run ``only``, if there is one."""
        self._first = FederationState(
            self.configuration.run_timeouts(),
            self.configuration.federation.sites,
            await self._scheduler(only),
        )
        await self._starting()
        self._driver = Driver(
            self.transport,
            self.store,
            self.notice,
            queue=self.store,
            countersign=self._countersign,
            keys=self.access.keys,
            report=None if only is None else only.run,
            on_start=self._listening,
            of_steps=self._step_notice if only or self.options.metrics else None,
            federation=self._first,
        )
        try:
            ends = await asyncio.create_task(self._driver.drive(self._first, [ReadQueue()]))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._tasks:  # it had listened
                self.notice(notice(NoticeName.STOPPED, text=""))
            with suppress(CoregError):  # the store may be what failed
                self.status.record(self._noticed)
                self.status.all_ended(timestamp())
                self._set_status("stopped")
        if self._failure is not None:
            raise self._failure
        if only is None:
            return None
        return ends.get(only.run)

    async def _scheduler(self, only: Plan | None) -> Scheduler:
        """The runs that the store has to begin; with ``only``, this one alone."""
        unfinished = await asyncio.to_thread(self._unfinished)
        if only is not None:
            unfinished = [plan for plan in unfinished if plan.run == only.run]
        queue = await asyncio.to_thread(self.store.read)
        return Scheduler(
            self.configuration.service.max_concurrent_runs,
            exit_when_idle=only is not None,
            unfinished=tuple(unfinished),
            waiting=queue.waiting,
        )

    async def _starting(self) -> None:
        self.metrics.listed(self._first.sites, self.status.certificates())
        # A killed coordinator has not written the ends of its sessions: use the time of its last
        # status.
        last = (await asyncio.to_thread(self.status.service)).get("updated_at", self._started)
        await asyncio.to_thread(self.status.all_ended, last)
        await asyncio.to_thread(self._set_status, "starting")

    def _listening(self, emit: Callable[[Event], None]) -> None:
        """The transport listens: begin the other tasks."""
        self._emit = emit
        on_signals(self._stop, self.reload)
        service = self.configuration.service
        host = service.listen.rpartition(":")[0]
        port = self.transport.port
        self.notice(notice(NoticeName.LISTENING, host=host, port=port, release=release()))
        self.metrics.certificates(self.access.ends())
        if self.options.port_file is not None:
            self.options.port_file.write_text(f"{port}\n", encoding="ascii")
        enrolment = Enrolment(service.identity, self.notice, lambda: self._federation.sites)
        enrols = partial(enrolment.serve, host, port + 1)
        for work in (self._heartbeat, self._look, self._flush_changes, enrols):
            self._tasks.append(asyncio.create_task(self._guarded(work)))

    def _unfinished(self) -> list[Plan]:
        """The runs to begin again, but for those that something else begins."""
        plans = self.store.unfinished()
        for plan in plans:
            if _of_itself(plan.run):
                self.store.close_run(
                    plan, Outcome.INTERRUPTED, "whoever needs it asks again", timestamp()
                )
        return [plan for plan in plans if not _of_itself(plan.run)]

    @property
    def _federation(self) -> FederationState:
        if self._driver is None:
            return self._first
        return self._driver.federation

    # --- callbacks of the driver ------------------------------------------------------------------

    def notice(self, notice: Notice) -> None:
        """Count the notice, pass it on, record it, and update the sites' status."""
        self.metrics.notice(notice)
        if self._floods.passes(notice):
            for observer in self.observers:
                observer(notice)
        else:
            notice = replace(notice, text="")  # of one without a sentence the status alone is kept
        site = notice.site or notice.fields.get("name", "")
        self._noticed.append((notice, site, timestamp()))
        self._dirty.set()

    def _step_notice(self, notice: Notice) -> None:
        """A step's figures: for the metrics, and for the operator of one study."""
        self.metrics.notice(notice)
        for observer in self.observers:
            observer(notice)

    def _countersign(self, site: str, certificate: bytes, fetched: Fetched) -> HeadSigned:
        """`AccessControl.countersign`, with a reason if this ledger is shorter than at its last
        signature.
        """
        signed = self.access.countersign(site, certificate, fetched)
        last = self.store.last_checkpoint(site)
        if last is None or fetched.head.lines >= last.head.lines or not signed.receipt.signature:
            return signed
        reason = (
            f"the ledger of {site} has {fetched.head.lines} lines, and had {last.head.lines} at the"
            f" end of run {last.run}: lines were removed, or it was replaced"
        )
        return replace(signed, receipt=replace(signed.receipt, reason=reason))

    def _greetings(self, site: str, hello: Hello) -> list[ToSite]:
        """The site's next certificate, if this one ends soon, the last head of its ledger, and the
        ends that it waits for.
        """
        renewed = self.access.renewed(self.transport.certificate(site))
        messages: list[ToSite] = [] if renewed is None else [Renewed(renewed.decode())]
        with suppress(StorageError):  # the next write or reading of the store reports it
            if (last := self.store.last_checkpoint(site)) is not None:
                messages.append(last)
            messages += [
                end for run in hello.runs if (end := self.store.end_for(run, site)) is not None
            ]
        return messages

    # --- tasks and the status ---------------------------------------------------------------------

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the store failed, or a defect of ours: the service ends
            self._failure = error
            self._emit(Interrupted())

    async def _flush_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            noticed = self._noticed
            self._noticed = []
            await asyncio.to_thread(self.status.record, noticed)

    async def _heartbeat(self) -> None:
        while True:
            now = asyncio.get_running_loop().time()
            ends = self.access.ends()
            for repeated in self._floods.over():
                self.notice(repeated)
            for warning in await asyncio.to_thread(
                self.access.expiring, now, self._federation.sites
            ):
                self.notice(notice(NoticeName.CERTIFICATE_WARNING, text=warning))
            if self.access.ends() != ends:
                self.notice(notice(NoticeName.SERVER_RENEWED))
                self.metrics.certificates(self.access.ends())
            waiting = self._federation.scheduler
            computing = self._federation.computing
            queued = 0 if waiting is None else len(waiting.waiting)
            self.metrics.stock(queued, len(computing), self.store.path)
            await asyncio.to_thread(self._set_status, "draining" if self._draining else "ready")
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _look(self) -> None:
        """Take over what other processes changed in the store and in the allow-list."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.access.changed():
                self.check_sessions()
            if await asyncio.to_thread(self.store.changed):
                self._emit(QueueChanged())

    def check_sessions(self) -> None:
        """End the sessions of revoked sites.

        If the list cannot be read, open sessions stay, and new ones are rejected.
        """
        try:
            self.transport.check_again()
            if damage := Authorised(self.configuration.service.identity).damage():
                self._not_reloaded("sites", damage)
            elif self._faults.pop("sites", None):
                self.notice(notice(NoticeName.LIST_READ))
        except StorageError as error:
            self._not_reloaded("sites", f"{error} Open sessions stay.")

    def _not_reloaded(self, what: str, reason: str) -> None:
        self._faults[what] = reason
        self.notice(notice(NoticeName.NOT_RELOADED, reason=reason))

    def _set_status(self, state: str) -> None:
        federation = self._federation
        status = {
            "state": state,
            "federation": self.configuration.federation.name,
            "sites": list(federation.sites),
            "started": self._started,
            "listen": (
                f"{self.configuration.service.listen.rpartition(':')[0]}:{self.transport.port}"
            ),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "release": release(),
            "runs": sorted(run.name for run in federation.computing),
            "stalled": sorted(
                run.name for run in federation.computing if run.phase is Phase.STALLED
            ),
            "certificates": self.access.warnings,
            "not_reloaded": " ".join(self._faults.values()),
            "awaited": {name: list(run.awaited) for name, run in federation.runs.items()},
            "waiting": {name: run.waiting for name, run in federation.runs.items() if run.waiting},
        }
        self.status.set_service(status, timestamp())
        self.metrics.problems(len(self._faults))

    # --- signals ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Start no run and complete ends; the next start begins the others.

        `run`, or a second signal, stops at once.
        """
        assert self._federation.scheduler is not None
        if self._draining or self._federation.scheduler.exit_when_idle:
            self._emit(Interrupted())
            return
        self._draining = True
        self.notice(notices.draining(sorted(run.name for run in self._federation.computing)))
        self._emit(Draining())

    def reload(self) -> None:
        """Reload the sites, the limit and the certificates.

        The address and the timeouts change at the next start only.
        """
        try:
            read = read_configuration(self.path, self.options.listen)
            self.access.reload()
        except CoregError as error:
            self._not_reloaded("configuration", str(error))
            return
        self._faults.pop("configuration", None)
        sites = read.federation.sites
        limit = read.service.max_concurrent_runs
        before = dict(self.configuration.service) | {"max_concurrent_runs": limit}
        later = [f"[service] {key}" for key, value in read.service if value != before[key]]
        later += ["[timeouts]"] * (read.timeouts != self.configuration.timeouts)
        self.metrics.listed(sites, self.status.certificates())
        self.check_sessions()
        self._emit(Reconfigured(sites, limit))
        self.metrics.certificates(self.access.ends())
        self.notice(notices.reloaded(sites, limit, ", ".join(later)))
