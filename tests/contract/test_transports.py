"""One contract, every transport: what the driver and the machine rely on, whoever carries the messages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import get_args

import pytest
from contract.harness import RUN, SITES, EchoSite, Events, Watching, Wire, echo, step, within
from core.test_exchange import short  # noqa: F401 - a fixture
from machine.test_additive import exchange, plan_of, rows_of
from machine.tiny import (
    SCHEDULES,
    TIMEOUTS,
    allowing,
    bits,
    make_plan,
    make_site,
    make_sites,
    offer_of,
    sealed,
    site_with,
    undisturbed,
)

from coordinator.driver import NullSink, RecordSink, Timing, drive
from coordinator.machine.events import Finish, Received, SiteJoined
from coordinator.machine.federation import begin
from coordinator.machine.records import Record, StepDone
from coordinator.transports import Transport
from coreg_core.errors import StorageError
from coreg_core.objectives.additive import Additive
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.transport.codec import PIECE_BYTES

PIECE = PIECE_BYTES // 8  # words in a chunk


@contextlib.asynccontextmanager
async def started(wire: Wire, *names: str, room: int = 0) -> AsyncIterator[tuple[Transport, Events, list[EchoSite]]]:
    """A transport whose sites have joined; it expects so many words. Closed at the end."""
    sites = {name: EchoSite(name) for name in names}
    transport, events = wire(sites), Events()
    if room:
        transport.expect(RUN, room)
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
async def test_sites_join_before_anything_else_and_in_the_order_in_which_they_come(wire: Wire) -> None:
    async with started(wire, "c", "a", "b") as (_transport, events, _sites):
        pass
    assert len(events.seen) == 3


@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE])
@within(30)
async def test_what_is_sent_arrives_and_comes_back_to_the_bit(wire: Wire, count: int) -> None:
    async with started(wire, "a", room=count) as (transport, events, [site]):
        await transport.send("a", sent := step(count))
        assert await events.next() == Received("a", echo(sent))
        assert site.heard == [sent]
        assert transport.traffic.sent >= 8 * count
        assert transport.traffic.received >= 8 * count


@within(30)
async def test_words_of_two_runs_share_a_session(wire: Wire) -> None:
    async with started(wire, "a") as (transport, events, [site]):
        rooms = {RUN: 2 * PIECE + 5, "run-2": 21}
        for run, room in rooms.items():
            transport.expect(run, room)
        steps = [step(room, number, run) for number in range(3) for run, room in rooms.items()]
        for each in steps:
            await transport.send("a", each)
        assert await events.take(6) == [Received("a", echo(each)) for each in steps]
        assert site.heard == steps


@within(30)
async def test_every_message_to_a_site_arrives_as_it_was_sent(wire: Wire) -> None:
    plan = make_plan()
    roster = tuple(offer_of(name, plan) for name in "ab")
    sent: list[m.ToSite] = [
        m.Proposal(RUN, 2, plan),
        m.Proposal(RUN, 3, make_plan(bandwidth="paper", ridge="paper")),
        m.Proposal(
            RUN, 4, replace(sealed(plan), objective=Additive("linear", "classification", 12, 0.1, 1.0, 30, 200))
        ),
        m.Step(RUN, 2, 0, roster),
        m.Step(RUN, 2, 1, parts=(m.Part("b", "sealed"),)),
        step(3, 4),
        m.Dismissed("run-9", Outcome.REFUSED, "not this one"),
        m.Countersigned("run-9", m.LedgerHead(7, "ab", "2026-01-01"), "2026-01-02", "cd", "ef"),
        m.Renewed("-----BEGIN CERTIFICATE-----"),
        m.Finished(RUN, Outcome.CONVERGED, ""),
    ]
    assert {type(message) for message in sent} == set(get_args(m.ToSite)) - {m.Rejected}, "which has a test of its own"
    async with started(wire, "a", room=3) as (transport, events, [site]):
        for message in sent:
            await transport.send("a", message)
        answers = [echo(message) for message in sent if isinstance(message, m.Step)]
        last = [m.Fetched(RUN), m.Leaving("the run is over")]
        assert [e.message for e in await events.take(5)] == [*answers, *last]
    assert site.heard == sent


@within(30)
async def test_each_sites_messages_come_in_their_order(wire: Wire) -> None:
    async with started(wire, *SITES, room=4) as (transport, events, _sites):
        for number in range(20):
            for name in SITES:
                await transport.send(name, step(4, number))
        received = await events.take(60)
        for name in SITES:
            assert [e.message.step for e in received if e.site == name] == list(range(20))


@within(30)
async def test_a_rejected_site_hears_why_and_nothing_more(wire: Wire) -> None:
    async with started(wire, "a", "b", room=3) as (transport, events, [a, _b]):
        await transport.reject("a", "its list differs")
        await transport.send("a", step())
        await transport.reject("a", "once more")
        await transport.send("b", step())
        assert await events.next() == Received("b", echo(step(), "b"))
    assert a.heard == [m.Rejected("its list differs")]
    assert len(events.seen) == 3, "the end of a rejected session is no event"


@within(30)
async def test_close_delivers_what_is_queued(wire: Wire) -> None:
    end = m.Finished(RUN, Outcome.CONVERGED, 1000 * "long ")
    async with started(wire, *SITES) as (transport, _events, sites):
        for name in SITES:
            await transport.send(name, end)
    assert [site.heard for site in sites] == 3 * [[end]]


# --- whole runs ---------------------------------------------------------------------------------------------------


def driven(transport: Transport, plan: Plan, sink: RecordSink | None = None) -> tuple[Finish, Watching]:
    watching = Watching()

    async def drive_it() -> Mapping[str, Finish]:
        async with asyncio.timeout(600):
            return await drive(begin(plan, TIMEOUTS), transport, sink or NullSink(), watching.notice)

    ends = asyncio.run(drive_it())
    assert list(ends) == [plan.run]
    return ends[plan.run], watching


@pytest.mark.parametrize("aggregation", ["plaintext", "secure"])
@pytest.mark.parametrize(("schedule", "order"), [*zip(SCHEDULES, ("bca", "abc"), strict=True)])
def test_a_whole_run_ends_on_the_same_bits_on_every_transport_sealed_or_not(
    wire: Wire, schedule: str, order: str, aggregation: str
) -> None:
    plain = make_plan(schedule=schedule, tolerance=1e-6, prediction_tolerance=1e-1)
    plan = replace(plain, privacy=replace(plain.privacy, aggregation=aggregation))
    expected, sites, kept = undisturbed(plain), make_sites(order), Kept()
    end, watching = driven(wire(sites), plan, kept)
    assert end == expected.end == Finish(plan.run, Outcome.CONVERGED, "")
    reports = [r.report for r in expected.records if isinstance(r, StepDone)]
    exchanges = 1 if plan.masked else 0  # of the keys
    assert [r.report for r in kept.records if isinstance(r, StepDone)][exchanges:] == reports
    laps = [notice.fields for notice in watching.notices if notice.name == "round"]
    assert len(laps) == exchanges + len(reports)
    assert all(lap["seconds"] > 0 for lap in laps)
    assert all(lap["bytes_sent"] > 0 and lap["bytes_received"] > 0 for lap in laps[exchanges + 1 : -1])
    for name, site in sites.items():
        mine, theirs = bits(site.result), bits(expected.sites[name].result)
        assert mine is not None
        assert mine == theirs


class Full(Kept):
    """A memory on a disk that is full from the second step on."""

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        if isinstance(record, StepDone) and record.number == 1:
            raise StorageError("runs.sqlite: no space left on device.")
        super().write(run, record, measured, at)


def test_a_step_that_cannot_be_written_ends_the_coordinator_and_no_end_is_told(wire: Wire) -> None:
    sites = make_sites("abc")
    plan = make_plan(tolerance=1e-6, prediction_tolerance=1e-1)
    with pytest.raises(StorageError, match="no space left"):
        driven(wire(sites), plan, Full())
    assert [site.result for site in sites.values()] == [None, None, None]


def test_a_run_that_a_site_refuses_ends_and_everybody_is_let_go(wire: Wire) -> None:
    sites = make_sites("abc")
    sites["b"] = make_site("b", policy=allowing(max_rounds=1))
    end, _ = driven(wire(sites), make_plan(min_sites=3))
    assert end == Finish(
        RUN, Outcome.REFUSED, "b refused the plan: the plan's max_rounds = 300 is above max_rounds = 1."
    )
    assert sites["a"].result.outcome is Outcome.REFUSED


def test_a_training_of_the_additive_objective_goes_over_every_transport(wire: Wire) -> None:
    data = rows_of("abc", private=15)
    sites = {name: site_with(name, rows) for name, rows in data.items()}
    end, _ = driven(wire(sites), plan_of(run=RUN))
    assert end.outcome is Outcome.CONVERGED, end.reason
    fits = [exchange(site).fit.beta for site in sites.values()]
    assert all((beta == fits[0]).all() for beta in fits)
