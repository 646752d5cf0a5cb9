"""coordinator/transports/sessions.py: who gets in, how a session opens, breaks the protocol, is
replaced, ends, is held back.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.harness import RUN, Client, Events, Frames, echo, hello, step, within
from machine.tiny import make_plan, offer_of

from coordinator.machine.events import (
    AccessRefused,
    Breached,
    Received,
    Revoked,
    SiteJoined,
    SiteLost,
)
from coordinator.transports import sessions as rules
from coordinator.transports.sessions import MAX_UNHANDLED
from coreg_core.errors import Refused
from coreg_core.messages import (
    MOST_INSTANCES,
    PROTOCOL_VERSION,
    Countersigned,
    Fault,
    Hello,
    Leaving,
    LedgerHead,
    Proposal,
    Rejected,
)
from coreg_core.plan import PLAN_NUMBER
from coreg_wire.transport.codec import frames_of
from coreg_wire.v1 import federation_pb2 as pb

LEAVING = Leaving("the run is over")


@pytest.fixture(autouse=True)
def _peers_have_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CLOSE_GRACE", 0.2)


@contextlib.asynccontextmanager
async def serving(room: int = 3, **options: Any) -> AsyncIterator[tuple[Frames, Events]]:
    sessions = Frames(**options)
    events = Events()
    await sessions.start(events.emit)
    sessions.expect(RUN, 8 * room)  # as the machine says once a site has offered
    yield sessions, events
    await sessions.close()


async def joined(sessions: Frames, events: Events, release: str = "test") -> Client:
    client = sessions.dial()
    await client.send(hello(release=release))
    assert await events.next() == SiteJoined(hello(release=release))
    return client


async def at_rest() -> None:
    """Everything that can happen without another message has happened."""
    for _ in range(1000):
        await asyncio.sleep(0)


def head(count: int, data: bytes, run: str = RUN) -> pb.SiteFrame:
    """An answer that announces so many words, with these bytes."""
    payload = pb.Payload(size=8 * count, data=data)
    body = pb.Answer(run=run, report=pb.Report(), summed=payload)
    return pb.SiteFrame(message=pb.FromSite(answer=body))


# --- how a session opens --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (list(frames_of(LEAVING)), "start with Hello"),
        ([head(3, bytes(24))], "where 0 fit"),
        ([b"\xff\xff\xff garbage"], "not a protobuf message"),
        (list(frames_of(hello(site="a" * 10_001))), "10001 characters"),
        ([], "nothing was received"),
        (None, "nothing was received"),
    ],
)
@within(30)
async def test_a_session_opens_with_hello_or_is_rejected_with_the_reason(
    frames: Any, words: str
) -> None:
    async with serving(idle=0.2) as (sessions, events):
        client = sessions.dial()
        if frames is None:
            await client.connection.finish()
        else:
            await client.write(*frames)
        reason = await client.rejection()
        assert words in reason
        assert events.seen == [AccessRefused("", reason)]


@within(30)
async def test_a_greeting_comes_first_and_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site owes no answer to it, so the end does not wait for one."""
    monkeypatch.setattr(rules, "CLOSE_GRACE", 1000.0)
    receipt = Countersigned(RUN, LedgerHead(3, "ab", "now"), "now", "05", "06")
    async with serving() as (sessions, events):
        sessions.greetings = lambda _site, _hello: [receipt]
        client = await joined(sessions, events)
        assert await client.receive() == receipt
        await sessions.close()


@within(30)
async def test_the_name_is_the_certificates_and_the_allow_list_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "valid_until", lambda pem: "2027-01-01")
    listed = {"a"}

    def authorise(name: str, certificate: bytes) -> None:
        if name not in listed:
            raise Refused(f"{name} is not listed")

    async with serving(authorise=authorise) as (sessions, events):
        for name, said, words in (
            ("b", "b", "b is not listed"),
            ("a", "c", "says it is 'c', but its certificate is 'a''s"),
        ):
            client = sessions.dial((name, b"pem"))
            await client.send(hello(said))
            reason = await client.rejection()
            assert words in reason
            assert await events.next() == AccessRefused(name, reason)
        listed.add("b")
        await sessions.dial(("b", b"pem")).send(hello("b"))
        assert await events.next() == SiteJoined(hello("b"), "2027-01-01")
        assert sessions.certificate("b") == b"pem"
        sessions.check_again()
        listed.clear()
        sessions.check_again()
        assert events.seen[3:] == [Revoked("b", "b is not listed")]


# --- how a session breaks the protocol, ends, and is replaced -------------------------------------


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([head(4, bytes(32))], "where 24 fit"),
        ([b"\x0a\xff"], "not a protobuf message"),
        ([head(3, bytes(24), "run-9")], "24 bytes for run 'run-9', where 0 fit"),
        (
            list(frames_of(offer_of("a", make_plan(), n_unlabelled=MOST_INSTANCES + 1))),
            f"at most {MOST_INSTANCES} fit",
        ),
    ],
)
@within(30)
async def test_a_site_that_breaks_the_protocol_hears_why_and_may_come_back(
    frames: list[Any], words: str
) -> None:
    async with serving() as (sessions, events):
        client = await joined(sessions, events)
        await client.send(echo(step()))
        await client.write(*frames)
        assert words in await client.rejection()
        received, breached = events.seen[1:]
        assert received == Received("a", echo(step())), (
            "what was whole before the fault still counts"
        )
        assert isinstance(breached, Breached)
        assert words in breached.reason
        await sessions.dial().send(hello())
        while not isinstance(await events.next(), SiteJoined):
            pass


@pytest.mark.parametrize("how", ["the link is cut", "the site ends it", "it says that it leaves"])
@within(30)
async def test_a_stream_that_ends_without_a_word_is_a_lost_site(how: str) -> None:
    async with serving() as (sessions, events):
        pipe = sessions.pipe()
        client = Client(pipe.site)
        await client.send(hello())
        await events.next()
        if how == "the link is cut":
            pipe.cut()
        elif how == "the site ends it":
            await client.connection.finish()
        else:
            await client.send(LEAVING)
        said = await events.next()
        expected = SiteLost("a", "its stream ended")
        if "leaves" in how:
            expected = Received("a", LEAVING)
        assert said == expected
        await sessions.send("a", step())  # nobody is there, and nothing happens
        assert len(events.seen) == 2


@within(30)
async def test_a_site_that_reconnects_replaces_its_old_session_without_an_event() -> None:
    async with serving() as (sessions, events):
        old = await joined(sessions, events)
        new = await joined(sessions, events, "newer")
        told = await old.receive()
        assert told.final, "dialling again would only end the other"
        assert "another agent has joined under this name, from 127.0.0.1" in told.reason
        assert await old.receive() is None
        await sessions.send(
            "a", step(3)
        )  # before the driver knew of the new session: its site has no plan yet
        for message in (Proposal(RUN, 0, make_plan()), step(4)):
            await sessions.send("a", message)
            assert await new.receive() == message
        await new.send(LEAVING)
        assert await events.next() == Received("a", LEAVING)
        assert len(events.seen) == 3


@pytest.mark.parametrize(
    "last_words", [b"garbage", *frames_of(LEAVING)], ids=["garbage", "Leaving"]
)
@within(30)
async def test_a_replaced_session_that_still_speaks_is_not_heard(last_words: bytes) -> None:
    """Its writer hangs in flow control, because its peer does not read; its reader must not speak
    for the new one.
    """
    async with serving() as (sessions, events):
        pipe = sessions.pipe()
        old = Client(pipe.site)
        await old.send(hello())
        await events.next()
        pipe.open.clear()
        await sessions.send("a", step(2_000_000))
        new = await joined(sessions, events)
        pipe.incoming.put_nowait(last_words)
        await new.send(Leaving("new"))
        assert await events.next() == Received("a", Leaving("new"))
        assert len(events.seen) == 3
        pipe.open.set()


# --- backpressure ---------------------------------------------------------------------------------


@within(30)
async def test_no_more_of_a_session_is_read_than_the_coordinator_handles() -> None:
    async with serving() as (sessions, events):
        a = await joined(sessions, events)
        events.held = []
        b = sessions.dial(("b", b""))
        for number in range(3 * MAX_UNHANDLED):
            await a.send(Fault(RUN, 0, number, ""))
        await at_rest()
        assert len(events.seen) == 1 + MAX_UNHANDLED
        await b.send(hello("b"))  # another session is not held back by it
        await b.send(Fault(RUN, 0, 0, ""))
        await at_rest()
        assert [type(event) for event in events.seen[-2:]] == [SiteJoined, Received]
        while len(events.seen) < 3 + 3 * MAX_UNHANDLED:
            assert len(events.held) <= MAX_UNHANDLED + 2  # and that b joined
            events.held.pop(0)()
            await asyncio.sleep(0)
        told = [e.message.step for e in events.seen if isinstance(e, Received) and e.site == "a"]
        assert told == list(range(3 * MAX_UNHANDLED)), "none was dropped"


@within(30)
async def test_a_site_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_UNSENT", 5)
    async with serving() as (sessions, events):
        pipe = sessions.pipe()
        await Client(pipe.site).send(hello())
        await events.next()
        pipe.open.clear()  # its window is full
        for number in range(20):
            await sessions.send("a", step(number=number))
            await asyncio.sleep(0)
        lost = await events.next()
        assert isinstance(lost, SiteLost)
        assert "does not read" in lost.reason
        assert len(events.seen) == 2
        pipe.open.set()
        await joined(sessions, events)


def test_a_peer_of_protocol_1_reads_what_opens_and_ends_a_session() -> None:
    """Bytes as release 0.1 wrote them: field numbers and lengths by hand, so that nothing of
    today's schema is in them.
    """
    protocol = bytes([2 << 3, PROTOCOL_VERSION])
    said = b"\x0a\x05north" + protocol + b"\x2a\x039.9" + bytes([7 << 3, PLAN_NUMBER])
    for frames, old in (
        (
            frames_of(Hello("north", PROTOCOL_VERSION, "9.9")),
            b"\x0a" + bytes([len(said)]) + said,
        ),
        (frames_of(Leaving("done")), b"\x32\x06\x0a\x04done"),
        (frames_of(Rejected("install it")), b"\x22\x0c\x0a\x0ainstall it"),
    ):
        assert [*frames] == [b"\x0a" + bytes([len(old)]) + old]
    assert not {3, 4} & set(pb.Hello.DESCRIPTOR.fields_by_number), (
        "what protocol 1 had in Hello has no other meaning"
    )
