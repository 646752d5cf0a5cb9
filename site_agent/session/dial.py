"""The agent's end of the wire: dial out, say hello, answer, and dial again when the stream breaks.

Computing runs off the event loop, so that keepalive goes on while a large site factors. What is sent stands in the
ledger first.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from coreg_core.errors import BadData, CoregError, LeftBehind, Refused, Unreachable
from coreg_core.protocol.messages import (
    Ask,
    Countersigned,
    Dismissed,
    Finished,
    Inquiry,
    Leaving,
    Rejected,
    ToSite,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_wire.transport.chunk_size import Pace
from coreg_wire.transport.codec import SMALLEST_PIECE, Assembler, site_message_to_frames
from coreg_wire.transport.fields import ProtocolError
from coreg_wire.transport.service import JOIN_PATH, LEAST_BANDWIDTH, channel_options
from site_agent.ledger import Ledger
from site_agent.machine.memory import SiteResult
from site_agent.machine.site import Site
from site_agent.models import findings
from site_agent.session.progress import told_while, work_on

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
PAUSE_OF_THE_UNWELCOME = 30.0  # the coordinator has said no: its operator has to do something first
MANY_FAILURES = 3  # in a row, after which a site that had been in says again what is in the way
WAITED_FOR = "the coordinator, or for other sites, for as long as the connection lives"
SILENCE = 30.0  # seconds without a word from the coordinator, after which the operator is told who is waited for
COUNTERSIGNING = 10.0  # seconds for the coordinator to countersign the ledger's head
CLOSE_GRACE = 5.0  # seconds for the coordinator to end the stream after the site's last word
# Each session has a channel of its own, and pauses are ours: gRPC would share a refused connection's back-off, of seconds
# and then minutes, with the channels that come after it.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
LAST_WORDS = (Rejected, Dismissed, Finished)
T = TypeVar("T")
Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
# What grpc.aio raises when the other end closed before or while we wrote.
WRITE_FAILED = (grpc.RpcError, asyncio.InvalidStateError)


@dataclass(frozen=True)
class Dial:
    """Where, and how.

    Parameters
    ----------
    address
        host:port of the coordinator.
    credentials
        of `coreg_wire.identity.credentials.client_credentials`, or what makes them at each dialling, so that a
        renewed certificate is shown; None is --insecure.
    patience
        seconds without a session after which the agent gives up.
    keepalive
        seconds between pings.
    least_bandwidth
        bytes a second that the link carries at least.
    diagnose
        what stands in the way, in words, when the coordinator cannot be reached; raises `Refused` for what
        waiting will not mend (a certificate), and `Unreachable` for what it may.
    """

    address: str
    credentials: grpc.ChannelCredentials | Callable[[], grpc.ChannelCredentials] | None
    patience: float
    keepalive: float = 5.0
    least_bandwidth: float = LEAST_BANDWIDTH
    diagnose: Callable[[], str] = lambda: "no answer"


class _NoSession(Exception):
    """Nobody answered; dialling again may help."""


class LostSession(Exception):
    """A session broke: something had been heard in it, or it had been open for a while."""


class TurnedAway(LostSession):
    """The coordinator would not have the session, for a reason that its operator can mend."""


@dataclass(frozen=True)
class Watcher:
    """Who is told what happens, and who takes the result.

    Parameters
    ----------
    note
        a sentence for the operator.
    message
        whatever the coordinator says.
    deliver
        puts the models on the disk; the coordinator hears that the site has them only after it returned.
    """

    note: Callable[[str], None]
    message: Callable[[ToSite], None]
    deliver: Callable[[SiteResult], None]


Conversation: TypeAlias = Callable[[grpc.aio.Channel, Callable[[ToSite], None]], Awaitable[T]]


async def take_part(site: Site, ledger: Ledger, dial: Dial, watcher: Watcher) -> SiteResult:
    """Take part in one run to its end, across broken streams and restarts of the coordinator.

    Raises
    ------
    Refused
        the coordinator rejected this site, broke the protocol, or the certificates do not fit.
    LeftBehind, BadData
        the run goes on without this site.
    Unreachable
        nobody answered for ``dial.patience`` seconds.
    StorageError
        what has to be written cannot be.
    """

    async def conversation(channel: grpc.aio.Channel, hear: Callable[[ToSite], None]) -> SiteResult:
        def heard(message: ToSite) -> None:
            hear(message)
            watcher.message(message)

        return await _answer(site, ledger, channel, replace(watcher, message=heard))

    return await keep_dialling(conversation, dial, watcher.note)


async def keep_dialling(conversation: Conversation[T], dial: Dial, note: Callable[[str], None]) -> T:
    """Dial, and dial again when the stream breaks, until a conversation comes to its end.

    Parameters
    ----------
    conversation
        what is said in one session, on a channel that is connected; it tells its second argument whatever it hears, and raises
        `LostSession` when the stream ends before its time.
    dial
        where, how, and for how long.
    note
        a sentence for the operator.

    Raises
    ------
    Unreachable
        nobody answered for ``dial.patience`` seconds.
    """
    pause, last_session, failures = FIRST_PAUSE, time.monotonic(), 0
    joined = False
    while True:
        try:
            left = dial.patience - (time.monotonic() - last_session)
            return await _session(conversation, dial, left)
        except _NoSession as lost:
            reason, failures = str(lost), failures + 1
        except TurnedAway as lost:  # by somebody who can change their mind
            reason, last_session, pause, failures, joined = str(lost), time.monotonic(), PAUSE_OF_THE_UNWELCOME, 0, True
        except LostSession as lost:  # there was a session: patience and pause begin anew
            reason, last_session, pause, failures, joined = str(lost), time.monotonic(), FIRST_PAUSE, 0, True
        if not joined or failures > MANY_FAILURES:
            reason = await asyncio.to_thread(_diagnosis, dial) or reason
        waited = time.monotonic() - last_session
        if waited >= dial.patience:
            raise Unreachable(
                f"{dial.address}: {reason} (tried for {waited:.0f} s). Start the agent again when it is up."
            )
        for_long = "as long as it takes" if math.isinf(dial.patience) else f"{dial.patience - waited:.0f} s more"
        reason = reason.rstrip(".")
        note(f"no session with {dial.address} for {waited:.0f} s: {reason}; trying again, for {for_long}")
        jittered = pause * random.uniform(0.5, 1.5)  # noqa: S311 - jitter, not a secret
        await asyncio.sleep(min(jittered, dial.patience - waited))
        pause = max(pause, min(LONGEST_PAUSE, 2 * pause))


def _diagnosis(dial: Dial) -> str:
    try:
        dial.diagnose()
    except Unreachable as error:
        return str(error)
    return ""  # the handshake works now: whatever it was has passed


async def _session(conversation: Conversation[T], dial: Dial, left: float) -> T:
    options = [*channel_options(dial.keepalive, dial.least_bandwidth), OWN_CONNECTION]
    if dial.credentials is None:
        channel = grpc.aio.insecure_channel(dial.address, options=options)
    else:
        made = dial.credentials() if callable(dial.credentials) else dial.credentials
        channel = grpc.aio.secure_channel(dial.address, made, options=options)
    heard = False

    def hear(_message: ToSite) -> None:
        nonlocal heard
        heard = True

    async with channel:
        try:
            await asyncio.wait_for(_connected(channel), timeout=min(3 * dial.keepalive, max(left, 1.0)))
        except TimeoutError:
            raise _NoSession("no answer") from None
        since = time.monotonic()
        try:
            return await conversation(channel, hear)
        except TurnedAway:
            raise
        except (grpc.RpcError, LostSession) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            # Another service at that address breaks every stream at once: that is no session, and patience goes on.
            kind = LostSession if heard or time.monotonic() - since > 2 * dial.keepalive else _NoSession
            raise kind(f"the stream broke ({details})") from None


async def _connected(channel: grpc.aio.Channel) -> None:
    """Wait for one attempt to connect; when to try again is our own business."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise _NoSession("no answer")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _answer(site: Site, ledger: Ledger, channel: grpc.aio.Channel, watcher: Watcher) -> SiteResult:
    call: Call = channel.stream_stream(JOIN_PATH, request_serializer=None, response_deserializer=None)()
    hello = site.hello()
    assembler, pace = Assembler(), Pace()
    ledger.record(hello)
    listened_to = await write(call, site_message_to_frames(hello))
    watcher.note("connected")
    with Silence(watcher.note) as silence:
        while True:
            data = await silence.read(call)
            if not isinstance(data, bytes):  # grpc.aio.EOF
                raise LostSession("the coordinator closed the stream")
            try:
                message = assembler.feed_coordinator(data)
            except ProtocolError as error:
                raise Refused(f"the coordinator broke the protocol: {error} Nothing was answered.") from None
            pace.answered(assembler.run, time.monotonic())
            if message is None or not (listened_to or isinstance(message, LAST_WORDS)):
                continue  # nobody hears answers any more; the reason, or the model, may still be on its way
            watcher.message(message)
            if isinstance(message, Rejected):
                raise Refused(f"the coordinator refused this session: {message.reason}")
            if isinstance(message, Dismissed):
                raise _dismissal(message)
            work = asyncio.to_thread(
                answers, site, ledger if listened_to else None, message, watcher.deliver, pace.piece
            )
            frames = await told_while(work, work_on(message), watcher.note)
            if isinstance(message, Ask | Inquiry) and (r2 := site.without_labels(message)) is not None:
                watcher.note(findings.without_labels(r2))
            for run, room in site.expected.items():
                assembler.expect(run, *room)
            if listened_to:
                pace.goes(assembler.run, sum(map(len, frames)), time.monotonic())
                listened_to = await write(call, frames)
                pace.whole(assembler.run)
            if site.breach is not None:
                raise Refused(f"the coordinator broke the protocol: it {site.breach}")
            if isinstance(message, Finished) and site.result is not None:
                reading = None
                if listened_to and ledger.signer is not None:
                    reading = await _countersigned(call, assembler, ledger, message.run, watcher.note)
                await leave(call, ledger, reading=reading)
                return site.result


async def _countersigned(
    call: "Call", assembler: Assembler, ledger: Ledger, run: str, note: Callable[[str], None]
) -> "asyncio.Future[Any] | None":
    """The coordinator's word for the head that left with `Fetched`; nothing that the site has waits for it.

    The frame that is still being read is given back: to cancel it would cancel the stream.
    """
    told: str | None = f"the coordinator did not countersign the head of {ledger.path}"
    until, reading = time.monotonic() + COUNTERSIGNING, asyncio.ensure_future(call.read())
    with contextlib.suppress(*WRITE_FAILED, ProtocolError):
        while (await asyncio.wait({reading}, timeout=max(0.0, until - time.monotonic())))[0]:
            if not isinstance(data := reading.result(), bytes):  # grpc.aio.EOF
                break
            message = assembler.feed_coordinator(data)
            if isinstance(message, Countersigned) and message.run == run:
                told = await asyncio.to_thread(ledger.countersigned, message)
                break
            reading = asyncio.ensure_future(call.read())
    if told is not None:
        note(
            f"{told.rstrip('.')}. The next run's head has all lines of this one; its operator may have this one's too."
        )
    return None if reading.done() else reading


def _dismissal(message: Dismissed) -> CoregError:
    kinds = {Outcome.SITE_FAULT: BadData, Outcome.STALLED: LeftBehind}
    return kinds.get(message.outcome, Refused)(f"run {message.run} does not go on with this site: {message.reason}")


class Silence:
    """Tells the operator when nothing is heard, ever more seldom. One timer, however many frames come: a vector has thousands."""

    def __init__(self, note: Callable[[str], None]):
        self._note, self._pause = note, SILENCE
        self._since: float | None = None  # None while nobody listens
        self._timer = asyncio.get_running_loop().call_later(SILENCE, self._passed)

    async def read(self, call: "Call") -> object:
        """The next frame; a coordinator that says nothing is waited for, as long as its connection lives."""
        self._since, self._pause = time.monotonic(), SILENCE
        try:
            return await call.read()
        finally:
            self._since = None

    def _passed(self) -> None:
        left = SILENCE
        if self._since is not None:
            waited = time.monotonic() - self._since
            left = self._pause - waited
            if left <= 0.0:
                self._note(f"connected; nothing heard for {waited:.0f} s: waiting for {WAITED_FOR}")
                self._pause = 2 * waited + SILENCE
                left = self._pause - waited
        self._timer = asyncio.get_running_loop().call_later(left, self._passed)

    def __enter__(self) -> "Silence":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._timer.cancel()


async def leave(
    call: "Call", ledger: Ledger, reason: str = "the run is over", reading: "asyncio.Future[Any] | None" = None
) -> None:
    """The site's last word; then the coordinator ends the stream, having heard it. ``reading``: a frame that is on its way."""
    leaving = Leaving(reason)
    with contextlib.suppress(*WRITE_FAILED, TimeoutError):
        ledger.record(leaving)
        await write(call, site_message_to_frames(leaving))
        await call.done_writing()
        async with asyncio.timeout(CLOSE_GRACE):
            while await (reading or call.read()) is not grpc.aio.EOF:
                reading = None


def answers(
    site: Site,
    ledger: Ledger | None,
    message: ToSite,
    deliver: Callable[[SiteResult], None],
    piece: int = SMALLEST_PIECE,
) -> list[bytes]:
    """The site's answers as frames, each in the ledger and on the disk; off the event loop, all of it."""
    ask = message if isinstance(message, Ask | Inquiry) else None
    said = site.handle(message)
    if isinstance(message, Finished) and site.result is not None and site.breach is None:
        deliver(site.result)  # before the coordinator hears that the site has it
    frames: list[bytes] = []
    for answer in said:
        if ledger is not None:
            leaving = ledger.record(answer, ask, None if ask is None else site.kept(ask.run))
            frames += site_message_to_frames(leaving, piece)
    return frames


async def write(call: "Call", frames: Iterable[bytes]) -> bool:
    """False when the stream broke, which reading on will explain."""
    try:
        for frame in frames:
            await call.write(frame)
    except WRITE_FAILED:
        return False
    return True
