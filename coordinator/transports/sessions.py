"""Sessions over frame streams of any carrier: one session per site, named by its certificate.

A session is authenticated by its certificate, then by the allow-list, which is read at every join.
The codec checks every message of a peer. A peer that breaks the protocol receives the reason, and
its session is closed. At most `MAX_UNHANDLED` messages of a session wait for the coordinator;
beyond that its stream is not read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.machine.events import (
    AccessRefused,
    Breached,
    Received,
    Revoked,
    SiteJoined,
    SiteLost,
)
from coordinator.transports import Emit, Traffic
from coreg_core.errors import CoregError, Refused
from coreg_core.messages import (
    Countersigned,
    Dismissed,
    Finished,
    Hello,
    Leaving,
    Offer,
    Proposal,
    Rejected,
    Step,
    ToSite,
)
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import offer_fault
from coreg_wire.transport.codec import Assembler, frames_of
from coreg_wire.transport.fields import ProtocolError

MAX_UNHANDLED = 8  # messages of one session
HELLO_SECONDS = 10.0  # from the start of a stream to its first message
MAX_UNSENT = 1000  # messages for one session; a site that does not read them is disconnected
# Closing a stream while its peer still writes resets it, and the peer loses unread messages. So the
# peer ends the stream after the last message, within this time in seconds.
LAST_MESSAGES = Finished | Countersigned | Dismissed | Rejected
CLOSE_GRACE = 5.0
NO_MEMORY = "the coordinator has too little memory for its message."
REPLACED = (
    "{site}: another agent has joined under this name, from {where}, and replaced this one. End one"
    " of the two: a site has one agent."
)


class FrameStream(Protocol):
    """One stream of a peer: frames in, frames out. A broken stream raises `ConnectionError`."""

    address: str

    def frames(self) -> AsyncIterator[bytes]: ...

    async def write(self, frame: bytes) -> None: ...

    def peer(self) -> tuple[str, bytes]:
        """Name and certificate (PEM) of the peer."""


@dataclass(eq=False)
class _Session:
    """One open stream. The writer takes messages from the outbox; None ends it."""

    site: str
    assembler: Assembler
    certificate_pem: bytes = b""
    outbox: "asyncio.Queue[ToSite | None]" = field(default_factory=asyncio.Queue)
    unhandled: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_UNHANDLED))
    closed_by_us: bool = False
    spoke: bool = False  # it sent something after the last message to it, so it has read that one
    again: bool = False  # the site had a session before, and messages can be left over from it
    plans: set[str] = field(default_factory=set)  # runs whose plan was sent in this session

    def require_signed(self, offer: Offer) -> None:
        """ProtocolError: an offer with keys is not as the other members need it. They would refuse
        the run.
        """
        if self.certificate_pem and (offer.identity or offer.signature):
            pem = self.certificate_pem
            fault = offer_fault(offer, load_certificates(pem, "The peer's certificate")[0])
            if fault is not None:
                raise ProtocolError(fault)

    def close(self, last_message: ToSite | None = None) -> None:
        self.closed_by_us = True
        if last_message is not None:
            self.outbox.put_nowait(last_message)
        self.outbox.put_nowait(None)


class Sessions:
    """Sessions; ``authorise`` (name, PEM) raises `Refused` at a join; ``idle`` seconds without a
    byte end a stream.
    """

    def __init__(self, authorise: Callable[[str, bytes], None], *, idle: float):
        self.traffic = Traffic()
        self._authorise = authorise
        self._idle = idle
        self._expected: dict[str, int] = {}
        self._sessions: dict[str, _Session] = {}
        self._certificates: dict[str, bytes] = {}  # of each site's last session
        self._streams: set[asyncio.Task[None]] = set()
        self._closing = False
        self._encoded: tuple[ToSite, list[bytes]] | None = None
        self.emit: Emit = lambda _event, _handled=None: None
        # The first messages of a session, before any plan.
        self.greetings: Callable[[str, Hello], list[ToSite]] = lambda _site, _hello: []

    # --- as a transport ---------------------------------------------------------------------------

    async def send(self, site: str, message: ToSite) -> None:
        """Put it into the session's outbox, unless it was meant for an earlier session."""
        session = self._sessions.get(site)
        if session is None:
            return
        # A step of a run whose plan was not sent in this session: the site would refuse it.
        early = session.again and isinstance(message, Step) and message.run not in session.plans
        if not early:
            if isinstance(message, Proposal):
                session.plans.add(message.run)
            if session.outbox.qsize() < MAX_UNSENT:
                session.outbox.put_nowait(message)
            else:
                del self._sessions[site]
                session.close()
                self.emit(SiteLost(site, "it does not read its messages"))

    async def reject(self, site: str, reason: str) -> None:
        """`Rejected`, then the end of the stream."""
        if (session := self._sessions.pop(site, None)) is not None:
            session.close(Rejected(reason))

    def expect(self, run: str, room: int) -> None:
        """From now on, accept answers of the run with at most ``room`` bytes; before, none."""
        self._expected[run] = room
        for session in self._sessions.values():
            session.assembler.expect(run, room)

    def forget(self, run: str) -> None:
        self._expected.pop(run, None)
        for session in self._sessions.values():
            session.assembler.forget(run)

    def certificate(self, site: str) -> bytes:
        return self._certificates.get(site, b"")

    def check_again(self) -> None:
        """Check every open session against the allow-list, and end those of revoked
        certificates.
        """
        for session in list(self._sessions.values()):
            if not session.certificate_pem:
                continue
            try:
                self._authorise(session.site, session.certificate_pem)
            except Refused as error:
                self.emit(Revoked(session.site, str(error)))

    async def close(self) -> None:
        """End every stream after its queued messages. New sessions are not accepted from now on."""
        self._closing = True
        for session in list(self._sessions.values()):
            session.close()
        if self._streams:
            # Until peers have read their last messages.
            await asyncio.wait(self._streams, timeout=2 * CLOSE_GRACE)

    # --- one stream -------------------------------------------------------------------------------

    async def serve(self, stream: FrameStream) -> None:
        """Carry one session until its stream ends."""
        if self._closing:
            return
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        frames = stream.frames()
        assembler = Assembler()
        name = ""  # by its certificate: what a peer says of itself could be invented
        try:
            # First, since a peer reads no reason while it still writes.
            hello = await self._hello(frames, assembler)
            name, pem = stream.peer()
            self._authorise(name, pem)
            if hello.site != name:
                raise Refused(
                    f"says it is {hello.site!r}, but its certificate is {name!r}'s. Use --identity"
                    " of that site."
                )
        except CoregError as error:
            self.emit(AccessRefused(name, str(error)))
            with contextlib.suppress(ConnectionError):
                await self._write(stream, Rejected(str(error)))
            await _ends(asyncio.create_task(_drain(frames)))
            return
        for run, room in self._expected.items():
            assembler.expect(run, room)
        session = _Session(
            hello.site, assembler, certificate_pem=pem, again=hello.site in self._certificates
        )
        self._certificates[hello.site] = pem
        earlier = self._sessions.get(hello.site)
        if earlier is not None:  # a site that reconnects replaces its old session
            earlier.close(
                Rejected(REPLACED.format(site=hello.site, where=stream.address), final=True)
            )
        self._sessions[hello.site] = session
        joined = asyncio.Event()
        self.emit(SiteJoined(hello, valid_until(pem), stream.address), joined.set)
        await self._converse(stream, frames, session, hello, joined)

    async def _converse(
        self,
        stream: FrameStream,
        frames: AsyncIterator[bytes],
        session: _Session,
        hello: Hello,
        joined: asyncio.Event,
    ) -> None:
        reader = asyncio.create_task(self._read(frames, session.assembler, session))
        message: ToSite | None = None
        try:
            # A run that ended in between is in the store now, or its end in the outbox.
            await joined.wait()
            for greeting in self.greetings(session.site, hello):
                await self._write(stream, greeting)
            while (following := await session.outbox.get()) is not None:
                message = following
                session.spoke = False
                await self._write(stream, message)
            if isinstance(message, LAST_MESSAGES) and not session.spoke:
                await _ends(reader)
        except ConnectionError:
            pass  # the event is emitted below
        finally:
            reader.cancel()
            if self._sessions.get(session.site) is session:
                del self._sessions[session.site]
                if not session.closed_by_us:
                    self.emit(SiteLost(session.site, "its stream ended"))

    async def _hello(self, frames: AsyncIterator[bytes], assembler: Assembler) -> Hello:
        try:
            first = await asyncio.wait_for(anext(frames), min(self._idle, HELLO_SECONDS))
            self.traffic.received += len(first)
            message = assembler.feed_site(first)
        except (TimeoutError, StopAsyncIteration, ConnectionError):
            raise ProtocolError("a session must start with Hello; nothing was received.") from None
        if not isinstance(message, Hello):
            raise ProtocolError("a session must start with Hello.")
        return message

    async def _read(
        self, frames: AsyncIterator[bytes], assembler: Assembler, session: _Session
    ) -> None:
        try:
            async for data in frames:
                self.traffic.received += len(data)
                message = assembler.feed_site(data)
                session.spoke = True
                if message is None or self._sessions.get(session.site) is not session:
                    continue
                if isinstance(message, Offer):
                    session.require_signed(message)
                await session.unhandled.acquire()
                if self._sessions.get(session.site) is not session:
                    continue  # the session was replaced during the wait
                self.emit(Received(session.site, message), session.unhandled.release)
                if isinstance(message, Leaving):
                    session.close()
                    break
        except ProtocolError as error:
            if self._sessions.get(session.site) is session:  # a replaced session emits no event
                self.emit(Breached(session.site, str(error)))
            session.close(Rejected(f"{session.site}: {error}"))
            await _drain(frames)
        except MemoryError:
            if self._sessions.get(session.site) is session:
                self.emit(Breached(session.site, NO_MEMORY))
            session.close(Rejected(f"{session.site}: {NO_MEMORY}"))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the stream has ended; the message below ends its writer
        session.outbox.put_nowait(None)

    async def _write(self, stream: FrameStream, message: ToSite) -> None:
        # A step is the same for all sites, so it is encoded once.
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, list(frames_of(message)))
        for data in self._encoded[1]:
            self.traffic.sent += len(data)
            await stream.write(data)


async def _drain(frames: AsyncIterator[bytes]) -> None:
    """Read on and discard, until the peer ends the stream."""
    with contextlib.suppress(ConnectionError):
        async for _ in frames:
            pass


async def _ends(reader: asyncio.Task[None]) -> None:
    """Wait until the peer has ended its half of the stream after the last message."""
    await asyncio.wait({reader}, timeout=CLOSE_GRACE)
    reader.cancel()


def valid_until(certificate_pem: bytes) -> str:
    """The expiry of a certificate in ISO 8601; empty without one."""
    if not certificate_pem:
        return ""
    return load_certificates(certificate_pem, "The peer's certificate")[
        0
    ].not_valid_after_utc.isoformat()
