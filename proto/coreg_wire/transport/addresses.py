"""Whether an address can be listened on, asked before gRPC is, which tells it in lines of C++ on standard error."""

import errno
import socket

from coreg_core.errors import UsageError


def check_free(listen: str) -> None:
    """Return where a listener can have ``HOST:PORT``; another form than that is left to gRPC to judge.

    Raises
    ------
    UsageError
        another program listens there, the host is not this machine's, or the port is not for everybody.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) == 0:
        return
    if int(port) > 65535:
        raise UsageError(f"cannot listen on {listen}: a port is at most 65535.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as tried:
            tried.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as gRPC does: a closed port may be had again at once
            tried.bind(address)
            tried.listen()
    except OSError as error:
        raise UsageError(f"cannot listen on {listen}: {why_not(error, port, '--listen')}") from None


def why_not(error: OSError, port: str, option: str) -> str:
    """Why an address cannot be listened on, and what to do; ``option`` gives another one."""
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"another program listens on port {port}; is another of ours running? End it, or give another address with "
                f"{option} (`ss -ltnp 'sport = :{port}'` names it)."
            )
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; 0.0.0.0 means all that it has."
        case errno.EACCES:
            return "ports below 1024 are for root; take one above."
        case _:
            return f"{error.strerror or error}."
