"""The paper's objective as a run computes it: a schedule of `coreg_core.rounds` over sums of predictions.

Knows plans, schedules and messages; nothing of sessions, timers or files. Its like for the additive objective is additive.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.jobs.told import Told
from coordinator.records import Sites, StepTaken
from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from coreg_core.messages import Ask, Inquiry, PlanAccepted, Prediction, Share, Vector
from coreg_core.outcomes import Outcome
from coreg_core.plan import Agreement, Plan
from coreg_core.rounds import make_schedule
from coreg_core.rounds.columns import Column
from coreg_core.rounds.schedule import FinalTargets, Progress, Schedule, Terms, overall_stop


def couplings_of(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> tuple[float, ...]:
    """λ of each column where these sites take part; of relative couplings with how many labels they told."""
    assert isinstance(plan.objective, Agreement)
    agreed = [accepted[site] for site in participants]
    return plan.objective.couplings(sum(a.n_labelled for a in agreed), len(agreed), agreed[0].n_unlabelled)


def _grown(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites, site: str) -> float:
    """By how much a site's own rounding may have grown: it stated it as if all had as many labels as itself.

    No term of `View.response_error` rises faster than its weight: at c times the weight there is at most c times as much.
    """
    if not (isinstance(plan.objective, Agreement) and plan.objective.relative):
        return 1.0
    mean = sum(accepted[s].n_labelled for s in participants) / len(participants)
    return max(1.0, mean / max(accepted[site].n_labelled, 1))


def terms_of(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> Terms:
    """What the schedule has to know of these sites."""
    agreed = [accepted[site] for site in participants]
    return Terms(
        coupling=couplings_of(plan, accepted, participants),
        bounds=tuple(a.bound for a in agreed),
        initial_objective=sum(a.squared_norm for a in agreed),
        tolerance=plan.iteration.tolerance,
        prediction_tolerance=plan.iteration.prediction_tolerance,
        max_rounds=plan.iteration.max_rounds,
        roundings=tuple(
            a.rounding * _grown(plan, accepted, participants, s) for s, a in zip(participants, agreed, strict=True)
        ),
    )


@dataclass(frozen=True)
class AgreementComputation:
    """See `computation.Computation`."""

    plan: Plan
    schedule: Schedule[Any]
    couplings: tuple[float, ...]  # λ, whatever units the plan has it in

    snapshots = True
    tries_out = True

    @classmethod
    def of(cls, plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> "AgreementComputation":
        """Of these sites."""
        terms = terms_of(plan, accepted, participants)
        return cls(plan, make_schedule(plan.iteration.name, terms), terms.coupling)

    def start(self, n_unlabelled: int, warm: FinalTargets | None, rounds: int, known: Vector | None) -> Any:
        """From earlier models, and with the label-bearing sum where these very sites have told it before."""
        return self.schedule.start(n_unlabelled, warm, rounds, None if known is None else known.values)

    def restore(self, arrays: Mapping[str, Arr]) -> Any:
        """The state that was written down."""
        return self.schedule.restore(arrays)

    def question(self, state: Any, question: int, attempt: int) -> tuple[Ask, int | None]:
        """What the schedule asks next, and of which site where it is one alone."""
        query = self.schedule.query(state)
        columns = self._columns(query.weights)
        targets = Vector(query.targets)
        ask = Ask(self.plan.run, question, attempt, query.part, columns, query.verifies, targets)
        return ask, query.site

    def _columns(self, weights: Arr) -> tuple[Column, ...]:
        return tuple(Column(lam, mu) for lam, mu in zip(self.couplings, weights.tolist(), strict=True))

    def asked_once(self, ask: Ask | Inquiry) -> bool:
        """Whether this is the label-bearing question that conjugate gradients ask once: respond(0, μ)."""
        return ask.part == "affine" and self.plan.iteration.name == "conjugate-gradients"

    def fault(self, state: Any, ask: Ask | Inquiry, answer: Prediction | Share) -> str | None:  # noqa: ARG002
        """Why this answer cannot be used, without the site's name."""
        if not (isinstance(ask, Ask) and isinstance(answer, Prediction)):
            return "another kind of answer than the one that was asked for."
        values, number = answer.values, answer.question
        if values.shape != ask.targets.shape:
            return (
                f"{values.shape} predictions to question {number}, expected {ask.targets.shape}. "
                "Check that its unlabelled file lists the shared instances."
            )
        if not values.finite:
            return f"NaN or infinity among its predictions to question {number}. Check its features."
        return None

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Prediction | Share], state: Any) -> StepTaken:  # noqa: ARG002
        """The record of the answers' sum, taken in the order given."""
        values = [answer.values for answer in answers if isinstance(answer, Prediction)]
        total = values[0].values
        for vector in values[1:]:
            total = total + vector.values
        return StepTaken(ask.question, ask.attempt, ask.part, Vector(total), len(values))

    def step(self, state: Any, taken: StepTaken) -> Any:
        """The state after that sum."""
        assert taken.total is not None, "an answer of the agreement is a vector"
        return self.schedule.step(state, taken.total.values)

    def affine_after(self, known: Mapping[Sites, Vector], sites: Sites, taken: StepTaken) -> Mapping[Sites, Vector]:
        """The label-bearing sums that are known. Conjugate gradients alone ask the same one (at target 0) again."""
        if taken.part == "affine" and taken.total is not None and self.plan.iteration.name == "conjugate-gradients":
            return {**known, sites: taken.total}
        return known

    def rounds(self, state: Any) -> int:
        """Complete ones."""
        return int(state.round)

    def progress(self, state: Any) -> Progress | None:
        """What the last step showed."""
        return self.schedule.progress(state)

    def outcome(self, state: Any) -> tuple[Outcome, str] | None:
        """How the schedule has ended; None while it runs."""
        if not self.schedule.finished(state):
            return None
        progress = self.schedule.progress(state)
        stop = None if progress is None else overall_stop(progress.stops)
        return (Outcome.MAX_ROUNDS if stop is None else Outcome[stop.name]), ""

    def models(self, state: Any) -> FinalTargets | None:
        """What the sites' models answer to; None where no round was verified."""
        return self.schedule.models(state)

    def told(self, models: FinalTargets, site: int) -> Told:
        """Columns and targets of `Finished`, for the site at that position."""
        if len(models.weights) != len(self.couplings):
            raise UsageError("these models are of another plan.")
        return Told(self._columns(models.weights), Vector(models.of(site)))
