r"""A site as a function: one message of the coordinator in, a list of answers out. No socket, no clock, no file.

Sessions apart from runs: the site says who it is once a session, and takes part in runs by their names. `breach` is
what the coordinator did that no plan allows: whoever holds the connection ends it with that sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.additive import question_rules as additive_questions
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.agreement import question_rules as agreement_questions
from coreg_core.agreement.views import View
from coreg_core.errors import CoregError, Refused
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Ask,
    Countersigned,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Inquiry,
    Masked,
    PlanAccepted,
    PlanRefused,
    Rejected,
    Roster,
    ToSite,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive, Agreement, Plan, Scoring, plan_fault
from site_agent.machine import additive, scoring, training
from site_agent.machine.additive import AdditiveTraining
from site_agent.machine.differencing import Promises, SummedWith
from site_agent.machine.factoring import FACTOR_MEMORY
from site_agent.machine.masks import NO_KEYS, Keys, roster_fault
from site_agent.machine.memory import Remembered, SiteResult
from site_agent.machine.scoring import Batch, ScoringJob
from site_agent.machine.site_data import PrivateData
from site_agent.machine.training import Training

Job: TypeAlias = Training | AdditiveTraining | ScoringJob

MOST_SCORINGS = (
    10  # answers about one set of instances under one plan: one, and as many again as a lost stream may cost
)
MOST_FAULTS = 10  # questions that no plan allows, after which the coordinator is not listened to any more
MOST_BEGUN = 10  # runs that were begun and not finished, one after another


def max_questions(plan: Plan) -> int:
    """How many questions of one run a site answers at most, whatever happens to the membership."""
    match plan.objective:
        case Agreement():
            return agreement_questions.max_questions(plan.iteration.max_rounds)
        case Additive():
            return additive_questions.max_questions(plan.objective)
        case Scoring():
            return MOST_SCORINGS


NOTHING_MORE = ResidualPolicy()


@dataclass(frozen=True)
class Terms:
    """What the site's operator has said, and what its ledger remembers, as functions.

    Parameters
    ----------
    objection
        why this site will not take part in a plan, or None.
    max_questions
        how many answers to a plan, over all its runs on the same instances.
    pin_threads
        limits BLAS, and tells the number that holds.
    recall
        what was written down of this plan and run on the instances of that digest.
    residuals
        what may go out beyond smoothed residuals, under the additive objective.
    tells_forecast
        whether this site's errors on left-out labels, and which model serves it, go into the federation's sums.
    keys
        for the masks of a sum; without them no plan of sums is accepted.
    summed_with
        the sets of sites that answers on the instances of that digest went out under, as far back as the ledger goes.
    membership_changes
        whether sums over other sets of sites may follow, where the plans said so.
    factor_memory
        GiB of factors that a path of couplings may keep in the exact form.
    label_share_max
        how much of a sum at one instance may be one label of this site (jobs/exposure.py).
    rationed
        why no question of any run is answered for now, or None.
    promises
        the sets of sites that runs of this agent are about to be summed with; one of the process, where it has several at once.
    """

    objection: Callable[[Plan], str | None] = lambda plan: None  # noqa: ARG005
    max_questions: Callable[[Plan], int] = max_questions
    pin_threads: Callable[[int], int] = lambda threads: threads
    recall: Callable[[Plan, str], Remembered] = lambda plan, ids_digest: Remembered()  # noqa: ARG005
    residuals: ResidualPolicy = NOTHING_MORE
    tells_forecast: bool = True
    factor_memory: float = FACTOR_MEMORY
    keys: Keys | None = None
    summed_with: Callable[[str], frozenset[SummedWith]] = lambda ids_digest: frozenset()  # noqa: ARG005
    membership_changes: bool = False
    label_share_max: float = 1.0
    rationed: Callable[[], str | None] = lambda: None
    promises: Promises = field(default_factory=Promises)


class Site:
    """See the module's docstring."""

    def __init__(self, name: str, data: PrivateData | Batch, terms: Terms | None = None, release: str = ""):
        self.name, self.release = name, release
        self.runs: dict[str, Job] = {}
        self.result: SiteResult | None = None  # of the run that ended last
        self.breach: str | None = None
        self._data, self._terms = data, terms or Terms()
        self._in_session: set[str] = set()  # runs whose plan came in this session
        self._begun = 0
        self._summed: frozenset[SummedWith] | None = None  # what the ledger tells is read once

    def hello(self) -> Hello:
        """The first message of every session; runs of an earlier one go on when their plan comes again."""
        self._in_session = set()
        return Hello(self.name, PROTOCOL_VERSION, self.release)

    @property
    def expected(self) -> dict[str, tuple[int, int]]:
        """The rows and columns that vectors of each run may have; of other runs none is taken."""
        rows = len(self._data.Z)
        return {run: job.plan.widest(rows) for run, job in self.runs.items() if run in self._in_session}

    @property
    def view(self) -> View | None:
        """The factored data of the run that was begun last, under the agreement."""
        return next((job.view for job in reversed(self.runs.values()) if isinstance(job, Training)), None)

    @property
    def answered(self) -> int:
        """Answers so far, over all runs."""
        return sum(t.remembered.answered for t in self.runs.values())

    def handle(self, message: ToSite) -> list[FromSite]:
        match message:
            case Plan():
                return [self._planned(message)]
            case Roster():
                return self._rostered(message)
            case Ask() | Inquiry():
                return [self._asked(message)]
            case Finished():
                return self._finished(message)
            case Countersigned() | Dismissed() | Rejected():
                return []

    def _planned(self, plan: Plan) -> PlanAccepted | PlanRefused:
        known = self.runs.get(plan.run)
        if known is not None:
            if known.plan != plan:
                return PlanRefused(plan.run, "the plan changed in the middle of the run.")
            self._in_session.add(plan.run)
            return known.acceptance  # a new session of the same run: nothing has to be factored again
        if reason := self._objection(plan):
            return PlanRefused(plan.run, reason)
        self.runs = {run: t for run, t in self.runs.items() if run in self._in_session}  # the others were given up
        self._begun += 1
        try:
            remembered = self._terms.recall(plan, self._data.ids_digest)
            begun = self._begin(plan, remembered)
        except CoregError as error:
            return PlanRefused(plan.run, str(error))
        self.runs[plan.run] = begun
        self._in_session.add(plan.run)
        return begun.acceptance

    def _begin(self, plan: Plan, remembered: Remembered) -> Job:
        pin_threads, most = self._terms.pin_threads, self._terms.max_questions(plan)
        if self._terms.keys is not None:
            self._terms.keys.forget(plan.run)
        offer = self._terms.keys.offer(plan) if plan.masked and self._terms.keys is not None else NO_KEYS
        match plan.objective, self._data:
            case Agreement() as terms, PrivateData() as data:
                rules = (self._terms.factor_memory, offer, self._terms.label_share_max)
                return training.begin(plan, terms, data, pin_threads, remembered, most, *rules)
            case Additive() as terms, PrivateData() as data:
                told = (self._terms.residuals, self._terms.tells_forecast, offer)
                return additive.begin(plan, terms, self.name, data, pin_threads, remembered, most, *told)
            case Scoring() as terms, Batch() as batch:
                return scoring.begin(plan, terms, self.name, batch, pin_threads, remembered, most, offer)
            case Scoring(), _:
                raise Refused("this agent was started to train; `coreg-agent score` scores together with a model.")
            case _:
                raise Refused("this agent was started to score together with a model, and not to train.")

    @property
    def _under_way(self) -> list[str]:
        """Runs whose plan was accepted in this session and that have not ended."""
        return sorted(run for run in self._in_session if run in self.runs and not self.runs[run].over)

    def _objection(self, plan: Plan) -> str | None:
        if busy := self._under_way:
            return f"this site takes part in run {busy[0]}, and in one run at a time."
        if self._begun >= MOST_BEGUN:
            return f"{self._begun} runs were begun here and none was finished. Its operator may start the agent again."
        if self.name not in plan.sites:
            return f"the plan does not list {self.name}."
        if fault := plan_fault(plan):
            return f"the plan cannot be carried out: {fault}"
        if plan.masked and self._terms.keys is None:
            return "the plan has sums alone, and this site has no certificate (--insecure) whose key could sign for its masks."
        return self._terms.objection(plan)

    def without_labels(self, ask: Ask | Inquiry) -> float | None:
        """r² with which own columns predict the others' score, when that is first known: before anything is trained."""
        job = self.runs.get(ask.run)
        if not (isinstance(ask, Inquiry) and ask.kind is Kind.SMOOTHER and isinstance(job, AdditiveTraining)):
            return None
        folds = any(column.operator.fold is not None for column in ask.columns)
        return None if folds or job.engine.smoother is None else job.engine.smoother.r2

    def kept(self, run: str) -> Remembered | None:
        """What has to be written down of a run with its next answer."""
        return self.runs[run].remembered if run in self.runs else None

    def _rostered(self, roster: Roster) -> list[FromSite]:
        """Whose answers are summed: judged before anything is answered under it. A good one needs no word."""
        job = self.runs.get(roster.run)
        if roster.run not in self._in_session or job is None or not job.plan.masked:
            self.breach = (
                f"sent a roster for run {roster.run}, which has no plan of sums that was accepted in this session."
            )
            return [PlanRefused(roster.run, "no plan of sums was accepted for this roster.")]
        if job.over or (job.masks is not None and job.masks.roster == roster):
            return []
        try:
            reason = self._roster_objection(job, roster)
            if reason is None and self._terms.keys is not None:
                self.runs[roster.run] = job.under(self._terms.keys.agree(job.plan, roster))
        except CoregError as error:
            reason = str(error)
        return [] if reason is None else [PlanRefused(roster.run, reason)]

    def _roster_objection(self, job: Job, roster: Roster) -> str | None:
        assert self._terms.keys is not None
        if job.masks is not None and roster.attempt <= job.masks.roster.attempt:
            return f"another roster under the number of attempt {roster.attempt}, or an older one."
        if fault := roster_fault(job.plan, self.name, self._terms.keys.offer(job.plan), roster):
            return fault
        may_change = job.plan.privacy.membership_changes
        now, consents = SummedWith(frozenset(roster.sites), may_change), self._terms.membership_changes and may_change
        about = (job.plan.run, self._data.ids_digest, now)
        return self._terms.promises.judge(*about, lambda: self._sets, consents=consents)

    @property
    def _sets(self) -> frozenset[SummedWith]:
        # Another run's answers may have gone out since: several are under way at once under `serve`.
        return (self._summed or frozenset()) | self._terms.summed_with(self._data.ids_digest)

    def _asked(self, ask: Ask | Inquiry) -> FromSite:
        if ask.run not in self._in_session or ask.run not in self.runs:
            self.breach = f"asked for run {ask.run}, whose plan was not accepted in this session."
            return Fault(ask.run, ask.question, ask.attempt, "no plan of this run is accepted, so nothing is answered.")
        if (reason := self._terms.rationed()) is not None:
            return Fault(ask.run, ask.question, ask.attempt, f"against this site's policy: {reason}")
        self.runs[ask.run], answered = self.runs[ask.run].answer(ask)
        if self.runs[ask.run].plan.masked and not isinstance(answered, Masked | Fault):
            return Fault(ask.run, ask.question, ask.attempt, "its answer would leave without masks, and does not.")
        if isinstance(answered, Masked):
            plan, sites = self.runs[ask.run].plan, frozenset(self.runs[ask.run].remembered.participants)
            self._summed = self._sets | {SummedWith(sites, plan.privacy.membership_changes)}
        if self.runs[ask.run].faults >= MOST_FAULTS:
            self.breach = f"asked {MOST_FAULTS} questions that the plan does not allow; the last: {answered}"
        return answered

    def _finished(self, finished: Finished) -> list[FromSite]:
        known = self.runs.get(finished.run)
        if known is None:
            if self._under_way:
                return []  # the end of a run that this site has nothing to do with
            if finished.targets is not None or finished.outcome is Outcome.CONVERGED:
                self.breach = f"ended run {finished.run} with a model, whose plan was not accepted."
                return []
            self.result = SiteResult(finished.outcome, finished.reason, None, (), None, 0.0, 1.0)
            return [Fetched(finished.run)]
        if known.over:
            return [Fetched(finished.run)]
        self.runs[finished.run], breach = known.finish(finished)
        if breach is not None:
            self.breach = f"ended run {finished.run} with {breach}"
            return []
        self._terms.promises.release(finished.run)
        self.result, self._begun = self.runs[finished.run].result, 0
        return [Fetched(finished.run)]
