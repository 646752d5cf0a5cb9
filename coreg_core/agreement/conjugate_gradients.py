r"""Conjugate gradients on the consensus z: all sites answer at once, and labels leave a site once.

At the optimum every site's prediction follows from their mean z, respond_v(z, μ) with μ = 2λM, and
z is the mean of these answers. respond is affine in its target, with symmetric linear part R_v,
0 ⪯ R_v ≺ I. So z solves

    H z = b,    H = I − (1/M) Σ_v R_v,    b = (1/M) Σ_v respond_v(0, μ)

with H positive definite: the method of Hestenes and Stiefel (1952). H z costs one round, in which
each site answers the linear part only. Two things depart from the textbook.

- The residual of the recursion drifts below the true one. So every `VERIFY_EVERY` rounds, and
  before any finish, the round asks R z itself. Only such rounds certify and set models.
- Directions are sent divided by their largest value, because a sum of words has a fixed range.

Columns (the λ of a path) share rounds and stop on their own. What is not beautiful: after a
residual was replaced, p·r is no longer ‖r‖². `_restarts` decides whether the old directions still
help.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import ROUNDING, Certificate, consensus_certificate
from coreg_core.agreement.solver import RUNNING, Lockstep, Query, SolverState
from coreg_core.arrays import Arr, Ints, dot, norms


def normalised(directions: Float64[Arr, "m k"]) -> tuple[Float64[Arr, "m k"], Float64[Arr, " k"]]:
    """Each column divided by its largest absolute value, and those values (1 for a column of
    zeros).
    """
    scale = np.maximum(directions.max(axis=0, initial=0.0), -directions.min(axis=0, initial=0.0))
    scale[scale == 0.0] = 1.0
    return directions / scale, scale


VERIFY_EVERY = 20


# A verified round in which neither the residual halved nor the energy φ(z) = ½ zᵀHz − bᵀz fell by
# more than its rounding: that often in a row, the rest is rounding. One test alone would fail: CG's
# residual may rise for many rounds while φ falls (condition number 1 + μb), and φ is flat to
# rounding long before the residual is.
STRIKES = 3


class Next(IntEnum):
    """Kinds of the next query."""

    AFFINE = 0  # respond(0): b, the only query in which labels appear
    DIRECTION = 1  # R s
    VERIFY = 2  # R z


@dataclass(frozen=True)
class GradientState(SolverState):
    """The vectors of the recursion, column-major.

    ``verified_targets`` is the z of the last certificate: all sites answer at the same one.
    """

    z: Float64[Arr, "m k"]
    b: Float64[Arr, "m k"]
    r: Float64[Arr, "m k"]
    p: Float64[Arr, "m k"]
    rr: Float64[Arr, " k"]  # ‖r‖² behind β
    least_residual: Float64[Arr, " k"]  # over the verified rounds, as is the energy
    least_energy: Float64[Arr, " k"]
    strikes: Int64[Ints, " k"]
    ask: int = Next.AFFINE
    since_verified: int = 0  # rounds; the first one is verified


@dataclass(frozen=True)
class ConjugateGradient(Lockstep):
    r"""Conjugate gradients on z: the default solver.

    One parallel round a step, and labels leave a site once.

        (I − (1/M) Σ_v R_v) z = (1/M) Σ_v respond_v(0, μ) = b,    μ = 2λM
        (docs/research/mathematics.md)

    Round 0 asks respond(0), the only affine query, and is verified. Then each round asks R s, s =
    p/‖p‖∞. Every 20 rounds, and before any finish, R at z is asked: the residual b + mean R z − z
    replaces the recursive one, which drifts below it, and only such verified rounds certify and set
    models. After a replacement p·r differs from ‖r‖², so α = p·r / p·Hp never goes uphill.
    """

    name = "conjugate-gradients"

    def start(self, n_unlabelled: int) -> GradientState:
        """From z = 0."""
        k = len(self.terms.coupling)
        zero = np.zeros((n_unlabelled, k), order="F")
        infinite = np.full(k, np.inf)
        codes = np.zeros(k, np.int64)
        return GradientState(
            z=zero,
            b=zero,
            r=zero,
            p=zero,
            rr=np.zeros(k),
            least_residual=infinite,
            least_energy=infinite,
            verified_targets=zero[None],
            residual=infinite,
            gap=infinite,
            prediction_bound=infinite,
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
        """One round: see the class."""
        mean = np.divide(total, self.terms.n_views, order="F")
        match Next(state.ask):
            case Next.AFFINE:
                state = replace(state, round=state.round + 1, b=mean)
                return self._verified(state, np.zeros_like(mean))
            case Next.DIRECTION:
                state = self._descend(replace(state, round=state.round + 1), mean)
                # The last allowed round is reserved for a verification, so that even MAX_ROUNDS
                # ends certified.
                if state.round + 1 >= self.terms.max_rounds:
                    return replace(state, ask=Next.VERIFY)
                return state
            case Next.VERIFY:
                return self._verified(replace(state, round=state.round + 1), mean)

    def _descend(self, state: GradientState, mean: Float64[Arr, "m k"]) -> GradientState:
        s, scale = normalised(state.p)
        Hp = s
        Hp -= mean
        Hp *= scale
        z = np.empty_like(state.z, order="F")
        r = np.empty_like(state.r, order="F")
        p = np.empty_like(state.p, order="F")
        for j in np.flatnonzero(state.stops != RUNNING).tolist():
            z[:, j] = state.z[:, j]
            r[:, j] = state.r[:, j]
            p[:, j] = state.p[:, j]
        rr = state.rr.copy()
        residual = state.residual.copy()
        gap = state.gap.copy()
        bound = state.prediction_bound.copy()
        due = state.since_verified + 1 >= VERIFY_EVERY
        for j in np.flatnonzero(state.stops == RUNNING).tolist():
            before = state.p[:, j]
            curvature = dot(before, Hp[:, j])
            if curvature <= 0.0 or rr[j] == 0.0:
                due = True  # no descent direction left: a verified round decides, and p restarts
                z[:, j] = state.z[:, j]
                r[:, j] = state.r[:, j]
                p[:, j] = 0.0
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
            gap[j] = c.gap
            bound[j] = c.prediction_bound
            due = due or self.terms.met_by(c.gap, c.prediction_bound)
        state = replace(
            state, z=z, r=r, p=p, rr=rr, residual=residual, gap=gap, prediction_bound=bound
        )
        ask = Next.VERIFY if due else Next.DIRECTION
        since = state.since_verified + 1
        return replace(state, ask=ask, since_verified=since, verified=False)

    def _verified(self, state: GradientState, mean: Float64[Arr, "m k"]) -> GradientState:
        # mean R z is known: the true residual, both certificates, and perhaps the end of a column.
        answer = state.b + mean
        true = answer - state.z
        lengths = norms(true)
        scale = norms(state.z) + norms(answer)
        r = state.r.copy(order="F")
        p = state.p.copy(order="F")
        rr = state.rr.copy()
        residual = state.residual.copy()
        gap = state.gap.copy()
        bound = state.prediction_bound.copy()
        least_residual = state.least_residual.copy()
        least_energy = state.least_energy.copy()
        strikes = state.strikes.copy()
        stops = state.stops.copy()
        for j in np.flatnonzero(state.stops == RUNNING).tolist():
            c = self._certificate(j, lengths[j], scale[j])
            energy = -0.5 * dot(state.z[:, j], state.b[:, j] + true[:, j])
            stuck = (
                lengths[j] > 0.5 * least_residual[j]
                and energy + ROUNDING * abs(energy) >= least_energy[j]
            )
            least_residual[j] = min(lengths[j], least_residual[j])
            least_energy[j] = min(energy, least_energy[j])
            strikes[j] = strikes[j] + 1 if stuck else 0
            stuck = bool(strikes[j] >= STRIKES or lengths[j] == 0.0)
            # A direction and the verification after it take two rounds; where only one is left, the
            # run ends.
            last = state.round + 2 > self.terms.max_rounds
            stops[j] = self.terms.code_after(c, stuck=stuck, last=last)
            residual[j] = lengths[j]
            gap[j] = c.gap
            bound[j] = c.prediction_bound
            r[:, j] = true[:, j]
            rr_new = dot(r[:, j], r[:, j])
            p[:, j] += (
                r[:, j] - state.r[:, j]
            )  # p = r_old + β p_before: only its first part is replaced
            if not state.p[:, j].any() or _restarts(p[:, j], r[:, j], rr_new):
                p[:, j] = r[:, j]
            rr[j] = rr_new
            if stops[j]:
                p[:, j] = 0.0
        return replace(
            state,
            ask=Next.DIRECTION,
            since_verified=0,
            r=r,
            p=p,
            rr=rr,
            least_residual=least_residual,
            least_energy=least_energy,
            verified_targets=state.z[None],
            verified=True,
            residual=residual,
            gap=gap,
            prediction_bound=bound,
            strikes=strikes,
            stops=stops,
        )

    def _certificate(self, column: int, residual_norm: float, scale: float) -> Certificate:
        stays = self.terms.stays[column] if self.terms.stays else None
        bounds = np.array(self.terms.bounds)
        return consensus_certificate(
            float(residual_norm), float(scale), float(self.weights[column]), bounds, stays
        )


def _restarts(p: Float64[Arr, " m"], r: Float64[Arr, " m"], rr: float) -> bool:
    """Whether the direction p is no longer one of descent for the residual r, rr = ‖r‖².

    Exact arithmetic has p·r = ‖r‖². Where that is lost, the old directions are conjugate to a
    residual that was replaced.
    """
    return not 0.5 * rr < dot(p, r) < 2.0 * rr
