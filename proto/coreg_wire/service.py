"""The gRPC service without a generated stub: its name, its one method, and the channel options of both ends.

Client and server keepalive are set together: a server's default kills a stream whose client pings every few seconds.
"""

from coreg_wire.codec import MAX_FRAME_BYTES

SERVICE = "coreg.v1.Federation"
JOIN = "Join"
JOIN_PATH = f"/{SERVICE}/{JOIN}"


def channel_options(keepalive_seconds: float) -> list[tuple[str, int]]:
    """For both ends: frame limits, and a keepalive that finds a silent loss within two intervals.

    gRPC's keepalive timeout counts from the ping's write; that of a ping that was written and is not acknowledged is
    ``grpc.http2.ping_timeout_ms``, a minute by default: a frozen peer, or a middlebox that swallows, would last that long.
    """
    every = max(1000, int(keepalive_seconds * 1000))
    answer = max(1000, every * 4 // 5)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
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
