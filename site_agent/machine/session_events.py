"""Events that an agent handles, and actions that its daemon carries out: plain frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.errors import CoregError
from coreg_core.messages import (
    Countersigned,
    Dismissed,
    Finished,
    FromSite,
    Proposal,
    Step,
    ToSite,
)
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan

WorkMessage: TypeAlias = Proposal | Step | Finished
RunMessage: TypeAlias = WorkMessage | Dismissed

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionOpened:
    """A session is open: runs continue when their plans arrive again."""


@dataclass(frozen=True)
class SessionEnded:
    """The session ended; the coordinator sends unhandled messages again."""


@dataclass(frozen=True)
class MessageReceived:
    """A message from the coordinator, with a valid form.

    ``strangers``: it is a plan with keys that no operator has confirmed. ``agreed``: it is a
    standing plan that the operator approved in another run.
    """

    message: ToSite
    strangers: bool = False
    agreed: bool = False


@dataclass(frozen=True)
class Asked:
    """A program of this site asks for scores of a standing study."""

    study: str


@dataclass(frozen=True)
class PlanJudged:
    """A plan was checked against policy, rows and ledger: a reason against it, or None.

    ``about``: a description by heading.
    """

    run: str
    reason: str | None
    about: Mapping[str, str] = field(default_factory=dict)
    for_now: bool = False  # it can join after a correction


@dataclass(frozen=True)
class Decided:
    """The operator's decision on the plan with this digest.

    ``about``: what the operator saw, or nothing if that was compared.
    """

    run: str
    approved: bool
    reason: str
    digest: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Worked:
    """A message was handled, and its answers are sent."""

    message: WorkMessage
    accepted: bool | None = None  # of a proposal; False also if the site leaves the run at a step
    reason: str = ""
    for_now: bool = False  # it can join after a correction
    models: int = 0  # files written at the end
    room: int = 0  # the most bytes of payload in the run's next step


Event: TypeAlias = (
    SessionOpened | SessionEnded | MessageReceived | Asked | PlanJudged | Decided | Worked
)


# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Send a message that needs no work."""

    message: FromSite


@dataclass(frozen=True)
class Judge:
    """Check a plan against policy, rows and ledger; `PlanJudged` follows."""

    plan: Plan


@dataclass(frozen=True)
class AskOperator:
    """Ask the operator to approve a plan; `Decided` follows.

    ``about`` as in `PlanJudged`; the question expires after ``seconds`` (0: never).
    """

    plan: Plan
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """Work on a message of this run and send the answers; `Worked` follows."""

    message: WorkMessage


@dataclass(frozen=True)
class Countersign:
    """Store the coordinator's countersignature of the ledger's head."""

    receipt: Countersigned


@dataclass(frozen=True)
class Install:
    """Install the site's next certificate (PEM)."""

    certificate: str


@dataclass(frozen=True)
class Forget:
    """Drop the state of a run. ``keep_consent``: the operator's decision stays."""

    run: str
    keep_consent: bool


@dataclass(frozen=True)
class Notify:
    """Tell the operator."""

    notice: Notice


@dataclass(frozen=True)
class EndSession:
    """End the session; the agent dials again after a pause.

    It doubles each time that this happens, from ``pause`` up to ``longest`` seconds.
    """

    reason: str
    pause: float
    longest: float


@dataclass(frozen=True)
class Exit:
    """End the agent: with an error, or with the outcome of its one run."""

    error: CoregError | None = None
    outcome: Outcome | None = None
    run: str = ""


Action: TypeAlias = (
    Say | Judge | AskOperator | Work | Countersign | Install | Forget | Notify | EndSession | Exit
)
