"""The agent's own connection against the real server, in the races that a slow site runs into, and how a run ends for it."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine.tiny import UNLABELLED, make_plan, make_site

from coordinator.machine.events import Event, Received, SiteJoined
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight
from coreg_core.errors import BadData, CoregError, LeftBehind, Refused, StorageError, Unreachable
from coreg_core.protocol.messages import (
    Ask,
    Dismissed,
    Fetched,
    Finished,
    FromSite,
    Leaving,
    PlanAccepted,
    Prediction,
    ToSite,
    Vector,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger, read_ledger
from site_agent.machine.site import Site
from site_agent.machine.training import SiteResult
from site_agent.session.dial import Dial, Watcher, take_part

PLAN = make_plan(schedule="consensus", coupling=(0.5,))
COLUMNS = (Column(0.5, consensus_weight(0.5, 3)),)
QUESTION = Ask("run-1", 0, 0, "affine", COLUMNS, True, Vector(np.ones((UNLABELLED, 1))))


class SlowSite:
    """Begins to prepare for a plan, and goes on when it is told to."""

    def __init__(self, site: Site):
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def handle(self, message: ToSite) -> list[FromSite]:
        if isinstance(message, Plan):
            self.began.set()
            assert self.may_go_on.wait(20)
        return self._site.handle(message)


def nothing(_of: Any) -> None:
    """Nobody is told."""


async def while_it_prepares(tmp_path: Path, then: Any) -> list[str]:
    """What the agent noted; ``then(server, site)`` happens while the site prepares."""
    joined: asyncio.Queue[Event] = asyncio.Queue()
    server = GrpcServer("127.0.0.1:0", None, lambda name, pem: None)
    await server.start(joined.put_nowait)
    site, notes = SlowSite(make_site("a")), list[str]()
    dial = Dial(f"127.0.0.1:{server.port}", None, patience=2.0)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    agent = asyncio.create_task(take_part(site, ledger, dial, Watcher(notes.append, nothing, nothing)))
    try:
        assert isinstance(await joined.get(), SiteJoined)
        await server.send("a", make_plan())
        await asyncio.to_thread(site.began.wait, 20)
        await then(server, site)
        await agent
    finally:
        site.may_go_on.set()
        await server.close()
        ledger.close()
    return notes


def test_a_site_that_is_rejected_while_it_prepares_hears_why(tmp_path: Path) -> None:
    async def reject(server: GrpcServer, site: SlowSite) -> None:
        await server.reject("a", "its certificate was revoked")
        await asyncio.sleep(0.2)
        site.may_go_on.set()

    with pytest.raises(Refused, match="its certificate was revoked"):
        asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, reject), 40))


def test_a_coordinator_that_goes_while_a_site_prepares_is_dialled_again(tmp_path: Path) -> None:
    async def go(server: GrpcServer, site: SlowSite) -> None:
        await server.close()
        site.may_go_on.set()

    with pytest.raises(Unreachable, match="Start the agent again when it is up"):
        asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, go), 40))


def test_the_end_is_heard_by_a_site_that_is_still_answering(tmp_path: Path) -> None:
    """The coordinator speaks its last word while the site prepares, and waits for the site to end the stream."""

    async def finish(server: GrpcServer, site: SlowSite) -> None:
        await server.send("a", Finished("run-1", Outcome.TOO_FEW_SITES, "b is gone"))
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.2)
        site.may_go_on.set()
        await closing

    asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, finish), 40))
    assert [e["kind"] for e in read_ledger(tmp_path / "ledger.jsonl")][-2:] == ["Fetched", "Leaving"]


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.REFUSED, Refused), (Outcome.SITE_FAULT, BadData), (Outcome.STALLED, LeftBehind)]
)
def test_a_site_that_is_dismissed_while_it_prepares_hears_why(
    tmp_path: Path, outcome: Outcome, error: type[CoregError]
) -> None:
    async def dismiss(server: GrpcServer, site: SlowSite) -> None:
        await server.send("a", Dismissed("run-1", outcome, "it has other instances"))
        await asyncio.sleep(0.2)
        site.may_go_on.set()

    with pytest.raises(error, match="run run-1 does not go on with this site: it has other instances"):
        asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, dismiss), 40))


# --- a model is on the disk before the coordinator hears of it -----------------------------------------------------


async def to_the_end(tmp_path: Path, deliver: Callable[[SiteResult], None]) -> tuple[list[type], list[str]]:
    """A run of one question: the kinds of message that the coordinator received, and those in the ledger."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    server = GrpcServer("127.0.0.1:0", None, lambda name, pem: None)
    await server.start(events.put_nowait)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    watcher = Watcher(nothing, nothing, deliver)
    agent = asyncio.create_task(take_part(make_site("a"), ledger, Dial(f"127.0.0.1:{server.port}", None, 5.0), watcher))
    received: list[type] = []

    async def until(kind: type) -> None:
        while kind not in received:
            if isinstance(event := await events.get(), Received):
                received.append(type(event.message))

    try:
        assert isinstance(await events.get(), SiteJoined)
        await server.send("a", PLAN)
        await until(PlanAccepted)
        server.expect("run-1", UNLABELLED, 1)
        await server.send("a", QUESTION)
        await until(Prediction)
        await server.send("a", Finished("run-1", Outcome.CONVERGED, "", QUESTION.columns, QUESTION.targets))
        try:
            await agent
        finally:
            await server.close()
            while not events.empty():
                if isinstance(event := events.get_nowait(), Received):
                    received.append(type(event.message))
    finally:
        ledger.close()
        told = [entry["kind"] for entry in read_ledger(tmp_path / "ledger.jsonl")]
        (tmp_path / "received").write_text("\n".join(kind.__name__ for kind in received))
    return received, told


def test_the_coordinator_hears_that_a_site_has_its_model_after_it_is_on_the_disk(tmp_path: Path) -> None:
    kinds: list[list[str]] = []

    def deliver(result: SiteResult) -> None:
        assert len(result.solutions) == 1
        kinds.append([entry["kind"] for entry in read_ledger(tmp_path / "ledger.jsonl")])

    received, told = asyncio.run(asyncio.wait_for(to_the_end(tmp_path, deliver), 40))
    assert kinds == [["Hello", "PlanAccepted", "Prediction"]], "delivered once, before a word of it"
    assert told == ["Hello", "PlanAccepted", "Prediction", "Fetched", "Leaving"]
    assert received == [PlanAccepted, Prediction, Fetched, Leaving]


def test_a_model_that_cannot_be_written_is_not_said_to_have_been_fetched(tmp_path: Path) -> None:
    def deliver(result: SiteResult) -> None:
        raise StorageError("model.coreg: cannot be written (No space left on device).")

    with pytest.raises(StorageError, match="No space left"):
        asyncio.run(asyncio.wait_for(to_the_end(tmp_path, deliver), 40))
    assert [entry["kind"] for entry in read_ledger(tmp_path / "ledger.jsonl")] == [
        "Hello",
        "PlanAccepted",
        "Prediction",
    ]
    assert (tmp_path / "received").read_text().split() == ["PlanAccepted", "Prediction"]
