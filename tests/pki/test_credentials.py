"""Mutual TLS on real loopback sockets: who gets through, who does not, and what `check` prints about it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.authority.authorised import Authorised, revoke
from coordinator.authority.pki import create_authority, load_server, sign_request
from coreg_core.errors import BadData, Refused, Unreachable
from coreg_wire.identity.credentials import RenewableServer, client_credentials, is_loopback, peer_certificate
from site_agent.identity.identity import Identity, check_identity, enrol, install
from site_agent.session.grpc_mtls import check_connection

DAY = timedelta(days=1)
LONG_AGO = datetime.now(UTC) - 100 * DAY


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two authorities, and sites `a` of the first and `stranger` of the second."""
    for authority, site in (("ca", "a"), ("other-ca", "stranger")):
        create_authority(tmp_path / authority, [])
        enrol(tmp_path / site, site)
        signed = sign_request(tmp_path / authority, tmp_path / site / "site.csr")
        install(tmp_path / site, signed.certificate_path)
    return tmp_path


@contextlib.asynccontextmanager
async def serving(ca: Path, *, now: datetime | None = None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """An echo over mutual TLS on a free loopback port: answers b"NAME:" + request to those who may join."""
    allowed = Authorised(ca)

    async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            name, pem = peer_certificate(context)
            allowed.check(name, pem)
        except Refused as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return name.encode() + b":" + request

    files = load_server(ca, now=now)
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),))
    port = server.add_secure_port(
        f"{host}:0", RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem).credentials
    )
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def call(port: int, identity: Identity, host: str = "127.0.0.1") -> bytes:
    credentials = client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as channel:
        echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Echo/Echo")
        return await echo(b"hello", timeout=200)


def outcome(
    ca: Path, identity: Identity, between: Callable[[], object] = lambda: None
) -> tuple[bytes | grpc.StatusCode, str]:
    """What gRPC makes of a call (the answer or the status), and what `check` prints."""

    async def both() -> tuple[bytes | grpc.StatusCode, str]:
        async with serving(ca) as port:
            between()
            try:
                answer: bytes | grpc.StatusCode = await call(port, identity)
            except grpc.aio.AioRpcError as error:
                answer = error.code()
            try:
                words = await check_connection(f"127.0.0.1:{port}", identity)
            except Unreachable as error:
                words = str(error)
        return answer, words

    return asyncio.run(both())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_authorised_site_is_served_under_its_certificates_name(home: Path, host: str) -> None:
    async def served() -> bytes:
        async with serving(home / "ca") as port:
            return await call(port, check_identity(home / "a"), host)

    assert asyncio.run(served()) == b"a:hello"


def test_a_revoked_site_is_refused_while_the_server_runs(home: Path) -> None:
    answer, _ = outcome(home / "ca", check_identity(home / "a"), lambda: revoke(home / "ca", "a"))
    assert answer is grpc.StatusCode.PERMISSION_DENIED


def test_a_replaced_key_is_refused(home: Path) -> None:
    old, other = check_identity(home / "a"), enrol(home / "a-again", "a").request_path
    answer, _ = outcome(home / "ca", old, lambda: sign_request(home / "ca", other))
    assert answer is grpc.StatusCode.PERMISSION_DENIED


def test_a_site_does_not_speak_to_a_coordinator_of_another_authority(home: Path) -> None:
    answer, words = outcome(home / "ca", check_identity(home / "stranger"))
    assert answer is grpc.StatusCode.UNAVAILABLE
    assert "not from the authority in ca.pem" in words


def test_the_coordinator_does_not_speak_to_a_site_of_another_authority(home: Path) -> None:
    intruder = replace(check_identity(home / "stranger"), ca_pem=(home / "ca" / "ca.pem").read_bytes())
    answer, words = outcome(home / "ca", intruder)
    assert answer is grpc.StatusCode.UNAVAILABLE
    assert "rejected this site's certificate" in words


def test_a_site_without_certificate_gets_no_connection(home: Path) -> None:
    async def attempt() -> grpc.StatusCode:
        async with serving(home / "ca") as port:
            credentials = grpc.ssl_channel_credentials((home / "ca" / "ca.pem").read_bytes())
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.Echo/Echo")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await echo(b"", timeout=200)
                return caught.value.code()

    assert asyncio.run(attempt()) is grpc.StatusCode.UNAVAILABLE


def test_the_servers_own_certificate_is_no_clients(home: Path) -> None:
    files = load_server(home / "ca")
    own = home / "own"
    own.mkdir()
    (own / "site.key").write_bytes(files.key_pem)
    (own / "site.pem").write_bytes(files.certificate_pem)
    identity = Identity("own", files.key_pem, files.certificate_pem, files.ca_pem, LONG_AGO, own)
    answer, words = outcome(home / "ca", identity)
    assert answer is grpc.StatusCode.UNAVAILABLE
    assert "rejected this site's certificate" in words


def test_an_expired_site_certificate_is_rejected_by_the_server(home: Path) -> None:
    ca, late = home / "old-ca", home / "late"
    create_authority(ca, [], now=LONG_AGO)
    enrol(late, "late")
    bundle = sign_request(ca, late / "site.csr", days=1, now=LONG_AGO).certificate_path
    install(late, bundle, now=LONG_AGO)
    with pytest.raises(Refused, match=r"site\.pem expired on"):
        check_identity(late)
    answer, words = outcome(ca, check_identity(late, now=LONG_AGO))
    assert answer is grpc.StatusCode.UNAVAILABLE
    assert "rejected this site's certificate" in words


def test_an_expired_server_certificate_is_named(home: Path) -> None:
    ca = home / "old-ca"
    create_authority(ca, [], server_days=1, now=LONG_AGO)
    with pytest.raises(Refused, match=r"coordinator\.pem expired"):
        load_server(ca)
    enrol(home / "b", "b")
    identity = install(home / "b", sign_request(ca, home / "b" / "site.csr").certificate_path)

    async def attempt() -> str:
        async with serving(ca, now=LONG_AGO) as port:
            with pytest.raises(Unreachable) as caught:
                await check_connection(f"127.0.0.1:{port}", identity)
            return str(caught.value)

    assert "the server's certificate has expired" in asyncio.run(attempt())


def test_a_wrong_host_name_is_named(home: Path) -> None:
    async def attempt() -> str:
        async with serving(home / "ca", host="0.0.0.0") as port:
            with pytest.raises(Unreachable) as caught:
                await check_connection(f"127.0.0.2:{port}", check_identity(home / "a"))
            return str(caught.value)

    assert "the server's certificate is for another name" in asyncio.run(attempt())


# --- nobody there


@contextlib.contextmanager
def listener(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A listening loopback socket; each connection is handed to `answer` and then closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def checked(home: Path, address: str, timeout: float = 5.0) -> str:
    with pytest.raises(Unreachable) as caught:
        asyncio.run(check_connection(address, check_identity(home / "a"), timeout))
    return str(caught.value)


def test_a_closed_port(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert checked(home, f"127.0.0.1:{port}").startswith(f"127.0.0.1:{port}: nothing listens there. Check the port")


def test_a_name_that_does_not_resolve(home: Path) -> None:
    assert "the name does not resolve" in checked(home, "no.such.host.invalid:1")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda connection: connection.recv(1), "the server closed the connection. It is no coordinator"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak TLS"),
        (lambda connection: connection.recv(100_000) and connection.recv(1), "no answer in time"),
    ],
    ids=["closes", "plain", "silent"],
)
def test_another_service_is_unreachable(home: Path, answer: Callable[[socket.socket], object], words: str) -> None:
    with listener(answer) as port:
        assert words in checked(home, f"127.0.0.1:{port}", 1.0)


def test_a_proxy_that_refuses_is_named_with_its_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    with listener(lambda connection: connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        told = checked(home, "coordinator.example.org:7600")
    assert "the proxy refuses" in told
    assert "proxy from https_proxy" in told


# --- the peer's name, and loopback


class Context:
    def __init__(self, *pems: bytes) -> None:
        self._pems = pems

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": list(self._pems)} if self._pems else {}


def test_the_peers_name_comes_from_its_certificate_alone(home: Path) -> None:
    pem = check_identity(home / "a").certificate_pem
    assert peer_certificate(Context(pem)) == ("a", pem)
    with pytest.raises(Refused, match="not mutual TLS"):
        peer_certificate(Context())
    with pytest.raises(Refused, match="does not name a site"):
        peer_certificate(Context(load_server(home / "ca").certificate_pem))
    with pytest.raises(BadData, match="no readable PEM"):
        peer_certificate(Context(b"nonsense"))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.0.0.1:50051", "127.9.8.7:1", "localhost", "LOCALHOST:1", "::1", "[::1]", "[::1]:50051"],
)
def test_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":50051",
        "0.0.0.0:1",
        "[::]:1",
        "::",
        "10.0.0.1:1",
        "128.0.0.1",
        "127.0.0.1.example",
        "localhost.example:1",
        "[localhost]:1",
        "::ffff:10.0.0.1",
        "unix:/tmp/x",
        "127.0.0.1:1,10.0.0.1:1",
    ],
)
def test_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@given(st.ip_addresses(v=4), st.integers(0, 65535))
def test_loopback_is_127_and_nothing_else(address: object, port: int) -> None:
    assert is_loopback(f"{address}:{port}") == str(address).startswith("127.")
