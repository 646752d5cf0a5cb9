r"""A forecast of the gain of a site's own model by nested cross-validation: folds are columns, with rows left out at every
site at once, and each fold makes its choices again.

    SCORE → SMOOTHER → one solve a fold, side by side → FORECAST

In each fold a site chooses width, ridge and smoother again from the rows that are kept, and applies the full run's
*multipliers* τ²/τ₀², σ²/σ₀². This is as good as tuning again; keeping the full run's hyper-parameters is 4 to 12 points
optimistic. The baseline is the site alone, nested the same way. Below 50 labels a site, report the federation's sum and
not a site's figure (design, 7.4: rank correlation with the realised gain 0.15, 0.24, 0.47 at 10, 20, 50 labels).
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Answer, Ask, Column, Operator, Question
from coreg_core.additive.solver.basis_memory import memory_for
from coreg_core.additive.solver.block_gmres import BlockGmres, GmresState
from coreg_core.additive.solver.lockstep import Lockstep
from coreg_core.additive.training_state import TrainingState
from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True, eq=False)
class ForecastState:
    """``phase``: 0 SCORE, 1 SMOOTHER, 2 solves, 3 FORECAST, 4 done."""

    phase: int
    rounds: int
    score: Float64[Arr, "m f"]
    weight: Float64[Arr, " f"]
    sums: Float64[Arr, " 3"]  # Σe² joined, Σe² alone, rows
    solves: tuple[GmresState, ...]

    @property
    def gain(self) -> float:
        """Relative change of the sites' root mean squared error, negative where joining helps; NaN without rows."""
        joined, alone, rows = self.sums.tolist()
        return float(np.sqrt(joined / alone) - 1.0) if rows and alone > 0.0 else float("nan")


@dataclass(frozen=True)
class Forecast:
    """A schedule over the sites of a finished training, whose units, steps and multipliers it keeps."""

    terms: Additive
    units: tuple[float, float]
    step: int
    multiplier: float
    operator: tuple[float, float]

    @classmethod
    def of(cls, terms: Additive, training: TrainingState) -> "Forecast":
        """After this training.

        Raises
        ------
        UsageError
            grouped or open residuals, where a fold cannot choose again: groups are made once.
        """
        mean, deviation = training.units.tolist()
        noise, prior = training.operator.tolist()
        return cls.after(terms, (mean, deviation), training.step, float(training.multiplier), (noise, prior))

    @classmethod
    def after(
        cls, terms: Additive, units: tuple[float, float], step: int, multiplier: float, operator: tuple[float, float]
    ) -> "Forecast":
        """After a training that ended with these; raises as `of`."""
        if terms.residuals != "smoothed":
            raise UsageError(
                f'a forecast needs residuals="smoothed", not "{terms.residuals}": groups are made once, of all rows.'
            )
        return cls(terms, units, step, multiplier, operator)

    @property
    def columns(self) -> tuple[Column, ...]:
        """One a fold."""
        noise, prior = self.operator
        return tuple(Column(operator=Operator(fold, True, noise, prior)) for fold in range(self.terms.folds))

    def start(self, n_unlabelled: int) -> ForecastState:
        """Before the first question."""
        folds = self.terms.folds
        return ForecastState(0, 0, np.zeros((n_unlabelled, folds)), np.zeros(folds), np.zeros(3), ())

    def _solver(self, n_unlabelled: int) -> Lockstep:
        terms = self.terms
        restart = memory_for(n_unlabelled, 2 * terms.folds, terms.memory).restart
        return Lockstep(
            tuple(
                BlockGmres(
                    (column,),
                    (terms.tolerance,),
                    terms.intercept_prior,
                    terms.max_rounds,
                    restart,
                    verify=False,
                    step=self.step,
                    scalars=(self.multiplier,) if self.step else (),
                )
                for column in self.columns
            )
        )

    def query(self, state: ForecastState) -> Question:
        """The next question."""
        match state.phase:
            case 0:
                return Question(Ask.SCORE, np.zeros((0, 0)), self.columns, scalars=self.units)
            case 1:
                return Question(Ask.SMOOTHER, state.score, self.columns, scalars=tuple(state.weight.tolist()))
            case 2:
                return self._solver(len(state.score)).query(state.solves)
            case _:
                points = np.concatenate([solve.x for solve in state.solves], axis=1)
                return Question(Ask.FORECAST, points, self.columns, "affine", self.step)

    def step_with(self, state: ForecastState, total: Answer) -> ForecastState:
        """The state after the sum of the answers."""
        state = replace(state, rounds=state.rounds + int(total.vectors.size > 0))
        match state.phase:
            case 0:
                return replace(state, phase=1, score=total.vectors, weight=total.scalars)
            case 1:
                return replace(state, phase=2, solves=self._solver(len(state.score)).start(len(state.score)))
            case 2:
                solver = self._solver(len(state.score))
                solves = solver.step_with(state.solves, total)
                return replace(state, phase=3 if solver.finished(solves) else 2, solves=solves)
            case _:
                return replace(state, phase=4, sums=total.scalars)

    def finished(self, state: ForecastState) -> bool:
        """Every question was asked."""
        return state.phase == 4
