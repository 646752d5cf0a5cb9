"""Build and run an agent from the operator's settings: `serve` keeps running, `join` takes part in
one run.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import grpc

from coreg_core.errors import CoregError, Refused
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_wire.identity.credentials import client_credentials
from coreg_wire.terminal.command_line import OperatorInterrupt, need_extra
from coreg_wire.terminal.service import on_signals
from coreg_wire.transport.service import host_port
from site_agent.config.settings import CONNECT_TIMEOUT, ONLY, AgentSettings
from site_agent.consent.policy import read_policy
from site_agent.data.prepare import AlignedIds, DataSets, site_salt
from site_agent.identity.identity import Identity, check_identity, install_renewed
from site_agent.identity.run_keys import Members
from site_agent.ledger import Disclosed, HeadSigner, Ledger
from site_agent.ledger.ledger import require_ledger
from site_agent.machine import agent as machine
from site_agent.machine.results import Result
from site_agent.machine.session_events import Exit
from site_agent.models.store import ModelStore
from site_agent.service import file_modes
from site_agent.service.console import Terminal
from site_agent.service.daemon import AgentDaemon
from site_agent.service.on_demand import Known, OnDemand
from site_agent.service.run_tables import NotAligned, RunTables, Unusable
from site_agent.service.state_store import StateStore
from site_agent.service.workers import RunWorkers
from site_agent.session.stream import Dial, GrpcDialler

Observer = Callable[[Notice], None]


@dataclass(frozen=True)
class Joined:
    """The result of one run at this site."""

    site: str
    outcome: Outcome
    result: Result | None
    run: str
    written: tuple[Path, ...]
    sent: dict[str, Disclosed]
    ledger: Path
    unseen: bool = False  # whether the eight words were not compared


def join(
    settings: AgentSettings,
    observer: Observer,
    asked: Terminal,
    kind: Literal["training", "scoring"] = "training",
) -> Joined:
    """Take part in one run of that kind, and store its models or scores; ``asked`` decides for the
    operator.
    """
    running = _Running(settings, observer, asked=asked)
    try:
        workers = running.daemon.workers
        workers.tables.only = kind
        workers.results.check()
        if ONLY in settings.data and kind == "training":
            workers.tables.read_ahead(ONLY)
        elif ONLY in settings.data:
            workers.tables.report_open(ONLY, trains=False)
        end = asyncio.run(running.live(CONNECT_TIMEOUT))
        assert end.outcome is not None
        ledger = running.ledger
        unseen = not workers.compared()
        return Joined(
            workers.name,
            end.outcome,
            workers.last,
            end.run,
            workers.written,
            ledger.sent,
            ledger.path,
            unseen,
        )
    finally:
        running.ledger.close()


def serve(settings: AgentSettings, observer: Observer) -> None:
    """Stay connected and take part in runs until a signal ends the agent."""
    running = _Running(settings, observer, asked=None)
    try:
        with running.answering():
            asyncio.run(running.live(float("inf")))
    finally:
        running.ledger.close()
        observer(Notice("stopped"))


def _known(tables: RunTables, store: ModelStore, plan: Plan) -> Known:
    try:
        return tables.individuals(plan, store)[0]
    except Unusable:
        raise Refused(tables.troubles[tables.data_sets.choose(plan.data)]) from None
    except NotAligned:
        raise Refused(
            "the ids of this site's table changed, so they have to be aligned again: ask the"
            f" coordinator's operator to submit study {plan.study} again."
        ) from None


class _Running:
    """An agent built from its settings, with its signal handlers; ``asked`` is that of an agent of
    one run.
    """

    def __init__(self, settings: AgentSettings, observer: Observer, *, asked: Terminal | None):
        assert settings.coordinator is not None
        host_port(settings.coordinator, "--coordinator (or agent.toml)")
        identity = check_identity(settings.identity)
        file_modes.require_own(settings)
        for text in file_modes.readable(settings):
            observer(Notice("readable_by_others", text, "warning"))
        policy = read_policy(settings.policy)
        self._settings = settings
        once = asked is not None
        state = None if once else StateStore(settings.state_path)
        require_ledger(settings.ledger_path, settings.identity / "salt")
        self.ledger = Ledger(settings.ledger_path)  # it has a lock: another agent's requests stay
        try:
            if state is not None:
                state.open()
            data_sets = DataSets(
                settings.data, site_salt(settings.identity / "salt", settings.ledger_path)
            )
            aligned = AlignedIds(settings.identity / "aligned")
            store = ModelStore(identity.name, settings.models)
            tables = RunTables(identity.name, data_sets, aligned, self._from_any_thread)
            workers = RunWorkers(
                identity.name,
                policy,
                None,
                store,
                tables,
                self.ledger,
                self._from_any_thread,
            )
            if state is not None:
                known = partial(_known, tables, store)
                tables.on_demand = OnDemand(state, known)
                tables.on_demand.ask = self._ask_for_scores
            workers.compared = lambda: self.daemon.approvals.compared
            agent = machine.Agent(
                once=once, ask_first=not settings.yes if once else settings.approval == "ask"
            )
            self.daemon = AgentDaemon(agent, workers, self.ledger, state, observer, asked=asked)
            self._identity = ReloadingIdentity(identity, self._from_any_thread, self._sign_as)
            self.daemon.install = self._identity.install
            self._sign_as(identity)
        except BaseException:
            self.ledger.close()
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observer = observer
        self._once = once
        self._stopped = False

    def _ask_for_scores(self, study: str) -> bool:
        """From any thread; False: there is no connection."""
        if self._loop is None or self.daemon.connected_since is None:
            return False
        self._loop.call_soon_threadsafe(self.daemon.ask_for_scores, study)
        return True

    def _from_any_thread(self, notice: Notice) -> None:
        if self._loop is None or self._loop.is_closed():
            self._observer(notice)
        else:
            self._loop.call_soon_threadsafe(self.daemon.notify, notice)

    def _sign_as(self, identity: Identity) -> None:
        """Sign heads and answer with the key of the session's certificate from now on."""
        self.ledger.signer = HeadSigner(identity)
        members = Members(identity, self._settings.words or "", self._settings.accept_words)
        self.daemon.approvals.members = members
        self.daemon.workers.keys = members.run_keys()
        self.daemon.certificate_until = identity.not_after.isoformat()

    def answering(self) -> AbstractContextManager[None]:
        """Answer requests for scores, if the settings say where."""
        on_demand = self.daemon.workers.tables.on_demand
        if self._settings.listen is None or on_demand is None:
            return nullcontext()
        need_extra("web", "starlette", "uvicorn")
        from site_agent.service.score_server import answering

        return answering(on_demand, self._settings.listen)

    async def live(self, default_timeout: float) -> Exit:
        settings = self._settings
        identity = self._identity
        assert settings.coordinator is not None
        self._loop = asyncio.get_running_loop()
        timeout = settings.connect_timeout or default_timeout
        dialler = GrpcDialler(settings.coordinator, identity.credentials)
        on_signals(self._stop)
        if not self._once:
            fields = {"coordinator": settings.coordinator, "data": tuple(sorted(settings.data))}
            self._observer(Notice("starting", site=self.daemon.workers.name, fields=fields))
        if self.ledger.new:
            text = (
                f"{self.ledger.path}: a new ledger. This agent remembers no answers of earlier"
                " runs."
            )
            self._observer(Notice("ledger_is_new", text))
        if self.ledger.torn:
            cut = f"a last line that a crash cut was removed ({self.ledger.torn} bytes)"
            text = f"{self.ledger.path}: {cut}. Its message was not sent."
            self._observer(Notice("ledger_cut", text))
        if not self._once:
            self._ahead = self._loop.run_in_executor(None, self.daemon.workers.tables.read_all)
        warning = asyncio.create_task(identity.warn_daily())
        try:
            end = await self.daemon.live(Dial(dialler, timeout))
        finally:
            warning.cancel()
        if self._stopped and self._once:
            raise OperatorInterrupt("interrupted. Start the agent again to rejoin.")
        return end

    # --- signals ----------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopped = True
        self.daemon.stop()


# --- the identity of a running agent --------------------------------------------------------------

DAY = 86_400.0


class ReloadingIdentity:
    """Read again when its files change, unchanged if the new ones have a fault.

    ``in_use`` receives what signs from now on.
    """

    def __init__(
        self,
        identity: Identity,
        notify: Callable[[Notice], None],
        in_use: Callable[[Identity], None],
    ):
        self.identity = identity
        self._notify = notify
        self._in_use = in_use
        self._fault = ""  # of the files now

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials from the current files."""
        self.refresh()
        self._in_use(self.identity)
        return client_credentials(
            self.identity.key_pem, self.identity.certificate_pem, self.identity.ca_pem
        )

    def refresh(self) -> None:
        before = self.identity
        known = self._fault
        self._fault = ""
        try:
            fresh = check_identity(before.directory)
            if fresh.name != before.name:
                raise Refused(f"it names {fresh.name}, but this agent is {before.name}")
        except CoregError as error:
            self._fault = str(error)
            if self._fault != known:
                self._notify(_not_read(self._fault))
            return
        if known or fresh != before:
            self.identity = fresh
            if fresh.key_pem == before.key_pem:
                self._in_use(fresh)
            self._notify(Notice("certificate_read", fields={"until": fresh.not_after.isoformat()}))

    def install(self, certificate_pem: bytes) -> None:
        """Install the next certificate that the coordinator sent, for the next connection."""
        try:
            install_renewed(self.identity.directory, certificate_pem)
        except CoregError as error:
            self._notify(_not_read(str(error)))
        else:
            self.refresh()

    async def warn_daily(self) -> None:
        """Warn once a day if the certificate expires within a month."""
        while True:
            if (warning := self.identity.expiry_warning()) is not None:
                self._notify(Notice("certificate", f"warning: {warning}", "warning"))
            await asyncio.sleep(DAY)


def _not_read(reason: str) -> Notice:
    text = f"the new certificate cannot be used; the old one stays in use: {reason}"
    return Notice("certificate_not_read", text, "warning")
