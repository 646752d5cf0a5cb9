"""The stages of an exchange of second moments (`coreg_core.additive.exchange`), as every site counts them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.computation.rounds import Ask, Round
from coreg_core.masking.words import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome

ExchangeStage: TypeAlias = Literal["summary", "announce", "sums", "private", "parts", "end"]
_PHASES = {
    "summary": "labelled individuals",
    "announce": "cross products",
    "sums": "second moments",
    "private": "private rows",
    "parts": "verdicts",
}


@dataclass(frozen=True)
class ExchangeState:
    """The open stage, the words that are added in it, and the stages before."""

    stage: ExchangeStage = "summary"
    added: int = 0
    done: int = 0


@dataclass(frozen=True)
class AdditiveComputation:
    """See `computation.Computation`. The content of a stage is the site's own (`site_agent.machine.additive`)."""

    n_sites: int

    def start(self) -> ExchangeState:
        return ExchangeState()

    def round(self, state: ExchangeState) -> Round:
        """The open stage."""
        assert state.stage != "end"
        layout, every = Layout(state.added, min(state.added, 1), 0), tuple(range(self.n_sites))
        return Round(Ask(state.stage), layout, (), every, state.stage == "parts", phase=_PHASES[state.stage])

    def step(self, state: ExchangeState, asked: Round, values: Arr, scalars: tuple[float, ...]) -> ExchangeState:
        """Not used: a site's own content decides the next stage."""
        raise NotImplementedError

    def rounds(self, state: ExchangeState) -> int:
        return state.done

    def progress(self, state: ExchangeState) -> Progress | None:  # noqa: ARG002
        return None

    def outcome(self, state: ExchangeState) -> tuple[Outcome, str] | None:
        if state.stage != "end":
            return None
        return Outcome.CONVERGED, f"second moments of {self.n_sites} sites, in {state.done} exchanges"

    def final(self, state: ExchangeState) -> tuple[Arr, ...]:  # noqa: ARG002
        """The chain of digests covers the opened sums."""
        return ()
