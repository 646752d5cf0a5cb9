"""The additive objective as a run computes it: the schedule of `coreg_core.additive.training` over sums of shares.

Every question goes to every site, and a change of membership begins the training anew: all of it depends on who takes part. No
snapshots: a solve's basis is a hundred times a sum, so the sums are kept from the attempt's beginning, and taken again when a run
is taken up. Knows plans, that schedule and messages; nothing of sessions, timers or files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.jobs.summing import Answer as Told
from coordinator.jobs.summing import clear_fault, masked_fault, summed
from coordinator.records import Sites, StepTaken
from coreg_core.additive.exchange import NOTHING, Answer
from coreg_core.additive.questions import answer_bounds, answer_shape
from coreg_core.additive.terms import Additive
from coreg_core.additive.training import Phase, Training, TrainingState
from coreg_core.arrays import Arr
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.masking.sums import Layout
from coreg_core.messages import Ask, Inquiry, Share, Vector
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.rounds.columns import Column
from coreg_core.rounds.schedule import FinalTargets, Progress, column_norms

_WORDS = {
    Phase.LABELS: "preliminary",
    Phase.SPREAD: "preliminary",
    Phase.SCORE: "preliminary",
    Phase.SMOOTHER: "preliminary",
    Phase.GRID: "grid",
    Phase.JOINT: "grid",
    Phase.FINAL: "final solve",
    Phase.SMOOTHED: "certificate",
    Phase.GRADIENT: "certificate",
    Phase.MODEL: "models",
    Phase.DONE: "models",
}
_REASONS = {
    Outcome.CONVERGED: "the verified residual fell below final_tolerance.",
    Outcome.MAX_ROUNDS: "the final solve reached max_rounds; raise it, or loosen final_tolerance.",
    Outcome.STAGNATED: "the verified residual no longer falls; loosen final_tolerance.",
}


@dataclass(frozen=True)
class AdditiveComputation:
    """See `computation.Computation`."""

    plan: Plan
    training: Training

    snapshots = False
    tries_out = False

    @classmethod
    def of(cls, plan: Plan, terms: Additive, participants: Sites) -> "AdditiveComputation":
        """Of a plan with these terms; of those who take part it is their number that counts."""
        return cls(plan, Training(terms, len(participants)))

    def start(
        self,
        n_unlabelled: int,
        warm: FinalTargets | None,  # noqa: ARG002 - of other sites, so of no use
        rounds: int,  # noqa: ARG002
        known: Vector | None,  # noqa: ARG002
    ) -> TrainingState:
        """From the beginning."""
        return self.training.start(n_unlabelled)

    def restore(self, arrays: Mapping[str, Arr]) -> TrainingState:
        """The state that was written down."""
        return TrainingState.from_arrays(arrays)

    def question(self, state: TrainingState, question: int, attempt: int) -> tuple[Inquiry, int | None]:
        """What the training asks next, of every site. TRACES always carry the probes' sum, so no site has to keep a vector."""
        asked = self.training.query(state)
        if Phase(state.phase) is Phase.TRACES:
            asked = type(asked)(
                asked.ask, asked.targets, asked.columns, asked.part, asked.step, asked.scalars, state.probe_sum
            )
        bounds = answer_bounds(self.training.terms, len(state.score), asked)
        exponents = tuple(exponent_for(bound, self.training.n_sites) for bound in bounds)
        return Inquiry.of(self.plan.run, question, attempt, asked, exponents), None

    def asked_once(self, ask: Ask | Inquiry) -> bool:  # noqa: ARG002
        """No question is one of another membership's."""
        return False

    def _layout(self, state: TrainingState, ask: Inquiry) -> Layout:
        shape, scalars = answer_shape(self.training.terms, len(state.score), ask.asked())
        return Layout(*shape, scalars)

    def fault(self, state: TrainingState, ask: Ask | Inquiry, answer: Told) -> str | None:
        """Why this answer cannot be used, without the site's name."""
        if self.plan.masked and isinstance(ask, Inquiry):
            return masked_fault(self._layout(state, ask), answer)
        if not (isinstance(ask, Inquiry) and isinstance(answer, Share)):
            return "another kind of answer than the one that was asked for."
        shape, scalars = answer_shape(self.training.terms, len(state.score), ask.asked())
        vectors = answer.values
        found = (0, 0) if vectors is None else vectors.shape
        if found != shape or len(answer.scalars) != scalars:
            return (
                f"{found} numbers and {len(answer.scalars)} scalars to question {ask.question} ({ask.kind.name}), "
                f"expected {shape} and {scalars}. Check that its unlabelled file lists the shared instances."
            )
        if not (np.isfinite(answer.scalars).all() and (vectors is None or vectors.finite)):
            return f"NaN or infinity in its answer to question {ask.question}. Check its features."
        return clear_fault(answer, ask.exponents, self.training.n_sites)

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Told], state: TrainingState) -> StepTaken:
        """The record of the answers' sum.

        Raises
        ------
        BadData
            the masks do not cancel.
        """
        assert isinstance(ask, Inquiry)
        vectors, scalars = summed(self._layout(state, ask), answers, ask.exponents)
        return StepTaken(ask.question, ask.attempt, ask.part, vectors, len(answers), scalars, self.phase(state))

    def phase(self, state: TrainingState) -> str:
        """Which part of the training the open question belongs to, in words."""
        phase = Phase(state.phase)
        return f"tuning {state.step + 1}" if phase in (Phase.SOLVE, Phase.TRACES) else _WORDS[phase]

    def step(self, state: TrainingState, taken: StepTaken) -> TrainingState:
        """The state after that sum.

        Raises
        ------
        BadData
            no site has a label.
        """
        vectors = NOTHING if taken.total is None else taken.total.values
        return self.training.step_with(state, Answer(vectors, np.array(taken.scalars, dtype=np.float64)))

    def affine_after(
        self,
        known: Mapping[Sites, Vector],
        sites: Sites,  # noqa: ARG002
        taken: StepTaken,  # noqa: ARG002
    ) -> Mapping[Sites, Vector]:
        """None is asked again."""
        return known

    def rounds(self, state: TrainingState) -> int:
        """Questions to which vectors were summed."""
        return state.rounds

    def progress(self, state: TrainingState) -> Progress:
        """Residual of the labels' column, relative to ‖T(0)‖; the bounds once they are certified."""
        residual = np.full(1, np.nan)
        if len(state.solves) == 1:
            solve = state.solves[0]
            if solve.scale[0] > 0.0:
                residual = solve.residual[:1] / solve.scale[:1]
        elif state.stop:  # the final solve's, verified
            residual = column_norms(state.rho[:, None]) / state.scale[:1]
        found = self.training.certificate(state)
        verified = Phase(state.phase) in (Phase.MODEL, Phase.DONE)
        stops = (self.training.stop(state),)
        return Progress(state.rounds, verified, residual, np.array([found.gap]), np.array([found.score_bound]), stops)

    def outcome(self, state: TrainingState) -> tuple[Outcome, str] | None:
        """How the training has ended; None while it runs."""
        if not self.training.finished(state):
            return None
        stop = self.training.stop(state)
        assert stop is not None, "a training ends after its final solve"
        return Outcome[stop.name], _REASONS[Outcome[stop.name]]

    def models(self, state: TrainingState) -> FinalTargets | None:
        """The point that the sites' models are taken at; there once every site was asked for its own."""
        if not self.training.finished(state):
            return None
        return FinalTargets(np.ascontiguousarray(state.x[None, :, :1]), np.zeros(1))

    def told(self, models: FinalTargets, site: int) -> tuple[tuple[Column, ...], Vector]:  # noqa: ARG002
        """No columns, and the point."""
        return (), Vector(models.of(0))
