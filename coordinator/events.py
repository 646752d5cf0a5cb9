"""What can happen to a coordinator, what it can ask of its driver, and what it has to remember: plain frozen values.

Knows messages; no socket, clock, file or process. Time is an event (`DeadlinePassed`), writing is an action (`Persist`).
"""

from dataclasses import dataclass
from typing import TypeAlias

from coreg_core.arrays import Arr
from coreg_core.messages import FromSite, Hello, PlanAccepted, ToSite, Vector
from coreg_core.rounds.schedule import Progress, Stop

# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteJoined:
    """An authenticated session opened; it replaces an earlier one of the same name."""

    hello: Hello


@dataclass(frozen=True)
class Received:
    """A message from an open session, already checked for form by the transport."""

    site: str
    message: FromSite


@dataclass(frozen=True)
class SiteLost:
    """A session ended without `Leaving`."""

    site: str
    reason: str


@dataclass(frozen=True)
class DeadlinePassed:
    """The timer with this token ran out."""

    token: int


@dataclass(frozen=True)
class Interrupted:
    """The operator wants to stop."""


Event: TypeAlias = SiteJoined | Received | SiteLost | DeadlinePassed | Interrupted


# --- what the run store keeps -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Membership:
    """Who takes part from this attempt on, what each agreed to, and the schedule's state at that point."""

    attempt: int
    round: int
    n_unlabelled: int
    ids_digest: str
    participants: dict[str, PlanAccepted]
    state: dict[str, Arr]


@dataclass(frozen=True)
class StepTaken:
    """One answered question: the sum of the answers, from which the next state follows bit by bit."""

    round: int
    attempt: int
    total: Vector
    progress: Progress | None
    answered: int


@dataclass(frozen=True)
class Snapshot:
    """The schedule's whole state; the sums before it are no longer needed."""

    round: int
    state: dict[str, Arr]


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    stop: Stop
    reason: str


Record: TypeAlias = Membership | StepTaken | Snapshot | Ended


@dataclass(frozen=True)
class Resumption:
    """What a killed coordinator left behind: the last membership, the last state, and the sums since."""

    membership: Membership
    round: int
    state: dict[str, Arr]
    totals: tuple[Vector, ...]


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Put a message on a site's session; nothing happens if it has gone meanwhile (a `SiteLost` follows)."""

    site: str
    message: ToSite


@dataclass(frozen=True)
class Reject:
    """Tell a session why it cannot stay, and close it."""

    site: str
    reason: str


@dataclass(frozen=True)
class Persist:
    """Write before the next action is taken."""

    record: Record


@dataclass(frozen=True)
class SetDeadline:
    """Start the one timer anew; an earlier one is dropped."""

    token: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """Something that the operator should see: a note, or a finished step with what it showed."""

    text: str
    step: StepTaken | None = None


@dataclass(frozen=True)
class Finish:
    """Nothing more will happen."""

    stop: Stop
    reason: str


Action: TypeAlias = Send | Reject | Persist | SetDeadline | Report | Finish
