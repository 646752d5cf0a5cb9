"""A serving agent in this process, and a coordinator in memory that it dials."""

import asyncio
import time
from contextlib import asynccontextmanager

from agent_files import inputs, write
from test_data_sets import TABLE

from coreg_core.messages import Hello, Proposal
from coreg_wire.transport.codec import Assembler, frames_of
from site_agent.consent.policy import Policy
from site_agent.data.aligned_ids import AlignedIds
from site_agent.data.data_sets import DataSets
from site_agent.ledger import Ledger, read_ledger
from site_agent.machine import agent as machine
from site_agent.models.store import ModelStore
from site_agent.service.daemon import AgentDaemon
from site_agent.service.identity_in_use import KeysInUse
from site_agent.service.run_tables import RunTables
from site_agent.service.state_store import StateStore
from site_agent.service.workers import RunWorkers
from site_agent.session.stream import Dial, NoAnswer


class Agent:
    """Its parts, in one folder; ``notices`` are those that it gave.

    ``mode``: "serve", "ask first" (it serves, and asks its operator), or "once".
    """

    def __init__(
        self,
        folder,
        *,
        mode="serve",
        policy=None,
        in_use=None,
        asked=None,
        signer=None,
        **data,
    ):
        self.notices = []
        self.ledger = Ledger(folder / "ledger.jsonl", signer)
        self.on_notice = lambda _notice: None
        once = mode == "once"
        self.state = None
        if not once:
            self.state = StateStore(folder / "service")
        if self.state is not None:
            self.state.open()
        table = write(folder, TABLE, "local.csv")
        self.data_sets = DataSets({"patients": inputs(table), **data}, b"salt")
        store = ModelStore("north", folder / "models")
        aligned = AlignedIds(folder / "aligned")
        policy = policy or Policy(aggregation="plaintext")
        tables = RunTables(store, policy, self.data_sets, aligned, self.notices.append)
        in_use = in_use or KeysInUse(None, None)
        self.workers = RunWorkers(in_use, tables, self.ledger, self.notices.append)
        agent = machine.Agent(once=once, ask_first=mode == "ask first")
        self.daemon = AgentDaemon(agent, self.workers, self.state, self._notified, asked)

    def _notified(self, notice):
        self.notices.append(notice)
        self.on_notice(notice)

    @property
    def noticed(self):
        return [notice.name for notice in self.notices]

    @property
    def recorded(self):
        return [entry["kind"] for entry in read_ledger(self.ledger.path)]

    def against(self, conversation, timeout=float("inf")):
        """Live while a coordinator has this conversation; how the agent ended."""

        async def both():
            coordinator = Coordinator()
            living = asyncio.create_task(
                self.daemon.live(Dial(coordinator, timeout, jitter=lambda _low, _high: 0.01))
            )
            talking = asyncio.create_task(conversation(coordinator))
            await asyncio.wait({living, talking}, return_when=asyncio.FIRST_COMPLETED)
            if talking.done():
                talking.result()
                self.daemon.stop()
            talking.cancel()
            return await living

        try:
            return asyncio.run(asyncio.wait_for(both(), 600))
        finally:
            self.ledger.close()


class Coordinator:
    """The dialler of an agent, and the other end of its connections."""

    address = "coordinator:1"

    def __init__(self):
        self.answers = True
        self.dialled = 0
        self._sessions = asyncio.Queue()

    @asynccontextmanager
    async def connect(self, timeout):
        self.dialled += 1
        if not self.answers:
            raise NoAnswer("no answer")
        line = Line()
        self._sessions.put_nowait(line)
        yield line

    async def session(self):
        """The next session, past its greeting."""
        line = await self._sessions.get()
        line.hello = await line.hears()
        assert isinstance(line.hello, Hello)
        return line


class Line:
    """One connection: the agent's side, and what the coordinator does with it."""

    def __init__(self):
        self._to_agent = asyncio.Queue()
        self._heard = asyncio.Queue()
        self._assembler = Assembler()

    async def read(self):
        frame = await self._to_agent.get()
        if isinstance(frame, Exception):
            raise frame
        return frame

    async def write(self, frame):
        message = self._assembler.feed_site(frame)
        if message is not None:
            self._heard.put_nowait(message)

    async def finish(self):
        self._to_agent.put_nowait(None)

    def says(self, *messages):
        for message in messages:
            if isinstance(message, Proposal):
                self._assembler.expect(message.run, 100_000)
            self.sends(*frames_of(message))

    def sends(self, *frames):
        for frame in frames:
            self._to_agent.put_nowait(frame)

    def breaks(self):
        self._to_agent.put_nowait(ConnectionError("cut"))

    async def hears(self):
        return await self._heard.get()


async def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        await asyncio.sleep(0.005)
