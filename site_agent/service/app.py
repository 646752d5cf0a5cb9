"""An agent that stays, from its file to its exit code: identity, policy, ledger, data sets, the session, signals."""

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coreg_core.errors import CoregError, Refused, Unreachable, UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.identity.names import check_site_name
from coreg_wire.terminal.command_line import OperatorInterrupt
from coreg_wire.terminal.logs import Log
from site_agent.config.agent_toml import ServiceSettings, read_service_settings
from site_agent.data.data_sets import DataSets
from site_agent.data.prepare import site_salt
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.peers import run_keys
from site_agent.ledger import HeadSigner, Ledger
from site_agent.models.store import Archive
from site_agent.policy.policy import Policy, read_policy
from site_agent.service.daemon import Service
from site_agent.service.join import host_and_port
from site_agent.service.reload import Enrolled
from site_agent.service.state_dir import Desk
from site_agent.session.diagnose import probe_server
from site_agent.session.dial import CLOSE_GRACE, Dial, keep_dialling

INSIST = 2 * CLOSE_GRACE  # seconds after a signal to end, until it is seen to once more
QUIET, LONGEST_QUIET = 5.0, 600.0  # seconds between two lines that say the same of a coordinator that cannot be reached


@dataclass(frozen=True)
class Given:
    """What the command line says."""

    config: Path
    coordinator: str | None = None
    insecure: bool = False
    name: str | None = None
    metrics: str | None = None

    def settings(self) -> ServiceSettings:
        return read_service_settings(self.config, coordinator=self.coordinator)


def serve(given: Given, log: Log) -> int:
    """Stay connected, take part in what comes, until a signal ends it; the exit code.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    settings = given.settings()
    host_and_port(settings.coordinator)
    name, identity = _who(given, settings)
    policy = read_policy(settings.policy)
    desk = Desk(settings.state_path)
    desk.open()
    signer = None if identity is None else HeadSigner(identity)
    ledger = Ledger(settings.ledger_path, signer, settings.ledger_max_bytes)
    try:
        return asyncio.run(_stay(given, settings, name, identity, log, desk, ledger, policy))
    finally:
        ledger.close()


async def _stay(
    given: Given,
    settings: ServiceSettings,
    name: str,
    identity: Identity | None,
    log: Log,
    desk: Desk,
    ledger: Ledger,
    policy: Policy,
) -> int:
    inputs = {key: data.inputs(given.config.parent) for key, data in settings.data.items()}
    data_sets = DataSets(inputs, site_salt(settings.identity / "salt"))
    archive = Archive(name, settings.models, settings.keep)
    keys = None if identity is None else run_keys(identity, policy.peers)
    service = Service(
        name, policy, ledger, desk, archive, data_sets, log, ask_first=settings.approval == "ask", keys=keys
    )
    service.certificate_until = None if identity is None else identity.not_after.isoformat()
    quiet = _Quiet(log, service)
    service.tell()
    log.info(
        "starting",
        site=name,
        coordinator=settings.coordinator,
        data=" ".join(sorted(inputs)),
        approval=settings.approval,
    )
    stop_listening = _numbers(given.metrics, service, ledger, desk)
    enrolled = None if identity is None else Enrolled(identity, log, partial(_sign_as, ledger))
    work = asyncio.ensure_future(keep_dialling(service.converse, _dial(settings, enrolled), quiet.note))
    warning = None if enrolled is None else asyncio.create_task(enrolled.warn_daily())
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if service.stopping.is_set() or service.connected_since is None:
            work.cancel()
        log.info("draining")
        service.stopping.set()
        loop.call_later(INSIST, insist)

    def insist() -> None:
        # A session that broke, or an attempt to connect that ended, in the very moment of the signal: it would dial for ever.
        if not work.done():
            if service.connected_since is None:
                work.cancel()
            loop.call_later(INSIST, insist)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(given, service, enrolled, log))
    try:
        await work
    except asyncio.CancelledError:
        if not service.stopping.is_set():
            raise OperatorInterrupt("interrupted.") from None
    finally:
        if warning is not None:
            warning.cancel()
        stop_listening()
        service.waiting = "stopped"
        service.tell()
        log.info("stopped")
    return 0


def _numbers(address: str | None, service: Service, ledger: Ledger, desk: Desk) -> Callable[[], None]:
    if address is None:
        return lambda: None
    from coreg_wire.terminal.metrics_server import listen  # an agent that nobody scrapes loads none of it
    from site_agent.service.metrics import Numbers

    return listen(address, Numbers(service, ledger, desk).registry())


def _sign_as(ledger: Ledger, identity: Identity) -> None:
    """Heads are signed with the key of the certificate that the session has shown."""
    ledger.signer = HeadSigner(identity)


def _who(given: Given, settings: ServiceSettings) -> tuple[str, Identity | None]:
    if not given.insecure:
        identity = check_identity(settings.identity)
        return identity.name, identity
    if not is_loopback(settings.coordinator):
        raise UsageError(f"--insecure is for loopback addresses; {settings.coordinator} is not one.")
    if given.name is None:
        raise UsageError("--insecure needs --name, since there is no certificate to take the name from.")
    settings.identity.mkdir(parents=True, exist_ok=True, mode=0o700)
    return check_site_name(given.name), None


def _dial(settings: ServiceSettings, enrolled: Enrolled | None) -> Dial:
    if enrolled is None:
        return Dial(settings.coordinator, None, settings.seconds, least_bandwidth=settings.least_bandwidth)
    host, port = host_and_port(settings.coordinator)

    def diagnose() -> str:
        try:
            return probe_server(host, port, enrolled.identity)
        except Refused as error:
            if math.isinf(settings.seconds):  # the other operator may mend it, and nobody has to type anything here
                raise Unreachable(str(error)) from None
            raise

    return Dial(
        settings.coordinator,
        enrolled.credentials,
        settings.seconds,
        least_bandwidth=settings.least_bandwidth,
        diagnose=diagnose,
    )


def _reload(given: Given, service: Service, enrolled: Enrolled | None, log: Log) -> None:
    """Certificate, data sets, policy, consent and what is kept, from their files; runs under way keep what they began with."""
    try:
        settings = given.settings()
        service.policy = read_policy(settings.policy)
    except CoregError as error:
        log.error("not_reloaded", text=str(error))
        return
    service.data_sets.relist({key: data.inputs(given.config.parent) for key, data in settings.data.items()})
    if enrolled is not None:
        enrolled.refresh()
        service.keys = run_keys(enrolled.identity, service.policy.peers)
        service.certificate_until = enrolled.identity.not_after.isoformat()
    service.ask_first = settings.approval == "ask"
    service.archive = Archive(service.name, settings.models, settings.keep)
    log.info("reloaded", data=" ".join(sorted(settings.data)), approval=settings.approval)


class _Quiet:
    """Says that the coordinator cannot be reached, and says it again ever more seldom while nothing changes."""

    def __init__(self, log: Log, service: Service):
        self._log, self._service = log, service
        self._why, self._next, self._pause = "", 0.0, QUIET

    def note(self, text: str) -> None:
        self._service.waiting = text
        self._service.tell()
        why, time_now = text.partition(": ")[2], time.monotonic()
        if why != self._why:
            self._why, self._next, self._pause = why, 0.0, QUIET
        if time_now >= self._next:
            self._log.warning("not_connected", text=text)
            self._next, self._pause = time_now + self._pause, min(2 * self._pause, LONGEST_QUIET)
