"""Joint scoring as a federation computes it: one sum of the sites' parts, for its receivers."""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.computation.rounds import Ask, Round
from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.masking.words import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome


@dataclass(frozen=True, eq=False)
class ScoringState:
    """Σ ‖part_v‖² once it is known, and the sums (m, 1) once they are; (0, 0) if this site is no receiver."""

    size: float = -1.0
    scores: Float64[Arr, "l k"] | None = None


@dataclass(frozen=True)
class ScoringComputation:
    """See `computation.Computation`. Every site takes part, since a score has every part in it."""

    n_sites: int
    n_unlabelled: int

    def start(self) -> ScoringState:
        return ScoringState()

    def round(self, state: ScoringState) -> Round:
        """The joint size of the parts; then the parts."""
        all_sites = tuple(range(self.n_sites))
        if state.size < 0.0:
            return Round(Ask("sizes"), Layout(0, 0, 1), (), all_sites, phase="preliminary")
        exponents = (exponent_for(sqrt(state.size), self.n_sites),)
        return Round(Ask("score"), Layout(self.n_unlabelled, 1, 0), exponents, all_sites, True, True, phase="scores")

    def step(self, state: ScoringState, asked: Round, values: Arr, scalars: tuple[float, ...]) -> ScoringState:  # noqa: ARG002
        """The state after the sum, which is the result.

        Raises
        ------
        BadData
            no size.
        """
        if state.size < 0.0:
            if not (np.isfinite(scalars[0]) and scalars[0] >= 0.0):
                raise BadData("the parts have no size that could be summed.")
            return replace(state, size=scalars[0])
        return replace(state, scores=values)

    def rounds(self, state: ScoringState) -> int:
        return int(state.scores is not None)

    def progress(self, state: ScoringState) -> Progress | None:  # noqa: ARG002
        return None

    def outcome(self, state: ScoringState) -> tuple[Outcome, str] | None:
        if state.scores is None:
            return None
        return Outcome.CONVERGED, f"{self.n_unlabelled} instances scored together by {self.n_sites} sites"

    def final(self, state: ScoringState) -> tuple[Arr, ...]:  # noqa: ARG002
        """Not every site has the scores."""
        return ()
