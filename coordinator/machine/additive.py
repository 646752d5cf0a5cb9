"""The additive objective as a run computes it: the schedule of `coreg_core.additive.training` over sums of shares.

Every question goes to every site, and a change of membership begins the training anew: all of it depends on who takes
part. No snapshots: a solve's basis is a hundred times a sum, so the sums are kept from the attempt's beginning, and
taken again when a run is taken up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coordinator.machine.finished_fields import Told
from coordinator.machine.plausibility import SOME_SITE, part_fault, scalar_fault, smoothed_fault
from coordinator.machine.records import Sites, StepTaken
from coordinator.machine.sums import Answer as Said
from coordinator.machine.sums import clear_fault, masked_fault, summed
from coreg_core.additive.forecast import Forecast, ForecastState
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_rules import answer_bounds, answer_shape
from coreg_core.additive.question_types import NOTHING, Answer
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.training import Training
from coreg_core.additive.training_state import Phase, TrainingState
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress, column_norms
from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.masking.sums import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Inquiry, PlanAccepted, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector

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


# Of FORECAST: squared errors joined and alone, labels; then how many sites are best served alone, joined, scored together.
TOLD = 6
_TRAINING, _FOLDS = "training.", "folds."


@dataclass(frozen=True, eq=False)
class Forecasting:
    """A training that has ended, and its folds after it."""

    training: TrainingState
    folds: ForecastState
    told: Float64[Arr, " t"]

    @property
    def score(self) -> Float64[Arr, "m 1"]:
        return self.training.score

    def to_arrays(self) -> dict[str, Arr]:
        """Of both, one beside the other."""
        training = {_TRAINING + name: np.asarray(a) for name, a in self.training.to_arrays().items()}
        folds = {_FOLDS + name: np.asarray(a) for name, a in self.folds.to_arrays().items()}
        return {**training, **folds, _FOLDS + "told": self.told}


State: TypeAlias = TrainingState | Forecasting


@dataclass(frozen=True)
class AdditiveComputation:
    """See `computation.Computation`."""

    plan: Plan
    training: Training

    snapshots = False
    probes_newcomers = False

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
        return self.training.start(n_unlabelled)

    def restore(self, arrays: Mapping[str, Arr]) -> State:
        """The state that was written down."""
        if _FOLDS + "told" not in arrays:
            return TrainingState.from_arrays(arrays)
        parts: dict[str, dict[str, Arr]] = {_TRAINING: {}, _FOLDS: {}}
        for name, array in arrays.items():
            of, _, key = name.partition(".")
            parts[of + "."][key] = array
        told = parts[_FOLDS].pop("told")
        return Forecasting(TrainingState.from_arrays(parts[_TRAINING]), ForecastState.from_arrays(parts[_FOLDS]), told)

    def question(self, state: State, question: int, attempt: int) -> tuple[Inquiry, int | None]:
        """What the training asks next, of every site. TRACES always carry the probes' sum, so no site has to keep a vector."""
        if isinstance(state, Forecasting):
            asked = self._folds(state).query(state.folds)
        else:
            asked = self.training.query(state)
            if Phase(state.phase) is Phase.TRACES:
                asked = replace(asked, aside=state.probe_sum)
        bounds = answer_bounds(self.training.terms, len(state.score), asked)
        exponents = tuple(exponent_for(bound, self.training.n_sites) for bound in bounds)
        return Inquiry.of(self.plan.run, question, attempt, asked, exponents), None

    def _folds(self, state: Forecasting) -> Forecast:
        return Forecast.of(self.training.terms, state.training)

    def reusable(self, ask: Ask | Inquiry) -> bool:  # noqa: ARG002
        """No question is one of another membership's."""
        return False

    def _layout(self, state: State, ask: Inquiry) -> Layout:
        shape, scalars = answer_shape(self.training.terms, len(state.score), ask.asked())
        return Layout(*shape, TOLD if ask.kind is Kind.FORECAST else scalars)

    def fault(self, state: State, ask: Ask | Inquiry, answer: Said) -> str | None:
        """Why this answer cannot be used, without the site's name."""
        if self.plan.masked and isinstance(ask, Inquiry):
            return masked_fault(self._layout(state, ask), answer)
        if not (isinstance(ask, Inquiry) and isinstance(answer, Share)):
            return "another kind of answer than the one that was asked for."
        shape, scalars = answer_shape(self.training.terms, len(state.score), ask.asked())
        if ask.kind is Kind.FORECAST:
            scalars = TOLD
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

    def false(self, ask: Ask | Inquiry, answer: Said, stated: PlanAccepted) -> str | None:  # noqa: ARG002 - b_v is 0 here
        """Why an answer in the clear is none that an honest site gives; None where it may be."""
        if not (isinstance(ask, Inquiry) and isinstance(answer, Share)):
            return None
        wrong = self._wrong(ask, answer.values, answer.scalars, 1)
        return None if wrong is None else f"its answer to question {ask.question} {wrong}. It cannot be meant."

    def _wrong(self, ask: Inquiry, vectors: Vector | None, scalars: Sequence[float], n_answers: int) -> str | None:
        if (wrong := scalar_fault(ask.kind, scalars)) is not None:
            return wrong
        if ask.part != "linear" or ask.targets is None or vectors is None:
            return None
        points, answers = ask.targets.values, vectors.values
        step = self.training.step_of_sums(1.0, len(answers))
        if ask.kind is Kind.FIXED_POINT:
            operators = [column.operator for column in ask.columns]
            return part_fault(points, answers, operators, n_answers * self.training.terms.operator_norm_bound, step)
        if ask.kind is Kind.SMOOTHED:
            return smoothed_fault(points, answers, np.array(scalars), step)
        return None

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Said], state: State) -> StepTaken:
        """The record of the answers' sum.

        Raises
        ------
        BadData
            the masks do not cancel, or the sum is none of honest sites.
        """
        assert isinstance(ask, Inquiry)
        vectors, scalars = summed(self._layout(state, ask), answers, ask.exponents)
        if (wrong := self._wrong(ask, vectors, scalars, len(answers))) is not None:
            raise BadData(SOME_SITE.format(wrong))
        return StepTaken(ask.question, ask.attempt, ask.part, vectors, len(answers), scalars, self.phase(state))

    def phase(self, state: State) -> str:
        """Which part of the training the open question belongs to, in words."""
        if isinstance(state, Forecasting):
            return "forecast"
        phase = Phase(state.phase)
        return f"tuning {state.step + 1}" if phase in (Phase.SOLVE, Phase.TRACES) else _WORDS[phase]

    def step(self, state: State, taken: StepTaken) -> State:
        """The state after that sum.

        Raises
        ------
        BadData
            no site has a label.
        """
        vectors = NOTHING if taken.total is None else taken.total.values
        scalars = np.array(taken.scalars, dtype=np.float64)
        if isinstance(state, Forecasting):
            if self._folds(state).query(state.folds).ask is Kind.FORECAST:
                state, scalars = replace(state, told=scalars), scalars[:3]
            return replace(state, folds=self._folds(state).step_with(state.folds, Answer(vectors, scalars)))
        trained = self.training.step_with(state, Answer(vectors, scalars))
        if not (self.training.finished(trained) and self.training.terms.forecast):
            return trained
        begun = Forecast.of(self.training.terms, trained).start(len(trained.score))
        return Forecasting(trained, begun, np.zeros(0))

    def affine_after(
        self,
        known: Mapping[Sites, Vector],
        sites: Sites,  # noqa: ARG002
        taken: StepTaken,  # noqa: ARG002
    ) -> Mapping[Sites, Vector]:
        return known

    def rounds(self, state: State) -> int:
        """Questions to which vectors were summed."""
        if isinstance(state, Forecasting):
            return state.training.rounds + state.folds.rounds
        return state.rounds

    def progress(self, state: State) -> Progress:
        """Residual of the labels' column, relative to ‖T(0)‖; the bounds once they are certified."""
        if isinstance(state, Forecasting):
            return replace(self.progress(state.training), round=self.rounds(state))
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

    def outcome(self, state: State) -> tuple[Outcome, str] | None:
        """How the training has ended; None while it runs, or its folds do."""
        if isinstance(state, Forecasting):
            ended = self.outcome(state.training)
            assert ended is not None, "folds come after the training"
            return (ended[0], f"{ended[1]} {forecast_told(state.told)}") if len(state.told) else None
        if not self.training.finished(state):
            return None
        stop = self.training.stop(state)
        assert stop is not None, "a training ends after its final solve"
        return Outcome[stop.name], _REASONS[Outcome[stop.name]]

    def models(self, state: State) -> FinalTargets | None:
        """The point that the sites' models are taken at; there once every site was asked for its own."""
        trained = state.training if isinstance(state, Forecasting) else state
        if not self.training.finished(trained):
            return None
        told = tuple(state.told.tolist()) if isinstance(state, Forecasting) else ()
        return FinalTargets(np.ascontiguousarray(trained.x[None, :, :1]), np.zeros(1), told)

    def told(self, models: FinalTargets, site: int) -> Told:  # noqa: ARG002
        """No columns, the point, and what the folds came to."""
        return Told((), Vector(models.of(0)), models.beside)


def forecast_told(sums: Float64[Arr, " t"]) -> str:
    """What FORECAST summed to, in a sentence for the coordinator's operator; the sites' own figures stay with them."""
    joined, alone, rows, apart, own, together = sums.tolist()
    if not (rows and alone > 0.0):
        return "forecast: no site told one."
    change = 100.0 * (np.sqrt(joined / alone) - 1.0)
    served = f"own labels serve {apart:.0f} sites best alone, {own:.0f} joined, {together:.0f} scored together"
    return f"forecast: error {change:+.1f} % over {rows:.0f} left-out labels; {served}."
