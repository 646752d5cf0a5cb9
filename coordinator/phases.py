"""Where a run can be, which event may lead where, and the clocks that say how long: a table, and the diagram drawn from it.

Knows the events' names and nothing of what the machine does with them. docs/protocol.md shows the diagram.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from coordinator.events import DeadlinePassed, Event, Interrupted, Received, SiteJoined, SiteLost


class Phase(Enum):
    """Where a run is."""

    ENROLLING = "waiting for sites to join"
    PLANNING = "waiting for sites to accept the plan"
    ROUND = "waiting for answers"
    WAITING = "stalled: waiting for sites that are missing"
    DELIVERING = "over; sites are fetching their models"
    DONE = "over"


_E, _P, _R, _W, _D, _X = Phase
TRANSITIONS: dict[Phase, dict[type[Event], frozenset[Phase]]] = {
    _E: {
        SiteJoined: frozenset({_E, _P}),
        Received: frozenset({_E, _R, _D, _X}),
        SiteLost: frozenset({_E}),
        DeadlinePassed: frozenset({_P, _R, _D, _X}),
        Interrupted: frozenset({_X}),
    },
    _P: {
        SiteJoined: frozenset({_P}),
        Received: frozenset({_P, _R, _D, _X}),
        SiteLost: frozenset({_P}),
        DeadlinePassed: frozenset({_R, _D, _X}),
        Interrupted: frozenset({_X}),
    },
    _R: {
        SiteJoined: frozenset({_R}),
        Received: frozenset({_R, _D, _X}),
        SiteLost: frozenset({_R}),
        DeadlinePassed: frozenset({_R, _W}),
        Interrupted: frozenset({_X}),
    },
    _W: {
        SiteJoined: frozenset({_W}),
        Received: frozenset({_W, _R, _D, _X}),
        SiteLost: frozenset({_W}),
        DeadlinePassed: frozenset({_D, _X}),
        Interrupted: frozenset({_X}),
    },
    _D: {
        SiteJoined: frozenset({_D}),
        Received: frozenset({_D, _X}),
        SiteLost: frozenset({_D}),
        DeadlinePassed: frozenset({_X}),
        Interrupted: frozenset({_X}),
    },
    _X: {
        SiteJoined: frozenset({_X}),
        Received: frozenset({_X}),
        SiteLost: frozenset({_X}),
        DeadlinePassed: frozenset({_X}),
        Interrupted: frozenset({_X}),
    },
}


@dataclass(frozen=True)
class Timeouts:
    """The coordinator's four clocks, in seconds; keepalive, the fifth, belongs to the transport."""

    join: float = 600.0
    plan: float = 600.0
    round: float = 60.0
    stall: float = 600.0


def state_diagram(transitions: Mapping[Phase, Mapping[type[Event], frozenset[Phase]]] = TRANSITIONS) -> str:
    """The table as a Mermaid diagram, for docs/protocol.md; a test keeps the two alike."""
    lines = ["stateDiagram-v2", "    [*] --> ENROLLING"]
    for phase, row in transitions.items():
        for event, targets in row.items():
            lines += [
                f"    {phase.name} --> {target.name}: {event.__name__}"
                for target in Phase
                if target in targets and target is not phase
            ]
    return "\n".join([*lines, "    DONE --> [*]"]) + "\n"
