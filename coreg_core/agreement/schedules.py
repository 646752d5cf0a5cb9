r"""The schedules of the agreement: values that a driver steps from outside, over a state that can
be written down.

    state = schedule.start(m)
    while not schedule.finished(state):
        query = schedule.query(state)                   # which sites, what targets, what weights
        state = schedule.step(state, total)             # the sum of their answers, taken in site
        order

Only the *sum* of the answers is ever used (docs/research/mathematics.md). Methods never change the
state that they are given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import ROUNDING, Certificate, consensus_certificate, weight_of
from coreg_core.agreement.views import Part, View
from coreg_core.arrays import Arr, Ints, dot, norms
from coreg_core.terms import ScheduleName


class Stop(IntEnum):
    """How a column of a schedule ended, in the order of severity.

    How a run ended is `coreg_core.outcomes.Outcome`.
    """

    CONVERGED = 1  # both certificates fell below the tolerances
    STAGNATED = 2  # the verified residual no longer falls
    MAX_ROUNDS = 3  # reached before the tolerances


RUNNING = 0  # in the ``stops`` of a state
_STOPS: dict[int, Stop | None] = {RUNNING: None, **{stop.value: stop for stop in Stop}}


@dataclass(frozen=True)
class Query:
    """respond(targets, weights), asked of every site, or of one."""

    targets: Float64[Arr, "m k"]
    weights: Float64[Arr, " k"]
    part: Part
    site: int | None = None  # position in site order; None: all of them


@dataclass(frozen=True)
class Progress:
    """Progress at the last step, by column.

    ``gap`` and ``prediction_bound`` are certified iff ``verified``.
    """

    round: int
    verified: bool
    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    stops: tuple[Stop | None, ...]


@dataclass(frozen=True)
class FinalTargets:
    """Of the last verified round: ``targets`` (1, m, k), or (M, m, k) for Algorithm 1, and
    ``weights``.
    """

    targets: Float64[Arr, "s m k"]
    weights: Float64[Arr, " k"]

    def of(self, site: int) -> Float64[Arr, "m k"]:
        """The target of the site at that position."""
        target: Arr = self.targets[site if len(self.targets) > 1 else 0]
        return target


@dataclass(frozen=True)
class Terms:
    """The federation's figures for a schedule. Frozen: another membership means other terms."""

    coupling: tuple[float, ...]  # λ, one for each column
    bounds: tuple[float, ...]  # b_v in site order
    initial_objective: float  # Q(0)
    tolerance: float  # stop when gap ≤ tolerance · Q(0) ...
    prediction_tolerance: (
        float  # ... and the prediction bound is at most this, in the units of the targets
    )
    max_rounds: int  # sweeps, for Algorithm 1
    # Σ_v 1/(1 + μ b_v) of each column, where that sum is known and the single b_v are not
    stays: tuple[float, ...] = ()

    @cached_property
    def n_views(self) -> int:
        """M."""
        return len(self.bounds)

    def met_by(self, gap: float, prediction_bound: float) -> bool:
        """Whether both are within the tolerances."""
        return (
            gap <= self.tolerance * self.initial_objective
            and prediction_bound <= self.prediction_tolerance
        )

    def code_after(self, stated: Certificate, *, stuck: bool, last: bool) -> int:
        """The `Stop` of a column after a verified round, or `RUNNING`."""
        if self.met_by(stated.gap, stated.prediction_bound):
            return Stop.CONVERGED
        return Stop.STAGNATED if stuck else Stop.MAX_ROUNDS if last else RUNNING


def overall_stop(stops: tuple[Stop | None, ...]) -> Stop | None:
    """One stop for all columns: the most severe, or None while any is running."""
    return None if None in stops else max(stop for stop in stops if stop is not None)


@dataclass(frozen=True)
class _Lockstep:
    """Several columns, each with its own stop."""

    terms: Terms
    name: ClassVar[ScheduleName]

    @cached_property
    def weights(self) -> Float64[Arr, " k"]:
        """μ of each column."""
        return np.array(
            [weight_of(self.name, lam, self.terms.n_views) for lam in self.terms.coupling]
        )

    def finished(self, state: Any) -> bool:
        """Every column has stopped."""
        return bool((state.stops != RUNNING).all())

    def progress(self, state: Any) -> Progress | None:
        """At the last complete round; None before the first.

        A column with μ = 0 never moves: its residual counts as 0.
        """
        if np.isinf(state.residual).any():
            return None
        residual = np.where(self.weights == 0.0, 0.0, state.residual)
        stops = tuple(map(_STOPS.get, state.stops.tolist()))
        return Progress(
            state.round, state.verified, residual, state.gap, state.prediction_bound, stops
        )

    def models(self, state: Any) -> FinalTargets | None:
        """The targets of the last verified round."""
        return (
            None
            if np.isinf(state.residual).any()
            else FinalTargets(state.verified_targets, self.weights)
        )


def normalised(directions: Float64[Arr, "m k"]) -> tuple[Float64[Arr, "m k"], Float64[Arr, " k"]]:
    """Each column divided by its largest absolute value, and those values (1 for a column of
    zeros).
    """
    scale = np.maximum(directions.max(axis=0, initial=0.0), -directions.min(axis=0, initial=0.0))
    scale[scale == 0.0] = 1.0
    return directions / scale, scale


PATIENCE = (
    50  # sweeps without a new least gap: Q falls in every exact sweep, so the rest is rounding
)


@dataclass(frozen=True)
class SweepState:
    """``site`` is the next to ask; ``predictions`` are the latest of all sites, ``targets`` those
    of their last answers.
    """

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
    verified: ClassVar[bool] = True  # as every complete sweep is


@dataclass(frozen=True)
class BlockCoordinateDescent(_Lockstep):
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
        return SweepState(0, 0, y, y, y, infinite, infinite, infinite, infinite, codes, codes)

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
class GradientState:
    """The vectors of the recursion, column-major; ``z_verified`` belongs to the last
    certificate.
    """

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
    strikes: Int64[Ints, " k"]
    stops: Int64[Ints, " k"]
    round: int = 0
    ask: int = Next.AFFINE
    since_verified: int = 0  # rounds; the first one is verified

    @property
    def verified(self) -> bool:
        """Whether the figures of the last round are certified; estimates from the recursion
        otherwise.
        """
        return self.since_verified == 0

    @property
    def verified_targets(self) -> Float64[Arr, "1 m k"]:
        """All sites answer at the same z."""
        return self.z_verified[None]


@dataclass(frozen=True)
class ConjugateGradient(_Lockstep):
    r"""Conjugate gradients on z: the default schedule.

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
            z_verified=zero,
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
                return (
                    replace(state, ask=Next.VERIFY)
                    if state.round + 1 >= self.terms.max_rounds
                    else state
                )
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
        return replace(state, ask=ask, since_verified=state.since_verified + 1)

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
            # Exact arithmetic has p·r = ‖r‖². Where that is lost, the old directions are conjugate
            # to a residual that was replaced, and the direction restarts; so it does after the
            # affine round (p = 0).
            if not state.p[:, j].any() or not 0.5 * rr_new < dot(p[:, j], r[:, j]) < 2.0 * rr_new:
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
            z_verified=state.z,
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


Schedule: TypeAlias = ConjugateGradient | BlockCoordinateDescent
SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def make_schedule(name: str, terms: Terms) -> Schedule:
    """The schedule of that name, one of `SCHEDULE_NAMES`."""
    return (
        ConjugateGradient(terms) if name == "conjugate-gradients" else BlockCoordinateDescent(terms)
    )


def run_in_memory(
    schedule: Schedule, views: Sequence[View], on_step: Callable[[Any], None] = lambda _state: None
) -> Any:
    """Step a schedule to its end with all views in memory; sums in site order, as in the
    service.
    """
    state: Any = schedule.start(views[0].n_unlabelled)
    while not schedule.finished(state):
        query = schedule.query(state)
        asked = views if query.site is None else [views[query.site]]
        total = asked[0].respond(query.targets, query.weights, query.part)
        for view in asked[1:]:
            total = total + view.respond(query.targets, query.weights, query.part)
        state = schedule.step(state, total)
        on_step(state)
    return state
