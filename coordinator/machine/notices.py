"""What a coordinator tells whoever watches: typed values. How they are worded is `coordinator.machine.wording`'s
business.

A machine, a page or a metric reads fields, never English.
"""

from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.protocol.outcomes import Outcome


@dataclass(frozen=True)
class RunBegan:
    """A new run waits for its sites."""

    run: str
    awaited: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # they are waited for, at most


@dataclass(frozen=True)
class AnswersInClear:
    """This run shows the coordinator each site's answers: said before anything else."""

    run: str


@dataclass(frozen=True)
class RunTakenUp:
    """A run that was left unfinished waits for the sites that took part in it."""

    run: str
    question: int
    awaited: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # they are waited for, at most


@dataclass(frozen=True)
class DeliveryTakenUp:
    """A run that is over waits for sites that have not fetched their models."""

    run: str
    awaited: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # they are waited for, at most


@dataclass(frozen=True)
class Joined:
    """A site's session opened; so many of the run's sites are here now."""

    run: str
    site: str
    here: int
    of: int


@dataclass(frozen=True)
class Left:
    """A site's session ended: by itself, or because it broke."""

    run: str
    site: str
    reason: str
    lost: bool


@dataclass(frozen=True)
class PlanSent:
    """The plan went to these sites."""

    run: str
    sites: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # they are waited for, at most


@dataclass(frozen=True)
class PlanAcceptedBy:
    """A site factored its data under the plan."""

    run: str
    site: str


@dataclass(frozen=True)
class SiteDismissed:
    """The run does not go on with this site, for good (``excluded``) or until it comes back mended."""

    run: str
    site: str
    reason: str
    excluded: bool


@dataclass(frozen=True)
class SessionRejected:
    """A session was closed by the coordinator."""

    site: str
    reason: str


@dataclass(frozen=True)
class SessionTurnedAway:
    """A certificate was not let in."""

    name: str
    reason: str


@dataclass(frozen=True)
class SessionOpened:
    """A site's session opened, in a federation that stands; its release, and the end of its certificate."""

    site: str
    release: str
    until: str


@dataclass(frozen=True)
class SessionEnded:
    """A site's session ended, in a federation that stands."""

    site: str
    reason: str


@dataclass(frozen=True)
class GoingOnWithout:
    """These sites did not do in time what they were waited for."""

    run: str
    sites: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class MembersAre:
    """Who takes part from this attempt on."""

    run: str
    attempt: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class KeysChanged:
    """These sites came back with new keys: the open question is asked of everybody again, under other masks."""

    run: str
    attempt: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Stalled:
    """Nothing goes on until these sites are back, or so many seconds have passed."""

    run: str
    sites: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class SlowLink:
    """A site is late because its bytes still flow, to it or from it; it is waited for ``more`` seconds at most (0: no longer)."""

    run: str
    site: str
    to_site: bool
    moved: int
    of: int
    seconds: float
    more: float


@dataclass(frozen=True)
class QuestionAnswered:
    """Everybody who was asked has answered; ``progress`` is what the step showed, and ``phase`` what it belonged to."""

    run: str
    question: int
    attempt: int
    answered: int
    progress: Progress | None
    phase: str = ""


@dataclass(frozen=True)
class NotCountersigned:
    """A site has its models, and the head of its ledger could not be countersigned."""

    run: str
    site: str
    reason: str


@dataclass(frozen=True)
class NotFetched:
    """These sites did not fetch the run's end in time; they can as long as the store has it."""

    run: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class RunEnded:
    """How the run ended; delivery follows."""

    run: str
    outcome: Outcome
    reason: str


Notice: TypeAlias = (
    RunBegan
    | AnswersInClear
    | RunTakenUp
    | DeliveryTakenUp
    | Joined
    | Left
    | PlanSent
    | PlanAcceptedBy
    | SiteDismissed
    | SessionRejected
    | SessionTurnedAway
    | SessionOpened
    | SessionEnded
    | GoingOnWithout
    | MembersAre
    | KeysChanged
    | Stalled
    | SlowLink
    | QuestionAnswered
    | NotCountersigned
    | NotFetched
    | RunEnded
)
