"""A transport carries messages between the coordinator and its sites; what they mean is the machine's business.

One contract suite (tests/contract) runs on every transport. Each delivers a site's messages in the order in which they
were sent, emits `SiteJoined` before anything else of a site, and never emits an event of a session that was replaced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from coordinator.machine.events import Event, Flow
from coreg_core.protocol.messages import ToSite


class Emit(Protocol):
    """Takes an event; ``handled`` is called once the coordinator has handled it."""

    def __call__(self, event: Event, handled: Callable[[], None] | None = None) -> None: ...


@dataclass
class Traffic:
    """Bytes since the start, as the coordinator sees them: to the sites and from them.

    ``numbers`` are those that crossed either way, where the sites are simulated.
    """

    sent: int = 0
    received: int = 0
    numbers: int = 0


class Transport(Protocol):
    """What the driver needs, and nothing else."""

    traffic: Traffic

    async def start(self, emit: Emit) -> None:
        """Let sites in; from here on every event goes to ``emit``."""
        ...

    async def send(self, site: str, message: ToSite) -> None:
        """Queue a message for a site; a site that is gone meanwhile is no error."""
        ...

    async def reject(self, site: str, reason: str) -> None:
        """Say why, then close the session."""
        ...

    def expect(self, run: str, words: int) -> None:
        """Answers of that run may have so many words from here on; before it, none is taken."""
        ...

    def forget(self, run: str) -> None:
        """The run is over: no words of it are taken any more."""
        ...

    def flows(self, run: str) -> Mapping[str, Flow]:
        """The latest words of that run on each link, as far as they have come; only of sites that are here."""
        ...

    def certificate(self, site: str) -> bytes:
        """The certificate (PEM) of the site's last session; empty without TLS."""
        ...

    async def close(self) -> None:
        """Deliver what is queued, within a moment, and let everybody go."""
        ...
