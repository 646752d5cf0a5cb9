"""Small holes that were found once: TLS versions, file modes, checks that `-O` takes away, secrets where others can read them."""

import ast
import asyncio
import os
import socket
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import grpc
import pytest
import typer.main

from coordinator.authority.pki import create_authority, load_server, sign_request
from coordinator.cli import app as coordinator_app
from coreg_wire.identity.credentials import RenewableServer
from site_agent.cli import app as agent_app
from site_agent.identity.identity import Identity, check_identity, enrol, install

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_authority(tmp_path / "ca", [])
    enrol(tmp_path / "a", "a")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    return tmp_path


def handshake(port: int, identity: Identity, version: ssl.TLSVersion) -> str | None:
    """The version that both ends agree on with a client that speaks that one alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old versions, which is what is tried
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")  # this client's own refusal would prove nothing
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(identity.directory / "site.pem", identity.directory / "site.key")
    with socket.create_connection(("127.0.0.1", port), timeout=200) as raw:
        try:
            with context.wrap_socket(raw) as channel:
                return channel.version()
        except (ssl.SSLError, ConnectionError):
            return None


@pytest.mark.parametrize(
    ("version", "agreed"),
    [("TLSv1", None), ("TLSv1_1", None), ("TLSv1_2", "TLSv1.2"), ("TLSv1_3", "TLSv1.3")],
)
def test_the_lowest_version_of_tls_is_1_2(home: Path, version: str, agreed: str | None) -> None:
    async def tried() -> str | None:
        files = load_server(home / "ca")
        server = grpc.aio.server()
        credentials = RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem).credentials
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            return await asyncio.to_thread(handshake, port, check_identity(home / "a"), ssl.TLSVersion[version])
        finally:
            await server.stop(None)

    assert asyncio.run(tried()) == agreed


def test_a_new_federation_toml_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        with pytest.raises(SystemExit) as end:
            typer.main.get_command(coordinator_app.app)(["init", "co"])
    finally:
        os.umask(before)
    assert end.value.code == 0
    assert [
        path for path in (tmp_path / "co").iterdir() if path.suffix == ".toml" and path.stat().st_mode & 0o077
    ] == []


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("coordinator", "site_agent", "proto/coreg_wire"):
        for path in (ROOT / package).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def test_an_assert_tells_a_type_and_guards_nothing() -> None:
    """`python -O` takes asserts away: whatever else they checked would not be checked any more."""

    def narrows(test: ast.expr) -> bool:
        match test:
            case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
                return True
            case ast.Call(func=ast.Name(id="isinstance")):
                return True
            case ast.BoolOp(values=values):
                return all(map(narrows, values))
            case _:
                return False

    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and node not in tree.body and not narrows(node.test)
    ]
    assert found == []


@pytest.mark.parametrize("app", [coordinator_app.app, agent_app.app])
def test_no_option_takes_a_secret_only_files_that_hold_one(app: typer.Typer) -> None:
    """Arguments of a process can be read by every user of its machine."""

    def options(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)

    secret = [
        option
        for option in options(typer.main.get_command(app))
        if any(word in option for word in ("token", "passphrase", "secret", "password"))
        and not option.endswith("-file")
    ]
    assert secret == []
