r"""A site in one run, as a function: a message of the coordinator in, a list of answers out. No socket, no clock, no file.

This module decides whether the site takes part, and with which sites; `replica` follows an attempt. The result is there before
the last answer, so that the caller can store it first. `breach` describes a violation of the protocol by the coordinator; the
caller ends the connection with that sentence.
"""

from collections.abc import Callable
from dataclasses import replace

from coreg_core.agreement.schedules import Progress
from coreg_core.agreement.views import View
from coreg_core.computation.question import Question
from coreg_core.errors import CoregError, Refused
from coreg_core.messages import (
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
    Renewed,
    Step,
    ToSite,
)
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan
from site_agent.consent.memory import Remembered
from site_agent.consent.objections import Consent, Objection, not_listed, objections, refusal
from site_agent.machine.additive import AdditiveJob
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.alignment import AlignmentJob, IdList
from site_agent.machine.job import Disclosure, Fold, Job, SiteResult, Sums, each_by_itself
from site_agent.machine.replica import Behind, Breach, Keys, Replica
from site_agent.machine.scoring import Batch, ScoringJob
from site_agent.site_data import PrivateData


class ChangedRows(Refused):
    """This process has other rows than those that the run's earlier answers were computed from."""


class Site:
    """See the module's docstring. ``told``: the disclosure of the last answer, if it has words."""

    def __init__(
        self,
        name: str,
        data: PrivateData | Batch | IdList,
        consent: Consent,
        keys: Keys | None = None,
        *,
        pin_threads: Callable[[int], int] = lambda threads: threads,
        release: str = "",
        token: str = "",
        fold: Fold = each_by_itself,
    ):
        self.name, self.release, self._token = name, release, token
        self.result: SiteResult | None = None
        self.breach: str | None = None
        self.disclosure: Disclosure | None = None
        self.plan: Plan | None = None
        self._data, self._consent, self._keys = data, consent, keys
        self._pin_threads, self._fold = pin_threads, fold
        self._job: Job | None = None
        self._replica: Replica | None = None
        self._remembered = Remembered()
        self._answered = 0

    def hello(self) -> Hello:
        return Hello(self.name, PROTOCOL_VERSION, self.release)

    @property
    def view(self) -> View | None:
        """The factored data, under the agreement."""
        return self._job.view if isinstance(self._job, AgreementJob) else None

    @property
    def n_unlabelled(self) -> int:
        return len(self._data.Z)

    @property
    def progress(self) -> Progress | None:
        """The exact progress. The coordinator receives it to a power of ten."""
        return None if self._job is None else self._job.progress

    @property
    def portion(self) -> float | None:
        """How much of an alignment is done; None for other runs."""
        return self._job.portion if isinstance(self._job, Sums) else None

    def handle(self, message: ToSite) -> list[FromSite]:
        self.disclosure = None
        try:
            match message:
                case Proposal():
                    return [self._proposed(message)]
                case Step():
                    return self._stepped(message)
                case Finished():
                    return self._finished(message)
                case Countersigned() | Renewed() | Dismissed() | Rejected():
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
                if reason := refusal(self._objections(plan), self._consent.policy):
                    return PlanRefused(plan.run, reason)
                self._replica = self._begun(plan)
            if proposal.attempt > self._replica.attempt:
                self.result = None  # another attempt replaces it
            return self._replica.offer(proposal.attempt)
        except CoregError as error:
            return PlanRefused(plan.run, str(error), for_now=isinstance(error, ChangedRows))

    def objections(self, plan: Plan) -> list[Objection]:
        """Every reason why this site would not take part, also those that only its data show."""
        found = self._objections(plan)
        try:
            self._job_of(plan)
        except CoregError as error:
            found.append(Objection(str(error), here=getattr(error, "here", "")))
        return found

    def _objections(self, plan: Plan) -> list[Objection]:
        rows = self._data if isinstance(self._data, PrivateData) else None
        found = objections(
            plan, self._consent.policy, rows, self._consent.memory, self._data.ids_digest
        )
        return [*found, *not_listed(plan, self.name)]

    def _begun(self, plan: Plan) -> Replica:
        self._remembered = self._consent.memory.recall(plan, self._data.ids_digest)
        job = self._job_of(plan)
        if self._remembered.rows not in ("", job.data_digest):
            raise ChangedRows(
                f"this site's rows or their preprocessing have changed since it answered in run {plan.run}. Start its agent with "
                "the data of this run, or start a new run (coreg-coordinator run --new)."
            )
        self._job, self.plan = job, plan
        return Replica(
            self.name,
            plan,
            job,
            self._keys if plan.masked else None,
            accept=self._accepted,
            may_answer=self._may_answer,
            release=self.release,
            token=self._token,
            fold=self._fold,
        )

    def _job_of(self, plan: Plan) -> Job:
        pin, consent = self._pin_threads, self._consent
        match plan.objective, self._data:
            case Agreement() as terms, PrivateData() as data:
                return AgreementJob(plan, terms, self.name, data, pin)
            case Additive() as terms, PrivateData() as data:
                return AdditiveJob(plan, terms, self.name, data, pin, consent)
            case Alignment() as terms, IdList() as ids:
                return AlignmentJob(plan, terms, self.name, ids)
            case Alignment(), _:
                raise Refused("this site was not started with ids to align.")
            case Scoring() as terms, Batch() as batch:
                return ScoringJob(plan, terms, self.name, batch, pin, consent)
            case Scoring(), _:
                raise Refused("this site has no model for scoring together.")
            case ((Agreement() | Additive()), _):
                raise Refused(
                    "this site was started with a model for scoring together, so it cannot train."
                )

    # --- steps ----------------------------------------------------------------------------------------------------

    def _accepted(self, sites: tuple[str, ...]) -> str | None:
        assert self.plan is not None
        try:
            self._consent.sum_with(self.plan, self._data.ids_digest, sites)
        except Refused as error:
            return str(error)
        return None

    def _may_answer(self, asked: Question) -> None:
        assert self.plan is not None
        assert self._replica is not None
        most = self.plan.objective.most_answers(self.plan)
        known = self._consent.memory.recall(
            self.plan, self._data.ids_digest
        ).answered  # of runs beside this one too
        if max(self._remembered.answered + self._answered, known) >= most:
            raise Refused(
                f"more than {most} questions: an agent's limit for such a plan on these instances, over all runs in its ledger. "
                "A plan with other terms is counted by itself."
            )
        self._answered += 1
        self.disclosure = Disclosure(
            asked, self._replica.sites, self.plan.privacy.membership_changes, self.plan.masked
        )

    def _stepped(self, step: Step) -> list[FromSite]:
        replica, job = self._replica, self._job
        if replica is None or job is None:
            raise Breach(f"sent a step of run {step.run}, whose plan this site did not accept.")
        try:
            answer = replica.answer(step)
        except Breach:
            raise
        except Behind:  # the offer for a later attempt shows the coordinator the number
            self.result = None
            return [replica.offer(step.attempt + 1)]
        except Refused as error:
            return [PlanRefused(step.run, str(error))]
        except CoregError as error:
            return [Fault(step.run, step.attempt, step.step, str(error))]
        if replica.ended and self.result is None:
            about = replica.name_of_result, replica.sites
            self.result = replace(
                job.result(), progress=self.progress, name=about[0], sites=about[1]
            )
        return [] if answer is None else [answer]

    # --- the end --------------------------------------------------------------------------------------------------

    def _finished(self, finished: Finished) -> list[FromSite]:
        if self.result is None:
            # An earlier process of this agent can have the result: it answered last, and was killed.
            if finished.outcome.good and self._replica is not None and self._replica.took_part:
                raise Breach(
                    f"ended run {finished.run} with a result before this site received the last step."
                )
            self.result = SiteResult(finished.outcome, finished.reason, self.plan)
        self._consent.memory.release(finished.run)
        return [Fetched(finished.run)]
