"""Events and actions of an agent's state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Countersigned, Dismissed, Finished, FromSite, Proposal, Step, ToSite
from coreg_core.protocol.notice import Notice
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

RunMessage: TypeAlias = Proposal | Step | Finished | Dismissed


@dataclass(frozen=True)
class SessionOpened:
    """A session is open: runs continue when their plans arrive again."""


@dataclass(frozen=True)
class SessionEnded:
    """The session ended; the coordinator sends unhandled messages again."""


@dataclass(frozen=True)
class Heard:
    """A message from the coordinator, with a valid form."""

    message: ToSite


@dataclass(frozen=True)
class Judged:
    """A plan was checked against policy, rows and ledger: a reason against it, or None. ``about``: a description by heading."""

    run: str
    reason: str | None
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decided:
    """The operator's decision."""

    run: str
    approved: bool
    reason: str


@dataclass(frozen=True)
class Worked:
    """A message was handled, and its answers are sent.

    Parameters
    ----------
    message
        the message.
    accepted
        of a proposal: whether the site accepted it; of a step: False if the site leaves the run; None otherwise.
    reason, for_now
        of the refusal; whether the site can take part after a correction.
    breach
        the coordinator's violation of the protocol, if any.
    models
        of `Finished`: the number of models written.
    """

    message: RunMessage
    accepted: bool | None = None
    reason: str = ""
    for_now: bool = False
    breach: str | None = None
    models: int = 0


Event: TypeAlias = SessionOpened | SessionEnded | Heard | Judged | Decided | Worked


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Send a message that needs no work."""

    message: FromSite


@dataclass(frozen=True)
class Judge:
    """Check a plan against policy, rows and ledger; `Judged` follows."""

    plan: Plan


@dataclass(frozen=True)
class AskOperator:
    """Ask the operator to approve a plan; `Decided` follows. ``about`` as in `Judged`, expires after ``seconds`` (0: never)."""

    plan: Plan
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """Work on a message of this run and send the answers; `Worked` follows."""

    plan: Plan
    message: RunMessage


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
    """Drop the state of a run. ``keep_consent`` keeps the operator's decision for a run that can resume."""

    run: str
    keep_consent: bool


@dataclass(frozen=True)
class Notify:
    """Tell the operator."""

    notice: Notice


@dataclass(frozen=True)
class EndSession:
    """End the session; the agent dials again after a pause."""

    reason: str


@dataclass(frozen=True)
class Exit:
    """End the agent: with an error, or with the outcome of its one run."""

    error: CoregError | None = None
    outcome: Outcome | None = None
    run: str = ""


Action: TypeAlias = Say | Judge | AskOperator | Work | Countersign | Install | Forget | Notify | EndSession | Exit
