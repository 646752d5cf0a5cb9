"""The service: its options, addresses and release."""

import errno
import socket
from functools import cache
from importlib import metadata

from coreg_core.errors import UsageError

# The size of a piece, or of a message with many names (a plan, a roster). gRPC refuses larger
# frames before they are parsed.
MAX_FRAME_BYTES = 5 << 18

SERVICE = "coreg.v1.Federation"
JOIN = "Join"
JOIN_PATH = f"/{SERVICE}/{JOIN}"
IDLE_SECONDS = 60.0


def channel_options(idle_seconds: float = IDLE_SECONDS) -> list[tuple[str, int]]:
    """Options of both ends: frame limits, and a stream that is lost after ``idle_seconds`` without
    a byte (a ping at a third).
    """
    ping = int(1000 * idle_seconds / 3)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", 2 * ping),
        ("grpc.http2.ping_timeout_ms", 2 * ping),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", ping // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", ping // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def host_port(address: str, option: str) -> tuple[str, int]:
    """HOST, without brackets, and PORT of an address to listen on; ``option`` sets it."""
    host, _, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 65536
    brackets = {
        host.startswith("["),
        host.endswith("]"),
        ":" in host,
    }  # of an IPv6 address, and of no other
    if not host.strip("[]") or number > 65535 or len(brackets) > 1:
        raise UsageError(
            f"{option} {address}: expected HOST:PORT, as in 127.0.0.1:7600 or [::1]:7600."
        )
    return host.strip("[]"), number


def listening(address: str, option: str) -> socket.socket:
    """A listening socket; ``option`` sets its address."""
    host, port = host_port(address, option)
    try:
        [family, *_], *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # as gRPC binds
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except (UnicodeError, TypeError) as error:
        raise UsageError(f"{option} {address}: no host name ({error}).") from None
    except OSError as error:
        raise UsageError(
            f"{option} {address}: cannot listen there: {why_not(error, port, option)}"
        ) from None


def check_free(listen: str) -> None:
    """Return if a listener can bind it. gRPC itself reads port 99999 as 34463, and a missing port
    as 443.
    """
    listening(listen, "--listen").close()


def why_not(error: OSError, port: int | str, option: str) -> str:
    """Why an address is not available, and what to do; ``option`` is the option that sets it."""
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"another program listens on port {port}. End it, or give another address with"
                f" {option} (`ss -ltnp 'sport = :{port}'` names it)."
            )
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; 0.0.0.0 stands for all of its addresses."
        case errno.EACCES:
            return "ports below 1024 need root; choose a higher port."
        case _:
            return f"{error.strerror or error}."


@cache
def release() -> str:
    """The distribution's version; empty if coreg runs from source and is not installed."""
    try:
        return metadata.version("coreg-federation")
    except metadata.PackageNotFoundError:
        return ""
