"""What can happen to a coordinator, and what it can ask of its driver: plain frozen values.

Time is an event (`DeadlinePassed`), writing is an action (`Persist`). Events of a session name the site; timers,
records and ends name the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coordinator.machine.notices import Notice
from coordinator.machine.records import HeadSigned, Record
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.protocol.messages import FromSite, Hello, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteJoined:
    """An authenticated session opened; it replaces an earlier one of the same name.

    ``until`` is the end of its certificate, in ISO 8601; empty without one.
    """

    hello: Hello
    until: str = field(default="", compare=False)


@dataclass(frozen=True)
class Received:
    """A message from an open session, already checked for form by the transport.

    ``signed``: the head that came with it, countersigned by whoever has the key; the machine has none.
    """

    site: str
    message: FromSite
    signed: HeadSigned | None = None


@dataclass(frozen=True)
class SiteLost:
    """A session ended without `Leaving`."""

    site: str
    reason: str


@dataclass(frozen=True)
class Breached:
    """A session sent what its protocol does not allow; it has been told so, and is closed."""

    site: str
    reason: str


@dataclass(frozen=True)
class TurnedAway:
    """Somebody with a certificate that this federation knows, or knew, or with none that fits, was not let in."""

    name: str
    reason: str


@dataclass(frozen=True)
class Flow:
    """How far the latest vector of a run has come on a site's link.

    Parameters
    ----------
    to_site
        a question or an end on its way to the site; otherwise the site's answer.
    moved, of
        bytes.
    seconds
        since it was begun; of one that is whole, since its last byte.
    """

    to_site: bool
    moved: int
    of: int
    seconds: float

    @property
    def whole(self) -> bool:
        return self.moved >= self.of


@dataclass(frozen=True)
class DeadlinePassed:
    """The timer of that run with this token ran out; ``flows`` are of the sites whose link has carried a vector of it."""

    run: str
    token: int
    flows: Mapping[str, Flow] = field(default_factory=dict)


@dataclass(frozen=True)
class Interrupted:
    """The operator wants to stop."""


@dataclass(frozen=True)
class Submitted:
    """A run for a federation that stands: new, or with the records that it left when it was interrupted."""

    plan: Plan
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Cancelled:
    """The operator wants this run to end, and the federation to go on."""

    run: str
    reason: str


@dataclass(frozen=True)
class Revoked:
    """A site whose session is open may not join any more."""

    site: str
    reason: str


@dataclass(frozen=True)
class Relisted:
    """Who is welcome in a federation that stands, read anew."""

    sites: tuple[str, ...]


@dataclass(frozen=True)
class Draining:
    """A federation that stands shall come to its end: runs are left where they are on record; what is over is delivered."""


Event: TypeAlias = (
    SiteJoined
    | Received
    | SiteLost
    | Breached
    | TurnedAway
    | DeadlinePassed
    | Interrupted
    | Submitted
    | Cancelled
    | Revoked
    | Relisted
    | Draining
)


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
class Expect:
    """From here on, vectors of that run have so many rows and columns; before it, none is taken from anybody."""

    run: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Persist:
    """Write before the next action is taken; ``progress`` is what a step showed, for the history."""

    run: str
    record: Record
    progress: Progress | None = None


@dataclass(frozen=True)
class SetDeadline:
    """Start the run's one timer anew; an earlier one is dropped."""

    run: str
    token: int
    seconds: float


@dataclass(frozen=True)
class Notify:
    """Something that whoever watches should see."""

    notice: Notice


@dataclass(frozen=True)
class Finish:
    """Nothing more will happen in this run."""

    run: str
    outcome: Outcome
    reason: str


Action: TypeAlias = Send | Reject | Expect | Persist | SetDeadline | Notify | Finish
