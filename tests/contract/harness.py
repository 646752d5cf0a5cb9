"""The same sites in process and over mutual TLS on loopback; and sessions over streams in memory.

`wire(sites)` gives a `Transport` whose `start` also brings the sites in, in the order given. Sites
that are dialled for a test speak frame by frame, through a `Client`.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from machine.tiny import TinySite

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import load_server
from coordinator.machine.events import Event, SiteJoined
from coordinator.transports import Emit, InProcess, SiteFunction, Transport
from coordinator.transports.grpc_mtls import GrpcServer
from coordinator.transports.sessions import Sessions
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Answer,
    Dismissed,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Leaving,
    Rejected,
    Report,
    Step,
    ToSite,
    Words,
)
from coreg_wire.identity.credentials import RenewableServer, client_credentials
from coreg_wire.identity.names import key_fingerprint
from coreg_wire.identity.signatures import private_key
from coreg_wire.transport.codec import Assembler, frames_of
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.run_keys import RunKeys
from site_agent.session.stream import Connection, GrpcDialler

SITES = ("a", "b", "c")
RUN = "run-1"


def within(
    seconds: float,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """An asynchronous test, with a limit."""

    def bounded(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **given: Any) -> None:
            asyncio.run(asyncio.wait_for(test(*args, **given), seconds))

        return run

    return bounded


def hello(site: str = "a", release: str = "test") -> Hello:
    return Hello(site, PROTOCOL_VERSION, release)


def step(count: int = 3, number: int = 0, run: str = RUN) -> Step:
    """So many words, no two alike, and every bit of them used."""
    words = Words(np.random.default_rng(count).integers(0, 2**64, size=count, dtype="<u8"))
    return Step(run, 0, number, summed=words)


def echo(step: Step, site: str = "a") -> Answer:
    return Answer(step.run, step.attempt, step.step, Report(), step.summed, step.parts)


@dataclass
class EchoSite:
    """Answers every step with its own words, remembers what it heard, and leaves once it has an
    end.
    """

    name: str
    heard: list[ToSite] = field(default_factory=list)

    def hello(self) -> Hello:
        return hello(self.name)

    def handle(self, message: ToSite) -> list[FromSite]:
        self.heard.append(message)
        match message:
            case Step():
                return [echo(message, self.name)]
            case Finished(run=run):
                return [Fetched(run), Leaving("the run is over")]
            case _:
                return []


class Events:
    """What a transport emits, awaited one by one; handled at once, unless they are ``held``."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.seen: list[Event] = []
        self.held: list[Callable[[], None]] | None = None

    def emit(self, event: Event, handled: Callable[[], None] | None = None) -> None:
        self.seen.append(event)
        self._queue.put_nowait(event)
        if handled is None:
            return
        if self.held is None:
            handled()
        else:
            self.held.append(handled)

    async def next(self) -> Event:
        return await self._queue.get()

    async def take(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]


# --- a site's end of a stream ---------------------------------------------------------------------


class Client:
    """One session with a coordinator, frame by frame."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.assembler = Assembler()
        for run in (RUN, "run-2"):
            self.assembler.expect(run, 1 << 24)

    async def write(self, *frames: pb.SiteFrame | bytes) -> None:
        for frame in frames:
            if not isinstance(frame, bytes):
                frame = frame.SerializeToString()
            await self.connection.write(frame)

    async def send(self, message: FromSite) -> None:
        await self.write(*frames_of(message))

    async def receive(self) -> ToSite | None:
        """The next message; None when the coordinator ended the stream.

        The last word ends our half.
        """
        while (data := await self.connection.read()) is not None:
            message = self.assembler.feed_coordinator(data)
            if isinstance(message, Rejected):
                await self.connection.finish()
            if message is not None:
                return message
        return None

    async def rejection(self) -> str:
        """The reason; after it the stream ends."""
        message = await self.receive()
        assert isinstance(message, Rejected), message
        assert await self.receive() is None
        return message.reason

    async def serve(self, site: SiteFunction) -> None:
        """What an agent of one run does: once the run is over it leaves, and then only waits for
        the stream to end.
        """
        await self.send(site.hello())
        while (message := await self.receive()) is not None:
            answers = list(await asyncio.to_thread(site.handle, message))
            over = isinstance(message, Dismissed | Finished) and message.run == RUN
            if over and not any(isinstance(answer, Leaving) for answer in answers):
                answers.append(Leaving("the run is over"))
            for answer in answers:
                if not isinstance(answer, Leaving):
                    await self.send(answer)
                    continue
                with contextlib.suppress(ConnectionError):  # the coordinator may close meanwhile
                    await self.send(answer)
                    while await self.receive() is not None:
                        pass
                return


@dataclass
class _End:
    incoming: "asyncio.Queue[bytes | Exception | None]"
    outgoing: "asyncio.Queue[bytes | Exception | None]"
    open: asyncio.Event
    broken: list[bool]

    async def read(self) -> bytes | None:
        frame = await self.incoming.get()
        if not isinstance(frame, bytes):
            self.incoming.put_nowait(frame)  # the end stays the end
        if isinstance(frame, Exception):
            raise frame
        return frame

    async def write(self, frame: bytes) -> None:
        await self.open.wait()
        if self.broken[0]:
            raise ConnectionError("the link is cut")
        self.outgoing.put_nowait(frame)

    async def finish(self) -> None:
        self.outgoing.put_nowait(None)


class Pipe(_End):
    """A stream in memory.

    It is the coordinator's end (`sessions.FrameStream`); ``site`` is the other (`dial.Connection`).
    """

    address = "127.0.0.1"

    def __init__(self, peer: tuple[str, bytes]):
        up = asyncio.Queue[Any]()
        down = asyncio.Queue[Any]()
        flows = asyncio.Event()
        flows.set()
        super().__init__(up, down, flows, [False])
        self.site = _End(down, up, flows, self.broken)
        self._peer = peer

    async def frames(self) -> AsyncIterator[bytes]:
        while (frame := await self.read()) is not None:
            yield frame

    def peer(self) -> tuple[str, bytes]:
        return self._peer

    def cut(self) -> None:
        self.broken[0] = True
        for end in (self, self.site):
            end.incoming.put_nowait(ConnectionError("the link is cut"))


class Frames(Sessions):
    """`Sessions` over streams in memory. A site that dials has the name "a" by default."""

    def __init__(
        self,
        authorise: Callable[[str, bytes], None] = lambda _name, _certificate: None,
        *,
        idle: float = 60.0,
    ):
        super().__init__(authorise, idle=idle)
        self._tasks = list[asyncio.Task[None]]()

    def pipe(self, peer: tuple[str, bytes] = ("a", b"")) -> Pipe:
        """A stream that is being served."""
        made = Pipe(peer)

        async def serve() -> None:
            await self.serve(made)
            await made.finish()

        self._tasks.append(asyncio.create_task(serve()))
        return made

    def dial(self, peer: tuple[str, bytes] = ("a", b"")) -> Client:
        return Client(self.pipe(peer).site)

    async def start(self, emit: Emit) -> None:
        self.emit = emit

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*self._tasks)


# --- mutual TLS -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """An authority that signed a, b and c, and a second one that signed a stranger called a."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca"

    def identity(self, name: str) -> Identity:
        return check_identity(self.path / name)

    def server(self) -> GrpcServer:
        files = load_server(self.authority)
        credentials = RenewableServer(
            files.key_pem, files.certificate_pem, files.ca_pem
        ).credentials
        return GrpcServer("127.0.0.1:0", credentials, Authorised(self.authority).check)

    def keys(self, name: str) -> RunKeys:
        """As the site's agent has them; every member is confirmed."""

        def confirmed(member: str) -> str:
            return key_fingerprint(private_key(self.identity(member).key_pem).public_key())

        return RunKeys(private_key(self.identity(name).key_pem), confirmed)

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        identity = self.identity(name)
        return client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)

    @contextlib.asynccontextmanager
    async def dial(self, port: int, name: str) -> AsyncIterator[Client]:
        dialler = GrpcDialler(f"127.0.0.1:{port}", lambda: self.credentials(name))
        async with dialler.connect(10.0) as connection:
            yield Client(connection)


class Dialled:
    """`GrpcServer` with sites that dial it, each as a task that ends with its session."""

    def __init__(self, home: Home, sites: Mapping[str, SiteFunction]):
        self.server = home.server()
        self._home = home
        for name, site in sites.items():
            if isinstance(site, TinySite):
                site.sign_with(home.keys(name))
        self._sites = sites
        self._tasks: list[asyncio.Task[None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    async def start(self, emit: Emit) -> None:
        joined: asyncio.Queue[None] = asyncio.Queue()

        def watch(event: Event, handled: Callable[[], None] | None = None) -> None:
            emit(event, handled)
            if isinstance(event, SiteJoined):
                joined.put_nowait(None)

        await self.server.start(watch)
        for name, site in self._sites.items():
            self._tasks.append(asyncio.create_task(self._take_part(name, site)))
            await joined.get()  # in the order given, as in process

    async def _take_part(self, name: str, site: SiteFunction) -> None:
        with contextlib.suppress(ConnectionError):  # a coordinator that fails does not say goodbye
            async with self._home.dial(self.server.port, name) as client:
                await client.serve(site)

    async def close(self) -> None:
        await self.server.close()
        await asyncio.gather(*self._tasks)


Wire = Callable[..., Transport]


def in_process(home: Home) -> Wire:
    return InProcess


def grpc_mtls(home: Home) -> Wire:
    return functools.partial(Dialled, home)


TRANSPORTS = (in_process, grpc_mtls)
