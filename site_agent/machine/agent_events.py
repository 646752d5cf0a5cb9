"""What reaches an agent's state machine (events), and what it asks for (actions)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Countersigned, Dismissed, Finished, FromSite, Proposal, Step, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.notices import Notice

RunMessage: TypeAlias = Proposal | Step | Finished | Dismissed


@dataclass(frozen=True)
class SessionOpened:
    """A session is open: runs go on when their plans come again."""


@dataclass(frozen=True)
class SessionEnded:
    """The session ended; messages that were not worked on come again."""


@dataclass(frozen=True)
class Heard:
    """A message from the coordinator, checked for form."""

    message: ToSite


@dataclass(frozen=True)
class Judged:
    """A plan was checked against policy, rows and ledger: a reason against it, or None. ``about`` describes it in words."""

    run: str
    reason: str | None
    fetched: bool = False  # the site has the run's result already
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decided:
    """The operator's decision."""

    run: str
    approved: bool
    reason: str


@dataclass(frozen=True)
class Worked:
    """A message was worked on, and its answers are sent.

    Parameters
    ----------
    message
        what was worked on.
    accepted
        of a proposal: whether it was accepted; of a step that it goes no further: False; None otherwise.
    reason
        why it was refused.
    fetched
        of a proposal: all that can come of the run is here already.
    breach
        what the coordinator did that no plan allows.
    models
        of `Finished`: how many models were written.
    """

    message: RunMessage
    accepted: bool | None = None
    reason: str = ""
    fetched: bool = False
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
    """Write down what the coordinator made of the ledger's head."""

    receipt: Countersigned


@dataclass(frozen=True)
class Forget:
    """Nothing of this run is needed any more; ``keep_consent``: the operator's decision stays, since the run comes again."""

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


Action: TypeAlias = Say | Judge | AskOperator | Work | Countersign | Forget | Notify | EndSession | Exit
