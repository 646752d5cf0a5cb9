"""Mutual TLS on loopback sockets: who gets through, who does not, what `check` prints; and holes
that were found once.
"""

import ast
import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import grpc
import pytest
import typer.main

from coordinator.authority import pki
from coordinator.authority.pki import create_authority, load_server
from coordinator.cli import app as coordinator_app
from coreg_core.errors import BadData, Refused, Unreachable
from coreg_wire.identity.credentials import RenewableServer, is_loopback, peer_certificate
from site_agent.cli import app as agent_app
from site_agent.identity.enrolment import enrol, install
from site_agent.identity.identity import Identity, check_identity
from site_agent.session.stream import check_connection, explained
from tests.issued import clock, issued

DAY = timedelta(days=1)
LONG_AGO = datetime.now(UTC) - 100 * DAY


@contextlib.asynccontextmanager
async def serving(ca: Path, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server with mutual TLS on a free loopback port."""
    files = load_server(ca)
    server = grpc.aio.server()
    credentials = RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem).credentials
    port = server.add_secure_port(f"{host}:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def told(ca: Path, identity: Identity, host: str = "127.0.0.1", dialled: str = "127.0.0.1") -> str:
    """What `check` prints."""

    async def check() -> str:
        async with serving(ca, host) as port:
            with clock(None):
                return await check_connection(f"{dialled}:{port}", identity)

    try:
        return asyncio.run(check())
    except Unreachable as error:
        return str(error)


def strangers(home: Path) -> Identity:
    return check_identity(home / "stranger")


def intruders(home: Path) -> Identity:
    return replace(check_identity(home / "stranger"), ca_pem=(home / "ca" / "ca.pem").read_bytes())


def servers_own(home: Path) -> Identity:
    files = load_server(home / "ca")
    return Identity("own", files.key_pem, files.certificate_pem, files.ca_pem, LONG_AGO, home)


def expired(home: Path) -> Identity:
    shutil.rmtree(home / "ca")
    with clock(LONG_AGO):
        create_authority(home / "ca", [])
        identity = install(home / "late", issued(home / "ca", enrol(home / "late", "late"), days=1))
    with pytest.raises(Refused, match=r"site\.pem expired on \d{4}-\d\d-\d\d .*`coreg-agent join`"):
        check_identity(home / "late")
    return identity


def own(home: Path) -> Identity:
    return check_identity(home / "a")


@pytest.mark.parametrize(
    ("whose", "dialled", "said"),
    [
        (own, "127.0.0.1", "accepts this site's certificate"),
        (own, "localhost", "accepts this site's certificate"),
        (own, "127.0.0.2", "the server's certificate is for another name"),
        (strangers, "127.0.0.1", "the authority in ca.pem"),
        (intruders, "127.0.0.1", "rejected this site's certificate"),
        (servers_own, "127.0.0.1", "rejected this site's certificate"),
        (expired, "127.0.0.1", "rejected this site's certificate"),
    ],
)
def test_who_has_a_connection(
    home: Path, whose: Callable[[Path], Identity], dialled: str, said: str
) -> None:
    assert said in told(home / "ca", whose(home), "0.0.0.0", dialled)


def test_an_expired_server_certificate_is_named(home: Path) -> None:
    ca = home / "old-ca"
    with clock(LONG_AGO), mock.patch.object(pki, "DAYS", 1):
        create_authority(ca, [])
    identity = install(home / "b", issued(ca, enrol(home / "b", "b")))
    with clock(LONG_AGO):
        assert "the server's certificate has expired" in told(ca, identity)


def test_a_server_certificate_that_is_not_valid_yet_is_named(home: Path) -> None:
    ca = home / "new-ca"
    with clock(datetime.now(UTC) + timedelta(days=2)):
        create_authority(ca, [])
        identity = install(home / "c", issued(ca, enrol(home / "c", "c")))
        assert "not valid yet. Check the clocks of both machines" in told(ca, identity)


def test_no_proxy_for_all_hosts_is_explained_since_grpc_ignores_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "*")
    assert "proxy from https_proxy, since gRPC does not know the * of no_proxy: write" in explained(
        "last error: Connection refused"
    )
    monkeypatch.setenv("no_proxy", "example.org")
    assert "since gRPC" not in explained("last error: Connection refused")


def test_nothing_listens_or_the_name_does_not_resolve(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    closed = (f"127.0.0.1:{port}", f"127.0.0.1:{port}: nothing listens there. Check the port")
    for address, words in (closed, ("no.such.host.invalid:1", "the name does not resolve")):
        with pytest.raises(Unreachable, match=words):
            asyncio.run(check_connection(address, own(home), 5.0))


# --- the peer's name, and loopback


def test_the_peers_name_comes_from_its_certificate_alone(home: Path) -> None:
    def named(*pems: bytes) -> tuple[str, bytes]:
        found = {"x509_pem_cert": list(pems)} if pems else {}
        return peer_certificate(mock.Mock(auth_context=lambda: found))

    pem = own(home).certificate_pem
    assert named(pem) == ("a", pem)
    with pytest.raises(Refused, match="not mutual TLS"):
        named()
    with pytest.raises(Refused, match="does not name a site"):
        named(load_server(home / "ca").certificate_pem)
    with pytest.raises(BadData, match="no readable PEM"):
        named(b"nonsense")


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        (True, "127.0.0.1 127.0.0.1:50051 127.9.8.7:1 localhost LOCALHOST:1 ::1 [::1] [::1]:50051"),
        (
            False,
            (
                " :50051 0.0.0.0:1 [::]:1 :: 10.0.0.1:1 128.0.0.1 127.0.0.1.example"
                " localhost.example:1 [localhost]:1"
            ),
        ),
        (False, "::ffff:10.0.0.1 unix:/tmp/x 127.0.0.1:1,10.0.0.1:1"),
    ],
)
def test_loopback(expected: bool, addresses: str) -> None:
    assert [
        address for address in addresses.split(" ") if is_loopback(address) is not expected
    ] == []


# --- holes that were found once


def handshake(port: int, identity: Identity, version: ssl.TLSVersion) -> str | None:
    """The version that both ends agree on with a client that speaks that one alone."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of the old versions, which is what is tried
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


def test_the_lowest_version_of_tls_is_1_2(home: Path) -> None:
    async def tried() -> list[str | None]:
        versions = [version for version in ssl.TLSVersion if version.name.startswith("TLS")]
        async with serving(home / "ca") as port:
            return [
                await asyncio.to_thread(handshake, port, own(home), version) for version in versions
            ]

    assert asyncio.run(tried()) == [None, None, "TLSv1.2", "TLSv1.3"]


ROOT = Path(__file__).resolve().parents[2]


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

    paths = [
        path
        for name in ("coordinator", "site_agent", "proto/coreg_wire")
        for path in (ROOT / name).rglob("*.py")
    ]
    for path in paths:
        tree = ast.parse(path.read_text())
        asserts = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert) and node not in tree.body
        ]
        assert [node.lineno for node in asserts if not narrows(node.test)] == [], path


@pytest.mark.parametrize("app", [coordinator_app.app, agent_app.app])
def test_no_option_takes_a_secret_only_files_that_hold_one(app: typer.Typer) -> None:
    """Arguments of a process can be read by every user of its machine."""
    program = typer.main.get_command(app)
    commands = [program, *getattr(program, "commands", {}).values()]
    options = {
        option for command in commands for parameter in command.params for option in parameter.opts
    }
    assert "--policy" in options or "--web-token-file" in options
    secret = re.compile(r"token|passphrase|secret|password")
    assert [
        option for option in options if secret.search(option) and not option.endswith("-file")
    ] == []
