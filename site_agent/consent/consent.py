"""May this site do that? Asked here, and nowhere else.

`Consent.objections` answers before an offer: for `check --plan`, before the operator is asked, and
when a run begins. `Consent.permit` answers before each message that discloses something, and notes
what it discloses. Both read the policy, this site's rows and its memory of earlier runs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coreg_core.errors import Refused
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import MOST_RUNS, MOST_SEALED, Plan, is_on_demand, plan_fault
from site_agent.consent.differences import (
    objections_to_other_models,
    objections_to_other_rows,
    objections_to_other_sites,
)
from site_agent.consent.memory import Memory, SummedWith
from site_agent.consent.objection import Objection, refusal
from site_agent.consent.policy import Policy
from site_agent.consent.terms import objections_to_terms
from site_agent.disclosure import Disclosure
from site_agent.site_data import PrivateData


@dataclass(frozen=True, eq=False)
class Consent:
    """What one site's operator agrees to: the policy, and the memory of earlier answers."""

    policy: Policy | None  # None in a simulation, which judges no term of a plan
    memory: Memory
    clock: Callable[[], float]  # seconds
    day: Callable[[], str] = lambda: ""  # the date, for what is counted by the day

    @classmethod
    def simulated(cls) -> "Consent":
        """Of a simulation: it remembers no other run."""
        return cls(None, Memory(), lambda: 0.0)

    # --- before an offer ------------------------------------------------------------------------

    def objections(
        self, plan: Plan, name: str, data: PrivateData | None = None, ids_digest: str = ""
    ) -> list[Objection]:
        """Every reason against the plan at the site of that name.

        ``data``: the rows of a training, if they are known. ``ids_digest``: of the shared
        instances, "" if they are not known yet.
        """
        if (fault := plan_fault(plan)) is not None:
            return [Objection(f"the plan is not valid: {fault}")]
        if name not in plan.sites:
            reason = f"the plan does not list {name} among its sites, {plan.listed_sites}"
            return [Objection(reason)]
        terms = [] if self.policy is None else objections_to_terms(plan, self.policy, data)
        with self.memory.lock:
            return [*terms, *self._of_memory(plan, ids_digest)]

    def _of_memory(self, plan: Plan, ids_digest: str) -> Iterator[Objection]:
        if self.memory.finished.get(plan.run, plan.digest) != plan.digest:
            yield Objection(
                f"run {plan.run} ended here before, with another plan: the name of a run stands for"
                " one plan"
            )
        most_runs = MOST_RUNS
        if is_on_demand(plan.run):  # each member can ask for as many, and interrupt one once
            most_runs *= 2 * min(len(plan.sites), MOST_SEALED)
        if self.memory.offered_on(self.day(), on_demand=is_on_demand(plan.run)) >= most_runs:
            yield Objection(f"this site has taken part in {most_runs} such runs today, the most")
        most = plan.most_answers
        given = self.memory.answered(plan, ids_digest)
        if given >= most:
            yield Objection(
                f"{given} answers to this plan on these instances are given, over all runs, of at"
                f" most {most}. A plan with other terms is counted by itself"
            )
        if plan.membership.min_sites == len(plan.sites):  # other plans can run with fewer sites
            sites = frozenset(plan.sites)
            yield from objections_to_other_sites(plan, self.limits, self.memory, ids_digest, sites)

    @property
    def limits(self) -> Policy:
        return self.policy or Policy()

    def trainings(self, plan: Plan, data: PrivateData | None) -> dict[str, str]:
        """By heading, for the operator: which training with these labelled rows this one is.

        ``data``: None before the alignment. Too many are no objection, because other sites can
        have enough new labels.
        """
        if not isinstance(plan.objective, Additive) or (data is not None and not len(data.y)):
            return {}
        openings = self.limits.openings
        times = self.memory.trainings(data)
        text = training_of(times + 1, openings)
        if times >= openings:
            text = (
                f"all {openings} trainings with these labels are used, so the run ends refused"
                " unless other sites have enough new labels (openings)"
            )
        if data is None and times:
            text += ", if the alignment finds the same labels"
        wanted = self._rows_apart(plan.objective)
        if times and wanted:
            text += (
                ". The labelled rows have to be those of the earlier training, or differ from them"
                f" in at least {wanted}"
            )
        if more := self.rows_to_change(plan, data):
            text += (
                ". Some rows of that training are not among those of this run: it ends refused"
                f" unless {more} more rows differ, here or at other sites"
            )
        return {"labels": text}

    def rows_to_change(self, plan: Plan, data: PrivateData | None) -> int:
        """How many more labelled rows have to differ from an earlier training's, of which some are
        not there any more; 0 where none are missing, or enough.
        """
        if data is None or not isinstance(plan.objective, Additive) or not len(data.y):
            return 0
        lost = self.memory.lost_rows(data)
        if not lost:
            return 0
        return max(self._rows_apart(plan.objective) - lost, 0)

    def _rows_apart(self, terms: Additive) -> int:
        """In how many labelled rows two trainings differ at least; 0 before the first."""
        features = max((rows.features for rows in self.memory.row_sets()), default=0)
        return terms.rows_per_feature * features

    def fewest_sites_of_scores(self, data: PrivateData) -> int | None:
        """The fewest sites with which this site ends a training with joint scores: three, or two
        if the policy allows scores_of_two.

        None: with no number of sites, since the policy forbids scores, or an individual was scored
        by as many models as it allows.
        """
        limits = self.limits
        if not limits.scoring or self.memory.most_models(data) >= limits.models_per_individual:
            return None
        if limits.scores_of_two:
            return 2
        return 3

    # --- before an answer -----------------------------------------------------------------------

    def permit(self, plan: Plan, ids_digest: str, disclosure: Disclosure, seconds: float) -> None:
        """Judge an answer and note what it discloses, before it leaves. Refused: it must not.

        ``seconds`` since the first answer of its attempt.
        """
        day = self.day() if disclosure.asked else ""
        with self.memory.lock:
            objections = self.objections_to_answer(plan, ids_digest, disclosure, seconds)
            if (text := refusal(list(objections), self.policy)) is not None:
                raise Refused(text)
            if plan.masked and plan.objective.one_set:
                now = SummedWith(frozenset(disclosure.sites), plan.privacy.membership_changes)
                self.memory.reserve(plan.run, ids_digest, now)
            self.memory.note_disclosure(plan.run, disclosure, day)

    def objections_to_answer(
        self, plan: Plan, ids_digest: str, disclosure: Disclosure, seconds: float = 0.0
    ) -> Iterator[Objection]:
        """Every reason against an answer."""
        if plan.rehearsal:
            yield Objection("the plan is a rehearsal, which asks for no answer")
        most = plan.most_answers
        if self.memory.answered(plan, ids_digest) >= most:
            yield Objection(
                f"more than {most} questions: an agent's limit for such a plan on these instances, "
                "over all runs in its ledger. A plan with other terms is counted by itself"
            )
        if seconds > disclosure.within:
            yield Objection(
                "more than an hour since this site's first answer of this attempt. The next"
                " attempt has fresh secrets"
            )
        sites = frozenset(disclosure.sites)
        yield from objections_to_other_sites(plan, self.limits, self.memory, ids_digest, sites)
        yield from objections_to_other_rows(plan, self.limits, self.memory, disclosure)
        # Scores of a training are limited before it begins (`fewest_sites_of_scores`).
        if isinstance(plan.objective, Scoring):
            yield from objections_to_other_models(self.limits, self.memory, disclosure.scores)


def training_of(number: int, openings: int) -> str:
    """The countdown of a policy's ``openings``, as an operator reads it."""
    return f"training {number} of {openings} with these labels"
