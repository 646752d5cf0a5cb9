r"""Consensus iteration: z ← mean_v respond_v(z, 2λM), all sites at once. One parallel round a step.

Block minimisation of Σ_v [local_v(f_v) + 2Mλ‖f_v(Z) − z‖²] over the f_v, then over z (docs/research/mathematics.md). Every round
is verified: its residual r = mean − z is exact, so its certificate is. Converges like 1 − 1/(1 + μ b): slow for
strong coupling, as its stop then shows. It is the simplest schedule, and a check of the others.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import consensus_certificate, consensus_weight
from coreg_core.agreement.schedules.schedule import (
    FinalTargets,
    Progress,
    Query,
    Terms,
    all_stopped,
    progress_of,
)
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.numerics.reproducible import column_norms

# ‖r‖ falls in every exact step (r ← mean R_v r, and 0 ⪯ R_v ≺ I); without a new smallest value in this many rounds the
# rest is rounding.
PATIENCE = 50


@dataclass(frozen=True)
class ConsensusState:
    """z is the next target; ``z_verified`` was the last one, and r belongs to it."""

    round: int
    z: Float64[Arr, "m k"]
    z_verified: Float64[Arr, "m k"]
    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    least_residual: Float64[Arr, " k"]
    least_round: Int64[Ints, " k"]
    stops: Int64[Ints, " k"]


@dataclass(frozen=True)
class Consensus:
    """The schedule; see the module's docstring."""

    terms: Terms

    @property
    def weights(self) -> Float64[Arr, " k"]:
        """μ = 2λM."""
        return np.array([consensus_weight(lam, self.terms.n_views) for lam in self.terms.coupling])

    def start(self, n_unlabelled: int) -> ConsensusState:
        """From z = 0."""
        k = self.terms.n_columns
        z, infinite, codes = np.zeros((n_unlabelled, k)), np.full(k, np.inf), np.zeros(k, np.int64)
        return ConsensusState(0, z, z, infinite, infinite, infinite, infinite, codes, codes)

    def query(self, state: ConsensusState) -> Query:
        """respond(z, 2λM), of all."""
        return Query(state.z, self.weights, "affine")

    def step(self, state: ConsensusState, total: Float64[Arr, "m k"]) -> ConsensusState:
        """Certify the models at z, then move z to the mean answer; a column that has stopped stays."""
        terms, bounds = self.terms, np.array(self.terms.bounds)
        mean = total / terms.n_views
        running = state.stops == 0
        residual = np.where(running, column_norms(mean - state.z), state.residual)
        scale = column_norms(state.z) + column_norms(mean)
        gap, bound, stops = state.gap.copy(), state.prediction_bound.copy(), state.stops.copy()
        fell = residual < state.least_residual
        least_round = np.where(fell, state.round, state.least_round)
        for j in np.flatnonzero(running).tolist():
            c = consensus_certificate(
                float(residual[j]),
                float(scale[j]),
                float(self.weights[j]),
                bounds,
                terms.response_error(j),
                terms.shift(j),
                terms.step(float(scale[j])),
                terms.stays[j] if terms.stays else None,
            )
            gap[j], bound[j] = c.gap, c.prediction_bound
            stuck = bool(state.round - least_round[j] >= PATIENCE)
            last = state.round + 1 >= terms.max_rounds
            stops[j] = terms.code_after(c, stuck=stuck, last=last)
        return replace(
            state,
            round=state.round + 1,
            z=np.where(stops == 0, mean, state.z),
            z_verified=state.z,
            residual=residual,
            gap=gap,
            prediction_bound=bound,
            least_residual=np.minimum(residual, state.least_residual),
            least_round=least_round,
            stops=stops,
        )

    def progress(self, state: ConsensusState) -> Progress | None:
        """Every round is verified."""
        return progress_of(state, self.weights, verified=True)

    def finished(self, state: ConsensusState) -> bool:
        """Every column has stopped."""
        return all_stopped(state)

    def models(self, state: ConsensusState) -> FinalTargets | None:
        """The answers at the last z."""
        if np.isinf(state.residual).any():
            return None
        return FinalTargets(state.z_verified[None], self.weights)
