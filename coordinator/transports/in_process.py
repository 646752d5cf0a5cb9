"""Sites in this very process: functions that are called. For simulations and for tests of everything above the wire.

Sites answer at once, one after another, on the caller's thread, so a simulation of a hundred sites is as deterministic
as one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from coordinator.machine.events import Flow, Received, SiteJoined
from coordinator.transports import Emit, Traffic
from coreg_core.protocol.messages import (
    Ask,
    Finished,
    FromSite,
    Hello,
    Inquiry,
    Leaving,
    Masked,
    Prediction,
    Rejected,
    Share,
    ToSite,
)
from coreg_core.protocol.vectors import Vector, Words


class SiteFunction(Protocol):
    """A site: a function from a message to a list of messages."""

    def hello(self) -> Hello:
        """The first message of a session."""
        ...

    def handle(self, message: ToSite) -> Sequence[FromSite]: ...


def vector_bytes(message: FromSite | ToSite) -> int:
    """Bytes of the numbers in a message, as they would take them on the wire: what a simulation counts."""
    vector, scalars = _carried(message)
    return 8 * scalars + (0 if vector is None else vector.wire_bytes)


def vector_numbers(message: FromSite | ToSite) -> int:
    vector, scalars = _carried(message)
    return scalars + (0 if vector is None else vector.values.size)


def _carried(message: FromSite | ToSite) -> tuple[Vector | Words | None, int]:
    match message:
        case Prediction(values=vector) | Ask(targets=vector) | Finished(targets=vector):
            return vector, 0
        case Share(values=vector, scalars=scalars) | Inquiry(targets=vector, scalars=scalars):
            return vector, len(scalars)
        case Masked(words=words):
            return words, 0
        case _:
            return None, 0


class InProcess:
    """The transport; sites join in the order given."""

    def __init__(self, sites: Mapping[str, SiteFunction]):
        self.traffic = Traffic()
        self._sites = dict(sites)
        self._emit: Emit | None = None

    async def start(self, emit: Emit) -> None:
        self._emit = emit
        for site in self._sites.values():
            emit(SiteJoined(site.hello()))

    async def send(self, site: str, message: ToSite, after: "asyncio.Future[None] | None" = None) -> None:
        """The site answers before this returns; its answers are events."""
        if after is not None:
            await after
        function = self._sites.get(site)
        if function is None or self._emit is None:
            return
        self.traffic.sent += vector_bytes(message)
        self.traffic.numbers += vector_numbers(message)
        for answer in function.handle(message):
            self.traffic.received += vector_bytes(answer)
            self.traffic.numbers += vector_numbers(answer)
            self._emit(Received(site, answer))
            if isinstance(answer, Leaving):
                self._sites.pop(site, None)

    async def reject(self, site: str, reason: str) -> None:
        """The site hears why, and is gone."""
        function = self._sites.pop(site, None)
        if function is not None:
            function.handle(Rejected(reason))

    def expect(self, run: str, rows: int, columns: int) -> None:
        """Vectors are handed over whole: there is no memory to guard."""

    def forget(self, run: str) -> None:
        """Nothing was kept of it."""

    def flows(self, run: str) -> Mapping[str, Flow]:  # noqa: ARG002 - the transport's face
        """Nothing is ever on its way."""
        return {}

    def certificate(self, site: str) -> bytes:  # noqa: ARG002
        return b""

    async def close(self) -> None:
        self._sites.clear()
