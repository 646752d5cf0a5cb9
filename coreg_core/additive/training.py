r"""The schedule of a whole training, as a value stepped from outside over a state of arrays.

    state = training.start(m)
    while not training.finished(state):
        question = training.query(state)
        state = training.step_with(state, total)                    # the sum of every site's answer, taken in site order

    LABELS → SPREAD → SCORE → SMOOTHER → (solve → TRACES) × 6 → [grid of common rows → JOINT] → solve → SMOOTHED → GRADIENT →
    MODEL

A solve is block GMRES over the labels' column and the probes'; each but the first starts where the last one ended, and
each asks one affine question: 1 + `tuning_steps` vectors with labels in them. Source: design, 7.2 to 7.4.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.terms import NOISE_GRID, OWN, PRIOR_GRID, Additive, tries_grid
from coreg_core.additive.question_types import Answer, Ask, Column, Operator, Question, split
from coreg_core.additive.solver.basis_memory import Memory, memory_for
from coreg_core.additive.solver.block_gmres import BlockGmres, Space
from coreg_core.additive.solver.certificate import (
    AdditiveCertificate,
    Residual,
    certify,
    gradient_question,
    residual_of,
)
from coreg_core.additive.solver.lockstep import Lockstep
from coreg_core.additive.training_state import Phase, TrainingState
from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import relative_step
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.reproducible import norm, tree_sum

# The first half of the tuning steps changes noise and priors by factors, and its solutions are only starting points. One digit
# less there has no measurable effect on the tuned model, and saves a tenth of the rounds.
EARLY = 10.0

# Label deviations for each shared instance: a larger certified error of the score is no convergence.
SCORE_LIMIT = 0.1


@dataclass(frozen=True)
class Training:
    """The schedule, frozen. ``forecast`` runs are a schedule of their own (`coreg_core.additive.forecast`)."""

    terms: Additive
    n_sites: int = 0  # whose answers are summed in fixed point; 0: in floating point

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of a tuning solve: the labels', then the probes'."""
        return (Column(), *(Column("probe", p) for p in range(self.terms.probes)))

    def start(self, n_unlabelled: int) -> TrainingState:
        """Before the first question.

        Raises
        ------
        UsageError
            the memory that the terms grant holds too few rounds.
        """
        m, k = n_unlabelled, len(self.columns)
        self._memory(m)
        zero, point = np.zeros(2 * m + 1), np.zeros((2 * m + 1, k))
        return TrainingState(
            phase=int(Phase.LABELS if self.terms.targets == "federation" else Phase.SCORE),
            step=0,
            rounds=0,
            exchanges=0,
            stop=0,
            units=np.array([0.0, 1.0]),
            count=np.array(0.0),
            score=np.zeros((m, 1)),
            weight=np.zeros(1),
            probe_sum=np.zeros((m, self.terms.probes)),
            scale=np.zeros(k),
            multiplier=np.array(1.0),
            operator=np.ones(2),
            x=point,
            affine=zero,
            rho=zero,
            smoothed=np.zeros(m + 1),
            sizes=np.zeros(2),
            asked=np.array(0.0),
            joint=np.zeros(0),
            certificate=np.full(3, np.inf),
            U=np.zeros((2 * m + 1, 0)),
            C=np.zeros((2 * m + 1, 0)),
            solves=(),
        )

    def finished(self, state: TrainingState) -> bool:
        """Every question was asked."""
        return Phase(state.phase) is Phase.DONE

    def stop(self, state: TrainingState) -> Stop | None:
        """How the final solve ended; None before. A small residual with a large bound on the score is no convergence."""
        stop = (None, Stop.CONVERGED, Stop.STAGNATED, Stop.MAX_ROUNDS)[state.stop]
        bound = self.certificate(state).score_bound
        certified = not np.isfinite(bound) or bound <= SCORE_LIMIT * float(np.sqrt(len(state.score)))
        return Stop.STAGNATED if stop is Stop.CONVERGED and not certified else stop

    def certificate(self, state: TrainingState) -> AdditiveCertificate:
        """The three bounds; infinite before they are known."""
        return AdditiveCertificate(*state.certificate.tolist())

    def _memory(self, n_unlabelled: int, n_columns: int | None = None) -> Memory:
        # Directions have twice the columns of what is solved for.
        return memory_for(n_unlabelled, 2 * (n_columns or len(self.columns)), self.terms.memory)

    # --- the solvers of each phase ------------------------------------------------------------------------------------

    def _solver(self, state: TrainingState, *, final: bool) -> BlockGmres:
        terms, m = self.terms, len(state.score)
        early = EARLY if state.step < terms.tuning_steps // 2 else 1.0
        tolerance = terms.final_tolerance if final else early * terms.tolerance
        operator = Operator(noise=float(state.operator[0]), prior=float(state.operator[1]))
        columns = tuple(replace(column, operator=operator) for column in self.columns)
        return BlockGmres(
            columns,
            # The probes only widen the final space; their solutions are not used.
            (tolerance,) + (np.inf if final else tolerance,) * terms.probes,
            terms.intercept_prior,
            terms.max_rounds,
            self._memory(m).restart,
            verify=final,
            step=state.step,
            scalars=(float(state.multiplier),) if state.step else (),
        )

    def _grid(self, state: TrainingState) -> Lockstep:
        terms = self.terms
        operators = [
            Operator(fold, False, noise, prior)
            for noise, prior, fold in product(NOISE_GRID, PRIOR_GRID, range(terms.folds))
        ]
        restart = self._memory(len(state.score), len(operators)).restart
        return Lockstep(
            tuple(
                BlockGmres(
                    (Column(operator=operator),),
                    (terms.tolerance,),
                    terms.intercept_prior,
                    terms.max_rounds,
                    restart,
                    verify=False,
                    step=state.step,
                    scalars=(float(state.multiplier),) if state.step else (),
                )
                for operator in operators
            )
        )

    # --- a question, and a step ---------------------------------------------------------------------------------------

    def query(self, state: TrainingState) -> Question:
        """The next question."""
        m = len(state.score)
        none = np.zeros((0, 0))
        mean, deviation = state.units.tolist()
        column = Column(operator=Operator(noise=float(state.operator[0]), prior=float(state.operator[1])))
        match Phase(state.phase):
            case Phase.LABELS:
                return Question(Ask.LABELS, none)
            case Phase.SPREAD:
                return Question(Ask.SPREAD, none, scalars=(mean,))
            case Phase.SCORE:
                return Question(Ask.SCORE, none, (Column(),), scalars=(mean, deviation))
            case Phase.SMOOTHER:
                return Question(Ask.SMOOTHER, state.score, (Column(),), scalars=(float(state.weight[0]),))
            case Phase.SOLVE:
                return self._solver(state, final=False).query(state.solves[0])
            case Phase.TRACES:
                aside = state.probe_sum if state.step == 0 else None
                return Question(Ask.TRACES, state.x, self.columns, "affine", state.step, aside=aside)
            case Phase.GRID:
                return self._grid(state).query(state.solves)
            case Phase.JOINT:
                grid = self._grid(state)
                points = np.concatenate([solve.x for solve in state.solves], axis=1)
                return Question(Ask.JOINT, points, tuple(g.columns[0] for g in grid.members), "affine", state.step)
            case Phase.FINAL:
                return self._solver(state, final=True).query(state.solves[0])
            case Phase.SMOOTHED:
                rho_s = self._residual(state).rho[:m, None]
                return Question(Ask.SMOOTHED, rho_s, (column,), step=state.step)
            case Phase.GRADIENT:
                residual, step = self._residual(state), self._smoothing_step(state)
                targets, rounding = gradient_question(residual, state.smoothed, float(state.sizes[0]), step)
                return Question(Ask.GRADIENT, targets, (column,), step=state.step, scalars=rounding)
            case Phase.MODEL | Phase.DONE:
                return Question(Ask.MODEL, state.x[:, :1], (column,), "affine", state.step)

    def _residual(self, state: TrainingState) -> Residual:
        # T(x₀) and T_lin(x − x₀), each at no more than the largest norm that was asked.
        step = self.step_of_sums(max(float(state.asked), OWN), len(state.rho)) + self.step_of_sums(
            float(state.asked), len(state.rho)
        )
        return residual_of(state.x[:, 0], state.affine, state.rho, step)

    def _smoothing_step(self, state: TrainingState) -> float:
        return self.step_of_sums(norm(state.rho[: len(state.score)]), len(state.smoothed))

    def step_of_sums(self, norm: float, rows: int) -> float:
        """A bound on the error of summing answers at a point of that norm in fixed point, ‖·‖₂."""
        if self.n_sites == 0:
            return 0.0
        return self.n_sites * relative_step(rows, self.n_sites) * self.terms.operator_norm_bound * norm

    def step_with(self, state: TrainingState, total: Answer) -> TrainingState:
        """The state after the sum of the answers.

        Raises
        ------
        BadData
            no site has a label.
        """
        phase = Phase(state.phase)
        vectors = int(total.vectors.size > 0)
        state = replace(state, exchanges=state.exchanges + 1, rounds=state.rounds + vectors)
        match phase:
            case Phase.LABELS:
                count, summed = total.scalars.tolist()
                if count < 1:
                    raise BadData("no site of this federation has a label. At least one site needs labelled rows.")
                units = np.array([summed / count, 1.0])
                return replace(state, phase=int(Phase.SPREAD), count=np.array(count), units=units)
            case Phase.SPREAD:
                deviation = float(np.sqrt(total.scalars[0] / float(state.count)))
                # Equal labels have no scale, and the rounding of their mean is not one.
                flat = deviation <= 1e-13 * abs(float(state.units[0]))
                units = np.array([state.units[0], 1.0 if flat or deviation == 0.0 else deviation])
                return replace(state, phase=int(Phase.SCORE), units=units)
            case Phase.SCORE:
                return replace(state, phase=int(Phase.SMOOTHER), score=total.vectors, weight=total.scalars)
            case Phase.SMOOTHER:
                return self._solve_again(replace(state, probe_sum=total.vectors))
            case Phase.SOLVE:
                return self._tuning_round(state, total)
            case Phase.TRACES:
                ratio, gamma = total.scalars.tolist()
                return self._solve_again(replace(state, step=state.step + 1, multiplier=np.array(ratio / gamma)))
            case Phase.GRID:
                grid = self._grid(state)
                solves = grid.step_with(state.solves, total)
                after = Phase.JOINT if grid.finished(solves) else Phase.GRID
                return replace(state, phase=int(after), solves=solves)
            case Phase.JOINT:
                return self._take_best(state, total)
            case Phase.FINAL:
                return self._final_round(state, total)
            case Phase.SMOOTHED:
                return replace(state, phase=int(Phase.GRADIENT), smoothed=total.vectors[:, 0], sizes=total.scalars)
            case Phase.GRADIENT:
                sizes = (float(state.sizes[0]), float(state.sizes[1]))
                gradients, reach = total.scalars.tolist()
                found = certify(
                    self._residual(state),
                    state.smoothed,
                    sizes,
                    gradients,
                    reach,
                    self.terms.intercept_prior,
                    self._smoothing_step(state),
                )
                bounds = np.array([found.gap, found.score_bound, found.intercept_bound])
                return replace(state, phase=int(Phase.MODEL), certificate=bounds)
            case Phase.MODEL | Phase.DONE:
                return replace(state, phase=int(Phase.DONE))

    def _solve_again(self, state: TrainingState) -> TrainingState:
        m = len(state.score)
        if state.step < self.terms.tuning_steps:
            solve = self._solver(state, final=False).start(m, state.x, state.scale, Space(state.U, state.C))
            return replace(state, phase=int(Phase.SOLVE), solves=(solve,))
        if tries_grid(self.terms) and not len(state.joint):
            grid = self._grid(state)
            # The operators differ from the tuning's, but its space still helps.
            recycle = self._memory(m, len(grid.members)).recycle
            space = Space(state.U, state.C) if recycle else None
            return replace(state, phase=int(Phase.GRID), solves=grid.start(m, space))
        solve = self._solver(state, final=True).start(m, state.x, state.scale, Space(state.U, state.C))
        return replace(state, phase=int(Phase.FINAL), solves=(solve,))

    def _tuning_round(self, state: TrainingState, total: Answer) -> TrainingState:
        solver = self._solver(state, final=False)
        solve = solver.step_with(state.solves[0], total)
        if not solver.finished(solve):
            return replace(state, solves=(solve,))
        state = replace(state, phase=int(Phase.TRACES), x=solve.x, scale=solve.scale, solves=())
        if not self._memory(len(state.score)).recycle:
            return state
        space = solver.space(solve)
        return replace(state, U=space.U, C=space.C)

    def _take_best(self, state: TrainingState, total: Answer) -> TrainingState:
        errors = tree_sum(total.scalars.reshape(-1, self.terms.folds).T)
        best = list(product(NOISE_GRID, PRIOR_GRID))[int(errors.argmin())]
        return self._solve_again(replace(state, joint=errors, operator=np.array(best), solves=()))

    def _final_round(self, state: TrainingState, total: Answer) -> TrainingState:
        solver = self._solver(state, final=True)
        asked = max(float(state.asked), norm(solver.query(state.solves[0]).targets[:, 0]))
        state = replace(state, asked=np.array(asked))
        solve = solver.step_with(state.solves[0], total)
        if not solver.finished(solve):
            return replace(state, solves=(solve,))
        _require_centred(solve.x[:, 0], q_too=self.terms.residuals == "smoothed")
        return replace(
            state,
            phase=int(Phase.SMOOTHED),
            stop=solve.stop,
            x=solve.x,
            scale=solve.scale,
            affine=solve.affine[:, 0],
            rho=solve.rho[:, 0],
            solves=(),
        )


def _require_centred(x: Float64[Arr, " r"], *, q_too: bool) -> None:
    """s, and q where residuals are smoothed, have mean zero over Z, whatever the labels.

    Raises
    ------
    BadData
        a site's features are not centred; two readings of its smoother would differ by deviations.
    """
    s, q, _ = split(x[:, None])
    for name, part in (("s", s), *((("q", q),) if q_too else ())):
        mean = float(tree_sum(part)[0]) / max(1, len(part))
        if len(part) and abs(mean) > 1e-3 * float(np.abs(part).max()) + 1e-5 * float(np.abs(x).max()):
            raise BadData(
                f"the sum {name} has mean {mean:.2g} over the shared instances, and has to have none: some site's "
                "features are not centred over them. Install the same release everywhere, and scale the columns."
            )
