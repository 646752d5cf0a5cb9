"""The agent's end of the wire: dial out, say hello, answer, and dial again when the stream breaks.

Knows gRPC, the codec and the clock; what a message means is the machine's business. Computing runs off the event loop,
so that keepalive goes on while a large site factors. What is sent stands in the ledger first.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coreg_core.errors import Refused, Unreachable
from coreg_core.messages import Ask, Finished, FromSite, Plan, Rejected, ToSite
from coreg_wire.codec import Assembler, ProtocolError, site_message_to_frames
from coreg_wire.service import JOIN_PATH, channel_options
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.ledger import Ledger
from site_agent.machine import Site, SiteResult

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


@dataclass(frozen=True)
class Dial:
    """Where, and how.

    Args:
        address: host:port of the coordinator.
        credentials: of `coreg_wire.credentials.client_credentials`; None is --insecure.
        patience: seconds without a session after which the agent gives up.
        keepalive: seconds between pings.
        diagnose: what stands in the way, in words, when the coordinator cannot be reached; raises `Refused` for what
            waiting will not mend (a certificate), and `Unreachable` for what it may.
    """

    address: str
    credentials: grpc.ChannelCredentials | None
    patience: float
    keepalive: float = 5.0
    diagnose: Callable[[], str] = lambda: "no answer"


class _NoSession(Exception):
    """Nobody answered; dialling again may help."""


class _LostSession(Exception):
    """A stream that had been open broke."""


async def take_part(
    site: Site, ledger: Ledger, dial: Dial, note: Callable[[str], None], on_message: Callable[[ToSite], None]
) -> SiteResult:
    """Take part in one run to its end, across broken streams and restarts of the coordinator.

    Raises:
        Refused: the coordinator rejected this site, or the certificates do not fit.
        Unreachable: nobody answered for ``dial.patience`` seconds.
    """
    pause, last_session, joined = FIRST_PAUSE, time.monotonic(), False
    while True:
        try:
            return await _session(site, ledger, dial, note, on_message)
        except _NoSession as lost:
            reason = str(lost)
        except _LostSession as lost:  # there was a session: patience and pause begin anew
            reason, last_session, pause, joined = str(lost), time.monotonic(), FIRST_PAUSE, True
        if not joined:
            reason = await asyncio.to_thread(_diagnosis, dial) or reason
        waited = time.monotonic() - last_session
        if waited > dial.patience:
            raise Unreachable(
                f"{dial.address}: {reason} (tried for {waited:.0f} s). Start the agent again when it is up."
            )
        note(f"no session with {dial.address}: {reason}; trying again")
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret
        pause = min(LONGEST_PAUSE, 2 * pause)


def _diagnosis(dial: Dial) -> str:
    try:
        dial.diagnose()
    except Unreachable as error:
        return str(error)
    return ""  # the handshake works now: whatever it was has passed


async def _session(
    site: Site, ledger: Ledger, dial: Dial, note: Callable[[str], None], on_message: Callable[[ToSite], None]
) -> SiteResult:
    options = channel_options(dial.keepalive)
    if dial.credentials is None:
        channel = grpc.aio.insecure_channel(dial.address, options=options)
    else:
        channel = grpc.aio.secure_channel(dial.address, dial.credentials, options=options)
    async with channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), timeout=3 * dial.keepalive)
        except TimeoutError:
            raise _NoSession("no answer") from None
        try:
            return await _answer(site, ledger, channel, note, on_message)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise _LostSession(f"the stream broke ({details})") from None


async def _answer(
    site: Site,
    ledger: Ledger,
    channel: grpc.aio.Channel,
    note: Callable[[str], None],
    on_message: Callable[[ToSite], None],
) -> SiteResult:
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(
        JOIN_PATH, request_serializer=None, response_deserializer=None
    )()
    hello = site.hello()
    assembler = Assembler(max_rows=hello.n_unlabelled)
    await _send(call, ledger, hello, None)
    note("connected")
    while True:
        data = await call.read()
        if not isinstance(data, bytes):  # grpc.aio.EOF
            raise _LostSession("the coordinator closed the stream")
        try:
            message = assembler.feed_coordinator(pb.CoordinatorFrame.FromString(data))
        except (ProtocolError, DecodeError) as error:
            raise Refused(f"the coordinator broke the protocol: {error} Nothing was answered.") from None
        if message is None:
            continue
        on_message(message)
        if isinstance(message, Rejected):
            raise Refused(f"the coordinator refused this session: {message.reason}")
        if isinstance(message, Plan):
            assembler.max_columns = max(1, len(message.coupling))
        for answer in await asyncio.to_thread(site.handle, message):
            await _send(call, ledger, answer, message.part if isinstance(message, Ask) else None)
        if isinstance(message, Finished) and site.result is not None:
            await call.done_writing()
            return site.result


async def _send(
    call: "grpc.aio.StreamStreamCall[bytes, bytes]", ledger: Ledger, message: FromSite, part: str | None
) -> None:
    ledger.record(message, part)
    for frame in site_message_to_frames(message):
        await call.write(frame.SerializeToString())
