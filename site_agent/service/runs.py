"""The runs that a site takes part in, over whatever session: each with a `Site` of its own, on the data set that it
names.

Whether it takes part is the policy's and its operator's decision; what a message means is `site_agent.machine.site`'s
business.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.protocol.messages import Ask, Dismissed, Fetched, Finished, Inquiry, PlanRefused, Roster
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive, Plan
from coreg_wire.identity.names import check_study_name
from coreg_wire.terminal.logs import Log
from coreg_wire.transport.release import release
from site_agent.data.data_sets import DataSets
from site_agent.data.prepare import Prepared
from site_agent.data.shared_set import keyed
from site_agent.ledger import Ledger
from site_agent.machine.masks import Keys
from site_agent.machine.memory import SiteResult
from site_agent.machine.site import MOST_BEGUN, Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.models.store import Archive
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy
from site_agent.service.state_dir import Decision, Desk
from site_agent.session.counters import Tally
from site_agent.session.dial import answers
from site_agent.session.progress import told_while, work_on
from site_agent.session.stream import Session
from site_agent.session.wording import describe

T = TypeVar("T")

OfRun: TypeAlias = Plan | Roster | Ask | Inquiry | Finished | Dismissed
DECISION = 0.25  # seconds between two looks for the operator's decision
# A run that ended so is not over: the coordinator takes it up again. No model of it is kept.
TO_BE_TAKEN_UP = (Outcome.STALLED, Outcome.TOO_FEW_SITES, Outcome.INTERRUPTED)


@dataclass(eq=False)
class UnderWay:
    """A run that this site takes part in."""

    plan: Plan
    inbox: "asyncio.Queue[OfRun | None]" = field(default_factory=asyncio.Queue)
    site: Site | None = None
    prepared: Prepared | None = None
    data: str = ""
    doing: str = "plan received"


class Runs:
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
        self.stopping = asyncio.Event()  # set when the operator ends the agent
        self.connected_since: str | None = None
        self.waiting = "dialling"
        self._ledger, self._desk, self._log = ledger, desk, log
        self._runs: dict[str, UnderWay] = {}
        self._troubles: dict[str, str] = {}
        self._begun = 0
        self.keys = keys
        self.certificate_until: str | None = None
        self.tally = Tally()

    @property
    def under_way(self) -> int:
        """How many runs this site takes part in now."""
        return len(self._runs)

    # --- one run --------------------------------------------------------------------------------------------------

    async def _work(self, session: Session, under: UnderWay) -> None:
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

    async def _planned(self, session: Session, under: UnderWay, plan: Plan) -> None:
        names = {"run": plan.run, "study": plan.study, "data": plan.data, "sites": " ".join(plan.sites)}
        self._log.info("plan", **names, text=describe(plan))
        try:
            if await asyncio.to_thread(self._fetched_before, plan):
                self._drop(session, under, None, "", models=())
                await session.say(Fetched(plan.run))
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
            await session.say(PlanRefused(plan.run, reason))
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
        await session.send(frames)
        self.tell()

    def _fetched_before(self, plan: Plan) -> bool:
        """Whether all that can come of this run is here already: an agent that was killed before it could say so."""
        if plan.run in self._runs and self._runs[plan.run].site is not None:
            return False
        return self.archive.has(plan)

    def _objection(self, under: UnderWay, plan: Plan) -> str | None:
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

    def _against_policy(self, under: UnderWay, plan: Plan) -> str | None:
        made = self._read(under)
        return made if isinstance(made, str) else made[2].objection(plan)

    async def _consent(self, under: UnderWay, plan: Plan) -> Decision | None:
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

    def _open(self, under: UnderWay) -> str | None:
        """The site for this run, on its data set as it is now; why there is none, in words that the coordinator may hear."""
        made = self._read(under)
        if isinstance(made, str):
            return made
        under.prepared, data, terms = made
        under.site = Site(self.name, data, terms, release())
        return None

    def _read(self, under: UnderWay) -> tuple[Prepared, PrivateData, Terms] | str:
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

    async def _asked(self, session: Session, under: UnderWay, ask: Ask | Inquiry) -> None:
        if under.site is None:
            raise Refused(
                f"the coordinator broke the protocol: it asked for run {ask.run}, whose plan was not accepted."
            )
        if under.site.answered == 0:
            self._begun += 1
        work = asyncio.to_thread(answers, under.site, self._ledger, ask, _no_result, session.pace.piece)
        with self.tally.spending("question"):
            frames = await self._not_silently(under, work, work_on(ask))
        await session.send(frames, ask.run)
        self._no_breach(under)

    async def _rostered(self, session: Session, under: UnderWay, roster: Roster) -> None:
        if under.site is None:
            raise Refused(f"the coordinator broke the protocol: a roster of run {roster.run}, which was not accepted.")
        await session.send(await asyncio.to_thread(answers, under.site, self._ledger, roster, _no_result))
        self._no_breach(under)

    async def _finished(self, session: Session, under: UnderWay, finished: Finished) -> None:
        plan, written = under.plan, list[str]()
        if under.site is None:  # it was not accepted here
            if finished.targets is None:
                await session.say(Fetched(plan.run))
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
        await session.send(frames)

    def _no_breach(self, under: UnderWay) -> None:
        if under.site is not None and under.site.breach is not None:
            raise Refused(f"the coordinator broke the protocol: it {under.site.breach}")

    def _drop(
        self, session: Session, under: UnderWay, outcome: Outcome | None, reason: str, models: tuple[str, ...]
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
            said = {"text": reason} if reason else {}
            self._log.info("run_over", **{**entry, "models": len(models)}, **said)
        self.tell()

    async def _not_silently(self, under: UnderWay, work: Coroutine[Any, Any, T], what: str) -> T:
        return await told_while(work, what, lambda text: self._log.info("working", run=under.plan.run, text=text))

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
