"""The metrics of a process for Prometheus, on loopback only."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server

from coreg_core.errors import UsageError
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.transport.service import why_not


def listen(address: str, registry: CollectorRegistry) -> Callable[[], None]:
    """Serve /metrics in a thread; the returned function ends it."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--metrics {address}: expected HOST:PORT, as in 127.0.0.1:7602.")
    if not is_loopback(address):
        raise UsageError(f"--metrics {address}: on a loopback address only; let a scraper on this machine read it.")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise UsageError(f"--metrics {address}: cannot listen there: {why_not(error, port, '--metrics')}") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
