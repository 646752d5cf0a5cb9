"""A peer of protocol 1 is rejected in words: what Hello, Leaving and Rejected are stays, whatever becomes of the rest."""

import asyncio

import pytest
from contract.harness import Frames, Watching, within
from machine.tiny import TIMEOUTS, make_plan

from coordinator.driver import NullSink, drive
from coordinator.machine.events import Interrupted
from coordinator.machine.federation import begin
from coordinator.machine.notices import session_rejected
from coreg_core.protocol import messages as m
from coreg_wire.transport.codec import coordinator_message_to_frames, site_message_to_frames
from coreg_wire.v1 import federation_pb2 as pb


def field(number: int, value: int | bytes | str) -> bytes:
    """A protobuf field by hand, so that nothing of today's schema is in it: a small integer, or up to 127 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


@within(30)
async def test_an_agent_of_protocol_1_is_rejected_in_words_that_name_both() -> None:
    sessions, watching, listening = Frames(), Watching(), asyncio.Event()
    begun = begin(make_plan(), TIMEOUTS)
    run = asyncio.create_task(
        drive(begun, sessions, NullSink(), watching.notice, on_start=lambda emit: listening.set())
    )
    await listening.wait()
    client = sessions.dial()
    # Hello(site, protocol, n_unlabelled, ids_digest) as release 0.1 wrote it
    hello = field(1, "a") + field(2, 1) + field(3, 12) + field(4, "0123456789abcdef")
    await client.write(field(1, field(1, hello)))
    reason = await client.rejection()
    assert reason == (
        f"a: uses protocol 1, this coordinator {m.PROTOCOL_VERSION}. "
        "Install the same release of coreg-federation on both sides."
    )
    assert session_rejected("a", reason) in watching.notices
    sessions.emit(Interrupted())
    await run


@pytest.mark.parametrize(
    ("frames", "old"),
    [
        (
            [*site_message_to_frames(m.Hello("north", m.PROTOCOL_VERSION, "9.9"))],
            field(1, field(1, field(1, "north") + field(2, m.PROTOCOL_VERSION) + field(5, "9.9"))),
        ),
        ([*site_message_to_frames(m.Leaving("done"))], field(1, field(6, field(1, "done")))),
        ([*coordinator_message_to_frames(m.Rejected("install it"))], field(1, field(4, field(1, "install it")))),
    ],
    ids=["Hello", "Leaving", "Rejected"],
)
def test_a_peer_of_protocol_1_reads_what_opens_and_ends_a_session(frames: list[bytes], old: bytes) -> None:
    assert frames == [old]
    assert not {3, 4} & set(pb.Hello.DESCRIPTOR.fields_by_number), "what protocol 1 had in Hello has no other meaning"
