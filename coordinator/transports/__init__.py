"""Transports: messages between the coordinator and its sites. The state machine interprets them.

One contract suite (tests/contract) runs on every transport. Each delivers a site's messages in the order of sending, emits
`SiteJoined` before any other event of a site, and never emits an event of a replaced session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from coordinator.machine.events import Event
from coreg_core.protocol.messages import Answer, Step, ToSite


class Emit(Protocol):
    """Queues an event; ``handled`` is called when the coordinator has handled it."""

    def __call__(self, event: Event, handled: Callable[[], None] | None = None) -> None: ...


@dataclass
class Traffic:
    """Bytes sent to the sites and received from them since the start.

    ``numbers`` counts the words in both directions, in a simulation only.
    """

    sent: int = 0
    received: int = 0
    numbers: int = 0


def words_of(message: object) -> int:
    """The number of words of a message; each has eight bytes on the wire."""
    carried = message.words if isinstance(message, Answer | Step) else None
    return 0 if carried is None else len(carried.values)


class Transport(Protocol):
    """The interface that the driver needs."""

    traffic: Traffic

    async def start(self, emit: Emit) -> None:
        """Accept sites; from now on every event goes to ``emit``."""
        ...

    async def send(self, site: str, message: ToSite) -> None:
        """Queue a message for a site. A site without a session is not an error."""
        ...

    async def reject(self, site: str, reason: str) -> None:
        """Send the reason, then close the session."""
        ...

    def expect(self, run: str, words: int) -> None:
        """From now on, accept answers of the run with at most ``words`` words. Before it, none is accepted."""
        ...

    def forget(self, run: str) -> None:
        """The run is over: reject its words."""
        ...

    def certificate(self, site: str) -> bytes:
        """The certificate (PEM) of the site's last session; empty without TLS."""
        ...

    async def close(self) -> None:
        """Deliver queued messages within a short timeout, and close all sessions."""
        ...
