"""An agent that stays: one session for months, and the runs that come over it.

Each run has a worker of its own, so that one which factors does not hold up another's answers.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from coreg_core.errors import Refused
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Ask,
    Countersigned,
    Fetched,
    Finished,
    Hello,
    Inquiry,
    Rejected,
    Roster,
    ToSite,
)
from coreg_core.protocol.plan import Plan
from coreg_wire.transport.codec import Assembler
from coreg_wire.transport.fields import ProtocolError
from coreg_wire.transport.release import release
from coreg_wire.transport.service import JOIN_PATH
from site_agent.service.runs import OfRun, Runs, UnderWay
from site_agent.service.state_dir import now
from site_agent.session.dial import WAITED_FOR, Call, LostSession, TurnedAway, leave
from site_agent.session.stream import Session

SETTLED = 1.0  # seconds without a word after which a session counts: somebody who is turned away hears so at once
SILENCE, LONGEST_SILENCE = (
    60.0,
    3600.0,
)  # seconds without a word in a run, after which the log says so; the next time twice as long


class Service(Runs):
    """See the module's docstring."""

    # --- one session ----------------------------------------------------------------------------------------------

    async def converse(self, channel: grpc.aio.Channel, hear: Callable[[ToSite], None]) -> None:
        """One session, until the stream breaks or the operator ends the agent.

        Raises
        ------
        LostSession
            the stream broke; dialling again may help.
        Refused
            the coordinator broke the protocol, or another agent has taken this one's place.
        StorageError
            what has to be written cannot be.
        """
        call: Call = channel.stream_stream(JOIN_PATH, request_serializer=None, response_deserializer=None)()
        failed = asyncio.get_running_loop().create_future()
        session = Session(call, self._ledger, Assembler(), failed, self.tally)
        for under in self._runs.values():
            under.inbox = asyncio.Queue()
            if under.site is not None:
                under.site.hello()  # its runs go on when their plans come again
        try:
            await session.say(Hello(self.name, PROTOCOL_VERSION, release()))
            await self._listen(session, hear)
        finally:
            for under in self._runs.values():
                under.inbox.put_nowait(None)
            await asyncio.gather(*session.workers.values(), return_exceptions=True)
            session.failed.cancel()
            self.connected_since, self.waiting = None, "dialling"
            self.tell()
        await leave(call, self._ledger, "its operator ended it")

    async def _listen(self, session: Session, hear: Callable[[ToSite], None]) -> None:
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await self._listen_until(session, hear, stopping)
        finally:
            stopping.cancel()

    async def _listen_until(
        self, session: Session, hear: Callable[[ToSite], None], stopping: "asyncio.Future[Any]"
    ) -> None:
        while (data := await self._next(session, stopping)) is not None:
            if not isinstance(data, bytes):  # grpc.aio.EOF
                raise LostSession("the coordinator closed the stream")
            self.tally.bytes["received"] += len(data)
            try:
                message = session.assembler.feed_coordinator(data)
            except ProtocolError as error:
                raise Refused(f"the coordinator broke the protocol: {error} Nothing was answered.") from None
            session.pace.answered(session.assembler.run, time.monotonic())
            if message is None:
                continue
            hear(message)
            if self.connected_since is None and not isinstance(message, Rejected):
                self._is_connected()
            match message:
                case Rejected(reason, final):
                    told = f"the coordinator refused this session: {reason}"
                    raise Refused(told) if final else TurnedAway(told)
                case Countersigned():
                    await self._countersigned(message)
                case _:
                    self._hand_over(session, message)

    async def _next(self, session: Session, stopping: "asyncio.Future[Any]") -> object:
        """The next frame; None when the operator ends the agent. A run in which nothing is heard is told, ever more seldom."""
        reading = asyncio.ensure_future(session.call.read())
        since, pause = time.monotonic(), SETTLED if self.connected_since is None else SILENCE
        try:
            while True:
                watched: set[asyncio.Future[Any]] = {reading, stopping, session.failed}
                done, _ = await asyncio.wait(watched, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if session.failed in done:
                    session.failed.result()
                if stopping in done:
                    return None
                if reading in done:
                    return reading.result()
                if self.connected_since is None:
                    self._is_connected()  # a coordinator that has nothing to say has let this site in
                pause = max(SILENCE, min(2 * pause, LONGEST_SILENCE))
                if self._runs:
                    waited = time.monotonic() - since
                    runs = " ".join(sorted(self._runs))
                    self._log.info("waiting", runs=runs, seconds=round(waited), text=f"for {WAITED_FOR}")
        finally:
            reading.cancel()

    def _is_connected(self) -> None:
        self.connected_since, self.waiting = now(), "for runs"
        self.tally.sessions += 1
        self._log.info("connected")
        self.tell()

    async def _countersigned(self, receipt: Countersigned) -> None:
        if (fault := await asyncio.to_thread(self._ledger.countersigned, receipt)) is not None:
            self._log.warning("not_countersigned", run=receipt.run, text=fault)
        else:
            self._log.info("countersigned", run=receipt.run, lines=receipt.head.lines)

    def _hand_over(self, session: Session, message: OfRun) -> None:
        under = self._runs.get(message.run)
        if under is None:
            if not isinstance(message, Plan):
                if isinstance(message, Ask | Inquiry | Roster):
                    raise Refused(
                        f"the coordinator broke the protocol: it asked for run {message.run}, of which no plan came."
                    )
                if isinstance(message, Finished) and message.targets is None:  # of a run that it had no plan of
                    told = asyncio.create_task(session.say(Fetched(message.run)))
                    session.workers[message.run] = told
                    told.add_done_callback(lambda done: self._worked(session, message.run, done))
                return
            under = self._runs[message.run] = UnderWay(message)
        if message.run not in session.workers or session.workers[message.run].done():
            worker = asyncio.create_task(self._work(session, under))
            session.workers[message.run] = worker
            worker.add_done_callback(lambda done: self._worked(session, message.run, done))
        under.inbox.put_nowait(message)

    def _worked(self, session: Session, run: str, done: "asyncio.Task[None]") -> None:
        if session.workers.get(run) is done:
            del session.workers[run]
        if not done.cancelled() and (error := done.exception()) is not None and not session.failed.done():
            session.failed.set_exception(error)
