"""One run from the operator's settings to a model file: identity, data, policy, ledger, connection."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from coreg_core.errors import UsageError
from coreg_core.protocol.messages import ToSite
from coreg_wire.identity.credentials import client_credentials, is_loopback
from coreg_wire.terminal.command_line import OperatorInterrupt
from coreg_wire.transport.release import release
from site_agent.config.settings import Settings
from site_agent.data.prepare import Inputs, prepare, site_salt
from site_agent.data.shared_set import keyed
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.peers import run_keys
from site_agent.ledger import Disclosed, HeadSigner, Ledger
from site_agent.machine.memory import SiteResult
from site_agent.machine.site import Site
from site_agent.models.writer import Models, check_output
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import read_policy
from site_agent.session.diagnose import probe_server
from site_agent.session.dial import Dial, Watcher, take_part


@dataclass(frozen=True)
class Joined:
    """How it ended for this site."""

    site: str
    result: SiteResult
    models: tuple[Path, ...]
    sent: dict[str, Disclosed]
    label_bearing: Disclosed
    ledger: Path


def inputs_of(settings: Settings) -> Inputs:
    """What of the settings says which rows and columns are used."""
    assert settings.data is not None
    assert settings.target is not None
    assert settings.id is not None
    return Inputs(
        settings.data,
        settings.target,
        settings.id,
        settings.unlabelled,
        settings.categorical,
        settings.drop,
        settings.scale,
        settings.labels,
        settings.dates,
    )


def host_and_port(address: str) -> tuple[str, int]:
    """ "host:port" taken apart.

    Raises
    ------
    UsageError
        not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator {address}: expected HOST:PORT, as in coordinator.example.org:7600.")
    return host.strip("[]"), int(port)


def who_am_i(settings: Settings) -> tuple[str, Identity | None]:
    """The site's name and its checked identity; --insecure names itself, on loopback alone.

    Raises
    ------
    UsageError, Refused
        see `check_identity`.
    """
    if not settings.insecure:
        identity = check_identity(settings.identity)
        return identity.name, identity
    address = settings.coordinator or ""
    if not is_loopback(address):
        raise UsageError(f"--insecure is for loopback addresses; {address} is not one.")
    name = settings.own_name
    if name is None:
        raise UsageError("--insecure needs --name, since there is no certificate to take the name from.")
    return name, None


def join(settings: Settings, note: Callable[[str], None], progress: Callable[[ToSite], None]) -> Joined:
    """Take part, and write the model.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    assert settings.coordinator is not None
    host_and_port(settings.coordinator)
    name, identity = who_am_i(settings)
    if identity is not None and (warning := identity.expiry_warning()):
        note(f"warning: {warning}")
    policy = read_policy(settings.policy)
    for path in (settings.output, settings.alone):
        check_output(path)
    inputs = inputs_of(settings)
    prepared = prepare(inputs, site_salt(settings.identity / "salt"))
    for text in prepared.notes:
        note(text)
    d = prepared.data
    if policy.ids_secret is not None:
        d = replace(d, ids_digest=keyed(d.ids_digest, policy.ids_secret))
    note(f"{name}: {len(d.X)} labelled and {len(d.Z)} shared unlabelled instances, {d.X.shape[1]} features")
    models, written = Models(name, prepared, inputs.target, settings.output, settings.alone), list[Path]()
    ledger = Ledger(settings.ledger_path, None if identity is None else HeadSigner(identity))
    keys = None if identity is None else run_keys(identity, policy.peers)
    site = Site(name, d, terms_of(policy, ledger, keys, d), release())

    def deliver(result: SiteResult) -> None:
        written.extend(models.write(result, note))
        if (view := site.view) is not None and view.rank < view.n_basis:
            note(f"model and certificates are over the span in use, rank {view.rank} of {view.n_basis}")

    watcher = Watcher(note, progress, deliver)
    try:
        result = end_of(settings, identity, site, ledger, watcher)
    finally:
        ledger.close()
    return Joined(name, result, tuple(written), ledger.sent, ledger.label_bearing, ledger.path)


def end_of(settings: Settings, identity: Identity | None, site: Site, ledger: Ledger, watcher: Watcher) -> SiteResult:
    """Take part in one run, whatever its kind, to its end.

    Raises
    ------
    CoregError
        see `connection.take_part`; an interrupt.
    """
    return asyncio.run(_until_the_end(site, ledger, _dial(settings, identity), watcher))


def _dial(settings: Settings, identity: Identity | None) -> Dial:
    assert settings.coordinator is not None
    if identity is None:
        return Dial(settings.coordinator, None, settings.patience, least_bandwidth=settings.least_bandwidth)
    credentials: grpc.ChannelCredentials = client_credentials(
        identity.key_pem, identity.certificate_pem, identity.ca_pem
    )
    host, port = host_and_port(settings.coordinator)
    return Dial(
        settings.coordinator,
        credentials,
        settings.patience,
        least_bandwidth=settings.least_bandwidth,
        diagnose=lambda: probe_server(host, port, identity),
    )


async def _until_the_end(site: Site, ledger: Ledger, dial: Dial, watcher: Watcher) -> SiteResult:
    work = asyncio.ensure_future(take_part(site, ledger, dial, watcher))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise OperatorInterrupt("interrupted; start the agent again to take part again.") from None
