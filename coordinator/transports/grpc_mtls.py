"""gRPC over mutual TLS: the coordinator is the only listener, and each site holds one bidirectional
stream.
"""

from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from coordinator.transports import Emit
from coordinator.transports.sessions import CLOSE_GRACE, Sessions
from coreg_core.errors import UsageError
from coreg_wire.identity.credentials import peer_certificate
from coreg_wire.transport.service import IDLE_SECONDS, JOIN, SERVICE, channel_options, check_free

# A connection without a handshake ends; a site needs one stream, and a second one for a moment.
LIMITS = [("grpc.server_handshake_timeout_ms", 10_000), ("grpc.max_concurrent_streams", 8)]


class _GrpcStream:
    """See `sessions.FrameStream`."""

    def __init__(
        self, frames: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ):
        self._frames = frames
        self._context = context
        # The address in gRPC's "ipv4:10.0.0.7:51234"; the port is arbitrary.
        self.address = (
            context.peer()
            .partition(":")[2]
            .rpartition(":")[0]
            .replace("%5B", "[")
            .replace("%5D", "]")
        )

    async def frames(self) -> AsyncIterator[bytes]:
        try:
            async for frame in self._frames:
                yield frame
        except grpc.RpcError as error:
            raise ConnectionError(str(error)) from None

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except grpc.RpcError as error:
            raise ConnectionError(str(error)) from None

    def peer(self) -> tuple[str, bytes]:
        return peer_certificate(self._context)


class GrpcServer(Sessions):
    """The transport of a service. For port 0 see `port`."""

    def __init__(
        self,
        listen: str,
        credentials: grpc.ServerCredentials,
        authorise: Callable[[str, bytes], None],
        *,
        idle: float = IDLE_SECONDS,
    ):
        super().__init__(authorise, idle=idle)
        self.port = 0
        self._listen = listen
        self._credentials = credentials
        self._server: grpc.aio.Server | None = None

    async def start(self, emit: Emit) -> None:
        self.emit = emit
        check_free(self._listen)
        self._server = grpc.aio.server(options=[*channel_options(self._idle), *LIMITS])
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._join, request_deserializer=None, response_serializer=None
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler}),)
        )
        try:
            self.port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise UsageError(
                f"cannot listen on {self._listen}: {error}. Is another coordinator running?"
            ) from None
        await self._server.start()

    async def _join(
        self, frames: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        await self.serve(_GrpcStream(frames, context))

    async def close(self) -> None:
        await super().close()
        if self._server is not None:
            await self._server.stop(CLOSE_GRACE)
