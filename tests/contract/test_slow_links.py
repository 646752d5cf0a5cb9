"""Slow links, real ones: bytes that come late end no session, and whoever waits for them is told which link it is."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from e2e.proxy import slow_link
from harness import EchoSite, Events, Home
from machine.tiny import make_plan

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine import notices as n
from coordinator.machine.events import Received, SiteJoined, SiteLost
from coordinator.machine.federation import begin
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coordinator.machine.wording import worded
from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Ask, Prediction, Vector
from coreg_core.protocol.outcomes import Outcome
from site_agent.ledger import Ledger
from site_agent.machine.site import Site
from site_agent.machine.site_data import PrivateData
from site_agent.session.dial import Dial, Watcher, take_part

RUN = "run-1"


def test_a_vector_that_outlasts_the_keepalive_ends_no_session(home: Home) -> None:
    """2.4 s of bytes each way, where pings go out every second: one stands behind them, and its answer comes late."""
    numbers = Vector(np.arange(30_000.0)[:, None])

    async def main() -> None:
        server, events = home.server(keepalive=1.0), Events()
        await server.start(events.emit)
        server.expect(RUN, 30_000, 1)
        try:
            with slow_link(server.port, 100_000) as port:
                async with home.dial(port, "a") as client:
                    echo = asyncio.create_task(client.serve(EchoSite("a")))
                    assert isinstance(await events.next(), SiteJoined)
                    await server.send("a", Ask(RUN, 0, 0, "linear", (Column(0.1, 1.0),), True, numbers))
                    assert await events.next() == Received("a", Prediction(RUN, 0, 0, numbers))
                    assert len(events.seen) == 2, "and nobody was lost"
                    echo.cancel()
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_pieces_grow_on_a_fast_link_and_stay_small_on_a_slow_one(home: Home) -> None:
    """Both ends learn it from their own vectors; a vector of 320 kB at 400 kB/s takes 0.8 s."""
    numbers = Vector(np.arange(40_000.0)[:, None])

    async def frames_of(site: str, port: int, server: Any, events: Events) -> list[int]:
        """Of two questions, how many frames each was."""
        counts = [0]
        async with home.dial(port, site) as client:
            feed = client.assembler.feed_coordinator

            def counted(data: bytes) -> Any:
                counts[-1] += 1
                return feed(data)

            client.assembler.feed_coordinator = counted  # type: ignore[method-assign]
            echo = asyncio.create_task(client.serve(EchoSite(site)))
            assert isinstance(await events.next(), SiteJoined)
            for number in range(2):
                await server.send(site, Ask(RUN, number, 0, "linear", (Column(0.1, 1.0),), True, numbers))
                assert await events.next() == Received(site, Prediction(RUN, number, 0, numbers))
                counts.append(0)
            echo.cancel()
        return counts[:2]

    async def main() -> None:
        server, events = home.server(), Events()
        await server.start(events.emit)
        server.expect(RUN, 40_000, 1)
        try:
            assert await frames_of("a", server.port, server, events) == [3, 1]
            assert isinstance(await events.next(), SiteLost)
            with slow_link(server.port, 400_000) as port:
                assert await frames_of("b", port, server, events) == [3, 3], "every session learns for itself"
        finally:
            await server.close()

    asyncio.run(asyncio.wait_for(main(), 60))


class Watching:
    def __init__(self) -> None:
        self.notices: list[n.Notice] = []

    def notice(self, notice: n.Notice, measured: Lap) -> None:
        self.notices.append(notice)


def wide_site(name: str, rows: int = 80_000) -> Site:
    """Of one linear feature, so that its vectors are long and its work is short."""
    rng = np.random.default_rng([*name.encode()])
    X, Z = rng.normal(size=(4, 1)), rng.normal(size=(rows, 1))
    return Site(name, PrivateData(X, X.sum(axis=1) + rng.normal(size=4), Z, "ids", salt=name.encode()))


def test_a_round_is_finished_over_a_link_on_which_its_vectors_take_longer_than_its_clock(
    home: Home, tmp_path: Path
) -> None:
    """640 kB each way at 800 kB/s, and a round of 0.2 s: the slow site is named, and nobody stalls."""
    plan = make_plan(form="linear", coupling=(0.1,), tolerance=0.5, prediction_tolerance=1e3, max_rounds=1)
    server, watching = home.server(), Watching()
    clocks = Clocks(round=0.2, stall=60.0, least_bandwidth=100_000.0)

    async def joined(name: str, port: int) -> Any:
        ledger = Ledger(tmp_path / f"{name}.jsonl")
        watcher = Watcher(lambda text: None, lambda message: None, lambda result: None)
        try:
            dial = Dial(f"127.0.0.1:{port}", home.credentials(name), patience=20.0)
            return await take_part(wide_site(name), ledger, dial, watcher)
        finally:
            ledger.close()

    async def main() -> tuple[Any, list[Any]]:
        tasks, links = list[asyncio.Task[Any]](), list[Any]()

        def dial(_emit: Any) -> None:
            link = slow_link(server.port, 800_000)
            links.append(link)
            ports = {"a": link.__enter__(), "b": server.port, "c": server.port}
            tasks.extend(asyncio.create_task(joined(name, port)) for name, port in ports.items())

        try:
            async with asyncio.timeout(90):
                ends = await drive(begin(Recorded(plan), clocks), server, NoMemory(), watching, on_start=dial)
                return ends[plan.run], [await task for task in tasks]
        finally:
            for link in links:
                link.__exit__(None, None, None)

    end, results = asyncio.run(main())
    assert end.outcome in (Outcome.CONVERGED, Outcome.MAX_ROUNDS)
    assert {result.outcome for result in results} == {end.outcome}
    slow = [notice for notice in watching.notices if isinstance(notice, n.SlowLink)]
    assert {notice.site for notice in slow} == {"a"}
    assert {notice.to_site for notice in slow} == {True, False}, "it is seen both ways"
    assert all(notice.more > 0 for notice in slow)
    assert all(worded(notice).startswith("a: 0.") for notice in slow)
    assert not [notice for notice in watching.notices if isinstance(notice, n.Stalled | n.Left | n.GoingOnWithout)]
