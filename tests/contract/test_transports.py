"""One contract, every transport: what the driver and the machine rely on, whoever carries the messages."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from contract.harness import RUN, SITES, EchoSite, Events, Watching, Wire, within
from machine.additive_tiny import additive_plan, additive_sites, bits
from machine.additive_tiny import undisturbed as additive_undisturbed
from machine.tiny import SCHEDULES, TIMEOUTS, make_plan, make_site, make_sites, undisturbed

from coordinator import driver
from coordinator.driver import NullSink, RecordSink, Timing, drive
from coordinator.machine.events import Finish, Received, SiteJoined
from coordinator.machine.federation import begin
from coordinator.machine.notices import QuestionAnswered
from coordinator.machine.records import Record, StepTaken
from coordinator.machine.state import RunState
from coordinator.transports import Transport
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Column as ProbeColumn
from coreg_core.additive.question_types import Operator
from coreg_core.agreement.columns import Column
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.errors import StorageError
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan
from coreg_wire.transport.codec import SMALLEST_PIECE

PIECE = SMALLEST_PIECE // 8  # numbers in a chunk


def ask(targets: m.Vector, number: int = 0, run: str = RUN) -> m.Ask:
    columns = tuple(Column(0.25 * j, 0.5 * j) for j in range(targets.shape[1]))
    return m.Ask(run, number, 0, "affine", columns, True, targets)


def numbers(rows: int, columns: int = 1) -> m.Vector:
    """No two alike, and every bit of them used."""
    return m.Vector(np.random.default_rng(rows).normal(size=(rows, columns)))


@contextlib.asynccontextmanager
async def started(wire: Wire, *names: str, rows: int = 0) -> AsyncIterator[tuple[Transport, Events, list[EchoSite]]]:
    """A transport whose sites have joined; it expects vectors of so many rows. Closed at the end."""
    sites = {name: EchoSite(name) for name in names}
    transport, events = wire(sites), Events()
    if rows:
        transport.expect(RUN, rows, 7)
    await transport.start(events.emit)
    assert await events.take(len(sites)) == [SiteJoined(site.hello()) for site in sites.values()]
    yield transport, events, list(sites.values())
    await transport.close()


class Kept:
    """A memory that is a list."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, run: str, record: Record, progress: Progress | None, measured: Timing, at: str) -> None:
        self.records.append(record)


@within(30)
async def test_sites_join_before_anything_else_and_in_the_order_in_which_they_come(wire: Wire) -> None:
    async with started(wire, "c", "a", "b") as (_transport, events, _sites):
        pass
    assert len(events.seen) == 3


@pytest.mark.parametrize(
    ("rows", "columns"), [*((n, 1) for n in (1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE)), (1000, 7)]
)
@within(30)
async def test_what_is_sent_arrives_and_comes_back_to_the_bit(wire: Wire, rows: int, columns: int) -> None:
    async with started(wire, "a", rows=rows) as (transport, events, [site]):
        question = replace(ask(numbers(rows, columns)), part="linear", is_candidate=columns == 1)
        await transport.send("a", question)
        assert await events.next() == Received("a", m.Prediction(RUN, 0, 0, question.targets))
        assert site.heard == [question]
        assert transport.traffic.sent >= 8 * rows * columns
        assert transport.traffic.received >= 8 * rows * columns


@within(30)
async def test_vectors_of_two_runs_share_a_session(wire: Wire) -> None:
    async with started(wire, "a") as (transport, events, [site]):
        rooms = {RUN: numbers(2 * PIECE + 5), "run-2": numbers(7, 3)}
        for run, vector in rooms.items():
            transport.expect(run, *vector.shape)
        questions = [ask(rooms[run], number, run) for number in range(3) for run in rooms]
        for question in questions:
            await transport.send("a", question)
        expected = [Received("a", m.Prediction(q.run, q.question, 0, q.targets)) for q in questions]
        assert await events.take(6) == expected
        assert site.heard == questions


@within(30)
async def test_every_message_to_a_site_arrives_as_it_was_sent(wire: Wire) -> None:
    columns = (ProbeColumn("probe", 3, Operator(1)),)
    sent: list[m.ToSite] = [
        make_plan(),
        make_plan(bandwidth="paper", ridge="paper"),
        m.Roster(RUN, 2, (m.Participant("a", "01", "02", "03"), m.Participant("b", "04", "05", "06"))),
        ask(numbers(3)),
        m.Inquiry(RUN, 1, 0, Kind.FIXED_POINT, "linear", 2, columns, (0.5,), numbers(3)),
        m.Inquiry(RUN, 2, 0, Kind.LABELS, "linear", 0, (), (), None),
        Plan(RUN, "tiny", Membership(("a",), 1), Additive(bandwidth=2.0, rows="common", residuals="grouped")),
        m.Dismissed("run-9", Outcome.REFUSED, "not this one"),
        m.Countersigned("run-9", m.Head(7, "ab", "2026-01-01"), "2026-01-02", "cd", "ef"),
        m.Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 0.5),), numbers(3)),
    ]
    assert {type(message) for message in sent} == set(get_args(m.ToSite)) - {m.Rejected}, "which has a test of its own"
    async with started(wire, "a", rows=3) as (transport, events, [site]):
        for message in sent:
            await transport.send("a", message)
        assert [e.message for e in await events.take(5)] == [
            m.Prediction(RUN, 0, 0, numbers(3)),
            m.Share(RUN, 1, 0, (0.5,), numbers(3)),
            m.Share(RUN, 2, 0, (), None),
            m.Fetched(RUN),
            m.Leaving("the run is over"),
        ]
    assert site.heard == sent


@within(30)
async def test_each_sites_messages_come_in_their_order(wire: Wire) -> None:
    async with started(wire, *SITES, rows=4) as (transport, events, _sites):
        for number in range(20):
            for name in SITES:
                await transport.send(name, ask(numbers(4), number))
        received = await events.take(60)
        for name in SITES:
            assert [e.message.question for e in received if e.site == name] == list(range(20))


@within(30)
async def test_a_rejected_site_hears_why_and_nothing_more(wire: Wire) -> None:
    async with started(wire, "a", "b", rows=1) as (transport, events, [a, _b]):
        await transport.reject("a", "its list differs")
        await transport.send("a", ask(numbers(1)))
        await transport.reject("a", "once more")
        await transport.send("b", ask(numbers(1)))
        assert await events.next() == Received("b", m.Prediction(RUN, 0, 0, numbers(1)))
    assert a.heard == [m.Rejected("its list differs")]
    assert len(events.seen) == 3, "the end of a rejected session is no event"


@within(30)
async def test_a_message_for_nobody_is_no_error(wire: Wire) -> None:
    async with started(wire) as (transport, events, _sites):
        await transport.send("a", ask(numbers(1)))
        await transport.reject("a", "who?")
    await transport.send("a", ask(numbers(1)))
    assert events.seen == []


@within(30)
async def test_close_delivers_what_is_queued(wire: Wire) -> None:
    end = m.Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 0.5),), numbers(2 * PIECE))
    async with started(wire, *SITES) as (transport, _events, sites):
        for name in SITES:
            await transport.send(name, end)
    assert [site.heard for site in sites] == 3 * [[end]]


@pytest.mark.parametrize("rows", [1, 5 * PIECE])
@within(30)
async def test_a_message_is_whole_only_after_what_it_waits_for(wire: Wire, rows: int) -> None:
    async with started(wire, "a", rows=rows) as (transport, events, [site]):
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = asyncio.create_task(transport.send("a", ask(numbers(rows)), written))
        waited = asyncio.create_task(events.next())
        assert not (await asyncio.wait({waited}, timeout=0.3))[0]
        assert site.heard == []
        written.set_result(None)
        assert await waited == Received("a", m.Prediction(RUN, 0, 0, numbers(rows)))
        await sending


# --- whole runs ---------------------------------------------------------------------------------------------------


def driven(transport: Transport, plan: Plan, sink: RecordSink | None = None) -> tuple[Finish, Watching]:
    watching = Watching()

    async def drive_it() -> Mapping[str, Finish]:
        async with asyncio.timeout(60):
            return await drive(begin(RunState(plan), TIMEOUTS), transport, sink or NullSink(), watching)

    ends = asyncio.run(drive_it())
    assert list(ends) == [plan.run]
    return ends[plan.run], watching


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ["abc", "bca"])
def test_a_whole_run_ends_on_the_same_bits_on_every_transport_in_every_order(
    wire: Wire, schedule: str, order: str
) -> None:
    plan = make_plan(schedule=schedule, tolerance=1e-6, prediction_tolerance=1e-1)
    expected, sites, kept = undisturbed(plan), make_sites(order), Kept()
    end, watching = driven(wire(sites), plan, kept)
    assert end == expected.end == Finish(plan.run, Outcome.CONVERGED, "")
    totals = [r.total for r in expected.records if isinstance(r, StepTaken)]
    assert [r.total for r in kept.records if isinstance(r, StepTaken)] == totals
    told = zip(watching.notices, watching.timings, strict=True)
    laps = [timing for notice, timing in told if isinstance(notice, QuestionAnswered)]
    assert len(laps) == len(totals)
    assert all(lap.seconds > 0 and lap.bytes_sent > 0 and lap.bytes_received > 0 for lap in laps)
    for name, site in sites.items():
        theirs = expected.sites[name].result
        for mine, other in zip(site.result.solutions, theirs.solutions, strict=True):
            assert mine.prediction.tobytes() == other.prediction.tobytes()
            assert mine.function.coef.tobytes() == other.function.coef.tobytes()


class Slow(Kept):
    """A memory that takes its time over a step, and says when it has it."""

    def __init__(self, told: list[tuple[str, int]]) -> None:
        super().__init__()
        self.told = told

    def write(self, run: str, record: Record, progress: Progress | None, measured: Timing, at: str) -> None:
        if isinstance(record, StepTaken):
            time.sleep(0.02)
            self.told.append(("written", record.question))
        super().write(run, record, progress, measured, at)


class Telling:
    """A site that says what it hears before it answers."""

    def __init__(self, site: Any, told: list[tuple[str, int]]) -> None:
        self._site, self._told = site, told
        self.hello = site.hello

    def handle(self, message: m.ToSite) -> Any:
        if isinstance(message, m.Ask):
            self._told.append(("heard", message.question))
        return self._site.handle(message)


@pytest.mark.parametrize("long", [1, 1 << 16], ids=["while the question goes out", "before it does"])
def test_no_question_is_heard_before_the_step_before_it_is_written(
    wire: Wire, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LONG_VECTOR", long)
    told: list[tuple[str, int]] = []
    sites = {name: Telling(site, told) for name, site in make_sites("abc").items()}
    plan = make_plan(schedule="conjugate-gradients", tolerance=1e-6, prediction_tolerance=1e-1)
    end, _ = driven(wire(sites), plan, Slow(told))
    assert end.outcome is Outcome.CONVERGED
    heard = [number for what, number in told if what == "heard"]
    assert max(heard) >= 2
    for i, (what, number) in enumerate(told):
        if what == "heard" and number > 0:
            assert ("written", number - 1) in told[:i]


class Full(Kept):
    """A memory on a disk that is full from the second step on."""

    def write(self, run: str, record: Record, progress: Progress | None, measured: Timing, at: str) -> None:
        if isinstance(record, StepTaken) and record.question == 1:
            raise StorageError("runs.sqlite: no space left on device.")
        super().write(run, record, progress, measured, at)


@pytest.mark.parametrize("long", [1, 1 << 16], ids=["while the question goes out", "before it does"])
def test_a_step_that_cannot_be_written_ends_the_coordinator_and_nobody_hears_what_follows_from_it(
    wire: Wire, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LONG_VECTOR", long)
    told: list[tuple[str, int]] = []
    sites = {name: Telling(site, told) for name, site in make_sites("abc").items()}
    plan = make_plan(schedule="conjugate-gradients", tolerance=1e-6, prediction_tolerance=1e-1)
    with pytest.raises(StorageError, match="no space left"):
        driven(wire(sites), plan, Full())
    assert sorted(set(told)) == [("heard", 0), ("heard", 1)]


def test_a_run_that_a_site_refuses_ends_and_everybody_is_let_go(wire: Wire) -> None:
    sites = make_sites("abc")
    sites["b"] = make_site("b", objection=lambda plan: "max_rounds is above mine")
    end, _ = driven(wire(sites), make_plan(min_sites=3))
    assert end == Finish(RUN, Outcome.REFUSED, "b refused the plan: max_rounds is above mine")
    assert sites["a"].result.outcome is Outcome.REFUSED


ADDITIVE: dict[str, dict[str, Any]] = {
    "private rows": {},
    "common rows": {"rows": "common", "folds": 2, "landmarks": 10},
    "grouped residuals": {"rows": "common", "residuals": "grouped"},
    "open residuals": {"rows": "common", "residuals": "open"},
}


@pytest.mark.parametrize("kind", ADDITIVE)
def test_a_training_of_the_additive_objective_is_the_same_bits_over_every_transport(wire: Wire, kind: str) -> None:
    plan = additive_plan(SITES, tuning_steps=1, final_tolerance=1e-6, **ADDITIVE[kind])
    common = kind != "private rows"
    expected = bits(additive_undisturbed(plan, common=common))
    sites = additive_sites(plan, common=common)

    end, _ = driven(wire(sites), plan)
    assert end.outcome is Outcome.CONVERGED
    for name, site in sites.items():
        own = site.result.additive.own
        assert (own.constant, [f.coef.tobytes() for f in own.functions]) == expected[name][1:]
