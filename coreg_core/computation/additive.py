r"""The additive objective as a federation computes it: the schedule of `coreg_core.additive.training`, then its folds.

A change of membership restarts the training, because all of it depends on the members. A solve's basis is a hundred
times as large as a sum, so a state is never stored: it is recomputed from its sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.forecast import Forecast, ForecastState
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_rules import answer_bounds, answer_shape
from coreg_core.additive.question_types import NOTHING, Answer, Question
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.training import Training
from coreg_core.additive.training_state import Phase, TrainingState
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.computation.plausibility import SOME_SITE, norm_fault, scalar_fault
from coreg_core.computation.rounds import Round
from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.masking.words import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.reproducible import column_norms
from coreg_core.protocol.outcomes import Outcome

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
    Outcome.STAGNATED: "the verified residual no longer falls, or the certified error of the score is above a tenth of a "
    "label deviation. Loosen final_tolerance, raise the ridge, or use another kernel.",
}
# Of FORECAST: squared errors joined and alone, labels; then the number of sites for which alone, joined, scored together is best.
FORECAST_SUMS = 6


@dataclass(frozen=True, eq=False)
class Forecasting:
    """A training that has ended, and its folds after it; ``sums`` are those of FORECAST."""

    training: TrainingState
    folds: ForecastState
    sums: Float64[Arr, " t"]


State: TypeAlias = TrainingState | Forecasting
# Kinds of questions whose scalars are sums of squares or counts.
_NEVER_NEGATIVE = {Kind.SPREAD, Kind.SCORE, Kind.SMOOTHED, Kind.GRADIENT, Kind.JOINT, Kind.FORECAST}


@dataclass(frozen=True)
class AdditiveComputation:
    """See `computation.Computation`."""

    terms: Additive
    n_sites: int
    n_unlabelled: int

    @property
    def training(self) -> Training:
        return Training(self.terms, self.n_sites)

    def start(self) -> TrainingState:
        """Before the first question; raises as `Training.start`."""
        return self.training.start(self.n_unlabelled)

    def _question(self, state: State) -> Question:
        if isinstance(state, Forecasting):
            return self._folds(state).query(state.folds)
        asked = self.training.query(state)
        return replace(asked, aside=state.probe_sum) if Phase(state.phase) is Phase.TRACES else asked

    def _folds(self, state: Forecasting) -> Forecast:
        return Forecast.of(self.terms, state.training)

    def round(self, state: State) -> Round:
        """The next question to the sites."""
        asked = self._question(state)
        shape, scalars = answer_shape(self.terms, self.n_unlabelled, asked)
        layout = Layout(*shape, FORECAST_SUMS if asked.ask is Kind.FORECAST else scalars)
        bounds = answer_bounds(self.terms, self.n_unlabelled, asked)
        exponents = tuple(exponent_for(bound, self.n_sites) for bound in bounds)
        verified = asked.ask in (Kind.SMOOTHED, Kind.MODEL, Kind.FORECAST)
        return Round(asked, layout, exponents, tuple(range(self.n_sites)), verified, phase=self.phase(state))

    def phase(self, state: State) -> str:
        """The phase of the open question."""
        if isinstance(state, Forecasting):
            return "forecast"
        phase = Phase(state.phase)
        return f"tuning {state.step + 1}" if phase in (Phase.SOLVE, Phase.TRACES) else _WORDS[phase]

    def step(self, state: State, asked: Round, values: Arr, scalars: tuple[float, ...]) -> State:
        """The state after the sum.

        Raises
        ------
        BadData
            no site has a label, or honest sites cannot give this sum.
        """
        question = asked.question
        assert isinstance(question, Question)
        if (wrong := self._wrong(question, values, scalars)) is not None:
            raise BadData(SOME_SITE.format(wrong))
        vectors, numbers = values if values.size else NOTHING, np.array(scalars, dtype=np.float64)
        if isinstance(state, Forecasting):
            if question.ask is Kind.FORECAST:
                state, numbers = replace(state, sums=numbers), numbers[:3]
            return replace(state, folds=self._folds(state).step_with(state.folds, Answer(vectors, numbers)))
        trained = self.training.step_with(state, Answer(vectors, numbers))
        if not (self.training.finished(trained) and self.terms.forecast):
            return trained
        begun = Forecast.of(self.terms, trained).start(self.n_unlabelled)
        return Forecasting(trained, begun, np.zeros(0))

    def _wrong(self, asked: Question, values: Arr, scalars: Sequence[float]) -> str | None:
        if (wrong := scalar_fault(scalars, negative=asked.ask not in _NEVER_NEGATIVE)) is not None:
            return wrong
        if asked.ask is Kind.FIXED_POINT and asked.part == "linear" and asked.targets.size and values.size:
            gain = self.n_sites * self.terms.operator_norm_bound + self.training.step_of_sums(1.0, len(values))
            return norm_fault(asked.targets, values, gain)
        return None

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
        trained = state.training if isinstance(state, Forecasting) else state
        if not self.training.finished(trained) or (isinstance(state, Forecasting) and not len(state.sums)):
            return None
        stop = self.training.stop(trained)
        assert stop is not None, "a training ends after its final solve"
        return Outcome[stop.name], _REASONS[Outcome[stop.name]]

    def point(self, state: State) -> Float64[Arr, "r 1"] | None:
        """x, at which the sites' models are taken; set once every site was asked for its own."""
        trained = state.training if isinstance(state, Forecasting) else state
        return trained.x[:, :1] if self.training.finished(trained) else None

    def final(self, state: State) -> tuple[Arr, ...]:
        """The inputs of every site's model."""
        point = self.point(state)
        return (state.sums if isinstance(state, Forecasting) else np.zeros(0), np.zeros(0) if point is None else point)


def forecast_sentence(sums: Float64[Arr, " t"]) -> str:
    """The sums of FORECAST, for the sites' operators."""
    joined, alone, rows, apart, own, together = sums.tolist()
    if not (rows and alone > 0.0):
        return "forecast: no site has one."
    change = 100.0 * (np.sqrt(joined / alone) - 1.0)
    served = f"by their labels {apart:.0f} sites do best alone, {own:.0f} joined, {together:.0f} scored together"
    return f"forecast: error {change:+.1f} % over {rows:.0f} left-out labels; {served}."
