"""The same sites behind either transport: called in process, or dialling over mutual TLS on a loopback port.

`wire(transport_name, sites)` gives a `Transport` whose `start` also brings the sites in, in the order given. The gRPC
client is this file's own, grpc.aio and the codec, so that the contract does not lean on the agent's connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import load_server
from coordinator.machine.events import Event, SiteJoined
from coordinator.transports import Emit, Transport
from coordinator.transports.grpc_mtls import GrpcServer
from coordinator.transports.in_process import InProcess, SiteFunction
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Inquiry,
    Leaving,
    Prediction,
    Rejected,
    Share,
    ToSite,
)
from coreg_wire.identity.credentials import client_credentials, server_credentials
from coreg_wire.transport.codec import Assembler, site_message_to_frames
from coreg_wire.transport.service import JOIN_PATH, channel_options
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.identity.identity import Identity, check_identity

SITES = ("a", "b", "c")
RUN = "run-1"


@dataclass
class EchoSite:
    """Answers every question with its own targets, remembers what it heard, and leaves once it has an end."""

    name: str
    heard: list[ToSite] = field(default_factory=list)

    def hello(self) -> Hello:
        return Hello(self.name, PROTOCOL_VERSION, "test")

    def handle(self, message: ToSite) -> list[FromSite]:
        self.heard.append(message)
        match message:
            case Ask(run=run, question=number, attempt=attempt, targets=targets):
                return [Prediction(run, number, attempt, targets)]
            case Inquiry(run=run, question=number, attempt=attempt, scalars=scalars, targets=targets):
                return [Share(run, number, attempt, scalars, targets)]
            case Finished(run=run):
                return [Fetched(run), Leaving("the run is over")]
            case _:
                return []


class Events:
    """What a transport emits, awaited one by one."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)
        self._queue.put_nowait(event)

    async def next(self) -> Event:
        return await self._queue.get()

    async def take(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]


class Client:
    """One session with a coordinator, frame by frame."""

    def __init__(self, channel: grpc.aio.Channel, room: tuple[int, int] = (1 << 24, 64), *runs: str):
        self.channel = channel
        self.call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
            JOIN_PATH, request_serializer=None, response_deserializer=None
        )()
        self.assembler = Assembler()
        for run in runs or (RUN, "run-2"):
            self.assembler.expect(run, *room)

    async def write(self, *frames: pb.SiteFrame | bytes) -> None:
        for frame in frames:
            await self.call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())

    async def send(self, message: FromSite) -> None:
        await self.write(*site_message_to_frames(message))

    async def receive(self) -> ToSite | None:
        """The next message; None when the coordinator ended the stream. The last word ends our half."""
        while (data := await self.call.read()) is not grpc.aio.EOF:
            assert isinstance(data, bytes)
            message = self.assembler.feed_coordinator(data)
            if isinstance(message, Rejected):
                await self.call.done_writing()
            if message is not None:
                return message
        return None

    async def serve(self, site: SiteFunction) -> None:
        """What an agent does: once the run is over it leaves, and then only waits for the stream to end."""
        await self.send(site.hello())
        left = False
        while (message := await self.receive()) is not None:
            answers = [] if left else list(await asyncio.to_thread(site.handle, message))
            if isinstance(message, Finished) and answers and not isinstance(answers[-1], Leaving):
                answers.append(Leaving("the run is over"))
            for answer in answers:
                try:
                    await self.send(answer)
                except asyncio.InvalidStateError:  # what grpc.aio raises when the coordinator closed meanwhile
                    return
                left = left or isinstance(answer, Leaving)


@dataclass(frozen=True)
class Home:
    """An authority that signed a, b and c, and a second one that signed a stranger called a."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca"

    def identity(self, name: str) -> Identity:
        return check_identity(self.path / name)

    def server(self, **options: float) -> GrpcServer:
        files = load_server(self.authority)
        credentials = server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
        return GrpcServer(
            "127.0.0.1:0",
            credentials,
            Authorised(self.authority).check,
            **options,
        )

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        identity = self.identity(name)
        return client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)

    @contextlib.asynccontextmanager
    async def dial(
        self, port: int, name: str, credentials: grpc.ChannelCredentials | None = None
    ) -> AsyncIterator[Client]:
        options = channel_options(5.0)
        async with grpc.aio.secure_channel(
            f"127.0.0.1:{port}", credentials or self.credentials(name), options=options
        ) as channel:
            yield Client(channel)


class Dialled:
    """`GrpcServer` with sites that dial it, each as a task that ends with its session."""

    def __init__(self, home: Home, sites: Mapping[str, SiteFunction], **options: float):
        self.server, self._home, self._sites = home.server(**options), home, sites
        self.traffic = self.server.traffic
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, emit: Emit) -> None:
        joined: asyncio.Queue[None] = asyncio.Queue()

        def watch(event: Event) -> None:
            emit(event)
            if isinstance(event, SiteJoined):
                joined.put_nowait(None)

        await self.server.start(watch)
        for name, site in self._sites.items():
            self._tasks.append(asyncio.create_task(self._take_part(name, site)))
            await joined.get()  # in the order given, as in process

    async def _take_part(self, name: str, site: SiteFunction) -> None:
        async with self._home.dial(self.server.port, name) as client:
            await client.serve(site)

    async def send(self, site: str, message: ToSite, after: "asyncio.Future[None] | None" = None) -> None:
        await self.server.send(site, message, after)

    async def reject(self, site: str, reason: str) -> None:
        await self.server.reject(site, reason)

    def expect(self, run: str, rows: int, columns: int) -> None:
        self.server.expect(run, rows, columns)

    def forget(self, run: str) -> None:
        self.server.forget(run)

    async def close(self) -> None:
        await self.server.close()
        await asyncio.gather(*self._tasks)


Wire = Callable[..., Transport]


def in_process(home: Home) -> Wire:
    return lambda sites, **options: InProcess(sites)


def grpc_mtls(home: Home) -> Wire:
    return lambda sites, **options: Dialled(home, sites, **options)


TRANSPORTS = (in_process, grpc_mtls)
