"""Wake a process on this machine: a command that changed its files rings, and the process reads them at once.

The process listens on a UDP port of the loopback interface and writes the port to a file. A ring carries no data, so a stray
one is harmless. A lost one only delays, since the process reads the files every few seconds.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from coreg_wire.files.files import write_whole

LOOPBACK = "127.0.0.1"


class WakeUp(asyncio.DatagramProtocol):
    """Calls a function, on the event loop, whenever a process rings one of these files, in existing folders."""

    def __init__(self, files: Iterable[Path], on_ring: Callable[[], None]):
        self._files, self._on_ring = tuple(files), on_ring
        self._transport: asyncio.DatagramTransport | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(LOOPBACK, 0))
        port = self._transport.get_extra_info("sockname")[1]
        for file in self._files:
            await asyncio.to_thread(write_whole, file, f"{port}\n".encode(), mode=0o600)

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002
        self._on_ring()

    def close(self) -> None:
        for file in self._files:
            file.unlink(missing_ok=True)
        if self._transport is not None:
            self._transport.close()


def ring(file: Path) -> None:
    """Wake the process that wrote its port to this file; no effect if there is none."""
    with (
        contextlib.suppress(OSError, ValueError, OverflowError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell,
    ):
        bell.sendto(b"", (LOOPBACK, int(file.read_text(encoding="ascii"))))
