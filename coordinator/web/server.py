"""Serves the pages on a socket: in a thread of the coordinator, or in a separate process."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import uvicorn

from coordinator.web.pages import pages
from coreg_core.errors import UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.transport.addresses import why_not


def bound(address: str, token: str | None, option: str = "--web") -> socket.socket:
    """A listening socket; ``option`` names the option of the address in errors."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {address}: expected HOST:PORT, as in 127.0.0.1:7601.")
    if not is_loopback(address) and not token:
        raise UsageError(
            f"{option} {address} can be reached from elsewhere: set a token (--web-token-file), and put TLS before it."
        )
    try:
        return socket.create_server((host.strip("[]"), int(port)))
    except OSError as error:
        raise UsageError(f"{option} {address}: cannot listen there: {why_not(error, port, option)}") from None


def server_of(store: Path, token: str | None) -> uvicorn.Server:
    """A configured server."""
    configuration = uvicorn.Config(
        pages(store, token), log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    return uvicorn.Server(configuration)


def show(address: str, store: Path, token: str | None) -> Callable[[], None]:
    """Serve the pages in a thread; the returned function ends it."""
    listening = bound(address, token)
    server = server_of(store, token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="web", daemon=True)
    thread.start()

    def end() -> None:
        server.should_exit = True
        thread.join(5.0)
        listening.close()

    return end
