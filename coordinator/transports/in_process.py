"""Sites in this very process: functions that are called. For simulations and for tests of everything above the wire.

Sites answer at once, one after another, on the caller's thread, so a simulation of a hundred sites is as deterministic
as one. Knows nothing of how a site computes: a site is whatever has `hello` and `handle`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from coordinator.events import Flow, Received, SiteJoined
from coordinator.transports import Emit, Traffic
from coreg_core.messages import (
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


class SiteFunction(Protocol):
    """A site: a function from a message to a list of messages."""

    def hello(self) -> Hello:
        """The first message of a session."""
        ...

    def handle(self, message: ToSite) -> Sequence[FromSite]:
        """The answers to one message."""
        ...


def vector_bytes(message: FromSite | ToSite) -> int:
    """Bytes of the numbers in a message: what a simulation counts, where nothing is serialised."""
    match message:
        case Prediction(values=vector) | Ask(targets=vector):
            return vector.values.nbytes
        case Share(values=values, scalars=scalars) | Inquiry(targets=values, scalars=scalars):
            return 8 * len(scalars) + (0 if values is None else values.values.nbytes)
        case Masked(words=words):
            return words.values.nbytes
        case Finished(targets=targets):
            return 0 if targets is None else targets.values.nbytes
        case _:
            return 0


class InProcess:
    """The transport; sites join in the order given."""

    def __init__(self, sites: Mapping[str, SiteFunction]):
        self.traffic = Traffic()
        self._sites = dict(sites)
        self._emit: Emit | None = None

    async def start(self, emit: Emit) -> None:
        """Every site joins at once."""
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
        for answer in function.handle(message):
            self.traffic.received += vector_bytes(answer)
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

    async def close(self) -> None:
        """Nothing is queued."""
        self._sites.clear()
