"""One contract, every transport: what the driver and the machine rely on, whoever carries the messages."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar, get_args

import numpy as np
import pytest
from harness import RUN, SITES, EchoSite, Events, Wire
from machine.additive_tiny import additive_plan, additive_sites, bits
from machine.additive_tiny import undisturbed as additive_undisturbed
from machine.tiny import CLOCKS, SCHEDULES, make_plan, make_site, make_sites, undisturbed

from coordinator import driver
from coordinator.driver import Lap, Memory, NoMemory, drive
from coordinator.machine.events import Finish, Received, SiteJoined
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice, QuestionAnswered
from coordinator.machine.records import Record, StepTaken
from coordinator.machine.state import Recorded
from coordinator.transports import Transport
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Column as ProbeColumn
from coreg_core.additive.question_types import Operator
from coreg_core.agreement.columns import Column
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import (
    Ask,
    Countersigned,
    Dismissed,
    Fetched,
    Finished,
    Head,
    Inquiry,
    Leaving,
    Participant,
    Prediction,
    Rejected,
    Roster,
    Share,
    ToSite,
    Vector,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan
from coreg_wire.transport.codec import SMALLEST_PIECE

T = TypeVar("T")
PIECE = SMALLEST_PIECE // 8  # numbers in a chunk


def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run it; whoever hangs is told where."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


def ask(targets: Vector, number: int = 0, run: str = RUN) -> Ask:
    columns = tuple(Column(0.25 * j, 0.5 * j) for j in range(targets.shape[1]))
    return Ask(run, number, 0, "affine", columns, True, targets)


def numbers(rows: int, columns: int = 1) -> Vector:
    """No two alike, and every bit of them used."""
    return Vector(np.random.default_rng(rows).normal(size=(rows, columns)))


class Watching:
    """An observer that keeps what it is told, and how long each question took."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.laps: list[Lap] = []

    def notice(self, notice: Notice, measured: Lap) -> None:
        self.notices.append(notice)
        if isinstance(notice, QuestionAnswered):
            self.laps.append(measured)


class Kept:
    """A memory that is a list."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None:
        self.records.append(record)


def test_sites_join_before_anything_else_and_in_the_order_in_which_they_come(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in ("c", "a", "b")}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        assert await events.take(3) == [SiteJoined(sites[name].hello()) for name in ("c", "a", "b")]
        await transport.close()
        assert [e for e in events.seen if not isinstance(e, SiteJoined)] == []

    within(30, main())


@pytest.mark.parametrize("rows", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE])
def test_what_is_sent_arrives_and_comes_back_to_the_bit(wire: Wire, rows: int) -> None:
    async def main() -> None:
        site = EchoSite("a")
        transport, events = wire({"a": site}), Events()
        await transport.start(events.emit)
        assert await events.next() == SiteJoined(site.hello())
        transport.expect(RUN, rows, 1)
        question = ask(numbers(rows))
        await transport.send("a", question)
        assert await events.next() == Received("a", Prediction(RUN, 0, 0, question.targets))
        assert site.heard == [question]
        assert transport.traffic.sent >= 8 * rows
        assert transport.traffic.received >= 8 * rows
        await transport.close()

    within(30, main())


def test_several_columns_keep_their_shape(wire: Wire) -> None:
    async def main() -> None:
        site = EchoSite("a")
        transport, events = wire({"a": site}), Events()
        transport.expect(RUN, 1000, 7)
        await transport.start(events.emit)
        await events.next()
        question = replace(ask(numbers(1000, 7)), part="linear", verifies=False)
        await transport.send("a", question)
        assert await events.next() == Received("a", Prediction(RUN, 0, 0, question.targets))
        assert site.heard == [question]
        await transport.close()

    within(30, main())


def test_vectors_of_two_runs_share_a_session(wire: Wire) -> None:
    async def main() -> None:
        site = EchoSite("a")
        transport, events = wire({"a": site}), Events()
        await transport.start(events.emit)
        await events.next()
        rooms = {RUN: numbers(2 * PIECE + 5), "run-2": numbers(7, 3)}
        for run, vector in rooms.items():
            transport.expect(run, *vector.shape)
        questions = [ask(rooms[run], number, run) for number in range(3) for run in rooms]
        for question in questions:
            await transport.send("a", question)
        expected = [Received("a", Prediction(q.run, q.question, 0, q.targets)) for q in questions]
        assert await events.take(6) == expected
        assert site.heard == questions
        await transport.close()

    within(30, main())


def test_every_message_to_a_site_arrives_as_it_was_sent(wire: Wire) -> None:
    async def main() -> None:
        site = EchoSite("a")
        transport, events = wire({"a": site}), Events()
        transport.expect(RUN, 3, 1)
        await transport.start(events.emit)
        await events.next()
        sent: list[ToSite] = [
            make_plan(),
            make_plan(bandwidth="paper", ridge="paper"),
            Roster(RUN, 2, (Participant("a", "01", "02", "03"), Participant("b", "04", "05", "06"))),
            ask(numbers(3)),
            Inquiry(
                RUN, 1, 0, Kind.FIXED_POINT, "linear", 2, (ProbeColumn("probe", 3, Operator(1)),), (0.5,), numbers(3)
            ),
            Inquiry(RUN, 2, 0, Kind.LABELS, "linear", 0, (), (), None),
            Plan(RUN, "tiny", Membership(("a",), 1), Additive(bandwidth=2.0, rows="common", residuals="grouped")),
            Dismissed("run-9", Outcome.REFUSED, "not this one"),
            Countersigned("run-9", Head(7, "ab", "2026-01-01"), "2026-01-02", "cd", "ef"),
            Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 0.5),), numbers(3)),
        ]
        assert {type(message) for message in sent} == set(get_args(ToSite)) - {Rejected}, "which has a test of its own"
        for message in sent:
            await transport.send("a", message)
        assert await events.take(5) == [
            Received("a", Prediction(RUN, 0, 0, numbers(3))),
            Received("a", Share(RUN, 1, 0, (0.5,), numbers(3))),
            Received("a", Share(RUN, 2, 0, (), None)),
            Received("a", Fetched(RUN)),
            Received("a", Leaving("the run is over")),
        ]
        await transport.close()
        assert site.heard == sent

    within(30, main())


def test_each_sites_messages_come_in_their_order(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in SITES}
        transport, events = wire(sites), Events()
        transport.expect(RUN, 4, 1)
        await transport.start(events.emit)
        await events.take(3)
        for number in range(20):
            for name in SITES:
                await transport.send(name, ask(numbers(4), number))
        received = await events.take(60)
        for name in SITES:
            mine = [e.message for e in received if isinstance(e, Received) and e.site == name]
            assert [m.question for m in mine if isinstance(m, Prediction)] == list(range(20))
        await transport.close()

    within(30, main())


def test_a_rejected_site_hears_why_and_nothing_more(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in ("a", "b")}
        transport, events = wire(sites), Events()
        transport.expect(RUN, 1, 1)
        await transport.start(events.emit)
        await events.take(2)
        await transport.reject("a", "its list differs")
        await transport.send("a", ask(numbers(1)))
        await transport.reject("a", "once more")
        await transport.send("b", ask(numbers(1)))
        assert await events.next() == Received("b", Prediction(RUN, 0, 0, numbers(1)))
        await transport.close()
        assert sites["a"].heard == [Rejected("its list differs")]
        assert len(events.seen) == 3, "the end of a rejected session is no event"

    within(30, main())


def test_a_message_for_nobody_is_no_error(wire: Wire) -> None:
    async def main() -> None:
        transport, events = wire({}), Events()
        await transport.start(events.emit)
        await transport.send("a", ask(numbers(1)))
        await transport.reject("a", "who?")
        await transport.close()
        await transport.send("a", ask(numbers(1)))
        assert events.seen == []

    within(30, main())


def test_close_delivers_what_is_queued_in_process_and_on_the_wire(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in SITES}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        await events.take(3)
        end = Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 0.5),), numbers(2 * PIECE))
        for name in SITES:
            await transport.send(name, end)
        await transport.close()
        assert [site.heard for site in sites.values()] == 3 * [[end]]

    within(30, main())


@pytest.mark.parametrize("rows", [1, 5 * PIECE])
def test_a_message_is_whole_only_after_what_it_waits_for(wire: Wire, rows: int) -> None:
    async def main() -> None:
        site = EchoSite("a")
        transport, events = wire({"a": site}), Events()
        await transport.start(events.emit)
        await events.next()
        transport.expect(RUN, rows, 1)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending = asyncio.create_task(transport.send("a", ask(numbers(rows)), written))
        waited = asyncio.create_task(events.next())
        assert not (await asyncio.wait({waited}, timeout=0.3))[0]
        assert site.heard == []
        written.set_result(None)
        assert await waited == Received("a", Prediction(RUN, 0, 0, numbers(rows)))
        await sending
        await transport.close()

    within(30, main())


# --- whole runs ---------------------------------------------------------------------------------------------------


async def driven(transport: Transport, plan: Plan, memory: Memory | None = None) -> tuple[Finish, Watching]:
    watching = Watching()
    ends = await drive(begin(Recorded(plan), CLOCKS), transport, memory or NoMemory(), watching)
    assert list(ends) == [plan.run]
    return ends[plan.run], watching


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ["abc", "bca"])
def test_a_whole_run_ends_on_the_same_bits_on_every_transport_in_every_order(
    wire: Wire, schedule: str, order: str
) -> None:
    plan = make_plan(schedule=schedule, tolerance=1e-6, prediction_tolerance=1e-1)
    expected, sites, kept = undisturbed(plan), make_sites(order), Kept()
    end, watching = within(60, driven(wire(sites), plan, kept))
    assert end == expected.end == Finish(plan.run, Outcome.CONVERGED, "")
    totals = [r.total for r in expected.records if isinstance(r, StepTaken)]
    assert [r.total for r in kept.records if isinstance(r, StepTaken)] == totals
    assert len(watching.laps) == len(totals)
    assert all(lap.seconds > 0 and lap.bytes_sent > 0 and lap.bytes_received > 0 for lap in watching.laps)
    for name, site in sites.items():
        theirs = expected.sites[name].result
        assert site.result is not None
        assert theirs is not None
        for mine, other in zip(site.result.solutions, theirs.solutions, strict=True):
            assert mine.prediction.tobytes() == other.prediction.tobytes()
            assert mine.function.coef.tobytes() == other.function.coef.tobytes()


class Slow(Kept):
    """A memory that takes its time over a step, and says when it has it."""

    def __init__(self, told: list[tuple[str, int]]) -> None:
        super().__init__()
        self.told = told

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None:
        if isinstance(record, StepTaken):
            time.sleep(0.02)
            self.told.append(("written", record.question))
        super().write(run, record, progress, measured, at)


class Telling:
    """A site that says what it hears before it answers."""

    def __init__(self, site: Any, told: list[tuple[str, int]]) -> None:
        self._site, self._told = site, told
        self.hello = site.hello

    def handle(self, message: ToSite) -> Any:
        if isinstance(message, Ask):
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
    end, _ = within(60, driven(wire(sites), plan, Slow(told)))
    assert end.outcome is Outcome.CONVERGED
    heard = [number for what, number in told if what == "heard"]
    assert max(heard) >= 2
    for i, (what, number) in enumerate(told):
        if what == "heard" and number > 0:
            assert ("written", number - 1) in told[:i]


class Full(Kept):
    """A memory on a disk that is full from the second step on."""

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None:
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
        within(30, driven(wire(sites), plan, Full()))
    assert sorted(set(told)) == [("heard", 0), ("heard", 1)]


def test_a_run_that_a_site_refuses_ends_and_everybody_is_let_go(wire: Wire) -> None:
    sites = make_sites("abc")
    sites["b"] = make_site("b", objection=lambda plan: "max_rounds is above mine")
    end, _ = within(30, driven(wire(sites), make_plan(min_sites=3)))
    assert end == Finish(RUN, Outcome.REFUSED, "b refused the plan: max_rounds is above mine")
    assert sites["a"].result is not None
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

    async def main() -> None:
        begun = begin(Recorded(plan), CLOCKS)
        end = (await drive(begun, wire(sites), NoMemory(), Watching()))[plan.run]
        assert end.outcome is Outcome.CONVERGED

    within(60, main())
    for name, site in sites.items():
        assert site.result is not None
        assert site.result.additive is not None
        own = site.result.additive.own
        assert (own.constant, [f.coef.tobytes() for f in own.functions]) == expected[name][1:]
