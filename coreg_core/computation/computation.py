"""The interface between the life of a run and its computation: a value stepped from outside over an immutable state.

    state = computation.start()
    while computation.outcome(state) is None:
        asked = computation.round(state)                            # the question to the sites
        state = computation.step(state, asked, values, scalars)     # the sum of their answers

Every site takes these steps by itself and ends on the same bits (`coreg_core.numerics.sums`).
"""

from typing import Any, Protocol, runtime_checkable

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.computation.additive import AdditiveComputation
from coreg_core.computation.agreement import AgreementComputation
from coreg_core.computation.alignment import AlignmentComputation
from coreg_core.computation.rounds import Round
from coreg_core.computation.scoring import ScoringComputation
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan


@runtime_checkable
class Computation(Protocol):
    """Pure functions of a state, for one membership; none changes its arguments."""

    def start(self) -> Any:
        """The first state.

        Raises
        ------
        UsageError
            the plan cannot be carried out with so many instances.
        """
        ...

    def round(self, state: Any) -> Round:
        """The next question to the sites."""
        ...

    def step(self, state: Any, asked: Round, values: Arr, scalars: tuple[float, ...]) -> Any:
        """The state after the sum of the answers.

        Raises
        ------
        BadData
            the sum is insufficient, or honest sites cannot give it.
        """
        ...

    def rounds(self, state: Any) -> int:
        """Complete rounds, as an operator counts them."""
        ...

    def progress(self, state: Any) -> Progress | None: ...

    def outcome(self, state: Any) -> tuple[Outcome, str] | None:
        """The outcome, with details beyond its standard text; None while the computation runs."""
        ...

    def final(self, state: Any) -> tuple[Arr, ...]:
        """The part of a finished computation that must be equal at every site."""
        ...


def computation_of(plan: Plan, n_sites: int, n_unlabelled: int) -> Computation:
    """The computation of this plan with so many sites and shared instances."""
    match plan.objective:
        case Agreement() as terms:
            return AgreementComputation(terms, plan.iteration, n_sites, n_unlabelled)
        case Additive():
            return AdditiveComputation(n_sites)
        case Alignment() as terms:
            return AlignmentComputation(terms, n_sites)
        case _:
            return ScoringComputation(n_sites, n_unlabelled)
