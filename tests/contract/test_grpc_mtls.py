"""What only a wire can do wrong: certificates, names, frames, streams that break. Loopback, mutual TLS, real gRPC."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from harness import RUN, Client, EchoSite, Events, Home
from machine.tiny import CLOCKS, acceptance, make_plan

from coordinator.authority.authorised import authorise, revoke
from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.events import Breached, Interrupted, Received, SiteJoined, SiteLost, TurnedAway
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice, SessionTurnedAway
from coordinator.machine.state import Recorded
from coordinator.machine.wording import worded
from coordinator.transports.grpc_mtls import MAX_UNLABELLED, GrpcServer, _Session
from coreg_core.agreement.columns import Column
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import PROTOCOL_VERSION, Ask, Hello, Leaving, Prediction, Rejected, Vector
from coreg_wire.transport.codec import SMALLEST_PIECE, Assembler, site_message_to_frames
from coreg_wire.v1 import federation_pb2 as pb

PIECE = SMALLEST_PIECE // 8


def within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await work

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def serving(home: Home, **options: float) -> AsyncIterator[tuple[GrpcServer, Events]]:
    rows = int(options.pop("rows", 3))
    server, events = home.server(**options), Events()
    await server.start(events.emit)
    server.expect(RUN, rows, 1)  # as the machine says once a site has accepted the plan
    try:
        yield server, events
    finally:
        await server.close()


def hello(site: str = "a", release: str = "test") -> Hello:
    return Hello(site, PROTOCOL_VERSION, release)


def ask(rows: int = 3) -> Ask:
    return Ask(RUN, 0, 0, "affine", (Column(0.25, 0.5),), True, Vector(np.ones((rows, 1))))


def head(rows: int, data: bytes, columns: int = 1, run: str = RUN) -> pb.SiteFrame:
    """A prediction whose vector announces so many rows, with these bytes."""
    vector = pb.Vector(rows=rows, columns=columns, data=data)
    return pb.SiteFrame(message=pb.FromSite(prediction=pb.Prediction(run=run, values=vector)))


def chunk(data: bytes) -> pb.SiteFrame:
    return pb.SiteFrame(chunk=pb.Chunk(run=RUN, data=data))


async def rejection(client: Client) -> str:
    """The reason; after it the stream ends."""
    message = await client.receive()
    assert isinstance(message, Rejected), message
    assert await client.receive() is None
    return message.reason


async def no_session(client: Client) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:  # noqa: PT012 - gRPC tells at the first write or the first read
        await client.send(hello())
        await client.receive()
    return error.value.code()


# --- who gets in --------------------------------------------------------------------------------------------------


def test_a_client_without_a_certificate_gets_no_connection(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            anonymous = grpc.ssl_channel_credentials(root_certificates=home.identity("a").ca_pem)
            async with home.dial(server.port, "a", anonymous) as client:
                assert await no_session(client) is grpc.StatusCode.UNAVAILABLE
            assert events.seen == []

    within(30, main())


def test_a_certificate_of_another_authority_gets_no_connection(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            stranger, ours = home.identity("stranger"), home.identity("a")
            forged = grpc.ssl_channel_credentials(ours.ca_pem, stranger.key_pem, stranger.certificate_pem)
            async with home.dial(server.port, "a", forged) as client:
                assert await no_session(client) is grpc.StatusCode.UNAVAILABLE
            assert events.seen == []

    within(30, main())


def test_a_client_without_tls_gets_no_connection(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                assert await no_session(Client(channel)) is grpc.StatusCode.UNAVAILABLE
            assert events.seen == []

    within(30, main())


def test_a_site_may_not_call_itself_by_another_name(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            async with home.dial(server.port, "b") as client:
                await client.send(hello("a"))
                reason = await rejection(client)
                assert "says it is 'a', but its certificate is 'b''s" in reason
            assert events.seen == [TurnedAway("a", reason)]

    within(30, main())


def test_the_allow_list_is_asked_at_every_join(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            listed = (home.authority / "authorised-sites").read_text()
            mark = next(line.split()[1] for line in listed.splitlines() if line.startswith("c "))
            revoke(home.authority, "c")
            async with home.dial(server.port, "c") as client:
                await client.send(hello("c"))
                reason = await rejection(client)
                assert "never signed here, or was revoked" in reason
            assert await events.next() == TurnedAway("c", reason), "its operator is not the only one who should know"
            authorise(home.authority, "c", mark)
            async with home.dial(server.port, "c") as client:
                await client.send(hello("c"))
                assert await events.next() == SiteJoined(hello("c"))

    within(30, main())


def test_a_certificate_that_is_not_the_one_on_the_list_is_turned_away(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            path = home.authority / "authorised-sites"
            listed = path.read_text()
            authorise(home.authority, "c", 64 * "0")
            try:
                async with home.dial(server.port, "c") as client:
                    await client.send(hello("c"))
                    reason = await rejection(client)
                    assert "the one shown was revoked or replaced" in reason
                assert events.seen == [TurnedAway("c", reason)]
            finally:
                path.write_text(listed)

    within(30, main())


def test_the_coordinators_operator_is_told_whom_the_door_turned_away(home: Home) -> None:
    class Watching:
        def __init__(self) -> None:
            self.heard: asyncio.Queue[Notice] = asyncio.Queue()

        def notice(self, notice: Notice, measured: Lap) -> None:
            self.heard.put_nowait(notice)

    async def main() -> None:
        server, watching, emits = home.server(), Watching(), []
        begun = begin(Recorded(make_plan()), replace(CLOCKS, join=30.0))
        run = asyncio.create_task(drive(begun, server, NoMemory(), watching, on_start=emits.append))
        while not emits:
            await asyncio.sleep(0.01)
        async with home.dial(server.port, "b") as client:
            await client.send(hello("a"))
            reason = await rejection(client)
        while not isinstance(heard := await watching.heard.get(), SessionTurnedAway):
            pass
        assert heard == SessionTurnedAway("a", reason)
        assert worded(heard) == f"turned away: a: {reason}"
        emits[0](Interrupted())
        await run

    within(30, main())


def test_insecure_is_for_loopback_alone() -> None:
    with pytest.raises(UsageError, match="--insecure is for loopback addresses"):
        GrpcServer("0.0.0.0:0", None, lambda name, pem: None)


def test_an_address_that_is_taken_is_a_usage_error(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, _):
            other = GrpcServer(f"127.0.0.1:{server.port}", None, lambda name, pem: None)
            with pytest.raises(UsageError, match="cannot listen on"):
                await other.start(lambda event: None)

    within(30, main())


# --- how a session opens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (list(site_message_to_frames(Leaving("hello?"))), "open with Hello"),
        ([head(3, struct.pack("<3d", 1, 2, 3))], "whose plan nobody has accepted here"),
        ([chunk(b"12345678")], "a chunk that belongs to no vector"),
        ([pb.SiteFrame()], "an empty frame"),
        ([pb.SiteFrame(message=pb.FromSite())], "of a kind that this version does not know"),
        ([b"\xff\xff\xff garbage"], "no protobuf message"),
        ([b""], "an empty frame"),
        (list(site_message_to_frames(hello(site="a" * 10_001))), "10001 characters"),
    ],
)
def test_a_session_opens_with_hello_or_is_told_so(home: Home, frames: list[Any], words: str) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            async with home.dial(server.port, "a") as client:
                await client.write(*frames)
                reason = await rejection(client)
                assert words in reason
            assert events.seen == [TurnedAway("", reason)]

    within(30, main())


def test_a_session_that_says_nothing_is_told_so(home: Home) -> None:
    async def main() -> None:
        async with (
            serving(home, keepalive=0.05) as (server, events),
            home.dial(server.port, "a") as client,
        ):
            await client.call.wait_for_connection()
            reason = await rejection(client)
            assert "nothing came" in reason
            assert events.seen == [TurnedAway("", reason)]

    within(30, main())


def test_a_session_that_ends_before_hello_is_turned_away(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            async with home.dial(server.port, "a") as client:
                await client.call.done_writing()
                reason = await rejection(client)
            assert "nothing came" in reason
            assert events.seen == [TurnedAway("", reason)]

    within(30, main())


# --- a session that breaks the protocol ---------------------------------------------------------------------------

WHOLE_PIECE = b"\0" * SMALLEST_PIECE


@pytest.mark.parametrize(
    ("rows", "frames", "words"),
    [
        (3, [head(4, struct.pack("<4d", 1, 2, 3, 4))], "at most 3 x 1 fit"),
        (3, [head(1 << 60, b"")], "at most 3 x 1 fit"),
        (3, [head(3, struct.pack("<6d", *range(6)), columns=2)], "at most 3 x 1 fit"),
        (3, [head(3, struct.pack("<2d", 1, 2))], "a piece of 16 bytes at 0 of a vector of 24"),
        (3, [head(3, struct.pack("<4d", 1, 2, 3, 4))], "a piece of 32 bytes at 0"),
        (3, [head(3, struct.pack("<3d", 1, float("nan"), 3))], "NaN or infinity"),
        (3, [head(3, struct.pack("<3d", 1, float("-inf"), 3))], "NaN or infinity"),
        (3, [chunk(b"12345678")], "belongs to no vector"),
        (3, [head(3, struct.pack("<3d", 1, 2, 3)), chunk(b"12345678")], "belongs to no vector"),
        (3, [b"\x0a\xff"], "no protobuf message"),
        (3, [pb.SiteFrame()], "an empty frame"),
        (
            2 * PIECE,
            [head(2 * PIECE, WHOLE_PIECE), head(2 * PIECE, WHOLE_PIECE)],
            "before its last one's vector was complete",
        ),
        (2 * PIECE, [head(2 * PIECE, WHOLE_PIECE), chunk(WHOLE_PIECE[:-8])], "a piece of 131064 bytes at 131072"),
        (2 * PIECE, [head(2 * PIECE, WHOLE_PIECE[:-8])], "a piece of 131064 bytes at 0"),
        (2 * PIECE, [head(2 * PIECE, b"")], "a piece of 0 bytes at 0"),
        (3, [head(3, struct.pack("<3d", 1, 2, 3), run="run-9")], "run 'run-9', whose plan nobody has accepted here"),
        (
            3,
            list(site_message_to_frames(acceptance("a", make_plan(), n_unlabelled=MAX_UNLABELLED + 1))),
            f"at most {MAX_UNLABELLED} fit",
        ),
    ],
)
def test_whoever_breaks_the_protocol_is_told_why_and_lost(home: Home, rows: int, frames: list[Any], words: str) -> None:
    async def main() -> None:
        async with serving(home, rows=rows) as (server, events), home.dial(server.port, "a") as client:
            await client.send(hello())
            assert await events.next() == SiteJoined(hello())
            await client.write(*frames)
            reason = await rejection(client)
            assert words in reason
            known = [e for e in events.seen[1:] if not isinstance(e, Received)]
            assert [type(e) for e in known] == [Breached]
            assert words in known[0].reason  # type: ignore[union-attr]
            async with home.dial(server.port, "a") as again:  # and may come back
                await again.send(hello())
                while not isinstance(await events.next(), SiteJoined):
                    pass

    within(30, main())


def test_what_was_whole_before_the_fault_still_counts(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events), home.dial(server.port, "a") as client:
            await client.send(hello())
            await client.write(head(3, struct.pack("<3d", 1, 2, 3)), b"garbage")
            joined, received, breached = await events.take(3)
            assert joined == SiteJoined(hello())
            assert received == Received("a", Prediction(RUN, 0, 0, Vector(np.array([[1.0], [2.0], [3.0]]))))
            assert isinstance(breached, Breached)
            assert "no protobuf message" in breached.reason

    within(30, main())


# --- how a session ends -------------------------------------------------------------------------------------------


def test_a_stream_that_breaks_is_a_lost_site(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            async with home.dial(server.port, "a") as client:
                await client.send(hello())
                assert await events.next() == SiteJoined(hello())
            assert await events.next() == SiteLost("a", "its stream ended")
            await server.send("a", ask())  # nobody is there, and nothing happens
            assert len(events.seen) == 2

    within(30, main())


def test_a_stream_that_its_site_closes_without_a_word_is_a_lost_site(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events), home.dial(server.port, "a") as client:
            await client.send(hello())
            await client.call.done_writing()
            assert await events.take(2) == [SiteJoined(hello()), SiteLost("a", "its stream ended")]
            assert await client.receive() is None

    within(30, main())


def test_a_site_that_leaves_is_not_lost(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events), home.dial(server.port, "a") as client:
            await client.send(hello())
            await client.send(Leaving("the run is over"))
            assert await client.receive() is None
            assert events.seen == [SiteJoined(hello()), Received("a", Leaving("the run is over"))]

    within(30, main())


def test_a_site_that_rejoins_replaces_its_old_session_without_an_event(home: Home) -> None:
    async def main() -> None:
        async with (
            serving(home) as (server, events),
            home.dial(server.port, "a") as old,
            home.dial(server.port, "a") as new,
        ):
            await old.send(hello())
            await events.next()
            await new.send(hello(release="newer"))
            assert await events.next() == SiteJoined(hello(release="newer"))
            told = await old.receive()
            assert isinstance(told, Rejected)
            assert told.final, "dialling again would only put out the other"
            assert "another agent has joined under this name, from 127.0.0.1" in told.reason
            assert await old.receive() is None
            await server.send("a", ask(3))  # before the driver knew of the new session: its site has no plan yet
            plan = make_plan(run=ask(4).run)
            await server.send("a", plan)
            await server.send("a", ask(4))
            assert await new.receive() == plan
            assert await new.receive() == ask(4)
            await new.send(Leaving("bye"))
            assert await events.next() == Received("a", Leaving("bye"))
            assert len(events.seen) == 3

    within(30, main())


@pytest.mark.parametrize(
    "last_words", [b"garbage", *site_message_to_frames(Leaving("old"))], ids=["garbage", "Leaving"]
)
def test_a_replaced_session_that_still_speaks_is_not_heard(home: Home, last_words: Any) -> None:
    """Its writer hangs in flow control, because its peer does not read; its reader must not speak for the new one."""

    async def main() -> None:
        rows = 2_000_000
        async with (
            serving(home) as (server, events),
            home.dial(server.port, "a") as old,
            home.dial(server.port, "a") as new,
        ):
            await old.send(hello())
            await events.next()
            for _ in range(4):
                await server.send("a", ask(rows))
            await new.send(hello())
            await events.next()
            await old.write(last_words)
            await new.send(Leaving("new"))
            assert await events.next() == Received("a", Leaving("new"))
            assert len(events.seen) == 3

    within(30, main())


def test_the_reader_of_a_replaced_session_emits_nothing(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events):
            server._sessions["a"] = _Session("a", Assembler())

            async def frames() -> AsyncIterator[bytes]:
                for frame in site_message_to_frames(Leaving("old")):
                    yield frame
                yield b"garbage"

            await server._read(frames(), Assembler(), _Session("a", Assembler()))
            assert events.seen == []

    within(30, main())


def test_close_ends_every_stream(home: Home) -> None:
    async def main() -> None:
        server, events = home.server(), Events()
        await server.start(events.emit)
        async with home.dial(server.port, "a") as a, home.dial(server.port, "b") as b:
            for client, name in ((a, "a"), (b, "b")):
                await client.send(hello(name))
            await events.take(2)
            await asyncio.gather(server.close(), *(ended(client) for client in (a, b)))
        assert len(events.seen) == 2, "the coordinator's own closing is no loss"

    within(30, main())


async def ended(client: Client) -> None:
    assert await client.receive() is None


def test_traffic_counts_what_crossed(home: Home) -> None:
    async def main() -> None:
        async with serving(home) as (server, events), home.dial(server.port, "a") as client:
            site, rows = EchoSite("a"), 10_000
            frames = list(site_message_to_frames(site.hello()))
            await client.write(*frames)
            await events.next()
            assert server.traffic.received == sum(map(len, frames))
            await server.send("a", ask(rows))
            assert await client.receive() == ask(rows)
            assert 8 * rows < server.traffic.sent < 8 * rows + 200

    within(30, main())
