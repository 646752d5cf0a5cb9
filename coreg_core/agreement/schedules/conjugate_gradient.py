r"""Conjugate gradients on z: the default schedule. One parallel round a step, and labels leave a site once.

    (I − (1/M) Σ_v R_v) z = (1/M) Σ_v respond_v(0, μ) = b,    μ = 2λM                           (docs/research/mathematics.md)

Round 0 asks respond(0), the only affine query, and is verified: its models are the answers at z = 0. Then each round
asks R s, s = p/‖p‖∞ (H p = ‖p‖∞ (s − mean R s)). Every 20 rounds, and before any finish, R at z is asked: the residual
b + mean R z − z replaces the recursive one, which drifts below it, and only such verified rounds certify and set
models. Departures from the textbook: the normalised direction; the residual replacement (β then uses the replaced
residual), after which p·r differs from ‖r‖², so α = p·r / p·Hp, the step that never goes uphill; several columns in
lockstep, each judged by itself; one that has stopped stays in the matrix, as zeros.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import ROUNDING, Certificate, consensus_certificate, consensus_weight
from coreg_core.agreement.schedules.schedule import (
    FinalTargets,
    Progress,
    Query,
    Terms,
    all_stopped,
    divided,
    normalised,
    progress_of,
)
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.numerics.sums import dot, norms

VERIFY_EVERY = 20
# A verified round in which neither the residual halved nor the energy φ(z) = ½ zᵀHz − bᵀz fell by more than its
# rounding: that often in a row, the rest is rounding. One test alone would fail: CG's residual may rise for many
# rounds while φ falls (condition number 1 + μb), and φ is flat to rounding long before the residual is.
STRIKES = 3


class Next(IntEnum):
    """Kinds of the next query."""

    AFFINE = 0  # respond(0): b, the only query in which labels appear
    DIRECTION = 1  # R s
    VERIFY = 2  # R z


@dataclass(frozen=True)
class GradientState:
    """The vectors of the recursion, column-major; ``z_verified`` belongs to the last certificate."""

    round: int
    ask: int
    since_verified: int
    verified: int  # 1 when the last step certified
    z: Float64[Arr, "m k"]
    b: Float64[Arr, "m k"]
    r: Float64[Arr, "m k"]
    p: Float64[Arr, "m k"]
    rr: Float64[Arr, " k"]  # ‖r‖² behind β
    least_residual: Float64[Arr, " k"]  # over the verified rounds, as is the energy
    least_energy: Float64[Arr, " k"]
    z_verified: Float64[Arr, "m k"]
    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    certified_residual: Float64[Arr, " k"]
    strikes: Int64[Ints, " k"]
    stops: Int64[Ints, " k"]


@dataclass(frozen=True)
class ConjugateGradient:
    """The schedule; see the module's docstring."""

    terms: Terms

    @property
    def weights(self) -> Float64[Arr, " k"]:
        """μ = 2λM."""
        return np.array([consensus_weight(lam, self.terms.n_views) for lam in self.terms.coupling])

    def start(self, n_unlabelled: int) -> GradientState:
        """From z = 0."""
        k = self.terms.n_columns
        zero = np.zeros((n_unlabelled, k), order="F")
        infinite, codes = np.full(k, np.inf), np.zeros(k, np.int64)
        return GradientState(
            round=0,
            ask=Next.AFFINE,
            since_verified=0,
            verified=0,
            z=zero,
            b=zero,
            r=zero,
            p=zero,
            rr=np.zeros(k),
            least_residual=infinite,
            least_energy=infinite,
            z_verified=zero,
            residual=infinite,
            gap=infinite,
            prediction_bound=infinite,
            certified_residual=infinite,
            strikes=codes,
            stops=codes,
        )

    def query(self, state: GradientState) -> Query:
        """The affine query first; then directions, and z itself when a certificate is due."""
        match Next(state.ask):
            case Next.AFFINE:
                return Query(np.zeros_like(state.z), self.weights, "affine")
            case Next.DIRECTION:
                return Query(normalised(state.p)[0], self.weights, "linear")
            case Next.VERIFY:
                return Query(state.z, self.weights, "linear")

    def step(self, state: GradientState, total: Float64[Arr, "m k"]) -> GradientState:
        """One round: see the module's docstring."""
        mean = divided(total, self.terms.n_views)
        match Next(state.ask):
            case Next.AFFINE:
                state = replace(state, round=state.round + 1, b=mean)
                return self._verified(state, np.zeros_like(mean))
            case Next.DIRECTION:
                return self._limit(self._descend(replace(state, round=state.round + 1), mean))
            case Next.VERIFY:
                return self._verified(replace(state, round=state.round + 1), mean)

    def _descend(self, state: GradientState, mean: Float64[Arr, "m k"]) -> GradientState:
        s, scale = normalised(state.p)
        Hp = s
        Hp -= mean
        Hp *= scale
        z, r, p = (np.empty_like(columns, order="F") for columns in (state.z, state.r, state.p))
        for j in np.flatnonzero(state.stops).tolist():
            z[:, j], r[:, j], p[:, j] = state.z[:, j], state.r[:, j], state.p[:, j]
        rr, residual = state.rr.copy(), state.residual.copy()
        gap, bound = state.gap.copy(), state.prediction_bound.copy()
        due = state.since_verified + 1 >= VERIFY_EVERY
        for j in np.flatnonzero(state.stops == 0).tolist():
            before = state.p[:, j]
            curvature = dot(before, Hp[:, j])
            if curvature <= 0.0 or rr[j] == 0.0:
                due = True  # no descent direction left: a verified round decides, and p restarts
                z[:, j], r[:, j], p[:, j] = state.z[:, j], state.r[:, j], 0.0
                continue
            alpha = dot(before, state.r[:, j]) / curvature
            np.multiply(before, alpha, out=z[:, j])
            z[:, j] += state.z[:, j]
            np.multiply(Hp[:, j], -alpha, out=r[:, j])
            r[:, j] += state.r[:, j]
            rr_new = dot(r[:, j], r[:, j])
            np.multiply(before, rr_new / rr[j], out=p[:, j])
            p[:, j] += r[:, j]
            rr[j] = rr_new
            residual[j] = np.sqrt(rr_new)
            c = self._certificate(j, residual[j], 0.0)
            gap[j], bound[j] = c.gap, c.prediction_bound
            due = due or self.terms.met_by(c.gap, c.prediction_bound)
        state = replace(state, z=z, r=r, p=p, rr=rr, residual=residual, gap=gap, prediction_bound=bound, verified=0)
        ask = Next.VERIFY if due else Next.DIRECTION
        return replace(state, ask=ask, since_verified=state.since_verified + 1)

    def _verified(self, state: GradientState, mean: Float64[Arr, "m k"]) -> GradientState:
        # mean R z is known: the true residual, both certificates, and perhaps the end of a column.
        answer = state.b + mean
        true = answer - state.z
        lengths, scale = norms(true), norms(state.z) + norms(answer)
        r, p, rr = state.r.copy(order="F"), state.p.copy(order="F"), state.rr.copy()
        residual, gap, bound = state.residual.copy(), state.gap.copy(), state.prediction_bound.copy()
        least_residual, least_energy = state.least_residual.copy(), state.least_energy.copy()
        strikes, stops = state.strikes.copy(), state.stops.copy()
        for j in np.flatnonzero(state.stops == 0).tolist():
            c = self._certificate(j, lengths[j], scale[j])
            energy = -0.5 * dot(state.z[:, j], state.b[:, j] + true[:, j])
            stuck = lengths[j] > 0.5 * least_residual[j] and energy + ROUNDING * abs(energy) >= least_energy[j]
            least_residual[j] = min(lengths[j], least_residual[j])
            least_energy[j] = min(energy, least_energy[j])
            strikes[j] = strikes[j] + 1 if stuck else 0
            stuck = bool(strikes[j] >= STRIKES or lengths[j] == 0.0)
            # A direction and the verification after it take two rounds; where only one is left, the run ends.
            last = state.round + 2 > self.terms.max_rounds
            stops[j] = self.terms.code_after(c, stuck=stuck, last=last)
            residual[j], gap[j], bound[j] = lengths[j], c.gap, c.prediction_bound
            r[:, j] = true[:, j]
            rr_new = dot(r[:, j], r[:, j])
            p[:, j] += r[:, j] - state.r[:, j]  # p = r_old + β p_before: only its first part is replaced
            # Exact arithmetic has p·r = ‖r‖². Where that is lost, the old directions are conjugate to a residual that
            # was replaced, and the direction restarts; so it does after the affine round (p = 0).
            if not state.p[:, j].any() or not 0.5 * rr_new < dot(p[:, j], r[:, j]) < 2.0 * rr_new:
                p[:, j] = r[:, j]
            rr[j] = rr_new
            if stops[j]:
                p[:, j] = 0.0
        return replace(
            state,
            ask=Next.DIRECTION,
            since_verified=0,
            verified=1,
            r=r,
            p=p,
            rr=rr,
            least_residual=least_residual,
            least_energy=least_energy,
            z_verified=state.z,
            residual=residual,
            gap=gap,
            prediction_bound=bound,
            certified_residual=residual,
            strikes=strikes,
            stops=stops,
        )

    def _certificate(self, column: int, residual_norm: float, scale: float) -> Certificate:
        stays = self.terms.stays[column] if self.terms.stays else None
        bounds = np.array(self.terms.bounds)
        return consensus_certificate(float(residual_norm), float(scale), float(self.weights[column]), bounds, stays)

    def _limit(self, state: GradientState) -> GradientState:
        # The last allowed round is reserved for a verification, so that even MAX_ROUNDS ends certified.
        if state.round + 1 >= self.terms.max_rounds:
            return replace(state, ask=Next.VERIFY)
        return state

    def progress(self, state: GradientState) -> Progress | None:
        """The last round: certified when it was verified, an estimate from the recursion otherwise."""
        return progress_of(state, self.weights, verified=bool(state.verified))

    def finished(self, state: GradientState) -> bool:
        """Every column has stopped."""
        return all_stopped(state)

    def models(self, state: GradientState) -> FinalTargets | None:
        """The answers at the last verified z."""
        if np.isinf(state.certified_residual).any():
            return None
        return FinalTargets(state.z_verified[None], self.weights)
