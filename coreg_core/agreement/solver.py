r"""The solvers of the agreement: values that a driver steps from outside, over a state that can
be written down.

    state = solver.start(m)
    while not solver.finished(state):
        query = solver.query(state)                   # which sites, what targets, what weights
        state = solver.step(state, total)             # the sum of their answers, taken in site
        order

Only the *sum* of the answers is ever used (docs/research/mathematics.md). Methods never change the
state that they are given.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import Certificate, weight_of
from coreg_core.agreement.views import AnswerPart
from coreg_core.arrays import Arr, Ints
from coreg_core.terms import SolverName


class Stop(IntEnum):
    """How a column of a solver ended, in the order of severity.

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
    part: AnswerPart
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
class SolverTerms:
    """The federation's figures for a solver. Frozen: another membership means other terms."""

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
    if None in stops:
        return None
    return max(stop for stop in stops if stop is not None)


@dataclass(frozen=True, kw_only=True)
class SolverState:
    """What a state of every solver has; figures are by column."""

    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    stops: Int64[Ints, " k"]
    verified_targets: Float64[Arr, "s m k"]  # those of the last verified round
    round: int = 0
    verified: bool = True  # whether the figures are certified, or estimates of the recursion

    @property
    def has_figures(self) -> bool:
        """Whether a round is complete."""
        return not np.isinf(self.residual).any()


@dataclass(frozen=True)
class Lockstep:
    """Several columns, each with its own stop."""

    terms: SolverTerms
    name: ClassVar[SolverName]

    @cached_property
    def weights(self) -> Float64[Arr, " k"]:
        """μ of each column."""
        return np.array(
            [weight_of(self.name, lam, self.terms.n_views) for lam in self.terms.coupling]
        )

    def finished(self, state: SolverState) -> bool:
        """Every column has stopped."""
        return bool((state.stops != RUNNING).all())

    def progress(self, state: SolverState) -> Progress | None:
        """At the last complete round; None before the first.

        A column with μ = 0 never moves: its residual counts as 0.
        """
        if not state.has_figures:
            return None
        residual = np.where(self.weights == 0.0, 0.0, state.residual)
        stops = tuple(map(_STOPS.get, state.stops.tolist()))
        return Progress(
            state.round, state.verified, residual, state.gap, state.prediction_bound, stops
        )

    def models(self, state: SolverState) -> FinalTargets | None:
        """The targets of the last verified round."""
        if not state.has_figures:
            return None
        return FinalTargets(state.verified_targets, self.weights)
