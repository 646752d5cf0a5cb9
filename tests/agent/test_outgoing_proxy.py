"""The proxy that `check` uses: chosen as gRPC chooses it, and what it is asked and answers."""

import base64
import socket

import pytest

from coreg_core.errors import Unreachable, UsageError
from site_agent.session import diagnose
from site_agent.session.outgoing_proxy import EXCEPTIONS, VARIABLES, Proxy, proxy_for


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in (*VARIABLES, *EXCEPTIONS):
        monkeypatch.delenv(name, raising=False)


def test_the_variables_of_grpc_in_its_order_and_their_exceptions(monkeypatch):
    assert proxy_for("coordinator.example.org") is None
    monkeypatch.setenv("http_proxy", "http://last.example.org")
    monkeypatch.setenv("https_proxy", "http://ann:s%40fe@proxy.example.org:3128/")
    found = proxy_for("coordinator.example.org")
    assert found == Proxy("https_proxy", "proxy.example.org", 3128, "ann:s@fe")
    assert "s@fe" not in str(found), "a password is in no message"
    monkeypatch.setenv("grpc_proxy", "http://first.example.org:1")
    assert str(proxy_for("coordinator.example.org")) == "the proxy first.example.org:1 (grpc_proxy)"
    monkeypatch.setenv("no_proxy", "localhost, .example.org,10.1.0.0/16")
    assert proxy_for("Coordinator.Example.org") is proxy_for("10.1.2.3") is proxy_for("localhost") is None
    assert proxy_for("10.2.2.3") is not None
    monkeypatch.setenv("no_grpc_proxy", "elsewhere")
    assert proxy_for("coordinator.example.org") is not None, "it goes before no_proxy"


def test_an_empty_variable_counts_as_set_and_a_name_needs_no_password(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://ann@proxy.example.org")
    assert proxy_for("x.org") == Proxy("https_proxy", "proxy.example.org", 443, "ann"), "443, as gRPC dials it"
    monkeypatch.setenv("no_grpc_proxy", "")
    monkeypatch.setenv("no_proxy", "x.org")
    assert proxy_for("x.org") is not None
    monkeypatch.setenv("grpc_proxy", "")
    assert proxy_for("x.org") is None


@pytest.mark.parametrize("value", ["proxy.example.org:3128", "socks5://proxy:1", "http://", "http://proxy:port"])
def test_a_variable_that_is_no_proxy(monkeypatch, value):
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(UsageError, match="https_proxy is not http://HOST:PORT"):
        proxy_for("coordinator.example.org")


def asked(answer, credentials=None):
    """What a proxy with this answer was asked, and what came after the answer."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        Proxy("https_proxy", "proxy", 3128, credentials).tunnel(ours, "coordinator.example.org:7600")
        return theirs.recv(4096).decode(), ours.recv(100)


def test_a_tunnel_is_asked_for_and_what_follows_is_left_to_tls():
    request, rest = asked(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n\x16\x03", "ann:s@fe")
    first, *fields = request.split("\r\n")
    assert first == "CONNECT coordinator.example.org:7600 HTTP/1.1"
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'ann:s@fe').decode()}" in fields
    assert rest == b"\x16\x03"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "HTTP/1.1 403 Forbidden. It must allow CONNECT"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "407"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0"),
        (b"HTTP/1.1 500 \x1b[2J\r\n\r\n", "HTTP/1.1 500  [2J"),
        (b"", "it closed the connection"),
        (b"HTTP/1.1 500 " + b"x" * 20_000, "500"),
    ],
)
def test_a_refusal_names_the_proxy_and_its_answer(answer, told):
    with pytest.raises(Unreachable, match=r"the proxy proxy:3128 \(https_proxy\) does not connect to .*:7600") as error:
        asked(answer)
    assert told in str(error.value)
    assert len(str(error.value)) < 300


def test_a_proxy_that_is_not_there_or_silent_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=rf"the proxy 127.0.0.1:{port} \(https_proxy\) does not answer"):
            diagnose._connect("coordinator.example.org", 7600, diagnose.time.monotonic() + 0.3)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"the proxy 127.0.0.1:1 \(https_proxy\): nothing listens on 127.0.0.1:1"):
        diagnose._connect("coordinator.example.org", 7600, diagnose.time.monotonic() + 1.0)
