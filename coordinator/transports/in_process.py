"""Sites as functions in this process, for simulations and for tests of everything above the wire.

Sites answer at once, one after another, on the caller's thread, so that a simulation of any number of sites is deterministic.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from coordinator.machine.events import Breached, Received, SiteJoined
from coordinator.transports import Emit, Traffic
from coordinator.transports import words_of as words_of  # coreg_sim.over_ray imports it from here
from coreg_core.protocol.messages import FromSite, Hello, Leaving, Rejected, ToSite


class SiteFunction(Protocol):
    """A site: a function from a message to a list of messages."""

    def hello(self) -> Hello:
        """The first message of a session."""
        ...

    def handle(self, message: ToSite) -> Sequence[FromSite]: ...


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

    async def send(self, site: str, message: ToSite) -> None:
        """Call the site, and emit its answers as events before this returns."""
        function = self._sites.get(site)
        if function is None or self._emit is None:
            return
        self.traffic.sent += 8 * words_of(message)
        self.traffic.numbers += words_of(message)
        for answer in function.handle(message):
            self.traffic.received += 8 * words_of(answer)
            self.traffic.numbers += words_of(answer)
            self._emit(Received(site, answer))
            if isinstance(answer, Leaving):
                self._sites.pop(site, None)
        if (breach := getattr(function, "breach", None)) is not None:  # an agent would end: it sends no further answer
            self._sites.pop(site, None)
            self._emit(Breached(site, f"the site ended: the coordinator {breach}"))

    async def reject(self, site: str, reason: str) -> None:
        """Send the site the reason, and remove it."""
        function = self._sites.pop(site, None)
        if function is not None:
            function.handle(Rejected(reason))

    def expect(self, run: str, words: int) -> None:
        """Not needed: vectors are passed whole, so no memory has to be limited."""

    def forget(self, run: str) -> None:
        """Not needed: the transport has no state of a run."""

    def certificate(self, site: str) -> bytes:  # noqa: ARG002 - the transport's interface
        return b""

    async def close(self) -> None:
        self._sites.clear()
