"""The phases of a run and the table of their transitions. docs/reference/protocol.md shows the table.

A handler (membership.py, steps.py, ending.py) turns an event into at most one `Transition`, and the table gives the next
phase. A transition that the table does not have is a defect of ours and raises `InvalidTransition`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


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
    Phase.ASKING: _OPEN | _ASKED | {Transition.STALLED: Phase.STALLED},
    Phase.STALLED: _OPEN | _ASKED,
    Phase.ENDING: {Transition.CLOSED: Phase.DONE, Transition.INTERRUPTED: Phase.DONE},
    Phase.DONE: {},
}


class InvalidTransition(AssertionError):
    """The table does not have this transition: a defect of ours."""


def next_phase(phase: Phase, turn: Transition) -> Phase:
    """The phase after this transition."""
    try:
        return TRANSITIONS[phase][turn]
    except KeyError:
        raise InvalidTransition(
            f"{phase.name} has no transition {turn.name}; the table has {list(TRANSITIONS[phase])}."
        ) from None


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a run, in seconds. `approval` is for a site's operator, the others are for machines."""

    join: float = 600.0
    plan: float = 600.0
    approval: float = 86_400.0
    round: float = 60.0
    stall: float = 600.0
