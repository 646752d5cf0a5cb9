"""Checks whether an address is free before gRPC binds it, since gRPC prints its own errors on standard error."""

import errno
import socket

from coreg_core.errors import UsageError


def check_free(listen: str) -> None:
    """Return if a listener can bind ``HOST:PORT``. Other forms are left to gRPC."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) == 0:
        return
    if ":" in host and not host.startswith("["):
        raise UsageError(f"cannot listen on {listen}: write an IPv6 address in brackets, as in [{host}]:{port}.")
    if int(port) > 65535:
        raise UsageError(f"cannot listen on {listen}: a port is at most 65535.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC: a closed port is free at once
            tried.bind(address)
            tried.listen()
    except OSError as error:
        raise UsageError(f"cannot listen on {listen}: {why_not(error, port, '--listen')}") from None


def why_not(error: OSError, port: str, option: str) -> str:
    """Why an address is not available, and what to do; ``option`` is the option that sets it."""
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"another program listens on port {port}; is another of ours running? End it, or give another address with "
                f"{option} (`ss -ltnp 'sport = :{port}'` names it)."
            )
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; 0.0.0.0 stands for all of its addresses."
        case errno.EACCES:
            return "ports below 1024 need root; choose a higher port."
        case _:
            return f"{error.strerror or error}."
