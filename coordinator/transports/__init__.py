"""Transports: messages between the coordinator and its sites. The state machine interprets them.

One contract suite (tests/contract) runs on every transport. Each delivers a site's messages in the
order of sending, emits `SiteJoined` before any other event of a site, and never emits an event of a
replaced session.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.machine.events import Event, Received, SiteJoined
from coreg_core.messages import (
    Answer,
    FromSite,
    Hello,
    Leaving,
    Rejected,
    Step,
    ToSite,
    payload_size,
)


class Emit(Protocol):
    """Queues an event; ``handled`` is called when the coordinator has handled it."""

    def __call__(self, event: Event, handled: Callable[[], None] | None = None) -> None: ...


@dataclass
class Traffic:
    """Bytes sent to the sites and received since the start."""

    sent: int = 0
    received: int = 0


def bytes_of(message: object) -> int:
    """The size of a message's payload in whole words of eight bytes."""
    if isinstance(message, Answer | Step):
        return -(-payload_size(message) // 8) * 8
    return 0


class Transport(Protocol):
    """The interface that the driver needs.

    A simulation passes vectors whole, keeps nothing of a run, and has no certificates: it inherits
    `expect`, `forget` and `certificate`.
    """

    traffic: Traffic

    async def start(self, emit: Emit) -> None:
        """Accept sites; from now on every event goes to ``emit``."""

    async def send(self, site: str, message: ToSite) -> None:
        """Queue a message for a site. A site without a session is not an error."""

    async def reject(self, site: str, reason: str) -> None:
        """Send the reason, then close the session."""

    def expect(self, run: str, room: int) -> None:  # noqa: ARG002 - of the interface
        """From now on, accept answers of the run with at most ``room`` bytes; before, none."""
        return

    def forget(self, run: str) -> None:  # noqa: ARG002 - of the interface
        """The run is over: reject its words."""
        return

    def certificate(self, site: str) -> bytes:  # noqa: ARG002 - of the interface
        """The certificate (PEM) of the site's last session."""
        return b""

    async def close(self) -> None:
        """Deliver queued messages within a short timeout, and close all sessions."""


class SiteFunction(Protocol):
    """A site: a function from a message to a list of messages."""

    def hello(self) -> Hello:
        """The first message of a session."""

    def handle(self, message: ToSite) -> Sequence[FromSite]: ...


class InProcess(Transport):
    """Sites as functions in this process, which answer at once and in order, so that a simulation
    is deterministic.
    """

    def __init__(self, sites: Mapping[str, SiteFunction]):
        self.traffic = Traffic()
        self._sites = dict(sites)
        self._emit: Emit | None = None

    async def start(self, emit: Emit) -> None:
        self._emit = emit
        for site in self._sites.values():
            emit(SiteJoined(site.hello()))

    async def send(self, site: str, message: ToSite) -> None:
        """Call the site, and emit its answers as events before this returns."""
        function = self._sites.get(site)
        if function is None or self._emit is None:
            return
        self.traffic.sent += bytes_of(message)
        for answer in function.handle(message):
            self.traffic.received += bytes_of(answer)
            self._emit(Received(site, answer))
            if isinstance(answer, Leaving):
                self._sites.pop(site, None)

    async def reject(self, site: str, reason: str) -> None:
        """Send the site the reason, and remove it."""
        function = self._sites.pop(site, None)
        if function is not None:
            function.handle(Rejected(reason))

    async def close(self) -> None:
        self._sites.clear()
