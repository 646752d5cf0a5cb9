"""Connect to the coordinator over gRPC and mutual TLS, reconnect when the stream breaks, and one
open stream.

Each message is recorded in the ledger before it leaves.
"""

import asyncio
import contextlib
import math
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio

from coreg_core.errors import Unreachable
from coreg_core.messages import FromSite, Leaving
from coreg_wire.identity.credentials import client_credentials
from coreg_wire.transport.codec import Assembler, frames_of
from coreg_wire.transport.service import JOIN_PATH, channel_options
from site_agent.identity.identity import Identity
from site_agent.ledger import Ledger

# The first match counts. gRPC has one status, UNAVAILABLE, for all of these.
HINTS = (
    ("proxy returned", "the proxy refuses. It must allow CONNECT to the coordinator's port"),
    (
        "Connection refused",
        "nothing listens there. Check the port, or ask the coordinator's operator whether it runs",
    ),
    ("not found", "the name does not resolve. Check its spelling, and this machine's DNS"),
    (
        "timed out",
        "no answer in time. A firewall drops the packets, or the machine is down or overloaded",
    ),
    (
        "expired",
        (
            "the server's certificate has expired. Check this clock; its operator runs `init"
            " --renew-server`"
        ),
    ),
    (
        "not yet valid",
        "the server's certificate is not valid yet. Check the clocks of both machines",
    ),
    (
        "Hostname",
        (
            "the server's certificate is for another name. Dial that name, or ask its operator to"
            " sign this one"
        ),
    ),
    (
        "VERIFY_FAILED",
        (
            "the server's certificate is not of the authority in ca.pem. Check the address, or join"
            " again"
        ),
    ),
    ("WRONG_VERSION", "the server does not speak TLS: it is another service"),
    (
        "reset",
        (
            "the server closed the connection. It is no coordinator, or a firewall cut it. Check"
            " the port"
        ),
    ),
    ("HTTP/2", "the server does not speak gRPC. Check the port"),
    (
        "Socket closed",
        (
            "the server closed the connection. It rejected this site's certificate (ask its"
            " operator for a new invitation), or is not a coordinator"
        ),
    ),
)
NO_PROXY_VARIABLES = ("no_grpc_proxy", "no_proxy")
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC reads the first that is set


def explained(details: str) -> str:
    """The hint for gRPC's `details`, with its last error and the proxy variable that is set."""
    hint = next((hint for text, hint in HINTS if text in details), "no connection")
    proxy = next((f"; proxy from {name}" for name in PROXY_VARIABLES if os.environ.get(name)), "")
    if proxy and any("*" in os.environ.get(name, "") for name in NO_PROXY_VARIABLES):
        proxy += ", since gRPC does not know the * of no_proxy: write the coordinator's host there"
    return f"{hint} (gRPC: {details.rpartition('last error: ')[2] or 'no answer'}{proxy})"


FIRST_PAUSE = 0.2
LONGEST_PAUSE = 60.0  # seconds; an agent finds a coordinator that is up again within this time
T = TypeVar("T")


class Connection(Protocol):
    """One stream to the coordinator. A broken stream raises `ConnectionError`."""

    async def read(self) -> bytes | None:
        """The next frame; None when the coordinator ends the stream."""

    async def write(self, frame: bytes) -> None: ...

    async def finish(self) -> None:
        """Close the writing side."""


class Dialler(Protocol):
    """Opens connections. `connect` raises `NoAnswer` with the reason."""

    @property
    def address(self) -> str:
        """host:port."""

    def connect(self, timeout: float) -> AbstractAsyncContextManager[Connection]: ...


class NoAnswer(Exception):
    """No session; a retry can help."""


class LostSession(Exception):
    """A session ended early."""


class SessionRefused(LostSession):
    """One side ended the session for a reason that an operator has to mend first.

    The pause before the next one doubles each time, from ``pause`` up to ``longest`` seconds.
    """

    def __init__(self, reason: str, pause: float, longest: float):
        super().__init__(reason)
        self.pause = pause
        self.longest = longest


@dataclass(frozen=True)
class NotConnected:
    """A failed try to connect.

    ``state`` is equal for tries that fail for the same reason: the first of them is news. ``text``
    also has the time so far, and details that can differ from try to try.
    """

    state: str
    text: str


@dataclass(frozen=True)
class Dial:
    """Settings of the connection."""

    dialler: Dialler
    timeout: float
    attempt: float = 15.0
    jitter: Callable[[float, float], float] = random.uniform


async def keep_dialling(
    conversation: Callable[[Connection, Callable[[], None]], Awaitable[T]],
    dial: Dial,
    note: Callable[[NotConnected], None],
) -> T:
    """Connect, and reconnect, until a conversation is complete.

    ``note`` receives every failed try. Without an answer the pause between two tries doubles up to
    `LONGEST_PAUSE`: it is about as long as the outage so far, and a minute at most. Unreachable
    after ``dial.timeout`` s without a session.
    """
    loop = asyncio.get_running_loop()
    pause = 0.0
    last_session = loop.time()
    while True:
        try:
            return await _session(conversation, dial, dial.timeout - (loop.time() - last_session))
        except NoAnswer as lost:
            reason = str(lost)
            pause = max(FIRST_PAUSE, min(2 * pause, LONGEST_PAUSE))
        except SessionRefused as lost:
            reason = str(lost)
            last_session = loop.time()
            pause = max(lost.pause, min(2 * pause, lost.longest))
        except LostSession as lost:  # there was a session: timeout and pause start again
            reason = str(lost)
            last_session = loop.time()
            pause = FIRST_PAUSE
        waited = loop.time() - last_session
        address = dial.dialler.address
        if waited >= dial.timeout:
            tried = f"{address}: {reason} (tried for {waited:.0f} s)"
            raise Unreachable(f"{tried}. Start the agent again when the coordinator is up.")
        limit = (
            "no timeout"
            if math.isinf(dial.timeout)
            else f"timeout in {dial.timeout - waited:.0f} s"
        )
        since = f" for {waited:.0f} s" if waited >= 1 else ""
        text = f"not connected to {address}{since}: {reason}; trying again ({limit})"
        note(NotConnected(state=reason.partition(" (")[0], text=text))
        await asyncio.sleep(min(dial.jitter(0.5 * pause, pause), dial.timeout - waited))


async def _session(
    conversation: Callable[[Connection, Callable[[], None]], Awaitable[T]], dial: Dial, left: float
) -> T:
    loop = asyncio.get_running_loop()
    heard = False

    def hear() -> None:
        nonlocal heard
        heard = True

    async with dial.dialler.connect(min(dial.attempt, max(left, 1.0))) as connection:
        since = loop.time()
        try:
            return await conversation(connection, hear)
        except SessionRefused:
            raise
        except (ConnectionError, LostSession) as error:
            # Another service at that address closes every stream immediately. That is no session:
            # the timeout continues.
            kind = LostSession if heard or loop.time() - since > dial.attempt else NoAnswer
            raise kind(f"the stream broke ({error})") from None


CLOSE_GRACE = 5.0  # seconds for the coordinator to end the stream after the site's last message


def _seen(reading: "asyncio.Task[bytes | None]") -> None:
    """Otherwise asyncio logs the error of a stream that breaks while the session ends."""
    if not reading.cancelled():
        reading.exception()


@dataclass(eq=False)
class Session:
    """One open stream.

    ``listening``: whether the coordinator still reads; if not, its last message can still arrive.
    """

    connection: Connection
    ledger: Ledger
    assembler: Assembler = field(default_factory=Assembler)
    listening: bool = True
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reading: "asyncio.Task[bytes | None] | None" = None

    def reading(self) -> "asyncio.Task[bytes | None]":
        """The task that reads the next frame, for `read`.

        It is not cancelled before `close`: that would end the stream.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self.connection.read())
            self._reading.add_done_callback(_seen)
        return self._reading

    async def read(self) -> bytes | None:
        frame = await asyncio.shield(self.reading())
        self._reading = None
        return frame

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def say(self, message: FromSite) -> None:
        leaving = await asyncio.to_thread(self.ledger.record, message)
        await self.send(list(frames_of(leaving)))

    async def send(self, frames: list[bytes]) -> None:
        """Send frames that are recorded already."""
        async with self._turn:
            if not self.listening:
                return
            try:
                for frame in frames:
                    await self.connection.write(frame)
            except ConnectionError:  # the reading side reports the cause
                self.listening = False

    async def leave(self, reason: str) -> None:
        """Send the site's last message, and wait until the coordinator ends the stream."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.say(Leaving(reason))
            await self.connection.finish()
            async with asyncio.timeout(CLOSE_GRACE):
                while await self.read() is not None:
                    pass


# --- gRPC -----------------------------------------------------------------------------------------

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
# Each session has its own subchannel pool: otherwise later channels share the back-off of a refused
# connection, which grows from seconds to minutes.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


class _Stream:
    """See `stream.Connection`."""

    def __init__(self, call: Call):
        self._call = call

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except grpc.RpcError as error:
            raise ConnectionError(_details(error)) from None
        return frame if isinstance(frame, bytes) else None  # grpc.aio.EOF

    async def write(self, frame: bytes) -> None:
        await _written(self._call.write(frame))

    async def finish(self) -> None:
        await _written(self._call.done_writing())


async def _written(writing: Awaitable[None]) -> None:
    try:
        await writing
    except (
        grpc.RpcError,
        asyncio.InvalidStateError,
    ) as error:  # the other end closed before or while we wrote
        raise ConnectionError(_details(error)) from None


def _details(error: Exception) -> str:
    return str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)


@dataclass
class GrpcDialler:
    """See `stream.Dialler`."""

    address: str
    credentials: Callable[[], grpc.ChannelCredentials]

    @asynccontextmanager
    async def connect(self, timeout: float) -> AsyncIterator[Connection]:
        options = [*channel_options(), OWN_CONNECTION]
        async with grpc.aio.secure_channel(
            self.address, self.credentials(), options=options
        ) as channel:
            try:
                await asyncio.wait_for(_connected(channel), timeout=timeout)
            except TimeoutError:
                raise NoAnswer(explained("connection timed out")) from None
            yield _Stream(
                channel.stream_stream(
                    JOIN_PATH, request_serializer=None, response_deserializer=None
                )()
            )


async def check_connection(address: str, identity: Identity, timeout: float = 5.0) -> str:
    """Open a connection and close it; the coordinator decides at a join whether it admits the
    site.
    """
    credentials = client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)
    try:
        async with GrpcDialler(address, lambda: credentials).connect(timeout):
            return (
                f"{address} accepts this site's certificate; not checked: whether it is revoked (an"
                " agent is told at once)"
            )
    except NoAnswer as error:
        raise Unreachable(f"{address}: {error}.") from None


async def _connected(channel: grpc.aio.Channel) -> None:
    """Wait for one attempt to connect; `keep_dialling` decides when to retry."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise NoAnswer(explained(await _last_error(channel)))
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _last_error(channel: grpc.aio.Channel) -> str:
    """The reason of a failed attempt. gRPC tells it to a call only."""
    try:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/")
        await call(b"")
    except grpc.aio.AioRpcError as error:
        return error.details() or ""
    return ""
