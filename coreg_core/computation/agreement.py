r"""The paper's objective as a federation computes it: a schedule of `coreg_core.agreement.schedules` over sums of answers.

    sizes → the schedule's questions

Only sums over the sites are known. Of the b_v the largest counts: their eighth powers are summed, which tells the
largest to within a factor M^⅛ (`objective.largest`).
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

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
from coreg_core.arrays import Arr, norms
from coreg_core.computation.question import SOME_SITE, Question, norm_fault, scalar_fault
from coreg_core.errors import BadData
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_core.outcomes import Outcome
from coreg_core.secure.sums import Layout, exponent_for

SIZES = 3  # Σ b_v⁸, Σ ‖y_v‖², Σ n_v; then of each column Σ 1/(1 + μ b_v)


@dataclass(frozen=True, eq=False)
class AgreementState:
    """The sums of `SIZES`, and the schedule that follows from them: its terms have M numbers, and M sites ask in every round."""

    sums: tuple[float, ...] = ()
    schedule: Schedule | None = None
    inner: Any = None  # the schedule's own state


@dataclass(frozen=True)
class AgreementComputation:
    """See the package's docstring."""

    terms: Agreement
    iteration: Iteration
    n_sites: int
    n_unlabelled: int

    def start(self) -> AgreementState:
        return AgreementState()

    # --- terms from the sums --------------------------------------------------------------------------------------

    def _columns(self) -> tuple[Column, ...]:
        return tuple(
            Column(c, weight_of(self.iteration.name, c, self.n_sites)) for c in self.terms.coupling
        )

    def _bounds(self, state: AgreementState) -> list[float]:
        """‖respond(0, μ)‖ ≤ ‖y‖ min(√b, 1/(2√μ)) of each column: each coordinate is s β/(1 + μs²), ‖β‖ ≤ ‖y‖ and s² ≤ b."""
        most, norm = sqrt(largest(state.sums[0])), sqrt(state.sums[1])
        weights = [column.weight for column in self._columns()]
        return [norm * (most if mu == 0.0 else min(most, 0.5 / sqrt(mu))) for mu in weights]

    def _schedule(self, state: AgreementState) -> Schedule:
        """The schedule of the plan and the sums."""
        powers, norms, labels, *stays = state.sums
        bound, M, sweeps = (
            largest(powers),
            self.n_sites,
            self.iteration.name == "block-coordinate-descent",
        )
        terms = Terms(
            coupling=self.terms.coupling,
            bounds=(bound,) * M if sweeps else (bound, *(0.0,) * (M - 1)),
            initial_objective=norms,
            tolerance=self.iteration.tolerance,
            prediction_tolerance=self.iteration.prediction_tolerance
            * typical_size(norms, labels, self.n_unlabelled),
            max_rounds=self.iteration.max_rounds,
            stays=() if sweeps else tuple(stays),
        )
        return make_schedule(self.iteration.name, terms)

    # --- steps ----------------------------------------------------------------------------------------------------

    def round(self, state: AgreementState) -> Question:
        """The next question to the sites."""
        all_sites = tuple(range(self.n_sites))
        columns = self._columns()
        if not state.sums:
            layout = Layout(0, 0, SIZES + len(columns))
            return Question("sizes", layout, (), all_sites, columns=columns)
        assert state.schedule is not None
        query: Query = state.schedule.query(state.inner)
        own = self._bounds(state) if query.part == "affine" else [0.0] * len(columns)
        # ‖R p‖ ≤ ‖p‖, and the bound on the label-bearing part of an answer.
        lengths = tuple(norms(query.targets).tolist())
        bounds = [b + norm for b, norm in zip(own, lengths, strict=True)]
        return Question(
            f"respond {query.part}",
            Layout(self.n_unlabelled, len(columns), 0),
            tuple(exponent_for(bound, self.n_sites) for bound in bounds),
            all_sites if query.site is None else (query.site,),
            columns=columns,
            targets=query.targets,
            norms=lengths,
        )

    def step(
        self, state: AgreementState, asked: Question, values: Arr, scalars: tuple[float, ...]
    ) -> AgreementState:
        """The state after the sum. BadData: honest sites cannot give this sum."""
        match asked.kind:
            case "sizes":
                if (wrong := scalar_fault(scalars)) is not None or scalars[2] < 1.0:
                    raise BadData(SOME_SITE.format(wrong or "counts no label"))
                state = replace(state, sums=scalars)
                schedule = self._schedule(state)
                return replace(state, schedule=schedule, inner=schedule.start(self.n_unlabelled))
            case _:
                assert state.schedule is not None
                among = len(asked.answering)
                if (
                    asked.part == "linear"
                    and (wrong := norm_fault(asked.targets, values, among)) is not None
                ):
                    raise BadData(SOME_SITE.format(wrong))
                return replace(state, inner=state.schedule.step(state.inner, values))

    # --- results -------------------------------------------------------------------------------------------------

    def rounds(self, state: AgreementState) -> int:
        """Complete rounds of the schedule."""
        return 0 if state.inner is None else int(state.inner.round)

    def portion(self, state: AgreementState) -> None:
        """How much is done is not known."""

    def progress(self, state: AgreementState) -> Progress | None:
        """That of the schedule."""
        return None if state.schedule is None else state.schedule.progress(state.inner)

    def outcome(self, state: AgreementState) -> tuple[Outcome, str] | None:
        """How the schedule has ended; None while it runs."""
        if state.schedule is None or not state.schedule.finished(state.inner):
            return None
        progress = self.progress(state)
        stop = None if progress is None else overall_stop(progress.stops)
        return (Outcome.MAX_ROUNDS if stop is None else Outcome[stop.name]), ""

    def models(self, state: AgreementState) -> FinalTargets | None:
        """The targets of the sites' models; None if no round was verified."""
        return None if state.schedule is None else state.schedule.models(state.inner)

    def columns(self, state: AgreementState) -> tuple[Column, ...]:  # noqa: ARG002
        """λ and μ of each model."""
        return self._columns()
