"""The paper's objective as a run computes it: a schedule of `coreg_core.agreement.schedules` over sums of predictions.

Its like for the additive objective is additive.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
from typing import Any

import numpy as np

from coordinator.machine.finished_fields import Told
from coordinator.machine.plausibility import SOME_SITE, affine_fault, linear_fault
from coordinator.machine.records import Sites, StepTaken
from coordinator.machine.sums import Answer, clear_fault, masked_fault, summed
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import stays
from coreg_core.agreement.question_rules import weight_of
from coreg_core.agreement.schedules import make_schedule
from coreg_core.agreement.schedules.schedule import (
    FinalTargets,
    Progress,
    Schedule,
    Terms,
    column_norms,
    overall_stop,
)
from coreg_core.errors import BadData, UsageError
from coreg_core.masking.fixed_point import exponent_for, relative_step, step_error
from coreg_core.masking.sums import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Inquiry, PlanAccepted, Prediction
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Plan
from coreg_core.protocol.vectors import Vector


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


def _growth(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> float:
    return max(_grown(plan, accepted, participants, site) for site in participants)


def terms_of(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> Terms:
    """What the schedule has to know of these sites; of those that are summed, by the sums alone (see `with_sums`)."""
    agreed = [accepted[site] for site in participants]
    M = len(agreed)
    terms = Terms(
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
    if not plan.summed:
        return terms
    m = agreed[0].n_unlabelled
    steps = (relative_step(m, M), step_error(m, reach_of(accepted, participants), M))
    weights = [weight_of(plan.iteration.name, lam, M) for lam in terms.coupling]
    told = [(a.bound, a.squared_norm, a.rounding**2, *stays(a.bound, weights)) for a in agreed]
    sums = tuple(fsum(column) for column in zip(*told, strict=True))
    return with_sums(replace(terms, steps=steps), sums, _growth(plan, accepted, participants))


def reach_of(accepted: Mapping[str, PlanAccepted], participants: Sites) -> float:
    """A power of two that no site's label-bearing answer at target 0 reaches."""
    return float(2.0 ** max(accepted[site].reach for site in participants))


def with_sums(terms: Terms, sums: tuple[float, ...], growth: float) -> Terms:
    """The terms where Σ b_v, Σ ‖y_v‖², Σ ρ_v² and Σ 1/(1 + μ b_v) are known, and not whose.

    Where only the largest counts, the worst case is that one site has all of it.
    """
    bounds, initial, roundings, *others = sums
    rest = (0.0,) * (terms.n_views - 1)
    largest = growth * float(sqrt(roundings))
    first = (bounds, *rest)
    return replace(terms, bounds=first, initial_objective=initial, roundings=(largest, *rest), stays=tuple(others))


@dataclass(frozen=True)
class AgreementComputation:
    """See `computation.Computation`."""

    plan: Plan
    schedule: Schedule[Any]
    couplings: tuple[float, ...]  # λ, whatever units the plan has it in
    reach: float = 1.0
    growth: float = 1.0

    snapshots = True

    @property
    def probes_newcomers(self) -> bool:
        """Under masks nobody outside the roster can answer anything."""
        return not self.plan.masked

    @classmethod
    def of(cls, plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> "AgreementComputation":
        terms, most = terms_of(plan, accepted, participants), _growth(plan, accepted, participants)
        schedule = make_schedule(plan.iteration.name, terms)
        return cls(plan, schedule, terms.coupling, reach_of(accepted, participants), most)

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
        exponents = self._exponents(query.part, query.targets) if self.plan.summed else ()
        ask = Ask(self.plan.run, question, attempt, query.part, columns, query.is_candidate, targets, exponents)
        return ask, query.site

    def _exponents(self, part: str, targets: Arr) -> tuple[int, ...]:
        """From ‖R p‖ ≤ ‖p‖, and what the sites said that their label-bearing answers at 0 stay below."""
        own = self.reach if part == "affine" else 0.0
        return tuple(exponent_for(own + norm, self.schedule.terms.n_views) for norm in column_norms(targets).tolist())

    def _layout(self, ask: Ask) -> Layout:
        return Layout(*ask.targets.shape, 3 + len(ask.columns) if self.plan.masked else 0)

    def _columns(self, weights: Arr) -> tuple[Column, ...]:
        return tuple(Column(lam, mu) for lam, mu in zip(self.couplings, weights.tolist(), strict=True))

    def reusable(self, ask: Ask | Inquiry) -> bool:
        """Whether this is the label-bearing question that conjugate gradients ask once: respond(0, μ)."""
        # Masks are another attempt's after any change: a masked answer is of no use later.
        return ask.part == "affine" and self.plan.iteration.name == "conjugate-gradients" and not self.plan.masked

    def fault(self, state: Any, ask: Ask | Inquiry, answer: Answer) -> str | None:  # noqa: ARG002
        """Why this answer cannot be used, without the site's name."""
        if self.plan.masked and isinstance(ask, Ask):
            return masked_fault(self._layout(ask), answer)
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
        if not self.plan.summed:
            return None
        return clear_fault(answer, ask.exponents, self.schedule.terms.n_views)

    def false(self, ask: Ask | Inquiry, answer: Answer, stated: PlanAccepted) -> str | None:
        """Why an answer in the clear is none that an honest site gives which stated this b_v and reach; None where it may be."""
        if not (isinstance(ask, Ask) and isinstance(answer, Prediction)):
            return None
        targets, values = ask.targets.values, answer.values.values
        if ask.part == "linear":
            x = ask.weights * stated.bound
            wrong = linear_fault(targets, values, x / (1.0 + x), 1)
        else:
            wrong = affine_fault(targets, values, stated.reach)
        return None if wrong is None else f"its answer to question {ask.question} {wrong}. It cannot be meant."

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Answer], state: Any) -> StepTaken:  # noqa: ARG002
        """The record of the answers' sum; one answer, where the schedule needs each by itself.

        Raises
        ------
        BadData
            the masks do not cancel, or the sum is none of honest sites.
        """
        assert isinstance(ask, Ask)
        if not self.plan.summed:
            [only] = answers
            assert isinstance(only, Prediction)
            return StepTaken(ask.question, ask.attempt, ask.part, only.values, 1)
        values, scalars = summed(self._layout(ask), answers, ask.exponents)
        if ask.part == "linear" and values is not None:
            others = scalars[3:] or self.schedule.terms.stays
            most = np.array([len(answers) - f for f in others])
            if (wrong := linear_fault(ask.targets.values, values.values, most, len(answers))) is not None:
                raise BadData(SOME_SITE.format(wrong))
        return StepTaken(ask.question, ask.attempt, ask.part, values, len(answers), scalars)

    def step(self, state: Any, taken: StepTaken) -> Any:
        """The state after that sum, and those of b_v, ‖y_v‖² and ρ_v² that came with it under masks."""
        assert taken.total is not None, "an answer of the agreement is a vector"
        schedule = self.schedule
        if taken.scalars:
            terms = with_sums(schedule.terms, taken.scalars, self.growth)
            schedule = make_schedule(self.plan.iteration.name, terms)
        return schedule.step(state, taken.total.values)

    def affine_after(self, known: Mapping[Sites, Vector], sites: Sites, taken: StepTaken) -> Mapping[Sites, Vector]:
        """The label-bearing sums that are known. Conjugate gradients alone ask the same one (at target 0) again."""
        if taken.part == "affine" and taken.total is not None and self.plan.iteration.name == "conjugate-gradients":
            return {**known, sites: taken.total}
        return known

    def rounds(self, state: Any) -> int:
        return int(state.round)

    def progress(self, state: Any) -> Progress | None:
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
