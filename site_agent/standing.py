"""An agent that stays: one session for months, the runs that come over it, each on the data set that it names.

Each run has a `Site` of its own and a worker of its own, so that one which factors does not hold up another's answers. What
leaves stands in the ledger first, whichever run it belongs to. Knows the connection, the ledger, the data sets, the archive and
the desk; what a message means is `site_agent.federation`'s business.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Ask,
    Countersigned,
    Dismissed,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Inquiry,
    PlanRefused,
    Rejected,
    Roster,
    ToSite,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import Additive, Plan
from coreg_wire.codec import Assembler, site_message_to_frames
from coreg_wire.logs import Log
from coreg_wire.names import check_study_name
from coreg_wire.release import release
from coreg_wire.service import JOIN_PATH
from coreg_wire.v1 import federation_pb2 as pb
from coreg_wire.values import ProtocolError
from site_agent.archive import Archive
from site_agent.connection import Call, LostSession, TurnedAway, answers, leave, write
from site_agent.data.named import DataSets
from site_agent.data.prepare import Prepared
from site_agent.data.private import PrivateData
from site_agent.data.shared_set import keyed
from site_agent.desk import Decision, Desk, now
from site_agent.federation import MOST_BEGUN, Site, Terms
from site_agent.jobs.masks import Keys
from site_agent.jobs.remembered import SiteResult
from site_agent.ledger import Ledger
from site_agent.policy import Policy
from site_agent.tally import Tally
from site_agent.terms import terms_of
from site_agent.working import told_while, work_on

T = TypeVar("T")

OfRun: TypeAlias = Plan | Roster | Ask | Inquiry | Finished | Dismissed
SETTLED = 1.0  # seconds without a word after which a session counts: somebody who is turned away hears so at once
DECISION = 0.25  # seconds between two looks for the operator's decision
SILENCE, LONGEST_SILENCE = (
    60.0,
    3600.0,
)  # seconds without a word in a run, after which the log says so; the next time twice as long
# A run that ended so is not over: the coordinator takes it up again. No model of it is kept.
TO_BE_TAKEN_UP = (Outcome.STALLED, Outcome.TOO_FEW_SITES, Outcome.INTERRUPTED)


@dataclass(eq=False)
class _UnderWay:
    """A run that this site takes part in."""

    plan: Plan
    inbox: "asyncio.Queue[OfRun | None]" = field(default_factory=asyncio.Queue)
    site: Site | None = None
    prepared: Prepared | None = None
    data: str = ""
    doing: str = "plan received"


@dataclass(eq=False)
class _Session:
    """One open stream."""

    call: Call
    assembler: Assembler
    failed: "asyncio.Future[None]"
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    listened_to: bool = True
    workers: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)


class Service:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        ledger: Ledger,
        desk: Desk,
        archive: Archive,
        data_sets: DataSets,
        log: Log,
        *,
        ask_first: bool,
        keys: Keys | None = None,
    ):
        self.name, self.policy, self.archive, self.ask_first = name, policy, archive, ask_first
        self.data_sets = data_sets
        self.stopping = asyncio.Event()
        self.connected_since: str | None = None
        self.waiting = "dialling"
        self._ledger, self._desk, self._log = ledger, desk, log
        self._runs: dict[str, _UnderWay] = {}
        self._troubles: dict[str, str] = {}
        self._begun = 0
        self.keys = keys
        self.certificate_until: str | None = None
        self.tally = Tally()

    @property
    def under_way(self) -> int:
        """How many runs this site takes part in now."""
        return len(self._runs)

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
        session = _Session(call, Assembler(), asyncio.get_running_loop().create_future())
        for under in self._runs.values():
            under.inbox = asyncio.Queue()
            if under.site is not None:
                under.site.hello()  # its runs go on when their plans come again
        try:
            await self._say(session, Hello(self.name, PROTOCOL_VERSION, release()))
            await self._listen(session, hear)
        finally:
            for under in self._runs.values():
                under.inbox.put_nowait(None)
            await asyncio.gather(*session.workers.values(), return_exceptions=True)
            session.failed.cancel()
            self.connected_since, self.waiting = None, "dialling"
            self.tell()
        await leave(call, self._ledger, "its operator ended it")

    async def _listen(self, session: _Session, hear: Callable[[ToSite], None]) -> None:
        while (data := await self._next(session)) is not None:
            if not isinstance(data, bytes):  # grpc.aio.EOF
                raise LostSession("the coordinator closed the stream")
            self.tally.bytes["received"] += len(data)
            try:
                message = session.assembler.feed_coordinator(pb.CoordinatorFrame.FromString(data))
            except (ProtocolError, DecodeError) as error:
                raise Refused(f"the coordinator broke the protocol: {error} Nothing was answered.") from None
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

    async def _next(self, session: _Session) -> object:
        """The next frame; None when the operator ends the agent. A run in which nothing is heard is told, ever more seldom."""
        reading = asyncio.ensure_future(session.call.read())
        stopping = asyncio.ensure_future(self.stopping.wait())
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
                    self._log.info(
                        "waiting", runs=runs, seconds=round(waited), text="for the coordinator, or for other sites"
                    )
        finally:
            stopping.cancel()
            reading.cancel()

    def _is_connected(self) -> None:
        self.connected_since, self.waiting = now(), "for runs"
        self.tally.sessions += 1
        self._log.info("connected")
        self.tell()

    async def _not_silently(self, under: _UnderWay, work: Coroutine[Any, Any, T], what: str) -> T:
        return await told_while(work, what, lambda text: self._log.info("working", run=under.plan.run, text=text))

    async def _countersigned(self, receipt: Countersigned) -> None:
        if (fault := await asyncio.to_thread(self._ledger.countersigned, receipt)) is not None:
            self._log.warning("not_countersigned", run=receipt.run, text=fault)
        else:
            self._log.info("countersigned", run=receipt.run, lines=receipt.head.lines)

    def _hand_over(self, session: _Session, message: OfRun) -> None:
        under = self._runs.get(message.run)
        if under is None:
            if not isinstance(message, Plan):
                if isinstance(message, Ask | Inquiry | Roster):
                    raise Refused(
                        f"the coordinator broke the protocol: it asked for run {message.run}, of which no plan came."
                    )
                if isinstance(message, Finished) and message.targets is None:  # of a run that it had no plan of
                    told = asyncio.create_task(self._say(session, Fetched(message.run)))
                    session.workers[message.run] = told
                    told.add_done_callback(lambda done: self._worked(session, message.run, done))
                return
            under = self._runs[message.run] = _UnderWay(message)
        if message.run not in session.workers or session.workers[message.run].done():
            worker = asyncio.create_task(self._work(session, under))
            session.workers[message.run] = worker
            worker.add_done_callback(lambda done: self._worked(session, message.run, done))
        under.inbox.put_nowait(message)

    def _worked(self, session: _Session, run: str, done: "asyncio.Task[None]") -> None:
        if session.workers.get(run) is done:
            del session.workers[run]
        if not done.cancelled() and (error := done.exception()) is not None and not session.failed.done():
            session.failed.set_exception(error)

    async def _say(self, session: _Session, message: FromSite) -> None:
        leaving = await asyncio.to_thread(self._ledger.record, message)
        await self._send(session, list(site_message_to_frames(leaving)))

    async def _send(self, session: _Session, frames: list[pb.SiteFrame]) -> None:
        async with session.turn:
            if session.listened_to:
                session.listened_to = await write(session.call, frames)
                self.tally.bytes["sent"] += sum(frame.ByteSize() for frame in frames)

    # --- one run --------------------------------------------------------------------------------------------------

    async def _work(self, session: _Session, under: _UnderWay) -> None:
        while (message := await under.inbox.get()) is not None:
            match message:
                case Plan():
                    await self._planned(session, under, message)
                case Roster():
                    await self._rostered(session, under, message)
                case Ask() | Inquiry():
                    await self._asked(session, under, message)
                case Finished():
                    await self._finished(session, under, message)
                    return
                case Dismissed(reason=reason):
                    self._log.warning("dismissed", run=under.plan.run, study=under.plan.study, text=reason)
                    self._drop(session, under, message.outcome, reason, models=())
                    return

    async def _planned(self, session: _Session, under: _UnderWay, plan: Plan) -> None:
        self._log.info("plan", run=plan.run, study=plan.study, data=plan.data, sites=" ".join(plan.sites))
        try:
            if await asyncio.to_thread(self._fetched_before, plan):
                self._drop(session, under, None, "", models=())
                await self._say(session, Fetched(plan.run))
                return
            reason = self._objection(under, plan)
        except UsageError as error:
            reason = str(error)
        if reason is None and under.site is None:  # no operator is asked for what the policy refuses on these rows
            reason = await asyncio.to_thread(self._against_policy, under, plan)
        if reason is None and under.site is None:
            decision = await self._consent(under, plan)
            if decision is None:
                return  # there is something else to be heard first
            reason = None if decision.approved else decision.reason or "its operator refused it."
        if reason is None and under.site is None:
            under.doing = "reading and factoring"
            self.tell()
            with self.tally.spending("plan"):
                reason = await self._not_silently(under, asyncio.to_thread(self._open, under), "reading the data")
        if reason is not None:
            self.tally.refusals += 1
            self._log.warning("refused", run=plan.run, study=plan.study, text=reason)
            self._drop(session, under, Outcome.REFUSED, reason, models=())
            await self._say(session, PlanRefused(plan.run, reason))
            return
        assert under.site is not None
        work = asyncio.to_thread(answers, under.site, self._ledger, plan, _no_result)
        with self.tally.spending("plan"):
            frames = await self._not_silently(under, work, work_on(plan))
        if room := under.site.expected.get(plan.run):
            session.assembler.expect(plan.run, *room)
            under.doing = "answering"
        else:  # it was refused, and why is on its way
            self.tally.refusals += 1
            self._drop(session, under, Outcome.REFUSED, "refused", models=())
        await self._send(session, frames)
        self.tell()

    def _fetched_before(self, plan: Plan) -> bool:
        """Whether all that can come of this run is here already: an agent that was killed before it could say so."""
        if plan.run in self._runs and self._runs[plan.run].site is not None:
            return False
        return self.archive.has(plan)

    def _objection(self, under: _UnderWay, plan: Plan) -> str | None:
        check_study_name(plan.run, "run")
        if plan.study:
            check_study_name(plan.study, "study")
        if plan != under.plan:
            return "the plan changed in the middle of the run."
        others = {u.plan.iteration.threads for u in self._runs.values() if u.site is not None and u is not under}
        if others - {plan.iteration.threads}:
            return f"threads={plan.iteration.threads}: this site takes part in a run with {min(others)}, and cannot change in it."
        if self._begun >= MOST_BEGUN and under.site is None:
            return f"{self._begun} runs were begun here and none was finished. Its operator may start the agent again."
        under.data = self.data_sets.choose(plan.data)
        if _tells_groups(plan) and any(_tells_groups(u.plan) for u in self._runs.values() if u is not under):
            return "a run with grouped residuals is under way here, and what one tells the other has to know first."
        return self.policy.objection(plan)

    def _against_policy(self, under: _UnderWay, plan: Plan) -> str | None:
        made = self._read(under)
        return made if isinstance(made, str) else made[2].objection(plan)

    async def _consent(self, under: _UnderWay, plan: Plan) -> Decision | None:
        if not self.ask_first:
            return Decision(True, "")
        decision = await asyncio.to_thread(self._desk.decision, plan.run)
        if decision is None:
            await asyncio.to_thread(self._desk.ask, plan.run, plan.to_dict())
            under.doing = f"waiting for `coreg-agent approve {plan.run}`, or `refuse`"
            self._log.warning("waiting_for_approval", run=plan.run, study=plan.study, text=under.doing)
            self.tell()
            while decision is None:
                if not under.inbox.empty():
                    return None
                await asyncio.sleep(DECISION)
                decision = await asyncio.to_thread(self._desk.decision, plan.run)
            self._desk.answered(plan.run)
        self._log.info("approved" if decision.approved else "not_approved", run=plan.run, study=plan.study)
        return decision

    def _open(self, under: _UnderWay) -> str | None:
        """The site for this run, on its data set as it is now; why there is none, in words that the coordinator may hear."""
        made = self._read(under)
        if isinstance(made, str):
            return made
        under.prepared, data, terms = made
        under.site = Site(self.name, data, terms, release())
        return None

    def _read(self, under: _UnderWay) -> tuple[Prepared, PrivateData, Terms] | str:
        """The run's data set as it is now, and what this site holds a plan on it to; or why there is none."""
        try:
            prepared, read = self.data_sets.get(under.data)
        except CoregError as error:
            self._troubles[under.data] = str(error)  # it may name rows: for the operator's eyes, and not for a log
            self._log.error("data_unusable", data=under.data, text="`coreg-agent status` says why")
            return f"its data set {under.data!r} cannot be used as it is; its operator was told why."
        self._troubles.pop(under.data, None)
        if read:
            d = prepared.data
            counts = {"labelled": len(d.X), "shared": len(d.Z), "features": d.X.shape[1]}
            self._log.info("data_read", data=under.data, **counts)
        data = prepared.data
        if self.policy.ids_secret is not None:
            data = replace(data, ids_digest=keyed(data.ids_digest, self.policy.ids_secret))
        return prepared, data, terms_of(self.policy, self._ledger, self.keys, data)

    async def _asked(self, session: _Session, under: _UnderWay, ask: Ask | Inquiry) -> None:
        if under.site is None:
            raise Refused(
                f"the coordinator broke the protocol: it asked for run {ask.run}, whose plan was not accepted."
            )
        if under.site.answered == 0:
            self._begun += 1
        work = asyncio.to_thread(answers, under.site, self._ledger, ask, _no_result)
        with self.tally.spending("question"):
            frames = await self._not_silently(under, work, work_on(ask))
        await self._send(session, frames)
        self._no_breach(under)

    async def _rostered(self, session: _Session, under: _UnderWay, roster: Roster) -> None:
        if under.site is None:
            raise Refused(f"the coordinator broke the protocol: a roster of run {roster.run}, which was not accepted.")
        await self._send(session, await asyncio.to_thread(answers, under.site, self._ledger, roster, _no_result))
        self._no_breach(under)

    async def _finished(self, session: _Session, under: _UnderWay, finished: Finished) -> None:
        plan, written = under.plan, list[str]()
        if under.site is None:  # it was not accepted here
            if finished.targets is None:
                await self._say(session, Fetched(plan.run))
            self._drop(session, under, finished.outcome, finished.reason, models=())
            return
        prepared = under.prepared
        assert prepared is not None
        target = self.data_sets.inputs(under.data).target

        def deliver(result: SiteResult) -> None:
            if result.outcome not in TO_BE_TAKEN_UP:
                paths = self.archive.put(plan, result, prepared, target, lambda _text: None)
                written.extend(str(path) for path in paths)

        with self.tally.spending("end"):
            frames = await asyncio.to_thread(answers, under.site, self._ledger, finished, deliver)
        self._no_breach(under)
        self._begun = 0
        self._drop(session, under, finished.outcome, finished.reason, models=tuple(written))
        await self._send(session, frames)

    def _no_breach(self, under: _UnderWay) -> None:
        if under.site is not None and under.site.breach is not None:
            raise Refused(f"the coordinator broke the protocol: it {under.site.breach}")

    def _drop(
        self, session: _Session, under: _UnderWay, outcome: Outcome | None, reason: str, models: tuple[str, ...]
    ) -> None:
        """The run is over for this site, or it will come again with its plan."""
        plan = under.plan
        self._runs.pop(plan.run, None)
        under.inbox.put_nowait(None)  # its worker waits for nothing more
        session.assembler.forget(plan.run)
        if outcome not in TO_BE_TAKEN_UP:
            with contextlib.suppress(UsageError):  # a run whose name is none was never put on the desk
                self._desk.clear(plan.run)
        if outcome is not None:
            self.tally.ended[outcome.name] += 1
            entry = {
                "run": plan.run,
                "study": plan.study,
                "data": plan.data,
                "stop": outcome.name,
                "models": list(models),
            }
            self._desk.over({**entry, "reason": reason})
            self._log.info("run_over", **{**entry, "models": len(models)})
        self.tell()

    # --- what is told ---------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Leave word of what goes on, for `coreg-agent status`."""
        self._desk.tell(
            {
                "site": self.name,
                "release": release(),
                "connected_since": self.connected_since,
                "waiting": self.waiting,
                "certificate_until": self.certificate_until,
                "runs": {
                    run: {"study": u.plan.study, "data": u.plan.data, "doing": u.doing} for run, u in self._runs.items()
                },
                "troubles": self._troubles,
            }
        )


def _tells_groups(plan: Plan) -> bool:
    """No label goes out in two groups: the ledger has to know those of one run before another begins."""
    return isinstance(plan.objective, Additive) and plan.objective.residuals == "grouped"


def _no_result(_result: SiteResult) -> None:
    raise AssertionError("a result comes with the run's end alone")
