"""Build and run an agent from the operator's settings: `serve` keeps running, `join` and `score` take part in one run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coreg_core.errors import CoregError, UsageError
from coreg_core.protocol.outcomes import Notice, Outcome
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.identity.names import check_site_name
from coreg_wire.terminal.command_line import OperatorInterrupt, owner_hint
from coreg_wire.terminal.signals import on_signals
from site_agent.config.settings import CONNECT_TIMEOUT, ONLY, AgentSettings, read_settings
from site_agent.consent.policy import read_policy
from site_agent.data.errors import BadTable
from site_agent.data.prepare import DataSets, site_salt
from site_agent.data.shared_set import UNSHARED, AlignedIds
from site_agent.data.sources import files_of
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.members import Members
from site_agent.ledger import Disclosed, HeadSigner, Ledger
from site_agent.machine import agent as machine
from site_agent.machine.agent import Exit
from site_agent.machine.job import SiteResult
from site_agent.models.file import load_model
from site_agent.models.output import OneRun, Results
from site_agent.models.predictions import check_predictions
from site_agent.models.store import ModelStore
from site_agent.models.writer import check_output
from site_agent.service.console import Asked, Terminal, isatty
from site_agent.service.daemon import AgentDaemon
from site_agent.service.reload import ReloadingIdentity
from site_agent.service.state_dir import StateDir
from site_agent.service.workers import RunWorkers
from site_agent.session.dial import Dial
from site_agent.session.grpc_mtls import GrpcDialler

Observer = Callable[[Notice], None]


@dataclass(frozen=True)
class Joined:
    """The result of one run at this site."""

    site: str
    outcome: Outcome
    result: SiteResult | None
    written: tuple[Path, ...]
    sent: dict[str, Disclosed]
    label_bearing: Disclosed
    ledger: Path
    unseen: bool = False  # whether the eight words were not compared


def host_and_port(address: str) -> tuple[str, int]:
    """Split "host:port".

    Raises
    ------
    UsageError
        not of that form.
    """
    if "://" in address:
        raise UsageError(
            f"coordinator {address} (--coordinator, or agent.toml): write HOST:PORT, without {address.partition('://')[0]}://."
        )
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"coordinator {address} (--coordinator, or agent.toml): expected HOST:PORT, as in example.org:7600."
        )
    return host.strip("[]"), int(port)


def who_am_i(settings: AgentSettings) -> tuple[str, Identity | None]:
    """The site's name and its checked identity; with --insecure the given name, for loopback addresses only.

    Raises
    ------
    UsageError, Refused
        see `check_identity`.
    """
    if not settings.insecure:
        identity = check_identity(settings.identity)
        return identity.name, identity
    if settings.coordinator is not None and not is_loopback(settings.coordinator):
        raise UsageError(f"--insecure is for loopback addresses; {settings.coordinator} is not one.")
    if settings.own_name is None:
        raise UsageError("--insecure needs --name, since there is no certificate to take the name from.")
    return check_site_name(settings.own_name), None


def join(settings: AgentSettings, observer: Observer, asked: Asked | None = None) -> Joined:
    """Take part in one run, and write the model; ``asked`` decides in place of an operator at the terminal.

    Raises
    ------
    CoregError
        any kind; see docs/reference/exit-codes.md.
    """
    for path in (settings.output, settings.local_model):
        check_output(path)
    training = partial(OneRun, "training", settings.output, local_model=settings.local_model)
    return _once(settings, observer, lambda name: training(name), asked)


def score(settings: AgentSettings, model: Path, output: Path, observer: Observer, asked: Asked | None = None) -> Joined:
    """Take part in one scoring, and write the scores if this site is a receiver; ``asked`` as in `join`.

    Raises
    ------
    CoregError
        any kind; see docs/reference/exit-codes.md.
    """
    loaded = load_model(model)
    for inputs in settings.data.values():
        for column in ("score", "probability"):
            check_predictions(output, inputs.id, column, read=(model, *files_of(inputs.table)))

    def results(name: str) -> Results:
        if loaded.site != name:
            raise UsageError(f"{model}: a model of {loaded.site!r}, but this site is {name!r}. Give this site's model.")
        return OneRun("scoring", output, model=loaded)

    return _once(settings, observer, results, asked)


def _once(
    settings: AgentSettings, observer: Observer, results: Callable[[str], Results], asked: Asked | None
) -> Joined:
    if asked is None and not settings.yes and not isatty():
        raise UsageError(
            "nobody can be asked here, because the standard input is no terminal. Give --yes to take part, and --words with the "
            "eight words that the operators have compared; or use `coreg-agent serve` and `coreg-agent approve`."
        )
    asked = Terminal(consents=not settings.yes) if asked is None else asked
    running = _Running(settings, observer, asked=asked, results=results)
    try:
        workers = running.daemon.workers
        if isinstance(workers.results, OneRun) and workers.results.kind == "training" and ONLY in settings.data:
            _announce(running)
        end = asyncio.run(running.live(CONNECT_TIMEOUT))
        assert end.outcome is not None
        sent, labels = running.ledger.sent, running.ledger.label_bearing
        unseen = running.members is not None and bool(running.members.unseen)
        return Joined(
            workers.name, end.outcome, workers.last, workers.written, sent, labels, running.ledger.path, unseen
        )
    finally:
        running.ledger.close()


def _announce(running: "_Running") -> None:
    """Read the table, so that a fault is reported before the agent connects. The study can name columns, a run aligns ids."""
    tables = running.daemon.workers.tables
    inputs = tables.data_sets.inputs(ONLY)
    if inputs.id is None or inputs.target is None:
        return
    try:
        tables.shown(ONLY, tables.data_sets.get(ONLY)[0])
    except BadTable as error:
        if {fault.kind for fault in error.faults} != {UNSHARED}:
            raise


@dataclass(frozen=True)
class Given:
    """The command-line options of an agent that serves."""

    config: Path
    coordinator: str | None = None
    insecure: bool = False
    name: str | None = None
    metrics: str | None = None

    def settings(self) -> AgentSettings:
        """The settings of agent.toml, with these options."""
        options = {"coordinator": self.coordinator, "insecure": self.insecure or None, "name": self.name}
        return read_settings(self.config, options, ("data", "coordinator"))


def serve(given: Given, observer: Observer) -> None:
    """Stay connected and take part in runs until a signal ends the agent.

    Raises
    ------
    CoregError
        any kind; see docs/reference/exit-codes.md.
    """
    settings = given.settings()
    running = _Running(settings, observer, asked=None, results=lambda name: _models_of(settings, name), given=given)
    try:
        asyncio.run(running.live(float("inf")))
    finally:
        running.ledger.close()
        observer(Notice("stopped"))


def _models_of(settings: AgentSettings, name: str) -> ModelStore:
    return ModelStore(name, settings.models, settings.keep_models)


AT_RESTART = ("identity", "ledger", "state", "name", "connect_timeout")  # by a restart


class _Running:
    """An agent built from its settings, with its signal handlers; ``asked`` is that of an agent of one run."""

    def __init__(
        self,
        settings: AgentSettings,
        observer: Observer,
        *,
        asked: Asked | None,
        results: Callable[[str], Results],
        given: Given | None = None,
    ):
        assert settings.coordinator is not None
        host_and_port(settings.coordinator)
        name, identity = who_am_i(settings)
        policy = read_policy(settings.policy)
        self._settings, self._given = settings, given
        once = asked is not None
        state = None if once else StateDir(settings.state_path)
        if state is not None:
            settings.identity.mkdir(parents=True, exist_ok=True, mode=0o700)  # --insecure: no enrolment made it
            state.open()
        signer = None if identity is None else HeadSigner(identity)
        self.ledger = Ledger(settings.ledger_path, signer)
        try:
            self.members = None
            if identity is not None:
                self.members = Members(identity, settings.words or "", settings.accept_words)
            keys = None if self.members is None else self.members.run_keys()
            data_sets = DataSets(settings.data, site_salt(settings.identity / "salt", settings.ledger_path))
            aligned = AlignedIds(settings.identity / "aligned")
            workers = RunWorkers(
                name, policy, keys, results(name), data_sets, aligned, self.ledger, self._from_any_thread
            )
            agent = machine.Agent(once=once, ask_first=not settings.yes if once else settings.approval == "ask")
            self.daemon = AgentDaemon(agent, workers, self.ledger, state, observer, self.members, asked)
        except BaseException:
            self.ledger.close()
            raise
        self._identity = None
        if identity is not None:
            self._identity = ReloadingIdentity(identity, self._from_any_thread, self._sign_as)
            self.daemon.certificate_until = identity.not_after.isoformat()
            self.daemon.install = self._identity.install
            if once and (warning := identity.expiry_warning()) is not None:
                observer(Notice("certificate", f"warning: {warning}", "warning"))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._observer, self._once, self._stopped = observer, once, False

    def _from_any_thread(self, notice: Notice) -> None:
        if self._loop is None or self._loop.is_closed():
            self._observer(notice)
        else:
            self._loop.call_soon_threadsafe(self.daemon.notify, notice)

    def _sign_as(self, identity: Identity) -> None:
        """Sign heads with the key of the session's certificate from now on."""
        self.ledger.signer = HeadSigner(identity)
        self._use(identity)

    def _use(self, identity: Identity) -> None:
        """Answer with this key, and the members that its operator has confirmed."""
        self.members = self.daemon.members = Members(identity, self._settings.words or "", self._settings.accept_words)
        self.daemon.workers.keys = self.members.run_keys()

    async def live(self, default_timeout: float) -> Exit:
        settings, identity = self._settings, self._identity
        assert settings.coordinator is not None
        self._loop = asyncio.get_running_loop()
        timeout = settings.timeout(default_timeout)
        self._dialler = dialler = GrpcDialler(
            settings.coordinator,
            None if identity is None else identity.credentials,
        )
        on_signals(self._stop, None if self._given is None else self._reload)
        if not self._once:
            fields = {"coordinator": settings.coordinator, "data": tuple(sorted(settings.data))}
            self._observer(Notice("starting", site=self.daemon.workers.name, fields=fields))
        if self.ledger.new:
            text = f"{self.ledger.path}: a new ledger. This agent remembers no answers of earlier runs."
            self._observer(Notice("ledger_is_new", text))
        if self.ledger.torn:
            cut = f"a last line that a crash cut was removed ({self.ledger.torn} bytes)"
            text = f"{self.ledger.path}: {cut}. Its message was not sent."
            self._observer(Notice("ledger_cut", text))
        self._look_ahead(settings)
        stop_metrics = self._metrics()
        warning = None if identity is None or self._once else asyncio.create_task(identity.warn_daily())
        try:
            end = await self.daemon.live(Dial(dialler, timeout))
        finally:
            if warning is not None:
                warning.cancel()
            stop_metrics()
        if self._stopped and self._once:
            raise OperatorInterrupt("interrupted. Start the agent again to rejoin.")
        return end

    def _look_ahead(self, settings: AgentSettings) -> None:
        """Warn a serving agent's operator of a data set with a fault, which would end a run."""
        if not self._once and self._loop is not None:
            workers = self.daemon.workers
            ahead = partial(workers.tables.read_ahead, dict(settings.data))
            self._ahead = self._loop.run_in_executor(None, ahead)

    def _metrics(self) -> Callable[[], None]:
        if self._given is None or self._given.metrics is None:
            return lambda: None
        from coreg_wire.terminal.metrics_server import listen  # only an agent with metrics loads the library
        from site_agent.service.metrics import AgentMetrics

        return listen(
            self._given.metrics, AgentMetrics(self.daemon, self.ledger, StateDir(self._settings.state_path)).registry()
        )

    # --- signals --------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopped = True
        self.daemon.stop()

    def _reload(self) -> None:
        """Read agent.toml, the policy and the certificate again; runs that have begun keep their old values."""
        assert self._given is not None
        workers = self.daemon.workers
        try:
            settings = self._given.settings()
            host_and_port(settings.coordinator or "")
            workers.policy = read_policy(settings.policy)
        except CoregError as error:
            text = f"configuration not reloaded, the previous one stays in force: {error}{owner_hint(error)}"
            self.daemon.notify(Notice("not_reloaded", text, "warning"))
            return
        workers.tables.data_sets.relist(settings.data)
        if self._identity is not None:
            self._identity.refresh()
            self._settings = settings.model_copy(update={key: getattr(self._settings, key) for key in AT_RESTART})
            self._use(self._identity.identity)
            self.daemon.certificate_until = self._identity.identity.not_after.isoformat()
        workers.results = _models_of(settings, workers.name)
        self.daemon.ask_first(settings.approval == "ask")
        self._dialler.address = settings.coordinator or self._dialler.address
        fields = {"data": " ".join(sorted(settings.data)), "approval": settings.approval}
        later = [key for key in AT_RESTART if getattr(settings, key) != getattr(self._settings, key)]
        if later:
            fields["at_restart"] = ", ".join(later)
        text = f"{', '.join(later)} changed: restart the agent" if later else ""
        self.daemon.notify(Notice("reloaded", text, "warning" if later else "info", fields=fields))
        self._look_ahead(settings)
