r"""A site in one run, as a function: a message of the coordinator in, a list of answers out. No socket, no clock, no file.

Here it is judged whether this site takes part, and with whom; `replica` follows the log. `breach` is what the coordinator
did that no plan allows: whoever holds the connection ends it with that sentence.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from coreg_core.additive import question_rules as additive_questions
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Question
from coreg_core.agreement import question_rules as agreement_questions
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.agreement.views import View
from coreg_core.computation.rounds import Round
from coreg_core.errors import CoregError, Refused
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Countersigned,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    FromSite,
    Hello,
    PlanRefused,
    Proposal,
    Rejected,
    Step,
    ToSite,
)
from coreg_core.protocol.plan import Additive, Agreement, Plan, Scoring, plan_fault
from site_agent.machine.additive import AdditiveJob
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.differencing import Promises, SummedWith
from site_agent.machine.factoring import FACTOR_MEMORY
from site_agent.machine.memory import Remembered, SiteResult, Told
from site_agent.machine.replica import Behind, Breach, Fold, Replica, each_by_itself
from site_agent.machine.run_keys import Keys
from site_agent.machine.run_log import Kept, Memory, RunLog
from site_agent.machine.scoring import Batch, ScoringJob
from site_agent.machine.site_data import PrivateData

Job: TypeAlias = AgreementJob | AdditiveJob | ScoringJob

# Answers about one set of instances under one plan: two, and as many again as a lost attempt may cost.
MOST_SCORINGS = 20


def max_questions(plan: Plan) -> int:
    """How many questions of one run a site answers at most, whatever happens to the membership."""
    match plan.objective:
        case Agreement():
            return agreement_questions.max_questions(plan.iteration.max_rounds)
        case Additive():
            return additive_questions.max_questions(plan.objective)
        case Scoring():
            return MOST_SCORINGS


@dataclass(frozen=True)
class Rules:
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
        what was written down of this plan on the instances of that digest.
    residuals
        what may go out beyond smoothed residuals, under the additive objective.
    tells_forecast
        whether this site's errors on left-out labels, and which model serves it, go into the federation's sums.
    keys
        for sealed sums; without them only a plan in plaintext is accepted.
    summed_with
        the sets of sites that answers on the instances of that digest went out under, as far back as the ledger goes.
    membership_changes
        whether sums over other sets of sites may follow, where the plans said so.
    factor_memory
        GiB of factors that a path of couplings may keep in the exact form.
    label_share_max
        how much of a sum at one instance may be one label of this site (`leverage`).
    rationed
        why no question of any run is answered for now, or None.
    promises
        the sets of sites that runs of this agent are about to be summed with; one of the process, where it has several at once.
    admit
        why no answer to this plan goes out in a sum with these sites; where there is no reason, it is on record.
    exact_report
        whether the coordinator may have the exact table of convergence, where the plan asks for it.
    """

    objection: Callable[[Plan], str | None] = lambda plan: None  # noqa: ARG005
    max_questions: Callable[[Plan], int] = max_questions
    pin_threads: Callable[[int], int] = lambda threads: threads
    recall: Callable[[Plan, str], Remembered] = lambda plan, ids_digest: Remembered()  # noqa: ARG005
    residuals: ResidualPolicy = field(default_factory=ResidualPolicy)
    tells_forecast: bool = True
    factor_memory: float = FACTOR_MEMORY
    keys: Keys | None = None
    summed_with: Callable[[str], frozenset[SummedWith]] = lambda ids_digest: frozenset()  # noqa: ARG005
    membership_changes: bool = False
    label_share_max: float = 1.0
    rationed: Callable[[], str | None] = lambda: None
    promises: Promises = field(default_factory=Promises)
    admit: Callable[[Plan, tuple[str, ...]], str | None] = lambda plan, sites: None  # noqa: ARG005
    exact_report: bool = False


class Site:
    """See the module's docstring. ``told``: what the last answer tells, where it has words."""

    def __init__(
        self,
        name: str,
        data: PrivateData | Batch,
        rules: Rules | None = None,
        log: RunLog | None = None,
        release: str = "",
        token: str = "",
        fold: Fold = each_by_itself,
    ):
        self.name, self.release, self._token = name, release, token
        self.result: SiteResult | None = None
        self.breach: str | None = None
        self.told: Told | None = None
        self.plan: Plan | None = None
        self._data, self._rules = data, rules or Rules()
        self._log, self._fold = log or Memory(), fold
        self._job: Job | None = None
        self._replica: Replica | None = None
        self._remembered = Remembered()
        self._answered = 0

    def hello(self) -> Hello:
        """The first message of a session."""
        return Hello(self.name, PROTOCOL_VERSION, self.release)

    @property
    def view(self) -> View | None:
        """The factored data, under the agreement."""
        return self._job.view if isinstance(self._job, AgreementJob) else None

    @property
    def n_unlabelled(self) -> int:
        """How many shared instances it lists."""
        return len(self._data.Z)

    @property
    def kept(self) -> Kept | None:
        """The sums so far."""
        return None if self._replica is None else self._replica.kept

    @property
    def asked(self) -> Round | None:
        """The open question."""
        return None if self._replica is None else self._replica.asked

    @property
    def progress(self) -> Progress | None:
        """How far the computation has come: the exact figures, which the coordinator need not have."""
        replica = self._replica
        if replica is None or not replica.began or replica.stopped:
            return None
        return replica.computation.progress(replica.state)

    @property
    def r2_without_labels(self) -> float | None:
        """With which r² own columns predict the others' score, once it is known: before anything is trained."""
        if not isinstance(self._job, AdditiveJob) or self._job.engine.smoother is None:
            return None
        return self._job.engine.smoother.r2

    def handle(self, message: ToSite) -> list[FromSite]:
        """The answers to one message."""
        self.told = None
        try:
            match message:
                case Proposal():
                    return [self._proposed(message)]
                case Step():
                    return self._stepped(message)
                case Finished():
                    return self._finished(message)
                case Countersigned() | Dismissed() | Rejected():
                    return []
        except Breach as error:
            self.breach = str(error)
            return []

    # --- a plan ---------------------------------------------------------------------------------------------------

    def _proposed(self, proposal: Proposal) -> FromSite:
        plan = proposal.plan
        if self.plan is not None and self.plan != plan:
            return PlanRefused(plan.run, "the plan changed in the middle of the run.")
        try:
            if self._replica is None:
                if reason := self._objection(plan):
                    return PlanRefused(plan.run, reason)
                self._replica = self._begun(plan)
            return self._replica.offer(proposal.attempt)
        except CoregError as error:
            return PlanRefused(plan.run, str(error))

    def _objection(self, plan: Plan) -> str | None:
        if self.name not in plan.sites:
            return f"the plan does not list {self.name}."
        if fault := plan_fault(plan):
            return f"the plan cannot be carried out: {fault}"
        if plan.masked and self._rules.keys is None:
            return (
                "the plan has sealed sums, and this site has no certificate (--insecure) whose key could sign for it."
            )
        return self._rules.objection(plan)

    def _begun(self, plan: Plan) -> Replica:
        rules = self._rules
        self._remembered = rules.recall(plan, self._data.ids_digest)
        match plan.objective, self._data:
            case Agreement() as terms, PrivateData() as data:
                limits = (rules.factor_memory, rules.label_share_max)
                self._job = AgreementJob(plan, terms, data, rules.pin_threads, *limits)
            case Additive() as terms, PrivateData() as data:
                about = (plan, terms, self.name, data, rules.pin_threads, rules.residuals, self._remembered.groups)
                self._job = AdditiveJob(*about, tells_forecast=rules.tells_forecast)
            case Scoring() as terms, Batch() as batch:
                self._job = ScoringJob(plan, terms, self.name, batch, rules.pin_threads)
            case Scoring(), _:
                raise Refused("this site has no model to score together with.")
            case _:
                raise Refused("this site was started to score together with a model, and not to train.")
        self.plan = plan
        return Replica(
            self.name,
            plan,
            self._job,
            self._log,
            rules.keys if plan.masked else None,
            accept=self._accepted,
            may_answer=self._may_answer,
            exact_report=plan.privacy.convergence_report == "exact" and rules.exact_report,
            release=self.release,
            token=self._token,
            fold=self._fold,
        )

    # --- steps ----------------------------------------------------------------------------------------------------

    def _accepted(self, sites: tuple[str, ...]) -> str | None:
        assert self.plan is not None
        if not self.plan.masked:
            return None
        may_change = self.plan.privacy.membership_changes
        now, consents = SummedWith(frozenset(sites), may_change), self._rules.membership_changes and may_change
        about = (self.plan.run, self._data.ids_digest, now)
        summed = self._rules.summed_with
        reason = self._rules.promises.judge(*about, lambda: summed(self._data.ids_digest), consents=consents)
        return reason or self._rules.admit(self.plan, sites)

    def _may_answer(self, asked: Round) -> None:
        assert self.plan is not None
        assert self._replica is not None
        if (reason := self._rules.rationed()) is not None:
            raise Refused(f"against this site's policy: {reason}")
        most = self._rules.max_questions(self.plan)
        if self._remembered.answered + self._answered >= most:
            raise Refused(
                f"more than {most} questions, the most that this agent answers to such a plan on these instances, over all runs; "
                "its ledger counts them. Its operator may allow more (max_questions in policy.toml)."
            )
        self._answered += 1
        self.told = Told(
            asked,
            self._replica.sites,
            self.plan.privacy.membership_changes,
            self.plan.masked,
        )
        job, question = self._job, asked.question
        if isinstance(job, AdditiveJob) and isinstance(question, Question):
            tells = question.ask is Kind.FIXED_POINT and question.part == "affine"
            fresh = tuple(group for group in job.groups if tells and group not in self._remembered.groups)
            self.told = replace(self.told, residuals=job.terms.residuals, fresh=fresh)

    def _stepped(self, step: Step) -> list[FromSite]:
        if self._replica is None:
            raise Breach(f"asked for run {step.run}, whose plan was not accepted.")
        try:
            answer = self._replica.answer(step)
        except Breach:
            raise
        except Behind:  # an offer to a later attempt tells it
            return [self._replica.offer(step.attempt + 1)]
        except Refused as error:
            return [PlanRefused(step.run, str(error))]
        except CoregError as error:
            return [Fault(step.run, step.attempt, step.step, str(error))]
        return [] if answer is None else [answer]

    # --- the end --------------------------------------------------------------------------------------------------

    def _finished(self, finished: Finished) -> list[FromSite]:
        replica, job = self._replica, self._job
        if self.result is None:
            ended = replica is not None and replica.finish(finished)
            self.result = SiteResult(finished.outcome, finished.reason, self.plan, (), None, 0.0, 1.0)
            if ended and replica is not None and job is not None and not replica.stopped:
                position = replica.sites.index(self.name)
                about = (position, finished.outcome, finished.reason)
                self.result = job.result(replica.computation, replica.state, *about)  # type: ignore[arg-type]
            self._rules.promises.release(finished.run)
        return [Fetched(finished.run)]
