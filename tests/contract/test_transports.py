"""The contract of both transports, which the driver and the machine rely on. And tests of TLS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import grpc
import pytest
from contract.harness import (
    RUN,
    SITES,
    Client,
    EchoSite,
    Events,
    Home,
    Wire,
    echo,
    hello,
    step,
    within,
)
from core.test_exchange import short  # noqa: F401 - a fixture
from machine.tiny import (
    SOLVERS,
    TIMEOUTS,
    bits,
    make_plan,
    make_site,
    make_sites,
    sealed,
    undisturbed,
)

from coordinator.driver import Driver, RecordSink
from coordinator.machine.events import Breached, Finish, Received, SiteJoined
from coordinator.machine.federation import begin
from coordinator.machine.records import Record, StepDone, Timing
from coordinator.transports import Transport
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import StorageError, UsageError
from coreg_core.messages import Finished, Proposal, Rejected
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_wire.transport.codec import PIECE_BYTES
from coreg_wire.transport.service import check_free
from site_agent.session.stream import GrpcDialler, NoAnswer

PIECE = PIECE_BYTES // 8  # words in a chunk


@contextlib.asynccontextmanager
async def started(
    wire: Wire, *names: str, room: int = 0
) -> AsyncIterator[tuple[Transport, Events, list[EchoSite]]]:
    """A transport whose sites have joined; it expects so many words. Closed at the end."""
    sites = {name: EchoSite(name) for name in names}
    transport = wire(sites)
    events = Events()
    if room:
        transport.expect(RUN, 8 * room)
    await transport.start(events.emit)
    assert await events.take(len(sites)) == [SiteJoined(site.hello()) for site in sites.values()]
    yield transport, events, list(sites.values())
    await transport.close()


class Kept:
    """A memory that is a list."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        self.records.append(record)


@within(30)
async def test_words_of_two_runs_share_a_session_and_each_sites_messages_come_in_their_order(
    wire: Wire,
) -> None:
    async with started(wire, "c", "a", "b") as (transport, events, sites):
        rooms = {RUN: 2 * PIECE + 5, "run-2": 21}
        for run, room in rooms.items():
            transport.expect(run, 8 * room)
        steps = [step(room, number, run) for number in range(3) for run, room in rooms.items()]
        for each in steps:
            for site in sites:
                await transport.send(site.name, each)
        received = await events.take(18)
        for site in sites:
            assert [e for e in received if e.site == site.name] == [
                Received(site.name, echo(each)) for each in steps
            ]
            assert site.heard == steps
        assert min(transport.traffic.sent, transport.traffic.received) >= 3 * 3 * 8 * sum(
            rooms.values()
        )


@within(30)
async def test_a_rejected_site_hears_why_and_nothing_more(wire: Wire) -> None:
    async with started(wire, "a", "b", room=3) as (transport, events, [a, _b]):
        await transport.reject("a", "its list differs")
        await transport.send("a", step())
        await transport.reject("a", "once more")
        await transport.send("b", step())
        assert await events.next() == Received("b", echo(step(), "b"))
    assert a.heard == [Rejected("its list differs")]
    assert len(events.seen) == 3, "the end of a rejected session is no event"


@within(30)
async def test_close_delivers_what_is_queued(wire: Wire) -> None:
    end = Finished(RUN, Outcome.CONVERGED, 1000 * "long ")
    async with started(wire, *SITES) as (transport, _events, sites):
        for name in SITES:
            await transport.send(name, end)
    assert [site.heard for site in sites] == 3 * [[end]]


# --- whole runs -----------------------------------------------------------------------------------


def driven(
    transport: Transport, plan: Plan, sink: RecordSink | None = None
) -> tuple[Finish, list[Notice]]:
    notices = list[Notice]()

    async def drive_it() -> Mapping[str, Finish]:
        async with asyncio.timeout(600):
            driver = Driver(transport, sink or None, notices.append, of_steps=notices.append)
            return await driver.drive(*begin(plan, TIMEOUTS))

    ends = asyncio.run(drive_it())
    assert list(ends) == [plan.run]
    return ends[plan.run], notices


@pytest.mark.parametrize("aggregation", ["plaintext", "secure"])
@pytest.mark.parametrize(("solver", "order"), [*zip(SOLVERS, ("bca", "abc"), strict=True)])
def test_a_whole_run_ends_on_the_same_bits(
    wire: Wire, solver: str, order: str, aggregation: str
) -> None:
    plain = make_plan(solver=solver, tolerance=1e-6, prediction_tolerance=1e-1)
    plan = replace(plain, privacy=replace(plain.privacy, aggregation=aggregation))
    expected = undisturbed(plain)
    sites = make_sites(order)
    kept = Kept()
    end, notices = driven(wire(sites), plan, kept)
    assert end == expected.end == Finish(plan.run, Outcome.CONVERGED, "")
    reports = [r.report for r in expected.records if isinstance(r, StepDone)]
    exchanges = 0
    if plan.masked:
        exchanges = 1  # of the keys
    assert [r.report for r in kept.records if isinstance(r, StepDone)][exchanges:] == reports
    laps = [notice.fields for notice in notices if notice.name == "round"]
    assert len(laps) == exchanges + len(reports)
    assert all(lap["seconds"] > 0 for lap in laps)
    assert all(
        lap["bytes_sent"] > 0 and lap["bytes_received"] > 0 for lap in laps[exchanges + 1 : -1]
    )
    assert {name: bits(site.result) for name, site in sites.items()} == expected.bits


class Full(Kept):
    """A memory on a disk that is full from the second step on."""

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        if isinstance(record, StepDone) and record.number == 1:
            raise StorageError("runs.sqlite: no space left on device.")
        super().write(run, record, measured, at)


def test_a_step_that_cannot_be_written_ends_the_coordinator_and_no_end_is_told(wire: Wire) -> None:
    sites = make_sites("abc")
    with pytest.raises(StorageError, match="no space left"):
        driven(wire(sites), make_plan(tolerance=1e-6, prediction_tolerance=1e-1), Full())
    assert [site.result for site in sites.values()] == [None, None, None]


# --- coordinator/transports/grpc_mtls.py: what only TLS and sockets can do wrong ------------------


@contextlib.asynccontextmanager
async def serving(home: Home) -> AsyncIterator[tuple[GrpcServer, Events]]:
    server = home.server()
    events = Events()
    await server.start(events.emit)
    try:
        yield server, events
    finally:
        await server.close()


@pytest.mark.parametrize("signer", ["a", "b"])
@within(60)
async def test_an_offer_that_its_site_did_not_sign_ends_its_session(
    home: Home, signer: str
) -> None:
    """The other members would refuse the run, again and again."""
    plan = sealed(make_plan(min_sites=3))
    site = make_site("a")
    site.sign_with(home.keys(signer))
    [offer] = site.handle(Proposal(plan.run, 0, plan))
    async with serving(home) as (server, events), home.dial(server.port, "a") as client:
        await client.send(hello("a"))
        assert isinstance(await events.next(), SiteJoined)
        await client.send(offer)
        if signer == "a":
            assert await events.next() == Received("a", offer)
        else:
            assert "names another key than that of its certificate" in await client.rejection()
            assert isinstance(await events.next(), Breached)


@pytest.mark.parametrize("how", ["no certificate", "another authority's", "no TLS"])
@within(30)
async def test_without_a_certificate_of_this_authority_there_is_no_connection(
    home: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ours = home.identity("a")
    stranger = home.identity("stranger")
    credentials = {
        "no certificate": lambda: grpc.ssl_channel_credentials(ours.ca_pem),
        "another authority's": lambda: grpc.ssl_channel_credentials(
            ours.ca_pem, stranger.key_pem, stranger.certificate_pem
        ),
        "no TLS": lambda: None,
    }[how]
    if how == "no TLS":
        monkeypatch.setattr(
            "grpc.aio.secure_channel", lambda to, _, options: grpc.aio.insecure_channel(to, options)
        )
    async with serving(home) as (server, events):

        async def open_a_session() -> None:
            async with GrpcDialler(f"127.0.0.1:{server.port}", credentials).connect(
                10.0
            ) as connection:
                client = Client(connection)
                await client.send(hello())
                await client.receive()

        with pytest.raises(
            (NoAnswer, ConnectionError)
        ):  # gRPC tells at the first write or the first read
            await open_a_session()
        assert events.seen == []


@within(30)
async def test_an_address_that_is_taken_is_a_usage_error(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(home) as (server, _):
        other = GrpcServer(f"127.0.0.1:{server.port}", None, lambda name, pem: None)
        with pytest.raises(UsageError, match=r"cannot listen.*another program listens"):
            await other.start(lambda event, handled=None: None)
        for address in ("::1:7713", "localhost", ":7713", "localhost:99999", "localhost:٧٧"):
            with pytest.raises(
                UsageError, match=r"expected HOST:PORT, as in 127\.0\.0\.1:7600 or \[::1\]:7600"
            ):
                check_free(address)
    assert capfd.readouterr() == ("", "")
