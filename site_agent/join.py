"""One run from the operator's options to a model file: identity, data, policy, ledger, connection.

Knows every room of the agent and puts them together; `cli` parses and calls it.
"""

import asyncio
import os
import platform
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import grpc

from coreg_core.errors import UsageError
from coreg_core.messages import Ask, Finished, Plan, ToSite
from coreg_core.threads import pin_threads
from coreg_core.views import Solution
from coreg_wire.console import OperatorInterrupt, human_bytes
from coreg_wire.credentials import client_credentials, is_loopback
from coreg_wire.names import check_site_name
from site_agent.connection import Dial, take_part
from site_agent.identity import Identity, check_identity
from site_agent.ledger import Disclosed, Ledger
from site_agent.machine import Site, SiteResult
from site_agent.model_file import SiteModel, save_model
from site_agent.policy import read_policy
from site_agent.prepare import Inputs, Prepared, prepare, site_salt
from site_agent.probe import probe_server


@dataclass(frozen=True)
class Joining:
    """What the operator asked for."""

    inputs: Inputs
    coordinator: str
    identity: Path
    output: Path
    alone: Path | None = None
    policy: Path | None = None
    ledger: Path | None = None
    insecure: bool = False
    name: str | None = None
    patience: float = 600.0


@dataclass(frozen=True)
class Joined:
    """How it ended for this site."""

    site: str
    result: SiteResult
    models: tuple[Path, ...]
    sent: dict[str, Disclosed]
    ledger: Path


def host_and_port(address: str) -> tuple[str, int]:
    """ "host:port" taken apart.

    Raises:
        UsageError: not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--coordinator {address}: expected HOST:PORT, as in coordinator.example.org:7600.")
    return host.strip("[]"), int(port)


def who_am_i(joining: Joining) -> tuple[str, Identity | None]:
    """The site's name and its checked identity; --insecure names itself, on loopback alone.

    Raises:
        UsageError, Refused: see `check_identity`.
    """
    host_and_port(joining.coordinator)
    return _own_name(joining)


def _own_name(joining: Joining) -> tuple[str, Identity | None]:
    if not joining.insecure:
        identity = check_identity(joining.identity)
        return identity.name, identity
    if not is_loopback(joining.coordinator):
        raise UsageError(f"--insecure is for loopback addresses; {joining.coordinator} is not one.")
    if joining.name is None:
        raise UsageError("--insecure needs --name, since there is no certificate to take the name from.")
    return check_site_name(joining.name), None


def join(joining: Joining, note: Callable[[str], None], progress: Callable[[ToSite], None]) -> Joined:
    """Take part, and write the model.

    Raises:
        CoregError: of every kind; see the operator's guide.
    """
    name, identity = who_am_i(joining)
    if identity is not None and (warning := identity.expiry_warning()):
        note(f"warning: {warning}")
    policy = read_policy(joining.policy)
    for path in (joining.output, joining.alone):
        check_output(path)
    prepared = prepare(joining.inputs, site_salt(joining.identity / "salt"))
    for text in prepared.notes:
        note(text)
    d = prepared.data
    note(f"{name}: {len(d.X)} labelled and {len(d.Z)} shared unlabelled instances, {d.X.shape[1]} features")
    site = Site(name, d, policy.objection, pin_threads)
    ledger = Ledger(joining.ledger or joining.identity / "ledger.jsonl")
    try:
        result = asyncio.run(_until_the_end(site, ledger, _dial(joining, identity), note, progress))
    finally:
        ledger.close()
    models = _write_models(joining, name, prepared, result)
    return Joined(name, result, models, ledger.sent, ledger.path)


def check_output(path: Path | None) -> None:
    """Said before the run, and not after hours of it, when the model would be lost.

    Raises:
        UsageError: a model cannot be written there.
    """
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder for the model.")
    if path.is_dir():
        raise UsageError(f"{path}: a folder; name a file for the model.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: the model cannot be written there; mend its rights, or choose another --output.")


def _dial(joining: Joining, identity: Identity | None) -> Dial:
    if identity is None:
        return Dial(joining.coordinator, None, joining.patience)
    credentials: grpc.ChannelCredentials = client_credentials(
        identity.key_pem, identity.certificate_pem, identity.ca_pem
    )
    host, port = host_and_port(joining.coordinator)
    return Dial(joining.coordinator, credentials, joining.patience, diagnose=lambda: probe_server(host, port, identity))


async def _until_the_end(
    site: Site, ledger: Ledger, dial: Dial, note: Callable[[str], None], progress: Callable[[ToSite], None]
) -> SiteResult:
    work = asyncio.ensure_future(take_part(site, ledger, dial, note, progress))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise OperatorInterrupt("interrupted; start the agent again to take part again.") from None


def _write_models(joining: Joining, name: str, prepared: Prepared, result: SiteResult) -> tuple[Path, ...]:
    if result.plan is None or not result.solutions:
        return ()
    couplings = result.plan.coupling
    short = [f"{coupling:g}" for coupling in couplings]  # six digits may not tell two of them apart
    labels = short if len(set(short)) == len(set(couplings)) else [repr(coupling) for coupling in couplings]
    paths = []
    for coupling, label, solution in zip(couplings, labels, result.solutions, strict=True):
        path = joining.output
        if len(couplings) > 1:  # a path of λ: one model for each
            path = path.with_name(f"{path.stem}-coupling-{label}{path.suffix}")
        save_model(path, _model(joining, name, prepared, result, solution, coupling))
        paths.append(path)
    if joining.alone is not None and result.alone is not None:
        save_model(joining.alone, _model(joining, name, prepared, result, result.alone, 0.0))
        paths.append(joining.alone)
    return tuple(paths)


def _model(
    joining: Joining, name: str, prepared: Prepared, result: SiteResult, solution: Solution, coupling: float
) -> SiteModel:
    assert result.plan is not None
    return SiteModel(
        function=solution.function,
        preprocessing=prepared.preprocessing,
        target=joining.inputs.target,
        shift=result.shift,
        scale=result.scale,
        site=name,
        run=result.plan.run,
        stop=result.stop.name,
        coupling=coupling,
        plan=result.plan.to_dict(),
    )


def check(joining: Joining, note: Callable[[str, bool], None]) -> int:
    """Everything that can be checked before joining, each with its verdict; the exit code of the first failure."""
    from coreg_core.errors import CoregError  # here: only the checks catch every kind

    code = 0

    def step(title: str, work: Callable[[], str]) -> bool:
        nonlocal code
        try:
            note(f"{title}: {work()}", True)
        except CoregError as error:
            note(f"{title}: {error}", False)
            code = code or error.exit_code
            return False
        return True

    def table() -> str:
        prepared = prepare(joining.inputs)
        d = prepared.data
        for text in prepared.notes:
            note(text, True)
        names = ", ".join(prepared.preprocessing.feature_names)
        return (
            f"{len(d.X)} labelled and {len(d.Z)} unlabelled instances, {d.X.shape[1]} features ({names}); "
            f"digest of the ordered ids {d.ids_digest[:12]} (every site must show the same)"
        )

    def identity() -> str:
        name, checked = _own_name(joining)
        return f"{name}" if checked is None else f"{name}, valid until {checked.not_after:%Y-%m-%d}"

    def network() -> str:
        host, port = host_and_port(joining.coordinator)
        if not known:  # it has been said what is wrong with it, and that it stands in the way here need not be
            return f"{joining.coordinator} is not probed without an identity"
        _, checked = _own_name(joining)
        return "not probed with --insecure" if checked is None else probe_server(host, port, checked)

    def disk() -> str:
        check_output(joining.output)
        free = shutil.disk_usage(joining.output.resolve().parent).free
        return f"the model goes to {joining.output}, where {human_bytes(free)} are free"

    step("versions", versions)
    step("table", table)
    step("policy", lambda: f"accepts {read_policy(joining.policy)}")
    known = step("identity", identity)
    step("coordinator", network)
    step("output", disk)
    return code


def versions() -> str:
    """What computes and what speaks; other sites may have others, but for the release of coreg."""
    try:
        release = metadata.version("coreg-federation")
    except metadata.PackageNotFoundError:
        release = "(not installed: run from its source)"
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "grpcio"))
    return f"coreg {release}, Python {platform.python_version()}, {others}"


def describe(message: ToSite) -> str | None:
    """A line for the operator, where a message deserves one."""
    match message:
        case Plan():
            couplings = ", ".join(f"{c:g}" for c in message.coupling)
            return (
                f"plan of run {message.run}: {message.form}, {message.kernel} kernel, coupling {couplings}, "
                f"{message.schedule}, at most {message.max_rounds} rounds, sites {', '.join(message.sites)}"
            )
        case Finished():
            return message.stop.told(message.reason)
        case Ask() | _:
            return None
