"""The outgoing proxy that gRPC uses, and a tunnel through it, so that `check` takes the same way as the agent."""

import base64
import os
import socket
import time
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

from coreg_core.errors import Unreachable, UsageError
from coreg_wire.transport.fields import text

# gRPC reads these, in lower case only (grpc/doc/environment_variables.md).
VARIABLES, EXCEPTIONS = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
_LONGEST = 8192  # bytes of a proxy's answer


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy, from an environment variable."""

    variable: str
    host: str
    port: int
    credentials: str | None = None  # user:password

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port} ({self.variable})"

    def tunnel(self, plain: socket.socket, address: str) -> None:
        """Ask the proxy on this connection to connect to an address.

        Raises
        ------
        Unreachable
            the proxy refuses, or its answer is not HTTP.
        """
        lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
        if self.credentials is not None:
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(self.credentials.encode()).decode()}")
        plain.sendall("\r\n".join([*lines, "", ""]).encode("ascii", "backslashreplace"))
        answer = b""
        until = time.monotonic() + (plain.gettimeout() or 5.0)
        while b"\r\n\r\n" not in answer and len(answer) < _LONGEST and time.monotonic() < until:
            if not (more := plain.recv(1)):  # one byte: what follows the answer is TLS
                break
            answer += more
        status = text(answer.split(b"\r\n", 1)[0].decode("ascii", "replace"))
        if not (status.startswith("HTTP/1.") and status[8:11].startswith(" 2")):
            told = status[:100] or "it closed the connection"
            raise Unreachable(f"{self} does not connect to {address}: {told}. It must allow CONNECT to that port.")


def proxy_for(host: str) -> Proxy | None:
    """The proxy for a host; None for a direct connection.

    Raises
    ------
    UsageError
        the variable is not http://HOST:PORT.
    """
    # The first variable that is set decides, also if it is empty.
    variable = next((name for name in VARIABLES if name in os.environ), None)
    excepted = next((os.environ[name] for name in EXCEPTIONS if name in os.environ), "").split(",")
    if (
        variable is None
        or not os.environ[variable]
        or any(_covers(each.strip(), host) for each in excepted if each.strip())
    ):
        return None
    try:
        url = urlsplit(os.environ[variable])
        port = url.port or 443
    except ValueError:
        url, port = urlsplit(""), 0
    if url.scheme != "http" or not url.hostname:
        raise UsageError(f"the environment variable {variable} is not http://HOST:PORT.")
    name = unquote(url.netloc.rpartition("@")[0]) or None
    return Proxy(variable, url.hostname, port, name)


def _covers(exception: str, host: str) -> bool:
    """By the end of the name, or as a network of addresses."""
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:
        return host.casefold().endswith(exception.casefold())
