r"""Algorithm 1 of Brefeld et al. (2006): block coordinate descent, one site after another.

The sites' functions are the blocks of the objective

    Q(f) = Σ_v [‖y_v − f_v(X_v)‖² + ν_v ‖f_v‖²] + λ Σ_{u,v} ‖f_u(Z) − f_v(Z)‖²

and for all blocks but one fixed the best f_v is respond(mean of the others' predictions, 2λ(M−1)).
Each answer lowers Q, so Q converges, and Q is strictly convex, so the blocks do. A sweep asks the M
sites in series: the second site needs what the first one answered. That makes it slow over a
network, where conjugate gradients ask all sites at once.

The paper stops "until convergence". Here a sweep is certified. After it each f_v is optimal for the
target that it had, and the others have moved since: the gradient of Q at block v is 4λ times that
move. Q is strongly convex in the norm that b_v bounds, so the gap follows
(docs/research/mathematics.md, "Certificates").
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import ROUNDING, Certificate
from coreg_core.agreement.solver import RUNNING, Lockstep, Query, SolverState
from coreg_core.arrays import Arr, Ints, norms

PATIENCE = (
    50  # sweeps without a new least gap: Q falls in every exact sweep, so the rest is rounding
)


@dataclass(frozen=True)
class SweepState(SolverState):
    """``site`` is the next to ask; ``predictions`` are the latest of all sites, ``targets`` those
    of their last answers.
    """

    site: int
    predictions: Float64[Arr, "M m k"]
    targets: Float64[Arr, "M m k"]
    least_gap: Float64[Arr, " k"]
    least_round: Int64[Ints, " k"]


@dataclass(frozen=True)
class BlockCoordinateDescent(Lockstep):
    r"""Algorithm 1 of Brefeld et al.

    (2006): for each view v in turn ŷ_v ← respond_v(mean_{u≠v} ŷ_u, 2λ(M−1)), from ŷ = 0.

    A *round* is a sweep of M steps in series. Departure from the paper: "until convergence" is a
    certificate, gap = 4λ² Σ_v b_v ‖Δ_v‖², Δ_v the change of the others' sum since v's target
    (docs/research/mathematics.md).
    """

    name = "block-coordinate-descent"

    def start(self, n_unlabelled: int) -> SweepState:
        """From ŷ_v = 0 as in the paper."""
        M = self.terms.n_views
        m = n_unlabelled
        k = len(self.terms.coupling)
        y = np.zeros((M, m, k))
        infinite = np.full(k, np.inf)
        codes = np.zeros(k, np.int64)
        return SweepState(
            site=0,
            predictions=y,
            targets=y,
            verified_targets=y,
            residual=infinite,
            gap=infinite,
            prediction_bound=infinite,
            least_gap=infinite,
            least_round=codes,
            stops=codes,
        )

    def _target(self, state: SweepState) -> Float64[Arr, "m k"]:
        M = self.terms.n_views
        mean: Arr = sum(y for v, y in enumerate(state.predictions) if v != state.site) / max(
            1, M - 1
        )
        # A stopped column gets its last question again, so that the last sweep's targets are the
        # models'.
        return np.where(state.stops == RUNNING, mean, state.targets[state.site])

    def query(self, state: SweepState) -> Query:
        """respond(mean of the others, 2λ(M−1)), of one site."""
        return Query(self._target(state), self.weights, "affine", site=state.site)

    def step(self, state: SweepState, total: Float64[Arr, "m k"]) -> SweepState:
        """Take one site's answer; after the last site of a sweep, certify."""
        predictions = state.predictions.copy()
        targets = state.targets.copy()
        running = state.stops == RUNNING
        targets[state.site] = np.where(running, self._target(state), targets[state.site])
        predictions[state.site] = np.where(running, total, predictions[state.site])
        state = replace(state, predictions=predictions, targets=targets)
        if state.site + 1 < self.terms.n_views:
            return replace(state, site=state.site + 1)
        return self._certify(replace(state, site=0, round=state.round + 1))

    def _certify(self, state: SweepState) -> SweepState:
        terms = self.terms
        M = self.terms.n_views
        bounds = np.array(terms.bounds)
        total = sum(state.predictions[1:], state.predictions[0])
        gap = np.zeros(len(terms.coupling))
        residual = np.zeros(len(terms.coupling))
        for v in range(M):
            others = total - state.predictions[v]
            change = norms(others - (M - 1) * state.targets[v])
            # The target was rounded when it was formed, and so was the answer: see
            # objective.ROUNDING.
            noise = ROUNDING * (norms(others) + M * norms(state.predictions[v]))
            residual = np.maximum(residual, change)
            gap += 4.0 * np.square(np.array(terms.coupling) * (change + noise)) * bounds[v]
        if M == 1:
            gap[:] = 0.0
        bound = np.sqrt(bounds.max() * gap)
        stated = [Certificate(*pair) for pair in zip(gap.tolist(), bound.tolist(), strict=True)]
        running = state.stops == RUNNING
        residual = np.where(running, residual, state.residual)
        gap = np.where(running, gap, state.gap)
        bound = np.where(running, bound, state.prediction_bound)
        least_round = np.where(gap < state.least_gap, state.round, state.least_round)
        stops = state.stops.copy()
        for j in np.flatnonzero(running).tolist():
            stuck = bool(state.round - least_round[j] >= PATIENCE)
            last = state.round >= terms.max_rounds
            stops[j] = terms.code_after(stated[j], stuck=stuck, last=last)
        return replace(
            state,
            verified_targets=state.targets,
            residual=residual,
            gap=gap,
            prediction_bound=bound,
            least_gap=np.minimum(gap, state.least_gap),
            least_round=least_round,
            stops=stops,
        )
