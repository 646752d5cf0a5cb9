"""Connections over gRPC and mutual TLS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio

from coreg_core.errors import Unreachable
from coreg_wire.identity.credentials import client_credentials
from coreg_wire.transport.service import JOIN_PATH, channel_options
from site_agent.identity.identity import Identity
from site_agent.session.stream import Connection, NoAnswer, explained

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
# Each session has its own subchannel pool: otherwise later channels share the back-off of a refused connection, which
# grows from seconds to minutes.
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
        try:
            await self._call.write(frame)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:  # the other end closed before or while we wrote
            raise ConnectionError(_details(error)) from None

    async def finish(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise ConnectionError(_details(error)) from None


def _details(error: Exception) -> str:
    return str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)


@dataclass
class GrpcDialler:
    """See `stream.Dialler`."""

    address: str
    credentials: Callable[[], grpc.ChannelCredentials] | None

    @asynccontextmanager
    async def connect(self, timeout: float) -> AsyncIterator[Connection]:
        options = [*channel_options(), OWN_CONNECTION]
        if self.credentials is None:
            channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            channel = grpc.aio.secure_channel(self.address, self.credentials(), options=options)
        async with channel:
            try:
                await asyncio.wait_for(_connected(channel), timeout=timeout)
            except TimeoutError:
                raise NoAnswer(explained("connection timed out")) from None
            yield _Stream(channel.stream_stream(JOIN_PATH, request_serializer=None, response_deserializer=None)())


async def check_connection(address: str, identity: Identity, timeout: float = 5.0) -> str:
    """Open a connection and close it; the coordinator decides at a join whether it admits the site."""
    credentials = client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)
    try:
        async with GrpcDialler(address, lambda: credentials).connect(timeout):
            return f"{address} accepts this site's certificate; it admits the site or rejects it at a join"
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
