r"""Shared by both schedules: the query, the terms, the stop, and the protocol of a value stepped from outside.

A driver does

    state = schedule.start(m)
    while not schedule.finished(state):
        query = schedule.query(state)                   # which sites, what targets, what weights
        state = schedule.step(state, total)             # the sum of their answers, taken in site order

Only the *sum* of the answers is ever used (docs/research/mathematics.md). A state is a frozen dataclass of arrays and integers.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.objective import Certificate
from coreg_core.agreement.views import Part
from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr, Ints

_FEW_COLUMNS, _PIECE = 4, 8192  # numbers of a column at a time


class Stop(Enum):
    """How a column of a schedule ended. How a run ended is `coreg_core.protocol.outcomes.Outcome`."""

    CONVERGED = "both certificates fell below the tolerances"
    STAGNATED = "the verified residual no longer falls"
    MAX_ROUNDS = "max_rounds was reached before the tolerances"


# State of a column: 0 is running. The order is that of severity, for columns that differ.
_COLUMN_STOPS = (None, Stop.CONVERGED, Stop.STAGNATED, Stop.MAX_ROUNDS)


@dataclass(frozen=True)
class Query:
    """respond(targets, weights), asked of every site, or of one."""

    targets: Float64[Arr, "m k"]
    weights: Float64[Arr, " k"]
    part: Part
    site: int | None = None  # position in site order; None: all of them


@dataclass(frozen=True)
class Progress:
    """Progress at the last step, by column. ``gap`` and ``prediction_bound`` are certified iff ``verified``."""

    round: int
    verified: bool
    residual: Float64[Arr, " k"]
    gap: Float64[Arr, " k"]
    prediction_bound: Float64[Arr, " k"]
    stops: tuple[Stop | None, ...]


@dataclass(frozen=True)
class FinalTargets:
    """The models of the last verified round: site v answers (``targets[v]``, ``weights``), v counted in site order.

    ``targets`` is (1, m, k) where all sites share one, and (M, m, k) for Algorithm 1. ``beside``: sums that accompany them (the
    forecast of an additive training).
    """

    targets: Float64[Arr, "s m k"]
    weights: Float64[Arr, " k"]
    beside: tuple[float, ...] = ()

    def of(self, site: int) -> Float64[Arr, "m k"]:
        """The target of the site at that position."""
        target: Arr = self.targets[site if len(self.targets) > 1 else 0]
        return target


@dataclass(frozen=True)
class Terms:
    """The federation's figures for a schedule. Frozen: another membership means other terms.

    Parameters
    ----------
    coupling
        λ, one for each column.
    bounds
        b_v in site order.
    initial_objective
        Q(0) = Σ ‖y_v‖², or Σ n_v where targets are standardised.
    tolerance
        stop when gap ≤ tolerance · initial_objective and ...
    prediction_tolerance
        ... the prediction bound is at most this, in the units of the targets.
    max_rounds
        most rounds in all (sweeps, for Algorithm 1).
    stays
        Σ_v 1/(1 + μ b_v) of each column, if that sum is known and the single b_v are not; () if they are.
    """

    coupling: tuple[float, ...]
    bounds: tuple[float, ...]
    initial_objective: float
    tolerance: float
    prediction_tolerance: float
    max_rounds: int
    stays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = np.array(
            (*self.coupling, *self.bounds, self.initial_objective, self.tolerance, self.prediction_tolerance)
        )
        if not self.coupling or not self.bounds or not (np.isfinite(numbers) & (numbers >= 0)).all():
            raise UsageError(
                f"{self}: couplings, bounds and tolerances are finite numbers of at least 0, at least one each."
            )
        if self.max_rounds < 1:
            raise UsageError(f"max_rounds={self.max_rounds}: needs at least 1.")

    @property
    def n_views(self) -> int:
        """M."""
        return len(self.bounds)

    @property
    def n_columns(self) -> int:
        """k."""
        return len(self.coupling)

    def met_by(self, gap: float, prediction_bound: float) -> bool:
        """Whether both are within the tolerances."""
        return gap <= self.tolerance * self.initial_objective and prediction_bound <= self.prediction_tolerance

    def code_after(self, stated: Certificate, *, stuck: bool, last: bool) -> int:
        """The state of a column after a verified round: 0 while it runs."""
        if self.met_by(stated.gap, stated.prediction_bound):
            return code_of(Stop.CONVERGED)
        return code_of(Stop.STAGNATED) if stuck else code_of(Stop.MAX_ROUNDS) if last else 0


@runtime_checkable
class State(Protocol):
    """Fields that every state has; each schedule adds its own."""

    @property
    def round(self) -> int:
        """Rounds (sweeps) that are complete."""
        ...


S = TypeVar("S", bound=State)


def shown_residual(residual: Float64[Arr, " k"], weights: Float64[Arr, " k"]) -> Float64[Arr, " k"]:
    """The residuals for progress reports: 0 where μ = 0, because such a column never moves."""
    return np.where(weights == 0.0, 0.0, residual)


@runtime_checkable
class Schedule(Protocol[S]):
    """Pure steps over a state. Methods never change the state that they are given."""

    @property
    def terms(self) -> Terms:
        """The federation's figures."""
        ...

    def start(self, n_unlabelled: int) -> S:
        """The first state."""
        ...

    def query(self, state: S) -> Query:
        """The next question."""
        ...

    def step(self, state: S, total: Float64[Arr, "m k"]) -> S:
        """The state after the sum of the answers."""
        ...

    def progress(self, state: S) -> Progress | None:
        """Progress at the last complete round; None before the first."""
        ...

    def finished(self, state: S) -> bool:
        """Every column has stopped."""
        ...

    def models(self, state: S) -> FinalTargets | None:
        """The models of the last verified round; None before the first."""
        ...


def stops_of(codes: Int64[Ints, " k"]) -> tuple[Stop | None, ...]:
    """The stops behind a state's integer codes."""
    return tuple(_COLUMN_STOPS[code] for code in codes)


def code_of(stop: Stop) -> int:
    """The integer code under which a state keeps a column's stop."""
    return _COLUMN_STOPS.index(stop)


def overall_stop(stops: tuple[Stop | None, ...]) -> Stop | None:
    """One stop for all columns: the most severe, or None while any is running."""
    codes = [_COLUMN_STOPS.index(s) for s in stops]
    return None if 0 in codes else _COLUMN_STOPS[max(codes)]


def progress_of(state: Any, weights: Float64[Arr, " k"], *, verified: bool) -> Progress | None:
    """Progress at the last complete round, from a state's fields of the same names; None before the first."""
    if np.isinf(state.residual).any():
        return None
    residual = shown_residual(state.residual, weights)
    return Progress(state.round, verified, residual, state.gap, state.prediction_bound, stops_of(state.stops))


def all_stopped(state: Any) -> bool:
    """Every column has stopped."""
    return bool((state.stops > 0).all())


def divided(values: Float64[Arr, "m k"], by: float) -> Float64[Arr, "m k"]:
    """The quotients, column-major. With many columns, whole columns would compete for cache lines; in pieces the data stays
    in the cache, at a fifth of the time."""
    if values.shape[1] <= _FEW_COLUMNS or values.flags.f_contiguous:
        return np.divide(values, by, order="F")
    out = np.empty(values.shape, order="F")
    for start in range(0, len(values), _PIECE):
        rows = slice(start, start + _PIECE)
        np.divide(values[rows], by, out=out[rows])
    return out


def normalised(directions: Float64[Arr, "m k"]) -> tuple[Float64[Arr, "m k"], Float64[Arr, " k"]]:
    """Each column divided by its largest absolute value, and those values (1 for a column of zeros)."""
    scale = np.maximum(directions.max(axis=0, initial=0.0), -directions.min(axis=0, initial=0.0))
    scale[scale == 0.0] = 1.0
    return directions / scale, scale
