"""One contract, every transport: what the driver and the machine rely on, whoever carries the messages."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest
from coordinator.machine import Coordinator
from harness import SITES, EchoSite, Events, Wire
from machine.tiny import SCHEDULES, TIMEOUTS, make_plan, make_sites, undisturbed

from coordinator.driver import NoMemory, drive
from coordinator.events import Finish, Received, SiteJoined, StepTaken
from coordinator.store import Measured
from coordinator.transports import Transport
from coreg_core.messages import Ask, Finished, Leaving, Prediction, Rejected, ToSite, Vector
from coreg_core.rounds.schedule import Stop

T = TypeVar("T")
MIB = (1 << 20) // 8  # numbers in a chunk


def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run it; whoever hangs is told where."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(bounded())


def ask(targets: Vector, round_: int = 0) -> Ask:
    return Ask("run-1", round_, 0, "affine", (0.5,), targets)


def numbers(rows: int, columns: int = 1) -> Vector:
    """No two alike, and every bit of them used."""
    return Vector(np.random.default_rng(rows).normal(size=(rows, columns)))


class Quiet:
    """A reporter that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[StepTaken] = []

    def note(self, text: str) -> None: ...

    def step(self, step: StepTaken, measured: Measured) -> None:
        self.steps.append(step)


def test_sites_join_before_anything_else_and_in_the_order_in_which_they_come(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in ("c", "a", "b")}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        assert await events.take(3) == [SiteJoined(sites[name].hello()) for name in ("c", "a", "b")]
        await transport.close()
        assert [e for e in events.seen if not isinstance(e, SiteJoined)] == []

    within(30, main())


@pytest.mark.parametrize("rows", [1, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB])
def test_what_is_sent_arrives_and_comes_back_to_the_bit(wire: Wire, rows: int) -> None:
    async def main() -> None:
        site = EchoSite("a", rows)
        transport, events = wire({"a": site}), Events()
        await transport.start(events.emit)
        assert await events.next() == SiteJoined(site.hello())
        question = ask(numbers(rows))
        await transport.send("a", question)
        assert await events.next() == Received("a", Prediction("run-1", 0, 0, question.targets))
        assert site.heard == [question]
        assert transport.traffic.sent >= 8 * rows
        assert transport.traffic.received >= 8 * rows
        await transport.close()

    within(30, main())


def test_several_columns_keep_their_shape(wire: Wire) -> None:
    async def main() -> None:
        site = EchoSite("a", 1000)
        transport, events = wire({"a": site}, n_columns=7), Events()
        await transport.start(events.emit)
        await events.next()
        question = Ask("run-1", 0, 0, "linear", tuple(map(float, range(7))), numbers(1000, 7))
        await transport.send("a", question)
        assert await events.next() == Received("a", Prediction("run-1", 0, 0, question.targets))
        assert site.heard == [question]
        await transport.close()

    within(30, main())


def test_every_message_to_a_site_arrives_as_it_was_sent(wire: Wire) -> None:
    async def main() -> None:
        site = EchoSite("a", 3)
        transport, events = wire({"a": site}), Events()
        await transport.start(events.emit)
        await events.next()
        sent: list[ToSite] = [
            make_plan(),
            make_plan(bandwidth="paper", ridge="paper"),
            ask(numbers(3)),
            Finished("run-1", Stop.CONVERGED, "", (0.5,), numbers(3)),
        ]
        for message in sent:
            await transport.send("a", message)
        assert await events.take(2) == [
            Received("a", Prediction("run-1", 0, 0, numbers(3))),
            Received("a", Leaving("the run is over")),
        ]
        await transport.close()
        assert site.heard == sent

    within(30, main())


def test_each_sites_messages_come_in_their_order(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name, 4) for name in SITES}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        await events.take(3)
        for round_ in range(20):
            for name in SITES:
                await transport.send(name, ask(numbers(4), round_))
        received = await events.take(60)
        for name in SITES:
            mine = [e.message for e in received if isinstance(e, Received) and e.site == name]
            assert [m.round for m in mine if isinstance(m, Prediction)] == list(range(20))
        await transport.close()

    within(30, main())


def test_a_rejected_site_hears_why_and_nothing_more(wire: Wire) -> None:
    async def main() -> None:
        sites = {name: EchoSite(name) for name in ("a", "b")}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        await events.take(2)
        await transport.reject("a", "its list differs")
        await transport.send("a", ask(numbers(1)))
        await transport.reject("a", "once more")
        await transport.send("b", ask(numbers(1)))
        assert await events.next() == Received("b", Prediction("run-1", 0, 0, numbers(1)))
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
        sites = {name: EchoSite(name, 2 * MIB) for name in SITES}
        transport, events = wire(sites), Events()
        await transport.start(events.emit)
        await events.take(3)
        end = Finished("run-1", Stop.CONVERGED, "", (0.5,), numbers(2 * MIB))
        for name in SITES:
            await transport.send(name, end)
        await transport.close()
        assert [site.heard for site in sites.values()] == 3 * [[end]]

    within(30, main())


# --- whole runs ---------------------------------------------------------------------------------------------------


async def driven(transport: Transport, schedule: str) -> tuple[Finish, Quiet]:
    reporter = Quiet()
    plan = make_plan(schedule=schedule, tolerance=1e-6, prediction_tolerance=1e-1)
    return await drive(Coordinator(plan, TIMEOUTS), transport, NoMemory(), reporter), reporter


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ["abc", "bca"])
def test_a_whole_run_ends_on_the_same_bits_on_every_transport_in_every_order(
    wire: Wire, schedule: str, order: str
) -> None:
    expected = undisturbed(make_plan(schedule=schedule, tolerance=1e-6, prediction_tolerance=1e-1))
    sites = make_sites(order)
    end, reporter = within(60, driven(wire(sites, n_columns=2), schedule))
    assert end == expected.end == Finish(Stop.CONVERGED, "")
    assert [s.total for s in reporter.steps] == [r.total for r in expected.records if isinstance(r, StepTaken)]
    for name, site in sites.items():
        theirs = expected.sites[name].result
        assert site.result is not None
        assert theirs is not None
        for mine, other in zip(site.result.solutions, theirs.solutions, strict=True):
            assert mine.prediction.tobytes() == other.prediction.tobytes()
            assert mine.function.coef.tobytes() == other.function.coef.tobytes()


def test_a_run_that_a_site_refuses_ends_and_everybody_is_let_go(wire: Wire) -> None:
    sites = make_sites("abc")
    sites["b"]._objection = lambda plan: "max_rounds is above mine"
    plan = make_plan(min_sites=3)
    end = within(30, drive(Coordinator(plan, TIMEOUTS), wire(sites, n_columns=2), NoMemory(), Quiet()))
    assert end == Finish(Stop.REFUSED, "b refused the plan: max_rounds is above mine")
    assert sites["a"].result is not None
    assert sites["a"].result.stop is Stop.REFUSED
