"""Notices of a coordinator: typed values for terminals, logs, pages and metrics. wording.py has their sentences."""

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
    seconds: float = field(default=inf, compare=False)  # the timeout


@dataclass(frozen=True)
class AnswersInClear:
    """The coordinator of this run receives each site's answers unencrypted. It is the run's first notice."""

    run: str


@dataclass(frozen=True)
class RunTakenUp:
    """An unfinished run begins again after so many attempts, and waits for its participants."""

    run: str
    attempts: int
    awaited: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # the timeout


@dataclass(frozen=True)
class Joined:
    """A site connected; ``here`` of the run's ``of`` sites are connected now."""

    run: str
    site: str
    here: int
    of: int


@dataclass(frozen=True)
class Left:
    """A site's session ended; ``lost`` if it broke."""

    run: str
    site: str
    reason: str
    lost: bool


@dataclass(frozen=True)
class PlanSent:
    """The plan was sent to these sites."""

    run: str
    sites: tuple[str, ...]
    seconds: float = field(default=inf, compare=False)  # the timeout


@dataclass(frozen=True)
class PlanAcceptedBy:
    """A site accepted the plan and factored its data."""

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
    """The run continues without this site: permanently (``excluded``), or until it reconnects with the fault corrected."""

    run: str
    site: str
    reason: str
    excluded: bool


@dataclass(frozen=True)
class SessionRejected:
    """The coordinator closed a session."""

    site: str
    reason: str


@dataclass(frozen=True)
class AccessDenied:
    """The coordinator refused a certificate."""

    name: str
    reason: str


@dataclass(frozen=True)
class SessionOpened:
    """A site connected to the service; its release, and the expiry of its certificate."""

    site: str
    release: str
    until: str


@dataclass(frozen=True)
class SessionEnded:
    """A site disconnected from the service."""

    site: str
    reason: str


@dataclass(frozen=True)
class GoingOnWithout:
    """The run continues without these sites, because they did not do ``what`` in time."""

    run: str
    sites: tuple[str, ...]
    what: str


@dataclass(frozen=True)
class MembersAre:
    """The participants from this attempt on."""

    run: str
    attempt: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class KeysChanged:
    """These sites restarted, so their keys are new. ``attempt`` is the next one."""

    run: str
    attempt: int
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Stalled:
    """The run waits until these sites reconnect, for at most ``seconds``."""

    run: str
    sites: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class StepAnswered:
    """All sites answered a step. ``report`` is the sites' report of the computation, which the coordinator cannot see."""

    run: str
    number: int
    attempt: int
    answered: int
    report: Report


@dataclass(frozen=True)
class LedgerDoubtful:
    """The head of a site's ledger could not be countersigned, or the ledger is shorter than before. The site has its result."""

    run: str
    site: str
    reason: str


@dataclass(frozen=True)
class RunEnded:
    """How the run ended."""

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
    """A run of this study was started; ``resumed``: begun again."""

    run: str
    study: str
    resumed: bool


@dataclass(frozen=True)
class CertificateExpires:
    """A certificate of the authority or of the coordinator expires within a month, or a listed site has none; once a day."""

    reason: str


@dataclass(frozen=True)
class Reloaded:
    """federation.toml was read again. The address and the timeouts change at the next start only."""

    sites: tuple[str, ...]
    max_concurrent_runs: int


@dataclass(frozen=True)
class NotReloaded:
    """federation.toml or a certificate has a fault; nothing was changed."""

    reason: str


@dataclass(frozen=True)
class ServiceDraining:
    """The operator stops the service. These runs begin again at the next start."""

    runs: tuple[str, ...]


@dataclass(frozen=True)
class Stopped:
    """The service has ended."""


OfSessions: TypeAlias = SessionRejected | AccessDenied | SessionOpened | SessionEnded | Joined | Left | SiteDismissed
OfPlans: TypeAlias = RunBegan | AnswersInClear | RunTakenUp | PlanSent | PlanAcceptedBy | ApprovalAwaited | Approved
OfSteps: TypeAlias = GoingOnWithout | MembersAre | KeysChanged | Stalled | StepAnswered | LedgerDoubtful | RunEnded
OfService: TypeAlias = Listening | RunStarted | CertificateExpires | Reloaded | NotReloaded | ServiceDraining | Stopped
Notice: TypeAlias = OfSessions | OfPlans | OfSteps | OfService
_BY_NAME: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Notice)}


def to_fields(notice: Notice) -> dict[str, Any]:
    """The fields of a notice as plain values, without the sites' report, which has its own table."""
    plain = {f.name: getattr(notice, f.name) for f in fields(notice) if f.name != "report"}
    return {name: value.name if isinstance(value, Outcome) else value for name, value in plain.items()}


def from_fields(kind: str, plain: Mapping[str, Any]) -> Notice | None:
    """The inverse of `to_fields`; None for an unknown kind of notice."""
    if (notice := _BY_NAME.get(kind)) is None or kind == "StepAnswered":
        return None
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    if "outcome" in values:
        values["outcome"] = Outcome[str(values["outcome"])]
    made: Notice = notice(**values)
    return made
