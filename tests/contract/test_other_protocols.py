"""A peer of protocol 1 is told in a sentence: what a Hello and a Rejected are stays, whatever becomes of the rest."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from harness import Client, Home
from machine.tiny import CLOCKS, make_plan

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.events import Interrupted
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice, SessionRejected
from coordinator.machine.state import Recorded
from coreg_core.protocol.messages import PROTOCOL_VERSION, Hello, Rejected
from coreg_wire.transport.codec import Assembler, coordinator_message_to_frames, site_message_to_frames
from coreg_wire.v1 import federation_pb2 as pb


def field(number: int, value: int | bytes) -> bytes:
    """A protobuf field by hand, so that nothing of today's schema is in it: a small integer, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def frame_of_protocol_1(site: str) -> bytes:
    """SiteFrame(message=FromSite(hello=Hello(site, protocol=1, n_unlabelled=12, ids_digest="…"))) as release 0.1 wrote it."""
    hello = field(1, site.encode()) + field(2, 1) + field(3, 12) + field(4, b"0123456789abcdef")
    return field(1, field(1, hello))


class Watching:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def notice(self, notice: Notice, measured: Lap) -> None:
        self.notices.append(notice)


def test_a_hello_of_protocol_1_is_still_a_hello() -> None:
    message = Assembler().feed_site(frame_of_protocol_1("a"))
    assert message == Hello("a", 1, "")


def test_an_agent_of_protocol_1_is_rejected_in_words_that_name_both(home: Home) -> None:
    async def main() -> tuple[bytes, list[Notice]]:
        server, watching, emits = home.server(), Watching(), list[Any]()
        begun = begin(Recorded(make_plan()), CLOCKS)
        run = asyncio.create_task(drive(begun, server, NoMemory(), watching, on_start=emits.append))
        while not emits:
            await asyncio.sleep(0.01)
        async with home.dial(server.port, "a") as client:
            answer = await spoken_to(client)
        emits[0](Interrupted())
        await run
        return answer, watching.notices

    async def spoken_to(client: Client) -> bytes:
        await client.write(frame_of_protocol_1("a"))
        data = await client.call.read()
        assert isinstance(data, bytes)
        await client.call.done_writing()
        assert await client.call.read() is grpc.aio.EOF
        return data

    async def bounded() -> tuple[bytes, list[Notice]]:
        async with asyncio.timeout(30):
            return await main()

    data, notices = asyncio.run(bounded())
    frame = OLD["CoordinatorFrame"].FromString(data)  # as the old agent reads it
    reason = frame.message.rejected.reason
    assert reason == (
        f"a: speaks protocol 1, this coordinator {PROTOCOL_VERSION}. "
        "Install the same release of coreg-federation on both sides."
    )
    assert SessionRejected("a", reason) in notices


# --- the other way round: what a coordinator and an agent of release 0.1 read of us --------------------------------


def old_schema() -> dict[str, Any]:
    """The messages of protocol 1 that open and end a session, from their numbers, in a pool of their own."""
    T = descriptor_pb2.FieldDescriptorProto
    shapes: dict[str, list[tuple[str, int, Any]]] = {
        "Hello": [
            ("site", 1, T.TYPE_STRING),
            ("protocol", 2, T.TYPE_UINT32),
            ("n_unlabelled", 3, T.TYPE_UINT64),
            ("ids_digest", 4, T.TYPE_STRING),
        ],
        "Leaving": [("reason", 1, T.TYPE_STRING)],
        "Rejected": [("reason", 1, T.TYPE_STRING)],
        "FromSite": [("hello", 1, "Hello"), ("leaving", 6, "Leaving")],
        "ToSite": [("rejected", 4, "Rejected")],
        "SiteFrame": [("message", 1, "FromSite")],
        "CoordinatorFrame": [("message", 1, "ToSite")],
    }
    file = descriptor_pb2.FileDescriptorProto(name="protocol_1.proto", package="protocol_1", syntax="proto3")
    for name, members in shapes.items():
        message = file.message_type.add(name=name)
        for member, number, kind in members:
            one = message.field.add(name=member, number=number, label=T.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = T.TYPE_MESSAGE, f".protocol_1.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"protocol_1.{name}")) for name in shapes}


OLD = old_schema()


def test_a_coordinator_of_protocol_1_reads_that_we_speak_another() -> None:
    [frame] = site_message_to_frames(Hello("north", PROTOCOL_VERSION, "9.9"))
    old = OLD["SiteFrame"].FromString(frame).message.hello
    assert (old.site, old.protocol) == ("north", 2)
    assert (old.n_unlabelled, old.ids_digest) == (0, ""), "what it does not know is nothing that it knows"


def test_an_agent_of_protocol_1_reads_why_it_is_rejected() -> None:
    [frame] = coordinator_message_to_frames(Rejected("install the same release"))
    old = OLD["CoordinatorFrame"].FromString(frame)
    assert old.message.rejected.reason == "install the same release"


@pytest.mark.parametrize(("message", "number"), [("Hello", 1), ("Leaving", 6)])
def test_a_sessions_own_messages_keep_their_numbers(message: str, number: int) -> None:
    assert pb.FromSite.DESCRIPTOR.fields_by_number[number].message_type.name == message


def test_a_rejection_keeps_its_number() -> None:
    assert pb.ToSite.DESCRIPTOR.fields_by_number[4].message_type.name == "Rejected"
    schema = (Path(__file__).parents[2] / "proto/coreg_wire/v1/federation.proto").read_text(encoding="utf-8")
    assert "reserved 3, 4;" in schema, "the fields that protocol 1 had in Hello are not given another meaning"
