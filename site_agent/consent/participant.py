"""One site in one run: its machine, and its consent before anything leaves.

A `Participant` is what the machine's actions pass through. Before an offer it judges the plan.
Before an answer it judges what the answer discloses, and notes it in the site's memory. The driver
writes the line of the message itself, stores results, and sends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from coreg_core.errors import CoregError, Refused
from coreg_core.messages import Answer, Fetched, Finished, PlanRefused, Proposal, Step
from coreg_core.plan import Plan
from coreg_core.secure.cross_products import RandomBytes
from site_agent.consent.consent import Consent
from site_agent.consent.objection import refusal
from site_agent.disclosure import Disclosure
from site_agent.machine.alignment import IdList
from site_agent.machine.computations import computation_of
from site_agent.machine.objective import Computation, Fold
from site_agent.machine.results import Result
from site_agent.machine.scoring import Batch
from site_agent.machine.seal import Keys
from site_agent.machine.site import Action, Send, SiteMachine, each_by_itself
from site_agent.site_data import PrivateData


class ChangedRows(Refused):
    """This process has other rows than those that the run's earlier answers were computed from."""


@dataclass(frozen=True, eq=False)
class Means:
    """What a site computes with: keys, threads, random bytes, and how members share work."""

    keys: Keys | None
    pin_threads: Callable[[int], int]
    random_bytes: RandomBytes
    release: str = ""
    token: str = ""  # a random name of the process
    fold: Fold = field(default=each_by_itself)


@dataclass(eq=False)
class Participant:
    """See the module's docstring."""

    name: str
    data: PrivateData | Batch | IdList
    consent: Consent
    means: Means
    plan: Plan | None = None
    site: SiteMachine | None = None  # of the accepted plan
    _attempt: int = -1  # whose first answer was at ``_since``
    _since: float = 0.0
    _permitted: Disclosure | None = None  # of the attempt's last answer

    @property
    def result(self) -> Result | None:
        if self.site is None:
            return None
        return self.site.result

    @property
    def computation(self) -> Computation | None:
        """The accepted plan's, on this site's data."""
        if self.site is None:
            return None
        return self.site.computation

    # --- messages -------------------------------------------------------------------------------

    def handle(self, message: Proposal | Step | Finished) -> list[Action]:
        """The machine's actions; a refusal in place of an answer that must not leave."""
        if isinstance(message, Proposal) and (refused := self._accept(message.plan)) is not None:
            return [Send(refused)]
        if self.site is None and isinstance(message, Finished):
            return [Send(Fetched(message.run))]
        if self.site is None:
            reason = "the coordinator sent a step of a run whose plan this site did not accept."
            return [Send(PlanRefused(message.run, reason))]
        actions = self.site.handle(message)
        for action in actions:
            if isinstance(action, Send) and action.disclosure is not None:
                assert isinstance(action.message, Answer)
                try:
                    self._permit(action.message, action.disclosure)
                except Refused as error:
                    return [Send(PlanRefused(message.run, str(error)))]
        if isinstance(message, Finished):
            self.consent.memory.release(message.run)
        return actions

    def _accept(self, plan: Plan) -> PlanRefused | None:
        """Judge a plan once, and begin its run."""
        if self.plan is not None:
            if self.plan == plan:
                return None
            return PlanRefused(plan.run, "the plan changed in the middle of the run.")
        data = self.data
        means = self.means
        rows = data if isinstance(data, PrivateData) else None
        objections = self.consent.objections(plan, self.name, rows, data.ids_digest)
        text = refusal(objections, self.consent.policy)
        if text is not None:
            return PlanRefused(plan.run, text)
        try:
            computation = computation_of(
                plan, self.name, data, means.pin_threads, means.random_bytes
            )
            self._require_same_rows(plan, computation)
        except CoregError as error:
            return PlanRefused(plan.run, str(error), for_now=isinstance(error, ChangedRows))
        self.plan = plan
        self.site = SiteMachine(
            self.name,
            plan,
            computation,
            means.keys,
            release=means.release,
            token=means.token,
            fold=means.fold,
        )
        return None

    def _require_same_rows(self, plan: Plan, computation: Computation) -> None:
        if self.consent.memory.rows_of(plan.run) not in ("", computation.data_digest):
            raise ChangedRows(
                "this site's rows or their preprocessing have changed since it answered in run "
                f"{plan.run}. Start its agent with the data of this run, or start a new run "
                "(coreg-coordinator run --new)."
            )

    def _permit(self, answer: Answer, disclosure: Disclosure) -> None:
        """Judge an answer. One that discloses the same as the last one was judged with it, up to
        the most answers of a plan.
        """
        assert self.plan is not None
        again = answer.attempt == self._attempt and disclosure == self._permitted
        given = self.consent.memory.answered(self.plan, self.data.ids_digest)
        if again and given < self.plan.most_answers:
            return
        now = self.consent.clock()
        if answer.attempt != self._attempt:
            self._attempt = answer.attempt
            self._since = now
        self.consent.permit(self.plan, self.data.ids_digest, disclosure, now - self._since)
        self._permitted = disclosure
