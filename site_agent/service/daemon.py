"""The agent's process: it keeps the session open, for months if needed, and executes the machine's
actions.

An agent of one run ends with its run. Threads (`workers.py`) work on messages;
`site_agent.machine.agent` orders them.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, assert_never

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
    Step,
)
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import PLAN_NUMBER, Plan, is_on_demand
from coreg_wire.clock import timestamp
from coreg_wire.transport.fields import ProtocolError
from coreg_wire.transport.service import release
from site_agent.machine import agent as machine
from site_agent.machine import notices
from site_agent.machine.agent import Agent, Stage
from site_agent.machine.session_events import (
    Action,
    Asked,
    AskOperator,
    Countersign,
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
from site_agent.service.approvals import Approvals
from site_agent.service.console import Terminal
from site_agent.service.state_store import StateStore
from site_agent.service.workers import RunWorkers
from site_agent.session.stream import (
    CLOSE_GRACE,
    Connection,
    Dial,
    LostSession,
    NotConnected,
    Session,
    SessionRefused,
    keep_dialling,
)

# seconds without a message after which the site counts as connected: a rejection arrives earlier
SETTLED = 1.0
SILENCE = 30.0  # seconds without a message before a notice about it
FOR_RUNS = "for runs"  # what an idle agent waits for
OWN = (Stage.NEW, Stage.ACTIVE)  # the stages in which a site works, or waits for others
COUNTERSIGNING = 10.0  # timeout in seconds for the countersignature, before a one-run agent ends
ENDS = ("run_over", "refused", "dismissed")  # notices of a run that this site left
# In the status: a coordinator chooses their number and their texts.
MOST_UNRESOLVED = 20
MOST_REASON = 300  # characters
LAST_MESSAGES = (Rejected, Dismissed, Finished)


@dataclass(eq=False)
class AgentDaemon:
    """See the module's docstring. ``asked``: at whose terminal an agent of one run asks."""

    agent: Agent
    workers: RunWorkers
    state: StateStore | None
    observer: Callable[[Notice], None]
    asked: Terminal | None = None
    install: Callable[[bytes], None] = lambda _certificate: None  # of an agent with an identity
    connected_since: str | None = None
    waiting: str = "dialling"
    ended: dict[str, Any] | None = None  # when and why an error ended the agent
    unresolved: dict[str, str] = field(default_factory=dict)  # runs without this site
    # Why there was no connection, since the last one: each reason is one notice.
    _failures: set[str] = field(default_factory=set)
    _session: Session | None = None
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _questions: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _countersigned: asyncio.Event = field(default_factory=asyncio.Event)
    _status_changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: "asyncio.Future[Exit | EndSession] | None" = None
    _failed: "asyncio.Future[None] | None" = None  # the error of a task
    # of the ledger with the last countersigned head
    _comparing: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self._ledger = self.workers.ledger
        memory = self._ledger.memory
        in_use = self.workers.in_use
        self.approvals = Approvals(
            self.state, self.asked, memory, in_use, proposal=self._proposal_of, notify=self.notify
        )

    def _proposal_of(self, run: str) -> Proposal | None:
        active = self.agent.runs.get(run)
        if active is None:
            return None
        return active.proposal

    async def live(self, dial: Dial) -> Exit:
        """Stay connected until the operator ends the agent, or its one run is over."""
        self._failed = asyncio.get_running_loop().create_future()
        writing = asyncio.create_task(self._write_status())
        try:
            dialling = asyncio.create_task(keep_dialling(self._converse, dial, self._not_connected))
            stopping = asyncio.create_task(self._stopping.wait())
            watched = {dialling, stopping, writing}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()  # raises, for example if the disk is full
            if not dialling.done() and self.connected_since is not None:
                # The session closes cleanly.
                await asyncio.wait({dialling}, timeout=2 * CLOSE_GRACE)
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
            writing.cancel()
            if self._failed.done():
                # marks the error as retrieved: this one or another was raised
                self._failed.exception()
            self.waiting = "stopped"
            for run in list(self._questions):
                self._end_question(run)
            await self._store_status()

    def status(self) -> dict[str, Any]:
        """What `coreg-agent status` shows: the connection, the runs, and what the operator has to
        mend.
        """
        silent = self.waiting != FOR_RUNS and self.connected_since is not None
        runs = {
            run.plan.run: {
                "study": run.plan.study,
                "data": run.plan.data,
                "doing": (
                    f"waiting {self.waiting}"
                    if silent and not run.busy and run.stage in OWN
                    else run.stage.value
                ),
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
            "certificate_until": self.workers.in_use.certificate_until,
            "runs": runs,
            "troubles": dict(self.workers.tables.troubles),
            "unresolved": list(self.unresolved.values()),
        }

    def ask_for_scores(self, study: str) -> None:
        """Ask the coordinator for a run of a standing plan."""
        self._apply(Asked(study))

    def stop(self) -> None:
        """End the agent on the operator's request; the session closes cleanly."""
        self.notify(notices.draining(tuple(sorted(self.agent.runs))))
        self._stopping.set()

    def notify(self, notice: Notice) -> None:
        on_demand = self.workers.tables.on_demand
        if on_demand is not None and is_on_demand(notice.run):
            if notice.name in ENDS and notice.fields.get("stop") != Outcome.CONVERGED.name:
                on_demand.failed(str(notice.fields["study"]), notice.text)
        elif notice.name in ("run_over", "refused") and self.state is not None:
            entry = self.workers.history_of(notice)
            self._spawn(self.approvals.in_turn(self.state.append_history, entry))
        if notice.name == "dismissed":
            self.unresolved[notice.run] = notice.text[:MOST_REASON]
            if len(self.unresolved) > MOST_UNRESOLVED:
                del self.unresolved[next(iter(self.unresolved))]
        elif notice.name in ("plan", "run_over"):
            self.unresolved.pop(notice.run, None)
        self.observer(notice)
        if notice.name != "progress":  # one a round
            self._status_changed.set()

    def _not_connected(self, failure: NotConnected) -> None:
        """Show each try in the status; notify of a reason once in an outage."""
        self.waiting = failure.text
        self._status_changed.set()
        if failure.state not in self._failures:
            self._failures.add(failure.state)
            self.notify(Notice("not_connected", failure.text, "warning"))

    # --- one session ------------------------------------------------------------------------------

    async def _converse(self, connection: Connection, heard: Callable[[], None]) -> Exit:
        session = self._session = Session(connection, self._ledger)
        self._ended = asyncio.get_running_loop().create_future()
        try:
            # Some runs can have ended, or were cancelled, while this site was away.
            runs = tuple(self.agent.runs)[:MOST_OPEN]
            name = self.workers.name
            await session.say(Hello(name, PROTOCOL_VERSION, release(), runs, PLAN_NUMBER))
            self._apply(SessionOpened())
            end = await self._listen(session, heard)
            if isinstance(end, EndSession):
                raise SessionRefused(end.reason, end.pause, end.longest)
            if end.error is not None:
                raise end.error
            if end.outcome is not None and session.listening and self._ledger.signer is not None:
                await self._receive_countersignature(session, end.run)
        finally:
            self._session = None
            self.connected_since = None
            await asyncio.gather(*self._tasks - {*self._questions.values()}, return_exceptions=True)
            self._apply(SessionEnded())
            self.waiting = "dialling"
            self._status_changed.set()
        try:
            over = end.outcome is not None
            await session.leave("the run is over" if over else "its operator ended it")
        finally:
            session.close()
        return end

    async def _listen(self, session: Session, heard: Callable[[], None]) -> Exit | EndSession:
        """Handle messages until the machine, the operator or the stream ends the session."""
        assert self._ended is not None
        assert self._failed is not None
        stopping = asyncio.create_task(self._stopping.wait())
        loop = asyncio.get_running_loop()
        since = loop.time()
        pause: float | None = SETTLED
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
                    since = loop.time()
                    pause = SILENCE if self.connected_since is not None else SETTLED
                elif self.connected_since is None:
                    self._is_connected()  # a coordinator that sends nothing has accepted this site
                    pause = SILENCE
                else:
                    self._report_silence(loop.time() - since)
                    pause = None
        finally:
            stopping.cancel()

    def _report_silence(self, seconds: float) -> None:
        """Name what the runs wait for, unless that question is on the operator's terminal."""
        runs = self.agent.runs
        if not runs and not self.agent.once:
            return
        asked = any(run.stage is Stage.WAITING for run in runs.values())
        if asked and self.approvals.terminal is not None:
            return
        self.waiting = "for the coordinator or other sites"
        names = tuple(sorted(runs))
        self.notify(notices.still_waiting(names, round(seconds), approval=asked))

    def _take(self, session: Session, frame: bytes, heard: Callable[[], None]) -> None:
        try:
            message = session.assembler.feed_coordinator(frame)
        except ProtocolError as error:
            self._end(machine.breach(self.agent, str(error)))
            return
        # A coordinator that no longer reads can still have sent the reason, or the model.
        if message is not None and (session.listening or isinstance(message, LAST_MESSAGES)):
            if self.connected_since is None:  # the first one of the session
                heard()
                if not isinstance(message, Rejected):
                    self._is_connected()
            self.waiting = FOR_RUNS
            strangers = isinstance(message, Proposal) and self.approvals.has_strangers(message)
            agreed = isinstance(message, Proposal) and self.approvals.is_agreed(message.plan)
            self._apply(MessageReceived(message, strangers, agreed))

    def _is_connected(self) -> None:
        self.connected_since = timestamp()
        self.waiting = FOR_RUNS
        text = "connected again" if self._failures else "connected"
        self._failures.clear()
        self.notify(Notice("connected", text))

    async def _receive_countersignature(self, session: Session, run: str) -> None:
        """Wait for the countersignature.

        It is optional: the next run's head covers this run's lines too.
        """
        self._countersigned.clear()
        try:
            async with asyncio.timeout(COUNTERSIGNING):
                while not self._countersigned.is_set():
                    frame = await session.read()
                    if frame is None:
                        break
                    message = session.assembler.feed_coordinator(frame)
                    if isinstance(message, Countersigned) and message.run == run:
                        await self._countersign(message)
        except (TimeoutError, ConnectionError, ProtocolError):
            pass
        if not self._countersigned.is_set():
            reason = (
                f"{self._ledger.path} is not countersigned for this run. This is normal if the run"
                " did not begin"
            )
            self.notify(notices.not_countersigned(run, reason))

    # --- the machine ------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        self.agent, actions = machine.handle(self.agent, event)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Say(message):
                if self._session is not None:
                    self._spawn(self._session.say(message))
            case Judge(plan):
                self._spawn(self._judge(plan))
            case AskOperator(plan):
                self._end_question(plan.run)
                self._questions[plan.run] = self._spawn(self._ask(action))
            case Work(message):
                self._spawn(self._work(self._session, message))
            case Countersign(receipt):
                self._receive(receipt)
            case Install(certificate):
                self._spawn(asyncio.to_thread(self.install, certificate.encode()))
            case Forget(run, keep_consent):
                self._forget(run, keep_consent=keep_consent)
            case Notify(notice):
                self.notify(notice)
            case EndSession() | Exit():
                self._end(action)
            case _:
                assert_never(action)

    def _receive(self, receipt: Countersigned) -> None:
        if self._ledger.awaits(receipt.run, receipt.head):
            self._spawn(self._countersign(receipt))
        elif self._comparing is None:  # once: this process alone writes the ledger
            self._comparing = self._spawn(self._compare(receipt))

    def _forget(self, run: str, *, keep_consent: bool) -> None:
        self._end_question(run)
        self.workers.forget(run)
        if self._session is not None:
            self._session.assembler.forget(run)
        self._spawn(self.approvals.forget(run, keep_consent=keep_consent))

    def _end_question(self, run: str) -> None:
        """A question to the operator ends with its run."""
        question = self._questions.pop(run, None)
        if question is not None and question is not asyncio.current_task():
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

    async def _work(self, session: Session | None, message: WorkMessage) -> None:
        if session is None:
            return
        await self._whole()
        listening = session.listening
        frames, worked = await asyncio.to_thread(self.workers.work, message, listening=listening)
        session.assembler.expect(message.run, worked.room)
        await session.send(frames)
        self._apply(worked)
        if not isinstance(message, Step):  # one of many: the status stays as it is
            self._status_changed.set()

    async def _judge(self, plan: Plan) -> None:
        await self._whole()
        self._apply(await asyncio.to_thread(self.workers.judge, plan))

    async def _ask(self, question: AskOperator) -> None:
        decided = await self.approvals.ask(question)
        if isinstance(decided, CoregError):
            self._end(Exit(decided))
        else:
            self._apply(decided)

    async def _countersign(self, receipt: Countersigned) -> None:
        fault = await asyncio.to_thread(self._ledger.countersigned, receipt)
        if fault is not None:
            self.notify(notices.not_countersigned(receipt.run, fault))
        else:
            self.notify(notices.countersigned(receipt.run, receipt.head.lines, receipt.reason))
        self._countersigned.set()

    async def _write_status(self) -> None:
        while True:
            await self._status_changed.wait()
            self._status_changed.clear()
            await self._store_status()

    async def _store_status(self) -> None:
        if self.state is not None:
            await self.approvals.in_turn(self.state.write_status, self.status())
