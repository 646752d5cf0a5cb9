r"""The closed list of messages that can cross a site's boundary: the wire encodes these types and no others.

An attempt at a run is a log of numbered steps. The coordinator proposes a plan and collects the sites' offers. Then it collects
one `Answer` from every site, adds their words and passes the others on, and sends the result to all as the next `Step`. It does
not know the meaning of the words (docs/reference/protocol.md). Every message is a frozen value. The messages of a session
(`Hello`, `Leaving`, `Rejected`) belong to no run; every other message names its run.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge, Len
from jaxtyping import UInt64

from coreg_core.errors import BadData
from coreg_core.objectives.setting import Natural, NotNegative
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD


@dataclass(frozen=True, eq=False)
class Words:
    """Read-only, and equal to another by its bytes."""

    values: UInt64[np.ndarray, " w"]

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.dtype != WORD:
            raise BadData(
                f"words are a row of uint64, not {self.values.dtype} {self.values.shape}."
            )
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        return (
            bool(np.array_equal(self.values, other.values))
            if isinstance(other, Words)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes."""
        return hashlib.sha256(self.values.data.cast("B")).hexdigest()


PROTOCOL_VERSION = 7
MOST_OPEN = 64  # runs of a `Hello`
MOST_SITES = 10_000  # parts and offers of one message
Large: TypeAlias = Annotated[int, Ge(0)]


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message of a session; ``runs`` are those whose ends this agent can have missed."""

    site: str
    protocol: Natural
    release: str = ""
    runs: Annotated[tuple[str, ...], Len(0, MOST_OPEN)] = ()


@dataclass(frozen=True)
class Offer:
    """The agent takes part in this attempt of a run. ``signature``, by the key of its certificate, covers all other fields."""

    run: str
    attempt: Natural
    plan_digest: str
    site: str
    n_unlabelled: Large  # shared instances that this site lists
    ids_digest: str
    data_digest: str  # of this site's rows, with a secret: all attempts of a run have the same rows
    key: str  # X25519 public key of this attempt; in plaintext a random name of the process
    release: str
    identity: str  # the public key of its certificate, which the peers have confirmed; in plaintext empty, as the next
    signature: str


@dataclass(frozen=True)
class PlanRefused:
    """The reason names policy keys and parameters, never data; ``for_now``: the run waits for a correction."""

    run: str
    reason: str
    for_now: bool = False


@dataclass(frozen=True)
class Approval:
    """The plan waits for this site's operator (``given`` is false), or the operator approved it."""

    run: str
    given: bool


@dataclass(frozen=True)
class Unaligned:
    """The agent can take part once the ids are aligned: it knows no alignment of its ids with the sites of the plan."""

    run: str


@dataclass(frozen=True)
class Part:
    """A hex text: in an answer, for one site, or for all if ``site`` is empty; in a step, from one site."""

    site: str
    data: str


@dataclass(frozen=True)
class Report:
    """Progress that a site reports to the coordinator, which cannot see the computation."""

    round: Large = 0
    phase: str = ""
    verified: bool = False
    residual: Annotated[
        tuple[float, ...], Len(0, 64)
    ] = ()  # powers of ten: exact figures disclose spectra; -1: none
    gap: Annotated[tuple[float, ...], Len(0, 64)] = ()
    outcome: str = ""  # a name of `Outcome` once the computation has ended
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """One site's answer to one step. Its last ``passed`` words go to all, one site's after another's; the others are added."""

    run: str
    attempt: Natural
    step: Large
    report: Report
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()
    words: Words | None = None
    passed: Large = 0


@dataclass(frozen=True)
class Fault:
    """The agent cannot answer a step, or its policy forbids it; the reason."""

    run: str
    attempt: Natural
    step: Large
    reason: str


@dataclass(frozen=True)
class LedgerHead:
    """The end of a site's ledger. Without a line there is no ledger."""

    lines: Large = 0
    last: str = ""  # SHA-256 of the last line, which pins them all
    at: str = ""  # the site's own clock, ISO 8601 in UTC


NO_HEAD = LedgerHead()


@dataclass(frozen=True)
class Fetched:
    """The site received the end of the run. Carries the signed head of its ledger, of all lines before."""

    run: str
    head: LedgerHead = NO_HEAD
    signature: str = ""  # by the key of the site's certificate


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: its work is done, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = (
    Hello | Offer | PlanRefused | Approval | Unaligned | Answer | Fault | Fetched | Leaving
)


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposal:
    """A plan, and the number of an attempt to execute it. A higher number ends the previous attempt."""

    run: str
    attempt: Natural
    plan: Plan
    approval: NotNegative = field(
        default=0.0, compare=False
    )  # seconds for a site's operator; 0: no limit
    # Fingerprints of the sites' keys, in site order; "" where a site has not enrolled.
    keys: Annotated[tuple[str, ...], Len(0, MOST_SITES)] = field(default=(), compare=False)


@dataclass(frozen=True)
class Step:
    """The result of all answers to the previous step (see the log of an attempt)."""

    run: str
    attempt: Natural
    step: Large
    roster: Annotated[tuple[Offer, ...], Len(0, MOST_SITES)] = ()
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()
    words: Words | None = None


@dataclass(frozen=True)
class Finished:
    """The run is over. A site whose computation ended has stored its result before its last answer."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Dismissed:
    """The run continues or ends without this site, for the given reason. Its session stays open for other runs."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Countersigned:
    """The coordinator signs the head of a ledger: the answer to `Fetched`, and its last one when a session begins."""

    run: str
    head: LedgerHead
    at: str  # its clock
    signature: str
    certificate: str
    reason: str = ""  # why there is no signature, or a problem beside it


@dataclass(frozen=True)
class Renewed:
    """The site's next certificate (PEM), for the same key. The coordinator sends it when the session's one ends soon."""

    certificate: str


@dataclass(frozen=True)
class Rejected:
    """The coordinator rejects this session. ``final`` means that another attempt to connect would fail too."""

    reason: str
    final: bool = False


ToSite: TypeAlias = Proposal | Step | Finished | Dismissed | Countersigned | Renewed | Rejected
