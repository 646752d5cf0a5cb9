"""Events that a coordinator handles, and actions that its driver carries out: plain frozen values.

Time is an event (`DeadlinePassed`), writing is an action (`Persist`). Events of a session name the
site; timers, records and ends name the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from coordinator.machine.records import NOT_BEGUN, Begun, HeadSigned, Record, Sites
from coreg_core.messages import Fetched, FromSite, Hello, ToSite
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan

M = TypeVar("M", bound=FromSite, covariant=True)

# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteJoined:
    """An authenticated session, in place of an earlier one; ``until``: its certificate's expiry,
    ISO 8601.
    """

    hello: Hello
    until: str = field(default="", compare=False)
    address: str = field(default="", compare=False)  # of the peer


@dataclass(frozen=True)
class Received(Generic[M]):
    """A message from an open session. The transport has checked its form."""

    site: str
    message: M


@dataclass(frozen=True)
class SiteLost:
    """A session ended without `Leaving`, or was rejected."""

    site: str
    reason: str


@dataclass(frozen=True)
class Breached:
    """A session broke the protocol. The transport has sent the reason and closed it."""

    site: str
    reason: str


@dataclass(frozen=True)
class AccessRefused:
    """A peer was rejected: its certificate is not listed, was revoked, or does not match its
    name.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class DeadlinePassed:
    """A timer of the run expired."""

    run: str
    token: int


@dataclass(frozen=True)
class HeadCountersigned:
    """The head of a site's ledger, countersigned (`CountersignHead`)."""

    run: str
    signed: HeadSigned


@dataclass(frozen=True)
class Aligned:
    """The run that aligned the ids for this one is over."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Interrupted:
    """The operator stops the process: every run stays unfinished."""


@dataclass(frozen=True)
class Draining:
    """The operator stops the service: no run starts, runs that have ended send their end, the
    others stay unfinished.
    """


@dataclass(frozen=True)
class QueueChanged:
    """Another process submitted or cancelled a run."""


@dataclass(frozen=True)
class QueueRead:
    """The queue in the store: waiting plans in order, and the reason for each run to cancel."""

    waiting: tuple[Plan, ...]
    cancelled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """A run to carry out, and what the store has of it.

    ``askers``: the sites that asked for it, of a standing plan.
    """

    plan: Plan
    begun: Begun = NOT_BEGUN
    askers: Sites = ()


@dataclass(frozen=True)
class Cancelled:
    """The operator cancelled this run; the service continues."""

    run: str
    reason: str


@dataclass(frozen=True)
class Revoked:
    """The certificate of an open session was revoked."""

    site: str
    reason: str


@dataclass(frozen=True)
class Reconfigured:
    """The operator changed federation.toml: the sites that can join, and the number of concurrent
    runs.
    """

    sites: Sites
    max_concurrent_runs: int


@dataclass(frozen=True)
class Rested:
    """Another run of the study's standing plan can begin."""

    study: str


@dataclass(frozen=True)
class RunForgotten:
    """A day has passed since a run that these sites asked for: they can ask for another one."""

    sites: Sites


# Events of one run. The rows of its dispatch table are these classes and the classes of the
# messages in `Received`.
RunEvent: TypeAlias = (
    SiteJoined
    | SiteLost
    | Breached
    | DeadlinePassed
    | Interrupted
    | Cancelled
    | HeadCountersigned
    | Aligned
)
OfService: TypeAlias = (
    AccessRefused
    | Draining
    | QueueChanged
    | QueueRead
    | Submitted
    | Rested
    | RunForgotten
    | Revoked
    | Reconfigured
)
Event: TypeAlias = RunEvent | Received[Any] | OfService


# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SendToSite:
    """Send a message to a site. It has no effect if the session has ended (a `SiteLost`
    follows).
    """

    site: str
    message: ToSite


@dataclass(frozen=True)
class Reject:
    """Send a session the reason, and close it."""

    site: str
    reason: str


@dataclass(frozen=True)
class Expect:
    """From now on, accept answers of the run with at most ``room`` bytes; before it, none."""

    run: str
    room: int


@dataclass(frozen=True)
class Persist:
    """Write a record before the next action."""

    run: str
    record: Record


@dataclass(frozen=True)
class SetDeadline:
    """Restart the run's only timer."""

    run: str
    token: int
    seconds: float


@dataclass(frozen=True)
class NotifyObservers:
    """A notice for observers."""

    notice: Notice


@dataclass(frozen=True)
class Finish:
    """The run is over in this process."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class ReadQueue:
    """Read the queue; `QueueRead` follows."""


@dataclass(frozen=True)
class BeginRun:
    """Move a run from the queue to the runs, or read what the store has of an unfinished one;
    `Submitted` follows.
    """

    plan: Plan


@dataclass(frozen=True)
class CallStanding:
    """Begin a run of the study's standing plan, if one of these sites has a part in it.

    `Submitted` follows then, `Rested` after the pause, and `RunForgotten` after a day.
    """

    study: str
    sites: Sites
    pause: float  # seconds


@dataclass(frozen=True)
class CloseRun:
    """Close a run that is not active, with this outcome."""

    plan: Plan
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class CountersignHead:
    """Countersign the head of a site's ledger from `Fetched`; `HeadCountersigned` follows."""

    site: str
    fetched: Fetched


OfRun: TypeAlias = (
    SendToSite | Expect | Persist | SetDeadline | NotifyObservers | Finish | CountersignHead
)
Action: TypeAlias = OfRun | Reject | ReadQueue | BeginRun | CallStanding | CloseRun
