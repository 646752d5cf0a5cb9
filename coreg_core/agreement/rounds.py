r"""The paper's objective as a federation computes it: what a round asks, and what a sum answers.

    state = rounds.start()
    while state.outcome is None:
        asked = rounds.ask(state)                                 # the question to the sites
        state = rounds.step(state, asked, values, scalars)        # the sum of their answers

    sizes → the questions of a solver (`coreg_core.agreement.solvers`)

Only sums over the sites are known. Of the b_v the largest counts: their eighth powers are summed,
which tells the largest to within a factor M^⅛ (`objective.largest`). Every site evaluates these
pure functions itself, and all end on the same bits (`coreg_core.arrays`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import CoupledColumn, largest, typical_size, weight_of
from coreg_core.agreement.solver import FinalTargets, Progress, Query, SolverTerms, overall_stop
from coreg_core.agreement.solvers import Solver, make_solver
from coreg_core.agreement.views import AnswerPart
from coreg_core.arrays import Arr, norms
from coreg_core.errors import BadData
from coreg_core.objectives.agreement import SIZES, Agreement
from coreg_core.outcomes import Outcome
from coreg_core.secure.sums import Layout, exponents_for
from coreg_core.terms import Iteration

SLACK = 1e-6  # relative: far above the rounding of an honest answer
SOME_SITE = (
    "the sum of the answers {}: some site sends false answers, and a sum does not show which one."
)
_NOTHING: Arr = np.zeros((0, 0))


@dataclass(frozen=True, eq=False)
class RoundQuestion:
    """One question: ``sizes``, or respond(targets, μ) of all sites or one of them.

    ``about``: all of it but long vectors, in canonical form. Sites that ask otherwise open nothing.
    """

    kind: str
    layout: Layout  # of the words that are added, and their exponents
    exponents: tuple[int, ...]
    about: bytes
    part: AnswerPart = "linear"  # of respond; "affine" with labels
    site: int | None = None  # the only one that answers, by position; None: all
    targets: Float64[Arr, "m k"] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, eq=False)
class RoundsState:
    """The sums of the sizes, the solver that follows from them, and how far it has come.

    The solver's terms have M numbers, and M sites answer in every round.
    """

    sums: tuple[float, ...] = ()  # Σ b_v⁸, Σ ‖y_v‖², Σ n_v; of each column Σ 1/(1 + μ b_v)
    solver: Solver | None = None
    inner: Any = None  # the solver's own state
    round: int = 0  # complete ones of the solver
    progress: Progress | None = None  # of the last round; None before the first
    outcome: Outcome | None = None  # how the solver has ended; None while it runs


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

    @cached_property
    def columns(self) -> tuple[CoupledColumn, ...]:
        """λ and μ of each column."""
        name = self.iteration.name
        return tuple(
            CoupledColumn(c, weight_of(name, c, self.n_sites)) for c in self.terms.coupling
        )

    @cached_property
    def weights(self) -> Float64[Arr, " k"]:
        """μ of each column."""
        return np.array([column.weight for column in self.columns])

    @cached_property
    def _layout(self) -> Layout:
        """Of the answers to every question but the first."""
        return Layout(self.n_unlabelled, len(self.columns), 0)

    def _bounds(self, sums: tuple[float, ...]) -> Float64[Arr, " k"]:
        """‖respond(0, μ)‖ ≤ ‖y‖ min(√b, 1/(2√μ)) of each column.

        Each coordinate is s β/(1 + μs²), ‖β‖ ≤ ‖y‖ and s² ≤ b.
        """
        most = sqrt(largest(sums[0]))
        with np.errstate(divide="ignore"):  # μ = 0 bounds nothing
            return sqrt(sums[1]) * np.minimum(most, 0.5 / np.sqrt(self.weights))

    def _solver(self, sums: tuple[float, ...]) -> Solver:
        """The solver of the plan and the sums."""
        powers, squares, labels, *stays = sums
        bound = largest(powers)
        M = self.n_sites
        sweeps = self.iteration.name == "block-coordinate-descent"
        size = typical_size(squares, labels, self.n_unlabelled)
        terms = SolverTerms(
            coupling=self.terms.coupling,
            bounds=(bound,) * M if sweeps else (bound, *(0.0,) * (M - 1)),
            initial_objective=squares,
            tolerance=self.iteration.tolerance,
            prediction_tolerance=self.iteration.prediction_tolerance * size,
            max_rounds=self.iteration.max_rounds,
            stays=() if sweeps else tuple(stays),
        )
        return make_solver(self.iteration.name, terms)

    # --- steps ----------------------------------------------------------------------------------

    def ask(self, state: RoundsState) -> RoundQuestion:
        """The next question to the sites."""
        columns = self.columns
        if state.solver is None:
            layout = Layout(0, 0, SIZES + len(columns))
            return RoundQuestion("sizes", layout, (), _canonical(columns))
        query: Query = state.solver.query(state.inner)
        # ‖R p‖ ≤ ‖p‖, and the bound on the label-bearing part of an answer.
        lengths = norms(query.targets)
        bounds = lengths + self._bounds(state.sums) if query.part == "affine" else lengths
        exponents = exponents_for(bounds, self.n_sites)
        stated = tuple(lengths.tolist())
        return RoundQuestion(
            f"respond {query.part}",
            self._layout,
            exponents,
            _canonical(columns, stated, exponents),
            part=query.part,
            site=query.site,
            targets=query.targets,
        )

    def step(
        self, state: RoundsState, asked: RoundQuestion, values: Arr, scalars: tuple[float, ...]
    ) -> RoundsState:
        """The state after the sum. BadData: honest sites cannot give this sum."""
        if state.solver is None:
            if (fault := scalar_fault(scalars)) is None and scalars[2] < 1.0:
                fault = "counts no label"
            if fault is not None:
                raise BadData(SOME_SITE.format(fault))
            solver = self._solver(scalars)
            return RoundsState(scalars, solver, solver.start(self.n_unlabelled))
        if asked.part == "linear":
            among = self.n_sites if asked.site is None else 1
            fault = norm_fault(asked.targets, values, among)
            if fault is not None:
                raise BadData(SOME_SITE.format(fault))
        inner = state.solver.step(state.inner, values)
        progress = state.solver.progress(inner)
        stop = None if progress is None else overall_stop(progress.stops)
        outcome = None if stop is None else Outcome[stop.name]
        return RoundsState(state.sums, state.solver, inner, inner.round, progress, outcome)

    def models(self, state: RoundsState) -> FinalTargets | None:
        """The targets of the sites' models; None if no round was verified."""
        if state.solver is None:
            return None
        return state.solver.models(state.inner)


def _canonical(*values: Any) -> bytes:
    """JSON of columns and numbers; a float as its shortest exact decimal."""
    return json.dumps(values, separators=(",", ":"), default=vars).encode()


def scalar_fault(scalars: Sequence[float]) -> str | None:
    """The reason why honest sites cannot give these sizes and counts; None if they can."""
    if not np.isfinite(scalars).all():
        return "has a scalar that is not finite"
    if all(x >= 0.0 for x in scalars):
        return None
    return "has a size below zero"


def norm_fault(targets: Float64[Arr, "m k"], total: Float64[Arr, "m k"], gain: float) -> str | None:
    """The reason why ``total`` is no sum of linear answers to these columns, or None.

    Honest answers have at most ``gain`` times the norms of the columns in all.
    """
    if (norms(total) <= gain * (1.0 + SLACK) * norms(targets)).all():  # a NaN is not
        return None
    return "is longer than the question allows"
