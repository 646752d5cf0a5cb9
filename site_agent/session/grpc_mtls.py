"""Connections over gRPC and mutual TLS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import grpc
import grpc.aio

from coreg_core.errors import Refused, Unreachable
from coreg_wire.transport.service import JOIN_PATH, MIN_BANDWIDTH, channel_options
from site_agent.identity.identity import Identity
from site_agent.session.diagnose import probe_server
from site_agent.session.dial import Connection, NoAnswer

Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
# Each session has its own subchannel pool: otherwise later channels share the back-off of a refused connection, which
# grows from seconds to minutes.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


class _Stream:
    """See `dial.Connection`."""

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
    """See `dial.Dialler`.

    Parameters
    ----------
    address
        host:port of the coordinator; a new one counts from the next connection.
    credentials
        called for each connection, to use a renewed certificate; None is --insecure.
    identity
        the identity for the diagnosis.
    patient
        whether to retry after a rejected certificate: the other operator can fix it.
    """

    address: str
    credentials: Callable[[], grpc.ChannelCredentials] | None
    identity: Callable[[], Identity] | None = None
    keepalive: float = 5.0
    min_bandwidth: float = MIN_BANDWIDTH
    patient: bool = False

    @asynccontextmanager
    async def connect(self, timeout: float) -> AsyncIterator[Connection]:
        options = [*channel_options(self.keepalive, self.min_bandwidth), OWN_CONNECTION]
        if self.credentials is None:
            channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            channel = grpc.aio.secure_channel(self.address, self.credentials(), options=options)
        async with channel:
            try:
                await asyncio.wait_for(_connected(channel), timeout=timeout)
            except TimeoutError:
                raise NoAnswer("no answer") from None
            yield _Stream(channel.stream_stream(JOIN_PATH, request_serializer=None, response_deserializer=None)())

    def diagnose(self) -> str:
        if self.identity is None:
            return "no answer"
        host, _, port = self.address.rpartition(":")
        try:
            probe_server(host.strip("[]"), int(port), self.identity())
        except Refused as error:
            if not self.patient:
                raise
            return str(error)
        except Unreachable as error:
            return str(error)
        return ""  # the handshake works now: the fault is gone


async def _connected(channel: grpc.aio.Channel) -> None:
    """Wait for one attempt to connect; `dial` decides when to retry."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise NoAnswer("no answer")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
