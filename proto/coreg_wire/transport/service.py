"""The gRPC service without a generated stub: its name, its one method, and the channel options of both ends.

Client and server keepalive are set together: a server's default kills a stream whose client pings every few seconds.
"""

from coreg_wire.transport.codec import MAX_FRAME_BYTES, SMALLEST_PIECE

SERVICE = "coreg.v1.Federation"
JOIN = "Join"
JOIN_PATH = f"/{SERVICE}/{JOIN}"


# Bytes a second that every link carries at least, unless an operator says otherwise.
MIN_BANDWIDTH = 10_000.0
_SMALLEST_WINDOW, _LARGEST_WINDOW = 1 << 16, 1 << 24


def window_bytes(keepalive_seconds: float, min_bandwidth: float = MIN_BANDWIDTH) -> int:
    """HTTP/2's flow-control window: what the slowest link carries in one keepalive, between 64 KiB and 16 MiB."""
    return int(min(max(keepalive_seconds * min_bandwidth, _SMALLEST_WINDOW), _LARGEST_WINDOW))


def silence_seconds(keepalive_seconds: float, min_bandwidth: float = MIN_BANDWIDTH) -> float:
    """Within how long a silent loss is found: a keepalive until the ping, and the time until its answer is overdue.

    A ping stands behind what was sent before it: the window and the piece under way, at `min_bandwidth`. A link that carries no
    more than that gets small pieces alone (`coreg_wire.transport.chunk_size`); one that no longer carries what it did
    is a lost one.
    """
    return (_every(keepalive_seconds) + _answer(keepalive_seconds, min_bandwidth)) / 1000


def channel_options(keepalive_seconds: float, min_bandwidth: float = MIN_BANDWIDTH) -> list[tuple[str, int]]:
    """For both ends: frame limits, and a keepalive that finds a silent loss within `silence_seconds`.

    gRPC's keepalive timeout counts from the ping's write, to the socket's buffer, and any byte that comes ends it; that of a ping
    that was written and is not acknowledged is ``grpc.http2.ping_timeout_ms``, a minute by default: a frozen peer, or a middlebox
    that swallows, would last that long. Both have to outlast what stands before the ping in the one TCP connection, or a large
    vector on a slow link ends its own session. TCP_USER_TIMEOUT is the keepalive timeout too ("Connection timed out").
    gRPC's bandwidth probe is off, since it opens the window to whatever buffers take, and pings of its own are overdue by the
    same rule.
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
