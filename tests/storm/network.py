"""Links between agents and the coordinator: ordered, with latency and bandwidth.

They break, stall, and damage frames.
"""

import asyncio
import contextvars
import hashlib
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.authority.authorised import Authorised
from coordinator.transports import Emit
from coordinator.transports.sessions import Sessions
from coreg_core.messages import Answer, Hello, payload_size
from coreg_wire.identity.names import certificate_name, load_certificates
from coreg_wire.transport.codec import Assembler, frames_of
from site_agent.ledger.ledger import digest_of
from site_agent.session.stream import NoAnswer
from tests.storm.loop import Process, VirtualLoop

KEEPALIVE = 5.0
PACKET = 4096  # bytes
FETCHED = "Fetched"  # the first site's: the others have not fetched their models yet
NOTICED = 3 * KEEPALIVE  # seconds after which pings end a silent connection
_NOBODY = contextvars.Context()  # frames under way belong to no process
# Messages, or frames, in place of a message.
Lie: TypeAlias = Callable[[Any], Iterable[Any]]


class Lane:
    """One direction of a connection."""

    def __init__(self, loop: VirtualLoop, latency: float, bandwidth: float):
        self._loop = loop
        self._latency = latency
        self._bandwidth = bandwidth
        self._arrived: asyncio.Queue[bytes | ConnectionError | None] = asyncio.Queue()
        self._last = 0.0
        self.broken = False
        self.damage: Callable[[bytes], bytes] | None = None  # of the next frame

    def send(self, frame: bytes | None) -> None:
        if self.broken:
            raise ConnectionError("the connection is broken")
        if frame is not None and self.damage is not None:
            frame = self.damage(frame)
            self.damage = None
        # Whole packets: signatures differ by a byte or two from one life of a seed to the next, and
        # times must not.
        packets = 1 if frame is None else len(frame) // PACKET + 1
        self._last = max(self._last, self._loop.time()) + PACKET * packets / self._bandwidth
        self._loop.call_at(self._last + self._latency, self._arrive, frame, context=_NOBODY)

    def _arrive(self, frame: bytes | None) -> None:
        if not self.broken:
            self._arrived.put_nowait(frame)

    def stall(self, seconds: float) -> None:
        self._last = max(self._last, self._loop.time()) + seconds

    def break_off(self) -> None:
        if not self.broken:
            self.broken = True
            self._arrived.put_nowait(ConnectionError("the connection broke"))

    async def receive(self) -> bytes | None:
        found = await self._arrived.get()
        if isinstance(found, ConnectionError):
            self._arrived.put_nowait(found)  # for every later read too
            raise found
        return found


class Link:
    """A connection of a site: both lanes.

    It is the agent's `Connection`; `CoordinatorEnd` is the other end.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        site: str,
        chance: random.Random,
        network: "Network",
        certificate: bytes,
    ):
        self.site = site
        self._network = network
        self.certificate = certificate
        latency = 10 ** chance.uniform(-4, -0.5)
        bandwidth = 10 ** chance.uniform(5, 8)
        self.up = Lane(loop, latency, bandwidth)
        self.down = Lane(loop, latency, bandwidth)
        self._assembler = Assembler()  # a second one, which reads what leaves the site
        self._hears = Assembler()  # and one that reads what it hears
        for run in network.runs:
            self._assembler.expect(run, 1 << 30)
            self._hears.expect(run, 1 << 30)

    def break_off(self) -> None:
        self.up.break_off()
        self.down.break_off()

    async def read(self) -> bytes | None:
        return await self.down.receive()

    async def write(self, frame: bytes) -> None:
        message = self._assembler.feed_site(frame)
        self._pass(self.up, self._network.liars.get(self.site), frame, message)
        self._network.left(self.site, message)

    def tell(self, frame: bytes) -> None:
        """A frame of the coordinator to the site."""
        message = self._hears.feed_coordinator(frame)
        self._pass(self.down, self._network.lied_to.get(self.site), frame, message)

    def _pass(self, lane: Lane, lie: "Lie | None", frame: bytes, message: Any) -> None:
        """The frame, or in place of a whole message what a lie makes of it."""
        if lie is None:
            lane.send(frame)
        elif message is not None:
            for said in lie(message):
                for each in [said] if isinstance(said, bytes) else frames_of(said):
                    lane.send(each)

    async def finish(self) -> None:
        self.up.send(None)


class CoordinatorEnd:
    """The coordinator's `FrameStream` of a link."""

    def __init__(self, link: Link):
        self._link = link
        self.address = f"{link.site}:1"

    async def frames(self) -> AsyncIterator[bytes]:
        while (frame := await self._link.up.receive()) is not None:
            yield frame

    async def write(self, frame: bytes) -> None:
        self._link.tell(frame)

    def peer(self) -> tuple[str, bytes]:
        pem = self._link.certificate
        return certificate_name(load_certificates(pem, "The peer's certificate")[0]), pem


class Network:
    """All links, the coordinator's listener, and what left each site."""

    def __init__(self, loop: VirtualLoop, chance: random.Random):
        self.loop = loop
        self._chance = chance
        self.server: Server | None = None
        self.host: Process | None = None  # the process of the listener
        self.links: dict[str, list[Link]] = {}
        self.cut_off: set[str] = set()  # sites without a network
        self.runs: set[str] = set()
        self.liars: dict[str, Lie] = {}  # what members say in place of their messages
        self.lied_to: dict[
            str, Lie
        ] = {}  # what a site hears in place of the coordinator's messages
        self.armed: list[
            tuple[str, str, Callable[[], None]]
        ] = []  # (site, name of a message, what happens when it leaves)
        self.answers: dict[
            tuple[str, str, int, int], str
        ] = {}  # digest of the words of (site, run, attempt, step)
        self.over: set[str] = set()  # runs of which an agent has heard a good end
        self.twice: list[
            str
        ] = []  # answers that left with other words than before, or after the run's end
        self.trace = hashlib.sha256()

    def left(self, site: str, message: object) -> None:
        """A whole message left a site."""
        if message is None:
            return
        name = type(message).__name__
        self.trace.update(f"{self.loop.time():.6f} {site} {name}\n".encode())
        for armed in [
            each
            for each in self.armed
            if each[1] == name and (name == FETCHED or each[0] in (site, "coordinator"))
        ]:
            self.armed.remove(armed)
            self.loop.call_soon(armed[2], context=_NOBODY)
        if isinstance(message, Answer) and message.run in self.over:
            self.twice.append(f"{site} answered step {message.step} of {message.run} after its end")
        if isinstance(message, Answer) and payload_size(message):
            key = (site, message.run, message.attempt, message.step)
            digest = digest_of(message)[1]
            if self.answers.setdefault(key, digest) != digest:
                self.twice.append(
                    f"{site} answered step {message.step} of {message.run} twice, with other words"
                )

    def open(self, site: str, certificate: bytes) -> Link:
        if self.server is None or self.host is None or self.host.dead or site in self.cut_off:
            raise NoAnswer("nothing answers")
        link = Link(self.loop, site, self._chance, self, certificate)
        self.links.setdefault(site, []).append(link)
        self.host.start(self.loop, self._serve(self.server, link))
        return link

    async def _serve(self, server: "Server", link: Link) -> None:
        await server.serve(CoordinatorEnd(link))
        try:
            link.down.send(None)
        except ConnectionError:
            return

    async def stranger(self, hello: Hello, certificate: bytes, seconds: float) -> None:
        """A peer that says hello and listens for a while: a second agent of a site, another site,
        or another release.
        """
        with suppress(NoAnswer, ConnectionError, TimeoutError):
            link = self.open(hello.site, certificate)
            try:
                for frame in frames_of(hello):
                    link.up.send(frame)
                async with asyncio.timeout(seconds):
                    while await link.read() is not None:
                        pass
            finally:
                link.break_off()

    def break_links(self, site: str | None = None) -> None:
        """Break the connections of a site, or all."""
        for name in [site] if site is not None else list(self.links):
            for link in self.links.pop(name, []):
                link.break_off()

    def damage(self, site: str, *, lie: bool) -> None:
        """The next frame of a site, or the next one to it, is noise; or (``lie``) one of its bits
        is another.
        """
        for link in self.links.get(site, []):
            line = self._chance.choice((link.up, link.down))
            line.damage = self._noise
            if lie:
                line.damage = self._flipped

    def _noise(self, _frame: bytes) -> bytes:
        return self._chance.randbytes(self._chance.randint(1, 200))

    def _flipped(self, frame: bytes) -> bytes:
        at = self._chance.randrange(8 * len(frame))
        return frame[: at // 8] + bytes([frame[at // 8] ^ 1 << at % 8]) + frame[at // 8 + 1 :]

    def stall(self, site: str, seconds: float) -> None:
        """Nothing passes for a while; pings end a connection that is silent for too long."""
        for link in self.links.get(site, []):
            link.up.stall(seconds)
            link.down.stall(seconds)
            if seconds > NOTICED:
                self.loop.call_later(NOTICED, link.break_off, context=_NOBODY)


class SimulatedDialler:
    """The agent's dialler."""

    address = "coordinator:7600"

    def __init__(self, network: Network, site: str, certificate: Callable[[], bytes]):
        self._network = network
        self._site = site
        self._certificate = certificate

    @asynccontextmanager
    async def connect(self, timeout: float) -> Any:
        await asyncio.sleep(min(0.05, timeout))
        yield self._network.open(self._site, self._certificate())


class Server(Sessions):
    """The coordinator's transport."""

    port = 7600

    def __init__(self, network: Network, host: Process, authority: Path):
        super().__init__(Authorised(authority).check, idle=4 * KEEPALIVE)
        self._network = network
        self._host = host

    async def start(self, emit: Emit) -> None:
        self.emit = emit
        self._network.server = self
        self._network.host = self._host

    async def close(self) -> None:
        self._network.server = None
        await super().close()
