"""The gRPC service without a generated stub: its name, its only method, and the channel options of both ends.

Both ends need the same keepalive, since a server's default ends a stream whose client pings every few seconds.
"""

from coreg_wire.transport.codec import MAX_FRAME_BYTES, SMALLEST_PIECE

SERVICE = "coreg.v1.Federation"
JOIN = "Join"
JOIN_PATH = f"/{SERVICE}/{JOIN}"


# The default of the minimum bytes per second of every link.
MIN_BANDWIDTH = 10_000.0
_SMALLEST_WINDOW, _LARGEST_WINDOW = 1 << 16, 1 << 24


def window_bytes(keepalive_seconds: float, min_bandwidth: float = MIN_BANDWIDTH) -> int:
    """HTTP/2's flow-control window: the bytes of one keepalive at ``min_bandwidth``, between 64 KiB and 16 MiB."""
    return int(min(max(keepalive_seconds * min_bandwidth, _SMALLEST_WINDOW), _LARGEST_WINDOW))


def channel_options(keepalive_seconds: float, min_bandwidth: float = MIN_BANDWIDTH) -> list[tuple[str, int]]:
    """Options of both ends: frame limits, and a keepalive.

    A silent loss is detected after a keepalive, when the ping is sent, and the timeout of its answer. A ping waits for the data
    before it: the window and the current piece, at ``min_bandwidth``. A link as slow as that has small pieces only
    (`coreg_wire.transport.chunk_size`). A link that becomes much slower is treated as lost.

    gRPC's keepalive timeout starts when the ping is written to the socket's buffer, and any received byte ends it. A ping without
    acknowledgement has the timeout ``grpc.http2.ping_timeout_ms``. Its default of a minute is too long for a frozen peer or a
    middlebox that drops packets. Both timeouts must exceed the time of the data before the ping in the TCP connection.
    Otherwise a large vector on a slow link ends its own session. TCP_USER_TIMEOUT is the keepalive timeout too ("Connection timed
    out"). gRPC's bandwidth probe is off, since it enlarges the window to the size of the buffers, and its pings have the same
    timeout.
    """
    every, answer = _every(keepalive_seconds), _answer(keepalive_seconds, min_bandwidth)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", window_bytes(keepalive_seconds, min_bandwidth)),
        ("grpc.keepalive_time_ms", every),
        ("grpc.keepalive_timeout_ms", answer),
        ("grpc.http2.ping_timeout_ms", answer),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", every // 2),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", every // 2),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


def _every(keepalive_seconds: float) -> int:
    return max(1000, int(keepalive_seconds * 1000))


def _answer(keepalive_seconds: float, min_bandwidth: float) -> int:
    before = window_bytes(keepalive_seconds, min_bandwidth) + SMALLEST_PIECE
    return max(1000, _every(keepalive_seconds) * 4 // 5) + int(1000 * before / min_bandwidth)
