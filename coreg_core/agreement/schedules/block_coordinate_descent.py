r"""Algorithm 1 of the paper: the sites in turn, each against the mean of the others' latest predictions.

    repeat  for each view v in order:  ŷ_v ← respond_v( mean_{u≠v} ŷ_u, 2λ(M−1) )  until convergence,  from ŷ = 0

which is the paper's c_v ← G_v⁻¹ [L_vᵀ y_v + 2λ U_vᵀ Σ_{u≠v} ŷ_u], since G_v is the normal matrix of respond at that
weight. A *round* here is a sweep: M steps in series, each asked of one site. Departure from the paper: "until
convergence" is a certificate, gap = 4λ² Σ_v b_v ‖Δ_v‖², Δ_v the change of the others' sum since v's target.

Source: Brefeld et al. (2006), Algorithm 1, Propositions 4.1 and 4.2; certificate: docs/research/mathematics.md.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import ROUNDING, Certificate, sweep_weight
from coreg_core.agreement.schedules.schedule import (
    FinalTargets,
    Progress,
    Query,
    Terms,
    all_stopped,
    progress_of,
)
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.numerics.sums import norms

PATIENCE = 50  # sweeps without a new least gap: Q falls in every exact sweep, so the rest is rounding


@dataclass(frozen=True)
class SweepState:
    """``site`` is the next to ask; ``predictions`` are the latest of all sites, ``targets`` those of their last answers."""

    round: int
    site: int
    predictions: Float64[Arr, "M m k"]
    targets: Float64[Arr, "M m k"]
    verified_targets: Float64[Arr, "M m k"]
    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    least_gap: Float64[Arr, " k"]
    least_round: Int64[Ints, " k"]
    stops: Int64[Ints, " k"]


@dataclass(frozen=True)
class BlockCoordinateDescent:
    """The schedule; see the module's docstring."""

    terms: Terms

    @property
    def weights(self) -> Float64[Arr, " k"]:
        """μ = 2λ(M−1)."""
        return np.array([sweep_weight(lam, self.terms.n_views) for lam in self.terms.coupling])

    def start(self, n_unlabelled: int) -> SweepState:
        """From ŷ_v = 0 as in the paper."""
        M, m, k = self.terms.n_views, n_unlabelled, self.terms.n_columns
        y, infinite, codes = np.zeros((M, m, k)), np.full(k, np.inf), np.zeros(k, np.int64)
        return SweepState(0, 0, y, y, y, infinite, infinite, infinite, infinite, codes, codes)

    def _target(self, state: SweepState) -> Float64[Arr, "m k"]:
        M = self.terms.n_views
        mean: Arr = sum(y for v, y in enumerate(state.predictions) if v != state.site) / max(1, M - 1)
        # A stopped column gets its last question again, so that the last sweep's targets are the models'.
        return np.where(state.stops == 0, mean, state.targets[state.site])

    def query(self, state: SweepState) -> Query:
        """respond(mean of the others, 2λ(M−1)), of one site."""
        return Query(self._target(state), self.weights, "affine", site=state.site)

    def step(self, state: SweepState, total: Float64[Arr, "m k"]) -> SweepState:
        """Take one site's answer; after the last site of a sweep, certify."""
        predictions, targets = state.predictions.copy(), state.targets.copy()
        running = state.stops == 0
        targets[state.site] = np.where(running, self._target(state), targets[state.site])
        predictions[state.site] = np.where(running, total, predictions[state.site])
        state = replace(state, predictions=predictions, targets=targets)
        if state.site + 1 < self.terms.n_views:
            return replace(state, site=state.site + 1)
        return self._certify(replace(state, site=0, round=state.round + 1))

    def _certify(self, state: SweepState) -> SweepState:
        terms, M = self.terms, self.terms.n_views
        bounds = np.array(terms.bounds)
        total = sum(state.predictions[1:], state.predictions[0])
        gap, residual = np.zeros(terms.n_columns), np.zeros(terms.n_columns)
        for v in range(M):
            others = total - state.predictions[v]
            change = norms(others - (M - 1) * state.targets[v])
            # The target was rounded when it was formed, and so was the answer: see objective.ROUNDING.
            noise = ROUNDING * (norms(others) + M * norms(state.predictions[v]))
            residual = np.maximum(residual, change)
            gap += 4.0 * np.square(np.array(terms.coupling) * (change + noise)) * bounds[v]
        if M == 1:
            gap[:] = 0.0
        bound = np.sqrt(bounds.max() * gap)
        stated = [Certificate(*pair) for pair in zip(gap.tolist(), bound.tolist(), strict=True)]
        running = state.stops == 0
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

    def progress(self, state: SweepState) -> Progress | None:
        """The last complete sweep; every one is verified."""
        return progress_of(state, self.weights, verified=True)

    def finished(self, state: SweepState) -> bool:
        """Every column has stopped."""
        return all_stopped(state)

    def models(self, state: SweepState) -> FinalTargets | None:
        """The targets of the last complete sweep."""
        if np.isinf(state.residual).any():
            return None
        return FinalTargets(state.verified_targets, self.weights)
