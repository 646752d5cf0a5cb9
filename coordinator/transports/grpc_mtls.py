"""gRPC over mutual TLS: the coordinator is the only listener; each site holds one bidirectional stream.

A session is authenticated by its certificate, then by the allow-list, which is asked at every join; its name is its
certificate's, whatever its Hello says. Everything that a peer sends is checked by the codec; whoever breaks the
protocol is told why and loses its session.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import grpc
import grpc.aio

from coordinator.machine.events import Breached, Flow, Received, Revoked, SiteJoined, SiteLost, TurnedAway
from coordinator.machine.records import HeadSigned
from coordinator.transports import Emit, Traffic
from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.protocol.messages import (
    Ask,
    Countersigned,
    Dismissed,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Inquiry,
    Leaving,
    PlanAccepted,
    Rejected,
    Roster,
    ToSite,
)
from coreg_core.protocol.plan import Plan
from coreg_wire.identity.credentials import is_loopback, peer_certificate
from coreg_wire.identity.names import load_certificates
from coreg_wire.transport.addresses import check_free
from coreg_wire.transport.chunk_size import Pace
from coreg_wire.transport.codec import SMALLEST_PIECE, Assembler, coordinator_message_to_frames
from coreg_wire.transport.fields import ProtocolError
from coreg_wire.transport.service import JOIN, LEAST_BANDWIDTH, SERVICE, channel_options

# The largest m that a site may announce: 1.6 GB a vector of one column. The others have to equal it (the run says so).
MAX_UNLABELLED = 200_000_000
# A stream that is ended, or a socket that is closed, while its peer still writes is reset, and the peer loses what it had
# not read yet. So after the last word the peer is the one who ends the stream, and this is how long it gets to do so.
LAST_WORDS = Finished | Countersigned | Dismissed | Rejected
CLOSE_GRACE = 5.0
REPLACED = (
    "{site}: another agent has joined under this name, from {where}, and took this one's place. End one of the two: a site has "
    "one agent."
)


@dataclass
class _Way:
    """A vector to a site: bytes that went out, bytes in all, and since when; of one that is whole, since its last byte."""

    message: ToSite | None  # None once it is whole
    moved: int
    of: int
    since: float


@dataclass(eq=False)
class _Session:
    """One open stream. The writer takes messages from the outbox; None ends it."""

    site: str
    assembler: Assembler
    certificate_pem: bytes = b""
    outbox: "asyncio.Queue[tuple[ToSite, asyncio.Future[None] | None] | None]" = field(default_factory=asyncio.Queue)
    closed_by_us: bool = False
    spoke: bool = False  # since the last word to it: it has read that
    ways: dict[str, _Way] = field(default_factory=dict)  # the latest vector to it, by run
    begun: dict[str, float] = field(default_factory=dict)  # since when a vector from it is on its way, by run
    pace: Pace = field(default_factory=Pace)
    again: bool = (
        False  # the site had a session before: what was meant for that one may still be sent, and is not for this one
    )
    plans: set[str] = field(default_factory=set)  # runs whose plan went out in this session

    def is_for_an_earlier_one(self, message: ToSite) -> bool:
        """A question, or its roster, of a run whose plan did not come in this session: the site would call that a breach."""
        return self.again and isinstance(message, Ask | Inquiry | Roster) and message.run not in self.plans

    def flow(self, run: str) -> Flow | None:
        """The latest vector of that run, to the site or from it."""
        now = time.monotonic()
        if (coming := self.assembler.progress(run)) is not None:
            return Flow(False, *coming, now - self.begun.get(run, now))
        way = self.ways.get(run)
        return None if way is None else Flow(True, way.moved, way.of, now - way.since)

    def way(self, message: ToSite) -> _Way | None:
        """Of this very message, where it has a vector."""
        return next((way for way in self.ways.values() if way.message is message), None)

    def close(self, last_word: ToSite | None = None) -> None:
        self.closed_by_us = True
        if last_word is not None:
            self.outbox.put_nowait((last_word, None))
        self.outbox.put_nowait(None)


class GrpcServer:
    """The transport; see the module's docstring.

    Parameters
    ----------
    listen
        host:port; port 0 takes a free one, and `port` tells which after `start`.
    credentials
        of `coreg_wire.identity.credentials.server_credentials`; None is --insecure, on loopback alone.
    authorise
        raises `Refused` for a name and certificate (PEM) that may not join; asked at every join.
    keepalive
        seconds between pings.
    least_bandwidth
        bytes a second that every link carries at least; a silent loss is found within `silence_seconds` of both.
    attest
        countersigns the head of a site's ledger, of its name and the certificate (PEM) that it joined with.
    """

    def __init__(
        self,
        listen: str,
        credentials: grpc.ServerCredentials | None,
        authorise: Callable[[str, bytes], None],
        *,
        keepalive: float = 5.0,
        least_bandwidth: float = LEAST_BANDWIDTH,
        attest: Callable[[str, bytes, Fetched], HeadSigned] | None = None,
    ):
        if credentials is None and not is_loopback(listen):
            raise UsageError(f"--insecure is for loopback addresses; {listen} can be reached from elsewhere.")
        self.traffic, self.port = Traffic(), 0
        self._listen, self._credentials, self._authorise = listen, credentials, authorise
        self._keepalive, self._least_bandwidth, self._attest = keepalive, least_bandwidth, attest
        self._expected: dict[str, tuple[int, int]] = {}
        self._sessions: dict[str, _Session] = {}
        self._seen: set[str] = set()  # sites that had a session
        self._streams: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._emit: Emit = lambda _event: None
        self._encoded: tuple[ToSite, dict[int, list[bytes]]] | None = None  # by the size of its pieces

    async def start(self, emit: Emit) -> None:
        """Listen.

        Raises
        ------
        UsageError
            the address cannot be listened on.
        """
        self._emit = emit
        check_free(self._listen)
        self._server = grpc.aio.server(options=channel_options(self._keepalive, self._least_bandwidth))
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._join, request_deserializer=None, response_serializer=None
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler}),))
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(self._listen)
            else:
                self.port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise UsageError(f"cannot listen on {self._listen}: {error}. Is another coordinator running?") from None
        await self._server.start()

    async def send(self, site: str, message: ToSite, after: "asyncio.Future[None] | None" = None) -> None:
        """Into the session's outbox; not what the driver sent before it knew of this session."""
        session = self._sessions.get(site)
        if session is not None and not session.is_for_an_earlier_one(message):
            if isinstance(message, Plan):
                session.plans.add(message.run)
            if (carried := _vector(message)) is not None:
                run, size = carried
                session.ways[run] = _Way(message, 0, size, time.monotonic())
            session.outbox.put_nowait((message, after))

    async def reject(self, site: str, reason: str) -> None:
        """`Rejected`, then the end of the stream."""
        if (session := self._sessions.pop(site, None)) is not None:
            session.close(Rejected(reason))

    def expect(self, run: str, rows: int, columns: int) -> None:
        """Every session's assembler learns it, and those of sessions that open later."""
        self._expected[run] = (rows, columns)
        for session in self._sessions.values():
            session.assembler.expect(run, rows, columns)

    def forget(self, run: str) -> None:
        self._expected.pop(run, None)
        for session in self._sessions.values():
            session.assembler.forget(run)
            session.ways.pop(run, None)
            session.pace.forget(run)

    def flows(self, run: str) -> Mapping[str, Flow]:
        """Of every open session that has carried a vector of the run."""
        found = {site: session.flow(run) for site, session in self._sessions.items()}
        return {site: flow for site, flow in found.items() if flow is not None}

    def check_again(self) -> None:
        """Ask of every open session whether it may still be: a certificate that was revoked is told so, and its session ends."""
        for session in list(self._sessions.values()):
            if not session.certificate_pem:
                continue
            try:
                self._authorise(session.site, session.certificate_pem)
            except Refused as error:
                self._emit(Revoked(session.site, str(error)))

    async def close(self) -> None:
        """End every stream after what is queued for it."""
        for session in list(self._sessions.values()):
            session.close()
        if self._streams:
            await asyncio.wait(self._streams, timeout=2 * CLOSE_GRACE)  # to write the last word, and to see it read
        if self._server is not None:
            await self._server.stop(CLOSE_GRACE)

    # --- one stream -----------------------------------------------------------------------------------------------

    async def _join(self, frames: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        assembler = Assembler()
        hello: Hello | None = None
        try:
            hello = await self._hello(frames, assembler)  # first: a peer that is still writing would not hear why
            name, pem = self._authenticated(context)
            if name is not None and hello.site != name:
                raise Refused(
                    f"says it is {hello.site!r}, but its certificate is {name!r}'s. Use --identity of that site."
                )
        except CoregError as error:
            who = hello.site if hello is not None else ""
            self._emit(TurnedAway(who, str(error)))  # refused at the door: otherwise only the site would hear of it
            await self._write(context, Rejected(str(error)))
            await _ends(asyncio.create_task(_drain(frames)))
            return
        for run, room in self._expected.items():
            assembler.expect(run, *room)
        session = _Session(hello.site, assembler, certificate_pem=pem, again=hello.site in self._seen)
        self._seen.add(hello.site)
        if (earlier := self._sessions.get(hello.site)) is not None:
            earlier.close(
                Rejected(REPLACED.format(site=hello.site, where=_address(context.peer())), final=True)
            )  # a site that rejoins replaces its old session
        self._sessions[hello.site] = session
        self._emit(SiteJoined(hello, valid_until(pem)))
        reader = asyncio.create_task(self._read(frames, assembler, session))
        message: ToSite | None = None
        try:
            while (following := await session.outbox.get()) is not None:
                (message, after), session.spoke = following, False
                await self._write(context, message, session, after)
            if isinstance(message, LAST_WORDS) and not session.spoke:
                await _ends(reader)
        finally:
            reader.cancel()
            if self._sessions.get(session.site) is session:
                del self._sessions[session.site]
                if not session.closed_by_us:
                    self._emit(SiteLost(session.site, f"its stream ended{self._on_the_way(session)}"))

    def _authenticated(self, context: "grpc.aio.ServicerContext[bytes, bytes]") -> tuple[str | None, bytes]:
        if self._credentials is None:
            return None, b""
        name, pem = peer_certificate(context)
        self._authorise(name, pem)
        return name, pem

    async def _hello(self, frames: AsyncIterator[bytes], assembler: Assembler) -> Hello:
        try:
            first = await asyncio.wait_for(anext(frames), timeout=4 * self._keepalive)
            message = assembler.feed_site(self._counted(first))
        except (TimeoutError, StopAsyncIteration):
            raise ProtocolError("a session has to open with Hello; nothing came.") from None
        if not isinstance(message, Hello):
            raise ProtocolError("a session has to open with Hello.")
        return message

    async def _read(self, frames: AsyncIterator[bytes], assembler: Assembler, session: _Session) -> None:
        try:
            async for data in frames:
                message = assembler.feed_site(self._counted(data))
                session.spoke = True
                begun, now = session.begun, time.monotonic()
                session.begun = {run: begun.get(run, now) for run in assembler.under_way}
                session.pace.answered(assembler.run, now)
                if message is None or self._sessions.get(session.site) is not session:
                    continue
                if isinstance(message, PlanAccepted) and message.n_unlabelled > MAX_UNLABELLED:
                    raise ProtocolError(f"{message.n_unlabelled} unlabelled instances; at most {MAX_UNLABELLED} fit.")
                self._emit(Received(session.site, message, self._signed(session, message)))
                if isinstance(message, Leaving):
                    session.close()
                    break
        except ProtocolError as error:
            if self._sessions.get(session.site) is session:  # what a replaced session says is no event
                self._emit(Breached(session.site, str(error)))
            session.close(Rejected(f"{session.site}: {error}"))
            await _drain(frames)
        except (grpc.RpcError, asyncio.CancelledError):
            pass  # the stream is gone; below, its writer is told
        session.outbox.put_nowait(None)

    def _signed(self, session: _Session, message: FromSite) -> HeadSigned | None:
        if self._attest is None or not (isinstance(message, Fetched) and message.signature and session.certificate_pem):
            return None
        return self._attest(session.site, session.certificate_pem, message)

    def _counted(self, data: bytes) -> bytes:
        self.traffic.received += len(data)
        return data

    def _on_the_way(self, session: _Session) -> str:
        """What was under way when the stream ended, if for so long that the link may be the reason."""
        for run in self._expected:
            flow = session.flow(run)
            if flow is not None and not flow.whole and flow.seconds > self._keepalive:
                told = f"{flow.moved / 1e6:.3g} of {flow.of / 1e6:.3g} MB were through after {flow.seconds:.0f} s"
                least = f"{self._least_bandwidth / 1e3:g} kB/s"
                if session.pace.piece > SMALLEST_PIECE:
                    return f" when {told}: its link carries far less than before; the next session begins with small pieces"
                return f" when {told}: if its link is slower than {least}, lower [timeouts] least_bandwidth here, and there"
        return ""

    async def _write(
        self,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
        message: ToSite,
        session: _Session | None = None,
        after: "asyncio.Future[None] | None" = None,
    ) -> None:
        way, pace = (None, Pace()) if session is None else (session.way(message), session.pace)
        if (carried := _vector(message)) is not None:
            pace.goes(*carried, time.monotonic())
        *most, last = self._frames(message, pace.piece)
        for data in most:
            self.traffic.sent += len(data)
            await context.write(data)
            if way is not None:
                way.moved = min(
                    way.moved + len(data), way.of - 1
                )  # heads count too: it is whole when all of it went out
        if after is not None:
            if not after.done():
                await asyncio.wait({after})
            if after.cancelled() or after.exception() is not None:
                # There is no such question: what it follows from could not be written down. Nor is there a whole message before
                # another one of the run, so the stream ends here.
                if session is not None:
                    session.close()
                return
        self.traffic.sent += len(last)
        if carried is not None:
            pace.whole(carried[0])
        await context.write(last)
        if way is not None:
            way.message, way.moved, way.since = None, way.of, time.monotonic()

    def _frames(self, message: ToSite, piece: int) -> list[bytes]:
        """The same question goes to every site: it is encoded once, for links of one pace."""
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, {})
        by_piece = self._encoded[1]
        if piece not in by_piece:
            by_piece[piece] = list(coordinator_message_to_frames(message, piece))
        return by_piece[piece]


def _vector(message: ToSite) -> tuple[str, int] | None:
    """The run and the bytes of a message that carries a vector."""
    match message:
        case Ask(run=run, targets=targets) | Inquiry(run=run, targets=targets) | Finished(run=run, targets=targets):
            return None if targets is None else (run, targets.wire_bytes)
        case _:
            return None


async def _drain(frames: AsyncIterator[bytes]) -> None:
    """Read on, and use nothing of it, until the peer ends the stream."""
    with contextlib.suppress(grpc.RpcError):
        async for _ in frames:
            pass


async def _ends(reader: asyncio.Task[None]) -> None:
    """Wait until the peer has ended its half of the stream, which it does after the last word."""
    await asyncio.wait({reader}, timeout=CLOSE_GRACE)
    reader.cancel()


def _address(peer: str) -> str:
    """Of gRPC's word for a peer, ``ipv4:10.0.0.7:51234``, the address: the port says nothing."""
    return peer.partition(":")[2].rpartition(":")[0].replace("%5B", "[").replace("%5D", "]") or "somewhere"


def valid_until(certificate_pem: bytes) -> str:
    """The end of a certificate in ISO 8601; empty without one."""
    if not certificate_pem:
        return ""
    return load_certificates(certificate_pem, "The peer's certificate")[0].not_valid_after_utc.isoformat()
