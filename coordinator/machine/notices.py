"""Notices of a coordinator: typed values for terminals, logs, pages and metrics. `wording.py` has their sentences."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, TypeAlias, get_args

from coreg_core.protocol.messages import Report
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
    steps: int
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
class ApprovalAwaited:
    """The plan waits for the operators of these sites; ``approved`` of ``of`` sites accepted it."""

    run: str
    sites: tuple[str, ...]
    approved: int
    of: int
    seconds: float = field(default=inf, compare=False)  # the timeout


@dataclass(frozen=True)
class Approved:
    """The operator of a site approved the plan. The site factors its data now."""

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
class AccessDenied:
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
    """These sites came back with new keys: everybody exchanges keys anew, and goes on from the last common sum."""

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
class StepAnswered:
    """Everybody has answered; ``report`` is what the sites say of the computation, which the coordinator cannot see."""

    run: str
    number: int
    attempt: int
    answered: int
    report: Report


@dataclass(frozen=True)
class LedgerDoubtful:
    """A site has its models. The head of its ledger could not be countersigned, or the ledger is shorter than it was."""

    run: str
    site: str
    reason: str


@dataclass(frozen=True)
class NotFetched:
    """These sites did not fetch the run's end in time; they can as long as the store has it."""

    run: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class RunDamaged:
    """The records of this run cannot be read: it was closed, and the other runs go on."""

    run: str
    reason: str


@dataclass(frozen=True)
class RunEnded:
    """How the run ended; delivery follows."""

    run: str
    outcome: Outcome
    reason: str


# --- the service --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listening:
    """The coordinator accepts sessions."""

    host: str
    port: int
    release: str


@dataclass(frozen=True)
class RunStarted:
    """A run of this study was started, or resumed from its records."""

    run: str
    study: str
    resumed: bool


@dataclass(frozen=True)
class StillWaiting:
    """A run still waits for these sites; once a minute. ``phase`` is the sentence of `waits.waiting_text`."""

    run: str
    sites: tuple[str, ...]
    phase: str
    seconds: float


@dataclass(frozen=True)
class CertificateExpires:
    """A certificate of the authority or of the coordinator expires within a month; once a day."""

    reason: str


@dataclass(frozen=True)
class Reloaded:
    """federation.toml was read again."""

    sites: tuple[str, ...]
    max_concurrent_runs: int


@dataclass(frozen=True)
class NotReloaded:
    """federation.toml or a certificate has a fault: everything stays as it was."""

    reason: str


@dataclass(frozen=True)
class ServiceDraining:
    """The operator stops the service; these runs are left on record or delivered."""

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Stopped:
    """The service has ended."""


Notice: TypeAlias = (
    Listening
    | RunStarted
    | StillWaiting
    | CertificateExpires
    | Reloaded
    | NotReloaded
    | ServiceDraining
    | Stopped
    | RunBegan
    | AnswersInClear
    | RunTakenUp
    | DeliveryTakenUp
    | Joined
    | Left
    | PlanSent
    | PlanAcceptedBy
    | ApprovalAwaited
    | Approved
    | SiteDismissed
    | SessionRejected
    | AccessDenied
    | SessionOpened
    | SessionEnded
    | GoingOnWithout
    | MembersAre
    | KeysChanged
    | Stalled
    | SlowLink
    | StepAnswered
    | LedgerDoubtful
    | NotFetched
    | RunDamaged
    | RunEnded
)
_BY_NAME: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Notice)}


def to_fields(notice: Notice) -> dict[str, Any]:
    """The fields of a notice as plain values; what the sites report has a table of its own."""
    plain = {f.name: getattr(notice, f.name) for f in fields(notice) if f.name != "report"}
    return {name: value.name if isinstance(value, Outcome) else value for name, value in plain.items()}


def from_fields(kind: str, plain: Mapping[str, Any]) -> Notice | None:
    """The inverse of `to_fields`; None for a kind that this release does not have."""
    if (notice := _BY_NAME.get(kind)) is None or kind == "StepAnswered":
        return None
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    if "outcome" in values:
        values["outcome"] = Outcome[str(values["outcome"])]
    made: Notice = notice(**values)
    return made
