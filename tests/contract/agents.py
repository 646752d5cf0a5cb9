"""The agent's own process in a test: its daemon and its ledger, on data in memory, over a stream in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from contract.harness import Frames, Pipe
from machine.tiny import private_data

from coreg_core.protocol.messages import ToSite
from coreg_core.protocol.plan import Plan
from coreg_wire.transport.codec import coordinator_message_to_frames
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.consent.policy import Policy
from site_agent.ledger import HeadSigner, Ledger, read_ledger
from site_agent.machine.agent import Agent, Exit
from site_agent.machine.job import SiteResult
from site_agent.service.daemon import AgentDaemon
from site_agent.service.run_tables import RunTables
from site_agent.service.workers import RunWorkers
from site_agent.session.stream import Connection, Dial, Dialler, NoAnswer
from site_agent.site_data import PrivateData


class Delivered:
    """Results that stay in memory."""

    def __init__(self, deliver: Callable[[SiteResult], None]):
        self._deliver = deliver

    def put_models(self, plan: Plan, result: SiteResult, *_more: Any) -> tuple[Path, ...]:
        self._deliver(result)
        return (Path("model.coreg"),)


class Tables(RunTables):
    """One table in memory."""

    def __init__(self, data: PrivateData):
        super().__init__("", None, None, lambda notice: None)  # type: ignore[arg-type]
        self.data = data

    def read(self, *_of_run: Any) -> Any:
        return object(), self.data, None

    def inputs(self, plan: Plan) -> Any:
        return SimpleNamespace(target="")


class Workers(RunWorkers):
    """Of one table in memory."""

    def __init__(self, name: str, data: PrivateData, ledger: Ledger, deliver: Callable[[SiteResult], None]):
        policy = Policy(aggregation="plaintext")
        super().__init__(name, policy, None, Delivered(deliver), None, None, ledger, lambda notice: None)  # type: ignore[arg-type]
        self.tables = Tables(data)


class RunningAgent:
    """An agent of one run; ``notes`` are the sentences for its operator."""

    def __init__(
        self,
        ledger: Path,
        *,
        name: str = "a",
        data: PrivateData | None = None,
        signer: HeadSigner | None = None,
        deliver: Callable[[SiteResult], None] = lambda result: None,
        workers: type[Workers] = Workers,
    ):
        self.notes, self.path, self._ledger = list[str](), ledger, Ledger(ledger, signer)
        self.workers = workers(name, data or private_data(name), self._ledger, deliver)
        note: Callable[[Any], None] = lambda notice: self.notes.append(notice.text)  # noqa: E731
        self._daemon = AgentDaemon(Agent(once=True), self.workers, self._ledger, None, note)

    async def live(self, dialler: Dialler, timeout: float = 200.0) -> Exit:
        try:
            return await self._daemon.live(Dial(dialler, timeout, attempt=3.0))
        finally:
            self._ledger.close()

    @property
    def kinds(self) -> list[str]:
        """What stands in its ledger."""
        return [entry["kind"] for entry in read_ledger(self.path)]


class PipeDialler:
    """Dials a coordinator in this process, for as long as it is up."""

    address = "pipe:1"

    def __init__(self, serve: Callable[[], Pipe]):
        self._serve, self.up = serve, True

    @contextlib.asynccontextmanager
    async def connect(self, timeout: float) -> AsyncIterator[Connection]:
        if not self.up:
            raise NoAnswer("no answer")
        pipe = self._serve()
        try:
            yield pipe.site
        finally:
            pipe.cut(pipe)


def dialler_of(sessions: Frames, peer: tuple[str, bytes] | None = None) -> PipeDialler:
    return PipeDialler(lambda: sessions.pipe(peer))


class Scripted:
    """A coordinator that says whatever a script says, good or bad, after the agent's Hello."""

    def __init__(self, script: Callable[["Scripted"], Any]):
        self._script, self.dialler = script, PipeDialler(self._serve)
        self._tasks, self.pipe = list[asyncio.Task[None]](), Pipe()

    def _serve(self) -> Pipe:
        self.pipe = Pipe()
        self._tasks.append(asyncio.create_task(self._talk()))
        return self.pipe

    async def _talk(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self.pipe.read()  # Hello
            await self._script(self)
            while await self.pipe.read() is not None:  # the agent is the one who ends the stream
                pass
            await self.pipe.finish()

    async def says(self, what: "ToSite | pb.CoordinatorFrame") -> None:
        if isinstance(what, pb.CoordinatorFrame):
            await self.pipe.write(what.SerializeToString())
            return
        for frame in coordinator_message_to_frames(what):
            await self.pipe.write(frame)
