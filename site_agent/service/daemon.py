"""The agent's process: it keeps the session open, for months if needed, and executes the machine's actions.

An agent of one run ends with its run. Threads (`workers.py`) work on messages; `site_agent.machine.agent` orders them.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, assert_never, cast

from coreg_core.errors import CoregError
from coreg_core.messages import (
    MOST_OPEN,
    PROTOCOL_VERSION,
    Countersigned,
    Dismissed,
    Finished,
    Hello,
    Proposal,
    Rejected,
)
from coreg_core.outcomes import Notice
from coreg_core.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.identity.invitation import same_words
from coreg_wire.transport.fields import ProtocolError
from coreg_wire.transport.service import release
from site_agent.identity.run_keys import Members
from site_agent.ledger import Ledger
from site_agent.machine import agent as machine
from site_agent.machine import notices
from site_agent.machine.agent import Agent, Stage
from site_agent.machine.session_events import (
    AskOperator,
    Countersign,
    Decided,
    EndSession,
    Event,
    Exit,
    Forget,
    Install,
    Judge,
    MessageReceived,
    Notify,
    Say,
    SessionEnded,
    SessionOpened,
    Work,
    WorkMessage,
)
from site_agent.service.console import COMPARE, Terminal
from site_agent.service.state_dir import Decision, StateDir
from site_agent.service.workers import RunWorkers
from site_agent.session.stream import (
    CLOSE_GRACE,
    Connection,
    Dial,
    LostSession,
    Session,
    SessionRefused,
    keep_dialling,
)

SETTLED = 1.0  # seconds without a message after which the site counts as connected: a rejection arrives earlier
SILENCE = 30.0  # seconds without a message before a notice about it
FOR_RUNS = "for runs"  # what an idle agent waits for
OWN = (Stage.NEW, Stage.ACTIVE)  # the stages in which a site works, or waits for others
COUNTERSIGNING = (
    10.0  # timeout in seconds for the countersignature, before an agent of one run ends
)
DECISION_SECONDS = 1.0  # between two polls for a decision
LAST_MESSAGES = (Rejected, Dismissed, Finished)
EIGHT_WORDS = "eight words"  # a heading of what an operator is shown
CHANGED = "its plan or the keys of its members changed after its operator was asked."


class AgentDaemon:
    """See the module's docstring."""

    def __init__(
        self,
        agent: Agent,
        workers: RunWorkers,
        ledger: Ledger,
        state: StateDir | None,
        notify: Callable[[Notice], None],
        members: Members | None = None,
        asked: Terminal | None = None,
    ):
        self.agent, self.workers = agent, workers
        self.members, self._asked = members, asked
        self.connected_since: str | None = None
        self.certificate_until: str | None = None
        self.install: Callable[[bytes], None] = lambda _certificate: (
            None
        )  # of an agent with an identity
        self.waiting = "dialling"
        self.ended: dict[str, Any] | None = None  # when and why an error ended the agent
        self.unresolved: dict[str, str] = {}  # for the operator: runs without this site
        self._ledger, self._state, self._observer = ledger, state, notify
        self._turn = ThreadPoolExecutor(1, "requests")
        self._session: Session | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._stopping, self._countersigned, self._status_changed = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._ended: asyncio.Future[Exit | EndSession] | None = None
        self._failed: asyncio.Future[None] | None = None  # the error of a task
        self._comparing: asyncio.Task[None] | None = (
            None  # of the ledger with the last countersigned head
        )
        self._writing: list[asyncio.Future[None]] = []

    async def live(self, dial: Dial) -> Exit:
        """Stay connected until the operator ends the agent, or its one run is over."""
        self._failed = asyncio.get_running_loop().create_future()
        beside = [
            asyncio.create_task(work()) for work in (self._write_status, self._look_for_decisions)
        ]
        try:
            dialling = asyncio.create_task(keep_dialling(self._converse, dial, self._not_connected))
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait({dialling, stopping, *beside}, return_when=asyncio.FIRST_COMPLETED)
            for task in beside:
                if task.done():
                    task.result()  # raises, for example if the disk is full
            if not dialling.done() and self.connected_since is not None:
                await asyncio.wait(
                    {dialling}, timeout=2 * CLOSE_GRACE
                )  # the session closes cleanly
            dialling.cancel()  # it would retry for ever
            stopping.cancel()
            try:
                return await dialling
            except asyncio.CancelledError:
                return Exit()
        except CoregError as error:
            self.ended = {"at": timestamp(), "exit_code": error.exit_code, "reason": str(error)}
            raise
        finally:
            for task in beside:
                task.cancel()
            if self._failed.done():
                self._failed.exception()  # marks the error as retrieved: this one or another was raised
            self.waiting = "stopped"
            for run in list(self._questions):
                self._end_question(run)
            await asyncio.gather(
                *self._writing, return_exceptions=True
            )  # otherwise it could overwrite the last status
            if self._state is not None:
                await asyncio.to_thread(self._state.write_status, self.status())

    def status(self) -> dict[str, Any]:
        """What `coreg-agent status` shows: the connection, the runs, and what the operator has to mend."""
        silent = self.waiting != FOR_RUNS and self.connected_since is not None
        runs = {
            run.plan.run: {
                "study": run.plan.study,
                "data": run.plan.data,
                "doing": f"waiting {self.waiting}"
                if silent and not run.busy and run.stage in OWN
                else run.stage.value,
            }
            for run in self.agent.runs.values()
        }
        return {
            "site": self.workers.name,
            "release": release(),
            "pid": os.getpid(),
            "connected_since": self.connected_since,
            "waiting": self.waiting,
            "ended": self.ended,
            "certificate_until": self.certificate_until,
            "runs": runs,
            "troubles": dict(self.workers.tables.troubles),
            "unresolved": list(self.unresolved.values()),
        }

    def stop(self) -> None:
        """End the agent on the operator's request; the session closes cleanly."""
        self.notify(notices.draining(tuple(sorted(self.agent.runs))))
        self._stopping.set()

    def notify(self, notice: Notice) -> None:
        if notice.name in ("run_over", "refused") and self._state is not None:
            self._spawn(
                asyncio.to_thread(self._state.append_history, self.workers.history_of(notice))
            )
        if notice.name == "dismissed":
            self.unresolved[notice.run] = notice.text
        elif notice.name in ("plan", "run_over"):
            self.unresolved.pop(notice.run, None)
        self._observer(notice)
        self._status_changed.set()

    def _not_connected(self, text: str) -> None:
        self.waiting = text
        self.notify(Notice("not_connected", text, "warning"))

    # --- one session ----------------------------------------------------------------------------------------------

    async def _converse(self, connection: Connection, heard: Callable[[], None]) -> Exit:
        session = self._session = Session(connection, self._ledger)
        self._ended = asyncio.get_running_loop().create_future()
        try:
            known = tuple(
                self.agent.runs
            )  # some can have ended, or were cancelled, while this site was away
            await session.say(
                Hello(self.workers.name, PROTOCOL_VERSION, release(), known[:MOST_OPEN])
            )
            self._apply(SessionOpened())
            end = await self._listen(session, heard)
            if isinstance(end, EndSession):
                raise SessionRefused(end.reason, end.pause, end.longest)
            if end.error is not None:
                raise end.error
            if end.outcome is not None and session.listening and self._ledger.signer is not None:
                await self._receive_countersignature(session, end.run)
        finally:
            self._session, self.connected_since = None, None
            await asyncio.gather(*self._tasks - {*self._questions.values()}, return_exceptions=True)
            self._apply(SessionEnded())
            self.waiting = "dialling"
            self._status_changed.set()
        try:
            await session.leave(
                "the run is over" if end.outcome is not None else "its operator ended it"
            )
        finally:
            session.close()
        return end

    async def _listen(self, session: Session, heard: Callable[[], None]) -> Exit | EndSession:
        """Handle messages until the machine, the operator or the stream ends the session."""
        assert self._ended is not None
        assert self._failed is not None
        stopping = asyncio.create_task(self._stopping.wait())
        loop = asyncio.get_running_loop()
        since, pause = loop.time(), cast("float | None", SETTLED)
        try:
            while True:
                reading = session.reading()
                watched: set[asyncio.Future[Any]] = {reading, stopping, self._ended, self._failed}
                done, _ = await asyncio.wait(
                    watched, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if self._failed in done:
                    self._failed.result()
                if self._ended in done:
                    return self._ended.result()
                if stopping in done:
                    return Exit()
                if reading in done:
                    frame = await session.read()
                    if frame is None:
                        raise LostSession("the coordinator closed the stream")
                    self._take(session, frame, heard)
                    since, pause = (
                        loop.time(),
                        SILENCE if self.connected_since is not None else SETTLED,
                    )
                elif self.connected_since is None:
                    self._is_connected()  # a coordinator that sends nothing has accepted this site
                    pause = SILENCE
                else:
                    if (runs := self.agent.runs) or self.agent.once:
                        asked = any(run.stage is Stage.WAITING for run in runs.values())
                        if asked and self._asked is not None:  # the question is on the terminal
                            pause = None
                            continue
                        self.waiting = "for the coordinator or other sites"
                        self.notify(
                            notices.still_waiting(
                                tuple(sorted(runs)), round(loop.time() - since), approval=asked
                            )
                        )
                    pause = None
        finally:
            stopping.cancel()

    def _take(self, session: Session, frame: bytes, heard: Callable[[], None]) -> None:
        try:
            message = session.assembler.feed_coordinator(frame)
        except ProtocolError as error:
            self._end(machine.breach(self.agent, str(error)))
            return
        # A coordinator that no longer reads can still have sent the reason, or the model.
        if message is not None and (session.listening or isinstance(message, LAST_MESSAGES)):
            heard()
            if self.connected_since is None and not isinstance(message, Rejected):
                self._is_connected()
            self.waiting = FOR_RUNS
            self._apply(
                MessageReceived(
                    message, isinstance(message, Proposal) and self._has_strangers(message)
                )
            )

    def _has_strangers(self, proposal: Proposal) -> bool:
        if self.members is None or not proposal.plan.masked:
            return False
        return not self.members.settled(self.members.keys_of(proposal))

    def _is_connected(self) -> None:
        self.connected_since, self.waiting = timestamp(), FOR_RUNS
        self.notify(Notice("connected", "connected"))

    async def _receive_countersignature(self, session: Session, run: str) -> None:
        """Wait for the countersignature. It is optional: the next run's head covers this run's lines too."""
        self._countersigned.clear()
        try:
            async with asyncio.timeout(COUNTERSIGNING):
                while (
                    not self._countersigned.is_set() and (frame := await session.read()) is not None
                ):
                    message = session.assembler.feed_coordinator(frame)
                    if isinstance(message, Countersigned) and message.run == run:
                        await self._countersign(message)
        except (TimeoutError, ConnectionError, ProtocolError):
            pass
        if not self._countersigned.is_set():
            reason = f"{self._ledger.path} is not countersigned for this run. This is normal if the run did not begin"
            self.notify(notices.not_countersigned(run, reason))

    # --- the machine ----------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        self.agent, actions = machine.handle(self.agent, event)
        for action in actions:
            match action:
                case Say(message):
                    if self._session is not None:
                        self._spawn(self._session.say(message))
                case Judge(plan):
                    self._spawn(self._judge(plan))
                case AskOperator(plan):
                    self._end_question(plan.run)
                    self._questions[plan.run] = self._spawn(self._ask(action))
                case Work(_, message):
                    if self._session is not None:
                        self._spawn(self._work(self._session, message))
                case Countersign(receipt) if self._ledger.awaits(receipt.run, receipt.head):
                    self._spawn(self._countersign(receipt))
                case Countersign(receipt):
                    if self._comparing is None:  # once: this process alone writes the ledger
                        self._comparing = self._spawn(self._compare(receipt))
                case Install(certificate):
                    self._spawn(asyncio.to_thread(self.install, certificate.encode()))
                case Forget(run, keep_consent):
                    self._end_question(run)
                    self.workers.forget(run)
                    if self._session is not None:
                        self._session.assembler.forget(run)
                    if self._state is not None:
                        forget = self._state.close_request if keep_consent else self._state.clear
                        self._spawn(self._in_turn(forget, run))
                case Notify(notice):
                    self.notify(notice)
                case EndSession() | Exit():
                    self._end(action)
                case _:
                    assert_never(action)

    def _end_question(self, run: str) -> None:
        """A question to the operator ends with its run."""
        if (
            question := self._questions.pop(run, None)
        ) is not None and question is not asyncio.current_task():
            question.cancel()

    def _end(self, end: Exit | EndSession) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(end)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def _compare(self, receipt: Countersigned) -> None:
        if not await asyncio.to_thread(self._ledger.compare, receipt):
            self.notify(notices.head_of_another_key(receipt.run))

    async def _whole(self) -> None:
        """Wait until the ledger is known to be no older copy: nothing is answered before."""
        if self._comparing is not None:
            await asyncio.shield(self._comparing)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _work(self, session: Session, message: WorkMessage) -> None:
        await self._whole()
        answer = partial(self.workers.work, listening=session.listening)
        frames, worked = await asyncio.to_thread(answer, message)
        session.assembler.expect(message.run, self.workers.room(message.run))
        await session.send(frames)
        self._apply(worked)
        self._status_changed.set()

    async def _judge(self, plan: Plan) -> None:
        await self._whole()
        self._apply(await asyncio.to_thread(self.workers.judge, plan))

    async def _countersign(self, receipt: Countersigned) -> None:
        fault = await asyncio.to_thread(self._ledger.countersigned, receipt)
        if fault is not None:
            self.notify(notices.not_countersigned(receipt.run, fault))
        else:
            self.notify(notices.countersigned(receipt.run, receipt.head.lines, receipt.reason))
        self._countersigned.set()

    # --- the operator ---------------------------------------------------------------------------------------------

    async def _ask(self, question: AskOperator) -> None:
        plan, keys = question.plan, self._keys_of(question.plan.run)
        news = "" if self.members is None else self.members.news(keys)
        words = self.members.words(keys) if self.members is not None and news else ""
        if self._asked is not None:
            answer = await self._asked.decide(plan, question.about, words, news)
            if isinstance(answer, CoregError):
                self._end(Exit(answer))
            else:
                await self._decided(plan, replace(answer, digest=plan.digest, about=question.about))
            return
        assert self._state is not None, "an agent that serves"
        known = await asyncio.to_thread(self._state.decision, plan.run)
        if known is not None and self._shown(plan, known) not in (
            {},
            question.about,
        ):  # a decision on what has changed
            await self._in_turn(self._state.clear, plan.run)
            known = None
        if known is None or known.digest != plan.digest:
            about = {
                **question.about,
                **({EIGHT_WORDS: f"{words} ({news}). {COMPARE}"} if words else {}),
            }
            request = plan.run, plan.to_dict(), about, question.seconds, words, plan.digest
            if not await self._in_turn(self._state.request_approval, *request):
                await self._decided(plan, Decision(False, CHANGED, digest=plan.digest))
                return
            self.notify(notices.waiting_for_approval(plan.run, plan.study))
        await self._decision(plan)

    async def _in_turn(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """One at a time, so that a request that is being written cannot outlive the end of its run."""
        return await asyncio.get_running_loop().run_in_executor(self._turn, work, *arguments)

    def _keys_of(self, run: str) -> dict[str, str]:
        """The members' keys in the latest proposal of a run."""
        active = self.agent.runs.get(run)
        return (
            {} if active is None or self.members is None else self.members.keys_of(active.proposal)
        )

    async def _decided(self, plan: Plan, decision: Decision) -> None:
        """An approval confirms the eight words that were shown with the question, and no others."""
        keys = self._keys_of(plan.run)
        if (
            decision.approved
            and self.members is not None
            and plan.masked
            and self.members.news(keys)
        ):
            if not same_words(decision.words, self.members.words(keys)):
                decision = Decision(False, CHANGED, digest=decision.digest)
            else:
                await asyncio.to_thread(self.members.confirm, keys)
        self._apply(
            Decided(
                plan.run,
                decision.approved,
                decision.reason,
                decision.digest,
                self._shown(plan, decision),
            )
        )

    def _shown(self, plan: Plan, decision: Decision) -> dict[str, str]:
        """What the operator saw; nothing of an approval that counted, which is in the ledger: the run itself changes it."""
        shown = {} if plan.run in self._ledger.memory.approved else decision.about
        return {heading: text for heading, text in shown.items() if heading != EIGHT_WORDS}

    async def _decision(self, plan: Plan) -> None:
        if self._state is None:
            return
        decision = await asyncio.to_thread(self._state.decision, plan.run)
        if decision is not None and decision.digest == plan.digest:
            await self._in_turn(self._state.close_request, plan.run)
            await self._decided(plan, decision)

    async def _look_for_decisions(self) -> None:
        """Read the operator's decisions on the waiting runs."""
        while True:
            await asyncio.sleep(DECISION_SECONDS)
            for run in self.agent.runs.values():
                asking = self._questions.get(run.plan.run)
                if run.stage is Stage.WAITING and (asking is None or asking.done()):
                    self._spawn(self._decision(run.plan))

    async def _write_status(self) -> None:
        while True:
            await self._status_changed.wait()
            self._status_changed.clear()
            if self._state is not None:
                self._writing = [
                    asyncio.ensure_future(
                        asyncio.to_thread(self._state.write_status, self.status())
                    )
                ]
                await asyncio.shield(self._writing[0])
