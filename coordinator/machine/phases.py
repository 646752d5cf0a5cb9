"""Where a run can be and what leads from where to where: the table that decides, and the diagram drawn from it.

An event is first understood (membership.py, steps.py, delivery.py): it may come to a `Transition`, or to nothing.
The table then says in which phase the run is; a turn that it does not have is a defect, and says so. docs/protocol.md
shows the diagram.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """Where a run is."""

    ENROLLING = "waiting for sites to join"
    RETURNING = "taken up again: waiting for the sites that took part to come back and accept the plan"
    PLANNING = "waiting for sites to accept the plan"
    ASKING = "waiting for the answers to a step"
    STALLED = "waiting for sites that are missing"
    DELIVERING = "over; sites are fetching their models"
    DONE = "over"


class Transition(Enum):
    """What an event came to."""

    PROPOSED = "the plan goes out, for a new attempt"
    ASKED = "a step goes out"
    STALLED = "too few answered in time"
    ENDED = "the run has an outcome"
    CLOSED = "nobody is waited for any more"
    INTERRUPTED = "the operator wants to stop"


TRANSITIONS: Mapping[Phase, Mapping[Transition, Phase]] = {
    Phase.ENROLLING: {
        Transition.PROPOSED: Phase.PLANNING,
        Transition.ENDED: Phase.DELIVERING,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.RETURNING: {
        Transition.PROPOSED: Phase.PLANNING,
        Transition.ASKED: Phase.ASKING,
        Transition.ENDED: Phase.DELIVERING,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.PLANNING: {
        Transition.PROPOSED: Phase.PLANNING,
        Transition.ASKED: Phase.ASKING,
        Transition.ENDED: Phase.DELIVERING,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.ASKING: {
        Transition.ASKED: Phase.ASKING,
        Transition.PROPOSED: Phase.PLANNING,
        Transition.STALLED: Phase.STALLED,
        Transition.ENDED: Phase.DELIVERING,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.STALLED: {
        Transition.ASKED: Phase.ASKING,
        Transition.PROPOSED: Phase.PLANNING,
        Transition.ENDED: Phase.DELIVERING,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.DELIVERING: {
        Transition.CLOSED: Phase.DONE,
        Transition.INTERRUPTED: Phase.DONE,
    },
    Phase.DONE: {},
}


class InvalidTransition(AssertionError):
    """A phase was asked to take a turn that the table does not have: a defect of ours."""


def next_phase(phase: Phase, turn: Transition) -> Phase:
    """Where this turn leads.

    Raises
    ------
    InvalidTransition
        nowhere; the message names both.
    """
    try:
        return TRANSITIONS[phase][turn]
    except KeyError:
        raise InvalidTransition(
            f"{phase.name} has no turn {turn.name}; the table has {list(TRANSITIONS[phase])}."
        ) from None


@dataclass(frozen=True)
class Timeouts:
    """The timeouts of a run, in seconds. `approval` is for a site's operator, the others are for machines.

    ``min_bandwidth`` is in bytes a second. It extends ``round`` for a vector in transfer (slow_links.py).
    """

    join: float = 600.0
    plan: float = 600.0
    approval: float = 86_400.0
    round: float = 60.0
    stall: float = 600.0
    min_bandwidth: float = 10_000.0


def state_diagram(transitions: Mapping[Phase, Mapping[Transition, Phase]] = TRANSITIONS) -> str:
    """The table as a Mermaid diagram, for docs/protocol.md; a test keeps the two alike."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {phase.name}" for phase in (Phase.ENROLLING, Phase.RETURNING, Phase.DELIVERING)]
    for phase, row in transitions.items():
        lines += [f"    {phase.name} --> {target.name}: {turn.name}" for turn, target in row.items()]
    return "\n".join([*lines, "    DONE --> [*]"]) + "\n"
