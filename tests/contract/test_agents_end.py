"""The agent's own connection against the real server, in the races that a slow site runs into."""

import asyncio
import threading
from pathlib import Path

import pytest
from machine.tiny import make_plan, make_site
from site_agent.machine import Site

from coordinator.events import Event, SiteJoined
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import Refused, Unreachable
from coreg_core.messages import Finished, FromSite, Leaving, Plan, ToSite
from coreg_core.rounds.schedule import Stop
from site_agent.connection import Dial, take_part
from site_agent.ledger import Ledger


class SlowSite:
    """Begins to prepare for a plan, and goes on when it is told to."""

    def __init__(self, site: Site):
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self._site = site

    def hello(self):
        return self._site.hello()

    @property
    def result(self):
        return self._site.result

    def handle(self, message: ToSite) -> list[FromSite]:
        if isinstance(message, Plan):
            self.began.set()
            assert self.may_go_on.wait(20)
        return self._site.handle(message)


async def while_it_prepares(tmp_path: Path, then) -> list[str]:
    """What the agent noted; ``then(server)`` happens while the site prepares."""
    joined: asyncio.Queue[Event] = asyncio.Queue()
    server = GrpcServer("127.0.0.1:0", None, lambda name, pem: None, n_columns=2)
    await server.start(joined.put_nowait)
    site, notes = SlowSite(make_site("a")), []
    dial = Dial(f"127.0.0.1:{server.port}", None, patience=2.0)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    agent = asyncio.create_task(take_part(site, ledger, dial, notes.append, lambda message: None))
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


def test_a_site_that_is_rejected_while_it_prepares_hears_why(tmp_path):
    async def reject(server, site):
        await server.reject("a", "its certificate was revoked")
        await asyncio.sleep(0.2)
        site.may_go_on.set()

    with pytest.raises(Refused, match="its certificate was revoked"):
        asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, reject), 40))


def test_a_coordinator_that_goes_while_a_site_prepares_is_dialled_again(tmp_path):
    async def go(server, site):
        await server.close()
        site.may_go_on.set()

    with pytest.raises(Unreachable, match="Start the agent again when it is up"):
        asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, go), 40))


def test_the_end_is_heard_by_a_site_that_is_still_answering(tmp_path):
    """The coordinator speaks its last word while the site prepares, and waits for the site to end the stream."""

    async def finish(server, site):
        await server.send("a", Finished("run-1", Stop.TOO_FEW_SITES, "b is gone", (), None))
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.2)
        site.may_go_on.set()
        await closing

    asyncio.run(asyncio.wait_for(while_it_prepares(tmp_path, finish), 40))
    assert Leaving.__name__ in (tmp_path / "ledger.jsonl").read_text()
