"""Build and run an agent from the operator's settings: `serve` keeps running, `join` takes part in
one run.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coreg_core.outcomes import Notice, Outcome
from coreg_wire.terminal.command_line import OperatorInterrupt, need_extra
from coreg_wire.terminal.service import on_signals
from coreg_wire.transport.service import host_port
from site_agent.config.settings import CONNECT_TIMEOUT, ONLY, AgentSettings
from site_agent.consent.policy import read_policy
from site_agent.data.aligned_ids import AlignedIds
from site_agent.data.data_sets import DataSets
from site_agent.data.salt import site_salt
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.members import Members
from site_agent.ledger import Disclosed, HeadSigner, Ledger
from site_agent.ledger.ledger import require_ledger
from site_agent.machine import agent as machine
from site_agent.machine.results import Result
from site_agent.machine.session_events import Exit
from site_agent.models.store import ModelStore
from site_agent.service import file_modes
from site_agent.service.console import Terminal
from site_agent.service.daemon import AgentDaemon
from site_agent.service.identity_in_use import KeysInUse, ReloadingIdentity
from site_agent.service.on_demand import OnDemand
from site_agent.service.run_tables import RunTables
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
        workers = running.workers
        workers.tables.only = kind
        workers.results.check()
        if ONLY in settings.data and kind == "training":
            workers.tables.read_ahead(ONLY)
        elif ONLY in settings.data:
            workers.tables.report_open(ONLY, trains=False)
        end = asyncio.run(running.live(CONNECT_TIMEOUT))
        assert end.outcome is not None
        ledger = running.ledger
        return Joined(
            workers.name,
            end.outcome,
            workers.last,
            end.run,
            workers.written,
            ledger.sent,
            ledger.path,
            unseen=not workers.in_use.compared,
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
        secret = settings.identity / "salt"
        require_ledger(settings.ledger_path, secret)
        self._settings = settings
        self._observer = observer
        self._once = asked is not None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self.ledger = Ledger(settings.ledger_path)  # it has a lock: another agent's requests stay
        try:
            self._in_use = KeysInUse()
            self._identity = ReloadingIdentity(identity, self._from_any_thread, self._sign_as)
            self._sign_as(identity)
            tables = RunTables(
                ModelStore(identity.name, settings.models),
                policy,
                DataSets(settings.data, site_salt(secret, settings.ledger_path)),
                AlignedIds(settings.identity / "aligned"),
                self._from_any_thread,
            )
            state = None
            if not self._once:
                state = StateStore(settings.state_path)
                state.open()
                tables.on_demand = OnDemand(state, tables.known, self._ask_for_scores)
            self.workers = RunWorkers(self._in_use, tables, self.ledger, self._from_any_thread)
            ask_first = not settings.yes if self._once else settings.approval == "ask"
            agent = machine.Agent(once=self._once, ask_first=ask_first)
            self.daemon = AgentDaemon(agent, self.workers, state, observer, asked)
            self.daemon.install = self._identity.install
        except BaseException:
            self.ledger.close()
            raise

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
        settings = self._settings
        self.ledger.signer = HeadSigner(identity)
        members = Members(identity, settings.words or "", settings.accept_words)
        self._in_use.members = members
        self._in_use.keys = members.run_keys()
        self._in_use.certificate_until = identity.not_after.isoformat()

    def answering(self) -> AbstractContextManager[None]:
        """Answer requests for scores, if the settings say where."""
        on_demand = self.workers.tables.on_demand
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
            self._observer(Notice("starting", site=self.workers.name, fields=fields))
        ledger = self.ledger
        if ledger.new:
            text = f"{ledger.path}: a new ledger. This agent remembers no answers of earlier runs."
            self._observer(Notice("ledger_is_new", text))
        if ledger.torn:
            cut = f"a last line that a crash cut was removed ({ledger.torn} bytes)"
            self._observer(Notice("ledger_cut", f"{ledger.path}: {cut}. Its message was not sent."))
        if not self._once:
            self._ahead = self._loop.run_in_executor(None, self.workers.tables.read_all)
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
