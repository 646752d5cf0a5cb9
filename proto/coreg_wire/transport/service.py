"""The gRPC service without a generated stub: its name, its only method, and the channel options of both ends.

Both ends need these options, since a server's default ends a stream whose client pings often.
"""

from coreg_wire.transport.codec import MAX_FRAME_BYTES

SERVICE = "coreg.v1.Federation"
JOIN = "Join"
JOIN_PATH = f"/{SERVICE}/{JOIN}"
IDLE_SECONDS = 60.0


def channel_options(idle_seconds: float = IDLE_SECONDS) -> list[tuple[str, int]]:
    """Options of both ends: frame limits, and a stream that is lost after ``idle_seconds`` without a byte.

    A ping goes out after a third of that time, and its answer has the rest. gRPC's bandwidth probe is off: it enlarges the
    flow-control window, and on a slow link the answer to a ping would wait behind the data in it.
    """
    ping = int(1000 * idle_seconds / 3)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_time_ms", ping),
        ("grpc.keepalive_timeout_ms", 2 * ping),
        ("grpc.http2.ping_timeout_ms", 2 * ping),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", ping // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", ping // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]
