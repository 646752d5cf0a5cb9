"""Events that a coordinator handles, and actions that its driver carries out: plain frozen values.

Time is an event (`DeadlinePassed`), writing is an action (`Persist`). Events of a session name the site; timers,
records and ends name the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from coordinator.machine.notices import Notice
from coordinator.machine.records import HeadSigned, Record
from coreg_core.protocol.messages import Fetched, FromSite, Hello, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

M = TypeVar("M", bound=FromSite, covariant=True)

# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteJoined:
    """An authenticated session opened; it replaces an earlier one of the same name.

    ``until`` is the end of its certificate, in ISO 8601; empty without one.
    """

    hello: Hello
    until: str = field(default="", compare=False)


@dataclass(frozen=True)
class Received(Generic[M]):
    """A message from an open session, already checked for form by the transport."""

    site: str
    message: M


@dataclass(frozen=True)
class SiteLost:
    """A session ended without `Leaving`, or was rejected."""

    site: str
    reason: str


@dataclass(frozen=True)
class Breached:
    """A session sent what its protocol does not allow; it has been told so, and is closed."""

    site: str
    reason: str


@dataclass(frozen=True)
class AccessRefused:
    """A peer was not let in: its certificate is not listed, was revoked, or does not match its name."""

    name: str
    reason: str


@dataclass(frozen=True)
class Flow:
    """How far the latest vector of a run has come on a site's link.

    Parameters
    ----------
    to_site
        a step on its way to the site; otherwise the site's answer.
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
class HeadCountersigned:
    """The head of a site's ledger, countersigned (`Countersign`)."""

    run: str
    signed: HeadSigned


@dataclass(frozen=True)
class Interrupted:
    """The operator stops the process: every run stays on record as it is."""


@dataclass(frozen=True)
class Draining:
    """The operator stops the service: no run starts, finished runs are delivered, the others stay on record."""


@dataclass(frozen=True)
class QueueChanged:
    """Another process submitted or cancelled a run."""


@dataclass(frozen=True)
class QueueRead:
    """The queue as the store has it: plans that wait, in order, and the reasons of runs to cancel, by run."""

    waiting: tuple[Plan, ...]
    cancelled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """A run to carry out.

    Parameters
    ----------
    plan
        what to carry out.
    records
        what the run left on record, if it has begun.
    on_demand
        a run that has ended, loaded because a site that has not fetched its end is connected; no other site is awaited.
    """

    plan: Plan
    records: tuple[Record, ...] = ()
    on_demand: bool = False


@dataclass(frozen=True)
class Unusable:
    """The records of this run cannot be read: it is closed as damaged."""

    run: str
    reason: str


@dataclass(frozen=True)
class Cancelled:
    """The operator ends this run and keeps the service up."""

    run: str
    reason: str


@dataclass(frozen=True)
class Revoked:
    """A site with an open session may no longer join."""

    site: str
    reason: str


@dataclass(frozen=True)
class Reconfigured:
    """The operator changed federation.toml: the sites that may join, and how many runs may run at once."""

    sites: tuple[str, ...]
    max_concurrent_runs: int


# What happens to one run. Keys of its dispatch table are these classes, and the classes of the messages in `Received`.
RunEvent: TypeAlias = SiteJoined | SiteLost | Breached | DeadlinePassed | Interrupted | Cancelled | HeadCountersigned
Event: TypeAlias = (
    RunEvent
    | Received[Any]
    | AccessRefused
    | Draining
    | QueueChanged
    | QueueRead
    | Submitted
    | Unusable
    | Revoked
    | Reconfigured
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
    """From here on, answers of that run have so many words at most; before it, none is taken from anybody."""

    run: str
    words: int


@dataclass(frozen=True)
class Persist:
    """Write before the next action is taken."""

    run: str
    record: Record


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


@dataclass(frozen=True)
class ReadQueue:
    """Read the queue; `QueueRead` follows."""


@dataclass(frozen=True)
class BeginRun:
    """Move a run from the queue to the runs; `Submitted` follows."""

    plan: Plan


@dataclass(frozen=True)
class LoadRun:
    """Read the records of a run; `Submitted` or `Unusable` follows."""

    plan: Plan
    on_demand: bool = False


@dataclass(frozen=True)
class CloseRun:
    """Close a run that is not under way, with this outcome."""

    plan: Plan
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Countersign:
    """Countersign the head of a site's ledger, which came with `Fetched`; `HeadCountersigned` follows."""

    site: str
    fetched: Fetched


Action: TypeAlias = (
    Send
    | Reject
    | Expect
    | Persist
    | SetDeadline
    | Notify
    | Finish
    | ReadQueue
    | BeginRun
    | LoadRun
    | CloseRun
    | Countersign
)
