"""The phases of a run with their transitions, and the records from which a run is known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from coreg_core.messages import Countersigned, Report
from coreg_core.outcomes import Outcome


class Phase(Enum):
    """The phase of a run."""

    ENROLLING = "waiting for sites to join"
    PLANNING = "waiting for sites to accept the plan"
    ASKING = "waiting for the answers to a step"
    STALLED = "waiting for sites that are missing"
    ENDING = "over; connected sites receive the end"
    DONE = "over"


class Transition(Enum):
    """A change of phase."""

    PROPOSED = "the plan is sent for a new attempt"
    ASKED = "a step is sent"
    STALLED = "too few sites answered in time"
    ENDED = "the run has an outcome"
    CLOSED = "no site is awaited"
    INTERRUPTED = "the operator stops the process"


_OPEN = {  # of every open phase
    Transition.PROPOSED: Phase.PLANNING,
    Transition.ENDED: Phase.ENDING,
    Transition.INTERRUPTED: Phase.DONE,
}
_ASKED = {Transition.ASKED: Phase.ASKING}
TRANSITIONS: Mapping[Phase, Mapping[Transition, Phase]] = {
    Phase.ENROLLING: _OPEN,
    Phase.PLANNING: _OPEN | _ASKED,
    Phase.ASKING: _OPEN | {Transition.STALLED: Phase.STALLED},
    Phase.STALLED: _OPEN | _ASKED,
    Phase.ENDING: {Transition.CLOSED: Phase.DONE, Transition.INTERRUPTED: Phase.DONE},
    Phase.DONE: {},
}


class InvalidTransition(AssertionError):
    """The table does not have this transition: a defect of ours."""


def next_phase(phase: Phase, turn: Transition) -> Phase:
    try:
        return TRANSITIONS[phase][turn]
    except KeyError:
        raise InvalidTransition(
            f"{phase.name} has no transition {turn.name}; the table has {list(TRANSITIONS[phase])}."
        ) from None


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a run, in seconds.

    `approval` is for a site's operator, the others are for machines.
    """

    join: float = 600.0
    plan: float = 600.0
    approval: float = 86_400.0
    round: float = 60.0
    stall: float = 600.0


Sites: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class AttemptBegan:
    """An attempt begins with these sites, in site order."""

    attempt: int
    participants: Sites


@dataclass(frozen=True)
class StepDone:
    """All sites have answered; ``number`` counts the steps of a run over its attempts."""

    number: int
    attempt: int
    answered: int
    report: Report
    phase: str = ""  # of the report's question


@dataclass(frozen=True)
class Ended:
    """The run has ended. If the computation has ended, all participants have stored its result."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class HeadSigned:
    """The head of a site's ledger at the time of its `Fetched`, with both signatures.

    It has no effect on the run.
    """

    site: str
    signature: str
    certificate: str  # the site's, DER, hexadecimal
    receipt: Countersigned  # without the site's own signature

    @property
    def message(self) -> Countersigned:
        """The receipt as the site gets it."""
        return replace(self.receipt, site_signature=self.signature)


@dataclass(frozen=True)
class Timing:
    """Duration of one step, from sending to the last answer, and the bytes in that time."""

    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


def worst(figures: Iterable[float]) -> float | None:
    """The figure of the worst column; -1 means that a column has none."""
    return max((figure for figure in figures if figure >= 0.0), default=None)


Record: TypeAlias = AttemptBegan | StepDone | Ended | HeadSigned


@dataclass(frozen=True)
class Begun:
    """What the store has of an unfinished run: its last attempt (-1: none yet) and the number of
    steps of all.
    """

    attempt: int = -1
    participants: Sites = ()
    steps: int = 0


NOT_BEGUN = Begun()
