r"""The paper's objective as a federation computes it: what a round asks, and what a sum answers.

    state = rounds.start()
    while rounds.outcome(state) is None:
        asked = rounds.ask(state)                                 # the question to the sites
        state = rounds.step(state, asked, values, scalars)        # the sum of their answers

    sizes → the questions of a schedule (`coreg_core.agreement.schedules`)

Only sums over the sites are known. Of the b_v the largest counts: their eighth powers are summed,
which tells the largest to within a factor M^⅛ (`objective.largest`). Every site evaluates these
pure functions itself, and all end on the same bits (`coreg_core.arrays`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import Column, largest, typical_size, weight_of
from coreg_core.agreement.schedules import (
    FinalTargets,
    Progress,
    Query,
    Schedule,
    Terms,
    make_schedule,
    overall_stop,
)
from coreg_core.agreement.views import Part
from coreg_core.arrays import Arr, norms
from coreg_core.errors import BadData
from coreg_core.objectives.agreement import SIZES, Agreement
from coreg_core.objectives.setting import Iteration
from coreg_core.outcomes import Outcome
from coreg_core.secure.sums import Layout, exponent_for

SLACK = 1e-6  # relative: far above the rounding of an honest answer
SOME_SITE = (
    "the sum of the answers {}: some site sends false answers, and a sum does not show which one."
)
_NOTHING: Arr = np.zeros((0, 0))


@dataclass(frozen=True, eq=False)
class Asked:
    """One question: ``sizes``, or respond(targets, μ) of all sites or one of them."""

    kind: str
    layout: Layout  # of the words that are added, and their exponents
    exponents: tuple[int, ...]
    columns: tuple[Column, ...]  # a coupling each
    site: int | None = None  # the only one that answers, by position; None: all
    targets: Float64[Arr, "m k"] = field(default_factory=lambda: _NOTHING)
    norms: tuple[float, ...] = ()  # of the targets

    @property
    def part(self) -> Part:
        """The part of respond: "affine", or "linear" without labels."""
        return "affine" if self.kind == "respond affine" else "linear"

    @property
    def about(self) -> bytes:
        """All of it but long vectors, in canonical form: sites that ask otherwise open nothing."""
        columns = [asdict(column) for column in self.columns]
        values = [columns, list(self.norms), list(self.exponents)]
        return json.dumps(values, separators=(",", ":"), default=float.hex).encode()


@dataclass(frozen=True, eq=False)
class RoundsState:
    """The sums of the sizes, and the schedule that follows from them.

    The schedule's terms have M numbers, and M sites answer in every round.
    """

    sums: tuple[float, ...] = ()  # Σ b_v⁸, Σ ‖y_v‖², Σ n_v; of each column Σ 1/(1 + μ b_v)
    schedule: Schedule | None = None
    inner: Any = None  # the schedule's own state


@dataclass(frozen=True)
class Rounds:
    """See the module's docstring."""

    terms: Agreement
    iteration: Iteration
    n_sites: int
    n_unlabelled: int

    def start(self) -> RoundsState:
        """Before the sizes are known."""
        return RoundsState()

    # --- terms from the sums --------------------------------------------------------------------

    @property
    def columns(self) -> tuple[Column, ...]:
        """λ and μ of each column."""
        name = self.iteration.name
        return tuple(Column(c, weight_of(name, c, self.n_sites)) for c in self.terms.coupling)

    def _bounds(self, state: RoundsState) -> list[float]:
        """‖respond(0, μ)‖ ≤ ‖y‖ min(√b, 1/(2√μ)) of each column.

        Each coordinate is s β/(1 + μs²), ‖β‖ ≤ ‖y‖ and s² ≤ b.
        """
        most = sqrt(largest(state.sums[0]))
        norm = sqrt(state.sums[1])
        weights = [column.weight for column in self.columns]
        return [norm * (most if mu == 0.0 else min(most, 0.5 / sqrt(mu))) for mu in weights]

    def _schedule(self, sums: tuple[float, ...]) -> Schedule:
        """The schedule of the plan and the sums."""
        powers, squares, labels, *stays = sums
        bound = largest(powers)
        M = self.n_sites
        sweeps = self.iteration.name == "block-coordinate-descent"
        size = typical_size(squares, labels, self.n_unlabelled)
        terms = Terms(
            coupling=self.terms.coupling,
            bounds=(bound,) * M if sweeps else (bound, *(0.0,) * (M - 1)),
            initial_objective=squares,
            tolerance=self.iteration.tolerance,
            prediction_tolerance=self.iteration.prediction_tolerance * size,
            max_rounds=self.iteration.max_rounds,
            stays=() if sweeps else tuple(stays),
        )
        return make_schedule(self.iteration.name, terms)

    # --- steps ----------------------------------------------------------------------------------

    def ask(self, state: RoundsState) -> Asked:
        """The next question to the sites."""
        columns = self.columns
        if state.schedule is None:
            return Asked("sizes", Layout(0, 0, SIZES + len(columns)), (), columns)
        query: Query = state.schedule.query(state.inner)
        own = self._bounds(state) if query.part == "affine" else [0.0] * len(columns)
        # ‖R p‖ ≤ ‖p‖, and the bound on the label-bearing part of an answer.
        lengths = tuple(norms(query.targets).tolist())
        bounds = [bound + norm for bound, norm in zip(own, lengths, strict=True)]
        return Asked(
            f"respond {query.part}",
            Layout(self.n_unlabelled, len(columns), 0),
            tuple(exponent_for(bound, self.n_sites) for bound in bounds),
            columns,
            site=query.site,
            targets=query.targets,
            norms=lengths,
        )

    def step(
        self, state: RoundsState, asked: Asked, values: Arr, scalars: tuple[float, ...]
    ) -> RoundsState:
        """The state after the sum. BadData: honest sites cannot give this sum."""
        if state.schedule is None:
            if (fault := scalar_fault(scalars)) is None and scalars[2] < 1.0:
                fault = "counts no label"
            if fault is not None:
                raise BadData(SOME_SITE.format(fault))
            schedule = self._schedule(scalars)
            return RoundsState(scalars, schedule, schedule.start(self.n_unlabelled))
        among = self.n_sites if asked.site is None else 1
        if asked.part == "linear":
            fault = norm_fault(asked.targets, values, among)
            if fault is not None:
                raise BadData(SOME_SITE.format(fault))
        return replace(state, inner=state.schedule.step(state.inner, values))

    # --- results --------------------------------------------------------------------------------

    def rounds(self, state: RoundsState) -> int:
        """Complete rounds of the schedule."""
        return 0 if state.inner is None else int(state.inner.round)

    def progress(self, state: RoundsState) -> Progress | None:
        """The figures of the last round; None before the first."""
        return None if state.schedule is None else state.schedule.progress(state.inner)

    def outcome(self, state: RoundsState) -> Outcome | None:
        """How the schedule has ended; None while it runs."""
        if state.schedule is None or not state.schedule.finished(state.inner):
            return None
        progress = self.progress(state)
        stop = None if progress is None else overall_stop(progress.stops)
        return Outcome.MAX_ROUNDS if stop is None else Outcome[stop.name]

    def models(self, state: RoundsState) -> FinalTargets | None:
        """The targets of the sites' models; None if no round was verified."""
        return None if state.schedule is None else state.schedule.models(state.inner)


def scalar_fault(scalars: Sequence[float]) -> str | None:
    """The reason why honest sites cannot give these sizes and counts; None if they can."""
    if not np.isfinite(scalars).all():
        return "has a scalar that is not finite"
    return None if all(x >= 0.0 for x in scalars) else "has a size below zero"


def norm_fault(targets: Float64[Arr, "m k"], total: Float64[Arr, "m k"], gain: float) -> str | None:
    """The reason why ``total`` is no sum of linear answers to these columns, or None.

    Honest answers have at most ``gain`` times the norms of the columns in all.
    """
    if (norms(total) <= gain * (1.0 + SLACK) * norms(targets)).all():  # a NaN is not
        return None
    return "is longer than the question allows"
