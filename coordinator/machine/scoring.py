"""Scoring together as a run computes it: one question to every site, one sum, and the sum to those who may have it.

Every site has to take part, since a score has every part in it. What is summed is what the sites' models say, so
nothing of it may lie about: `serve.score` keeps no store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coordinator.machine.finished_fields import Told
from coordinator.machine.records import Sites, StepTaken
from coordinator.machine.sums import Answer, clear_fault, masked_fault, summed
from coreg_core.additive.question_types import NOTHING, Question
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.masking.sums import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Inquiry, PlanAccepted, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring
from coreg_core.protocol.vectors import Vector


@dataclass(frozen=True, eq=False)
class ScoringState:
    """The instances that are scored, and their scores: (m, 1) once they are known, (m, 0) before."""

    scores: Float64[Arr, "m k"]

    def to_arrays(self) -> dict[str, Arr]:
        return {"scores": self.scores}


@dataclass(frozen=True)
class ScoringComputation:
    """See `computation.Computation`."""

    plan: Plan
    terms: Scoring
    exponents: tuple[int, ...]
    n_sites: int

    snapshots = False
    probes_newcomers = False

    @classmethod
    def of(
        cls, plan: Plan, terms: Scoring, accepted: Mapping[str, PlanAccepted], participants: Sites
    ) -> "ScoringComputation":
        """Of these sites, whose parts stay below what they said."""
        reach = 2.0 ** max(accepted[site].reach for site in participants)
        return cls(plan, terms, (exponent_for(reach, len(participants)),), len(participants))

    def start(
        self,
        n_unlabelled: int,
        warm: FinalTargets | None,  # noqa: ARG002
        rounds: int,  # noqa: ARG002
        known: Vector | None,  # noqa: ARG002
    ) -> ScoringState:
        return ScoringState(np.zeros((n_unlabelled, 0)))

    def restore(self, arrays: Mapping[str, Arr]) -> ScoringState:
        """The state that was written down."""
        return ScoringState(arrays["scores"])

    def question(self, state: ScoringState, question: int, attempt: int) -> tuple[Inquiry, int | None]:  # noqa: ARG002
        """What each site's part of every instance is."""
        return Inquiry.of(self.plan.run, question, attempt, Question(Kind.TOGETHER, NOTHING), self.exponents), None

    def reusable(self, ask: Ask | Inquiry) -> bool:  # noqa: ARG002
        return False

    def fault(self, state: ScoringState, ask: Ask | Inquiry, answer: Answer) -> str | None:  # noqa: ARG002
        """Why this answer cannot be used, without the site's name."""
        if self.plan.masked:
            return masked_fault(self._layout(state), answer)
        if not isinstance(answer, Share) or answer.scalars or answer.values is None:
            return "another kind of answer than the one that was asked for."
        if answer.values.shape != (expected := (len(state.scores), 1)):
            return (
                f"{answer.values.shape} numbers, expected {expected}. Check that its table lists the shared instances."
            )
        if not answer.values.finite:
            return "NaN or infinity among its parts. Check its features."
        return clear_fault(answer, self.exponents, self.n_sites)

    def false(self, ask: Ask | Inquiry, answer: Answer, stated: PlanAccepted) -> str | None:  # noqa: ARG002
        return None

    def _layout(self, state: ScoringState) -> Layout:
        return Layout(len(state.scores), 1, 0)

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Answer], state: ScoringState) -> StepTaken:
        """The record of the answers' sum.

        Raises
        ------
        BadData
            the masks do not cancel.
        """
        values, _ = summed(self._layout(state), answers, self.exponents)
        return StepTaken(ask.question, ask.attempt, ask.part, values, len(answers), (), "scores")

    def step(self, state: ScoringState, taken: StepTaken) -> ScoringState:  # noqa: ARG002
        """The sum is what was wanted."""
        assert taken.total is not None, "an answer is a vector"
        return ScoringState(taken.total.values)

    def affine_after(
        self,
        known: Mapping[Sites, Vector],
        sites: Sites,  # noqa: ARG002
        taken: StepTaken,  # noqa: ARG002
    ) -> Mapping[Sites, Vector]:
        return known

    def rounds(self, state: ScoringState) -> int:
        return int(state.scores.shape[1])

    def progress(self, state: ScoringState) -> Progress | None:  # noqa: ARG002
        return None

    def outcome(self, state: ScoringState) -> tuple[Outcome, str] | None:
        if not state.scores.shape[1]:
            return None
        return Outcome.CONVERGED, f"{len(state.scores)} instances scored together by {len(self.plan.sites)} sites"

    def models(self, state: ScoringState) -> FinalTargets | None:
        """The sum; whoever gets it adds what it knows."""
        return FinalTargets(np.ascontiguousarray(state.scores[None]), np.zeros(1)) if state.scores.shape[1] else None

    def told(self, models: FinalTargets, site: int) -> Told:
        """The sum, for those who may have it."""
        may = self.terms.receivers or self.plan.sites
        return Told((), Vector(models.of(0)) if self.plan.sites[site] in may else None)
