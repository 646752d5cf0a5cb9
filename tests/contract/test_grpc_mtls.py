"""coordinator/transports/grpc_mtls.py: what only TLS and sockets can do wrong. What a session is: test_sessions.py."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from contract.agents import RunningAgent
from contract.harness import RUN, SITES, Client, EchoSite, Events, Home, Watching, echo, hello, step, within
from e2e.proxy import slow_link
from machine.tiny import TIMEOUTS, make_plan

from coordinator.authority.authorised import authorise, revoke
from coordinator.driver import NullSink, drive
from coordinator.machine import notices as n
from coordinator.machine.events import AccessRefused, Interrupted, Received, SiteJoined, SiteLost
from coordinator.machine.federation import begin
from coordinator.machine.phases import Timeouts
from coordinator.machine.state import RunState
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.site_data import PrivateData
from site_agent.session.dial import NoAnswer
from site_agent.session.grpc_mtls import GrpcDialler


@contextlib.asynccontextmanager
async def serving(home: Home, **options: float) -> AsyncIterator[tuple[GrpcServer, Events]]:
    server, events = home.server(**options), Events()
    await server.start(events.emit)
    try:
        yield server, events
    finally:
        await server.close()


async def rejected(home: Home, port: int, certificate: str, said: str) -> str:
    async with home.dial(port, certificate) as client:
        await client.send(hello(said))
        return await client.rejection()


@pytest.mark.parametrize("how", ["no certificate", "another authority's", "no TLS"])
@within(30)
async def test_without_a_certificate_of_this_authority_there_is_no_connection(home: Home, how: str) -> None:
    ours, stranger = home.identity("a"), home.identity("stranger")
    credentials = {
        "no certificate": lambda: grpc.ssl_channel_credentials(ours.ca_pem),
        "another authority's": lambda: grpc.ssl_channel_credentials(
            ours.ca_pem, stranger.key_pem, stranger.certificate_pem
        ),
        "no TLS": None,
    }[how]
    async with serving(home) as (server, events):

        async def open_a_session() -> None:
            async with GrpcDialler(f"127.0.0.1:{server.port}", credentials).connect(10.0) as connection:
                client = Client(connection)
                await client.send(hello())
                await client.receive()

        with pytest.raises((NoAnswer, ConnectionError)):  # gRPC tells at the first write or the first read
            await open_a_session()
        assert events.seen == []


@within(30)
async def test_the_allow_list_is_asked_at_every_join(home: Home) -> None:
    path = home.authority / "authorised-sites"
    listed = path.read_text()
    mark = next(line.split()[1] for line in listed.splitlines() if line.startswith("c "))
    try:
        async with serving(home) as (server, events):
            revoke(home.authority, "c")
            reason = await rejected(home, server.port, "c", "c")
            assert "never signed here, or was revoked" in reason
            assert await events.next() == AccessRefused("c", reason), "the coordinator's operator receives it too"
            authorise(home.authority, "c", 64 * "0")
            assert "the one shown was revoked or replaced" in await rejected(home, server.port, "c", "c")
            await events.next()
            authorise(home.authority, "c", mark)
            async with home.dial(server.port, "c") as client:
                await client.send(hello("c"))
                assert await events.next() == SiteJoined(hello("c"))
                assert server.certificate("c") == home.identity("c").certificate_pem
            assert await events.next() == SiteLost("c", "its stream ended")
    finally:
        path.write_text(listed)


@within(30)
async def test_a_site_may_not_use_another_name_and_the_operator_sees_who_tried(home: Home) -> None:
    server, watching, listening = home.server(), Watching(), asyncio.Event()
    begun = begin(RunState(make_plan()), replace(TIMEOUTS, join=30.0))
    run = asyncio.create_task(drive(begun, server, NullSink(), watching, on_start=lambda emit: listening.set()))
    await listening.wait()
    reason = await rejected(home, server.port, "b", "a")
    assert "says it is 'a', but its certificate is 'b''s" in reason
    while n.AccessDenied("a", reason) not in watching.notices:
        await asyncio.sleep(0.01)
    server.emit(Interrupted())
    await run


@within(30)
async def test_close_ends_every_stream(home: Home) -> None:
    async with serving(home) as (server, events), home.dial(server.port, "a") as a, home.dial(server.port, "b") as b:
        for client, name in ((a, "a"), (b, "b")):
            await client.send(hello(name))
        await events.take(2)
        ends = await asyncio.gather(server.close(), a.receive(), b.receive())
        assert ends == [None, None, None]
        assert len(events.seen) == 2, "the coordinator's own closing is no loss"


def test_insecure_is_for_loopback_alone() -> None:
    with pytest.raises(UsageError, match="--insecure is for loopback addresses"):
        GrpcServer("0.0.0.0:0", None, lambda name, pem: None)


@within(30)
async def test_an_address_that_is_taken_is_a_usage_error_and_grpc_says_nothing(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(home) as (server, _):
        other = GrpcServer(f"127.0.0.1:{server.port}", None, lambda name, pem: None)
        with pytest.raises(UsageError, match=r"cannot listen.*another program listens"):
            await other.start(lambda event, handled=None: None)
    assert capfd.readouterr() == ("", "")


# --- slow links: bytes that come late end no session --------------------------------------------------------------


async def frames_of(home: Home, site: str, port: int, server: GrpcServer, events: Events) -> list[int]:
    """How many frames each of two steps was; their echoes came back whole, and the site was not lost meanwhile."""
    counts = list[int]()
    server.expect(RUN, 40_000)
    async with home.dial(port, site) as client:
        feed = client.assembler.feed_coordinator

        def counted(data: bytes) -> Any:
            counts[-1] += 1
            return feed(data)

        client.assembler.feed_coordinator = counted
        serving_it = asyncio.create_task(client.serve(EchoSite(site)))
        assert isinstance(await events.next(), SiteJoined)
        for number in range(2):
            counts.append(0)
            await server.send(site, sent := step(40_000, number))
            assert await events.next() == Received(site, echo(sent, site))
        serving_it.cancel()
    assert isinstance(await events.next(), SiteLost)
    return counts


@within(60)
async def test_words_outlast_the_keepalive_on_a_slow_link_and_their_pieces_grow_on_a_fast_one_alone(
    home: Home,
) -> None:
    """2.4 s of bytes each way, where pings go out every second: one stands behind them, and its answer comes late."""
    async with serving(home, keepalive=1.0) as (server, events):
        assert await frames_of(home, "a", server.port, server, events) == [3, 1]
        with slow_link(server.port, 133_000) as port:
            assert await frames_of(home, "b", port, server, events) == [3, 3], "every session learns for itself"


def wide(name: str) -> PrivateData:
    """Of one linear feature, so that its vectors are long and its work is short."""
    rng = np.random.default_rng([*name.encode()])
    X, Z = rng.normal(size=(40, 1)), rng.normal(size=(80_000, 1))
    return PrivateData(X, X.sum(axis=1) + rng.normal(size=40), Z, "ids", salt=name.encode())


@within(90)
async def test_a_round_ends_over_a_link_on_which_its_vectors_take_longer_than_its_clock(
    home: Home, tmp_path: Path
) -> None:
    """640 kB each way at 800 kB/s, and a round of 0.2 s: the slow site is named, and nobody stalls."""
    plan = make_plan(form="linear", coupling=(0.1,), tolerance=0.5, prediction_tolerance=1e3, max_rounds=1)
    server, watching, living = home.server(), Watching(), list[asyncio.Task[Any]]()
    begun = begin(RunState(plan), Timeouts(round=0.2, stall=60.0, min_bandwidth=100_000.0))
    with contextlib.ExitStack() as links:

        def dial(_emit: Any) -> None:
            slow = links.enter_context(slow_link(server.port, 800_000))
            for name in SITES:
                agent = RunningAgent(tmp_path / f"{name}.jsonl", name=name, data=wide(name))
                dialler = home.dialler(slow if name == "a" else server.port, name)
                living.append(asyncio.create_task(agent.live(dialler)))

        ends = await drive(begun, server, NullSink(), watching, on_start=dial)
        assert {end.outcome for end in await asyncio.gather(*living)} == {ends[plan.run].outcome}
    assert ends[plan.run].outcome in (Outcome.CONVERGED, Outcome.MAX_ROUNDS)
    slow = [notice for notice in watching.notices if isinstance(notice, n.SlowLink)]
    assert {(notice.site, notice.to_site) for notice in slow} == {("a", True), ("a", False)}, "it is seen both ways"
    assert all(notice.more > 0 for notice in slow)
    assert not [notice for notice in watching.notices if isinstance(notice, n.Stalled | n.Left | n.GoingOnWithout)]
