r"""The closed list of messages that can cross a site's boundary: the wire encodes no other type.

An attempt at a run is a log of numbered steps. The coordinator proposes a plan and collects the
sites' offers. Then it collects one `Answer` from every site, adds their words, forwards their
parts, and sends the result as the next `Step`. It does not know the meaning of the words
(docs/reference/protocol.md). Every message is a frozen value. The messages of a session (`Hello`,
`Wanted`, `Leaving`, `Rejected`) belong to no run; every other message names its run.

Every number and every text has an upper bound in its type: the reader of a frame enforces it.
"""

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from annotated_types import Ge, Le, Len

from coreg_core.outcomes import Outcome
from coreg_core.plan import PLAN_NUMBER, Plan
from coreg_core.secure.sums import Words as Words
from coreg_core.terms import MOST_SITES, Named, Natural, RunName, SiteName, StudyName

# The number of these messages. A coordinator also serves agents of the release before it, and sends
# them no message that their number lacks.
PROTOCOL_VERSION = 8
OLDEST_PROTOCOL = 8
UPGRADE = "pip install --upgrade ./coreg_federation-*.whl"  # the wheel of the new release
MOST_OPEN = 64  # runs of a `Hello`
MOST_INSTANCES = 200_000_000  # shared ones of a run: 1.6 GB for a vector of one column
MOST_SECONDS = 1e9  # of a timeout: 30 years
# An integer that JSON, SQLite and float64 hold exactly.
Large: TypeAlias = Annotated[int, Ge(0), Le(2**53 - 1)]
Seconds: TypeAlias = Annotated[float, Ge(0), Le(MOST_SECONDS)]
Instances: TypeAlias = Annotated[int, Ge(0), Le(MOST_INSTANCES)]
Digest: TypeAlias = Annotated[str, Len(0, 64)]  # SHA-256 in hexadecimal
Key: TypeAlias = Annotated[str, Len(0, 400)]  # a public key or a signature in hexadecimal
Short: TypeAlias = Annotated[str, Len(0, 64)]  # a release, a date, a kind of question
Someone: TypeAlias = Annotated[str, Named("site", optional=True)]
Figures: TypeAlias = Annotated[tuple[Annotated[float, Ge(-1), Le(1e300)], ...], Len(0, 64)]


# --- from a site --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message of a session; ``runs``: those whose ends this agent can have missed."""

    site: SiteName
    protocol: Natural
    release: Short = ""
    runs: Annotated[tuple[RunName, ...], Len(0, MOST_OPEN)] = ()
    plans: Natural = PLAN_NUMBER  # the newest plan that this agent knows


@dataclass(frozen=True)
class Offer:
    """The agent takes part in this attempt. ``signature`` covers all other fields.

    It is by the key of the site's certificate, which the peers have confirmed (``identity``).
    In plaintext both are empty.
    """

    run: RunName
    attempt: Natural
    plan_digest: Digest
    site: SiteName
    n_unlabelled: Instances  # shared instances that this site lists
    ids_digest: Digest
    data_digest: Digest  # of this site's rows, with a secret: all attempts have the same rows
    key: Key  # X25519 public key of this attempt; in plaintext a random name of the process
    release: Short
    identity: Key
    signature: Key


@dataclass(frozen=True)
class PlanRefused:
    """The reason names policy keys and parameters, never data."""

    run: RunName
    reason: str
    for_now: bool = False  # the run waits for a correction


@dataclass(frozen=True)
class Approval:
    """The plan waits for this site's operator, or the operator approved it (``given``)."""

    run: RunName
    given: bool


@dataclass(frozen=True)
class Unaligned:
    """The agent can take part once the ids are aligned with those of the plan's sites."""

    run: RunName


@dataclass(frozen=True)
class Wanted:
    """The site asks for a run of a standing plan, by its study. It names no individual."""

    study: StudyName


@dataclass(frozen=True)
class Part:
    """Bytes that one site sealed for another, or for all members (``receiver`` is empty)."""

    sender: SiteName
    receiver: Someone
    data: bytes


@dataclass(frozen=True)
class Report:
    """What all sites state alike of the computation, which the coordinator cannot see."""

    question: Short = ""  # the kind of the question that is answered; "" at the end
    asked: Someone = ""  # the only site that answers it; "": all
    round: Large = 0
    verified: bool = False
    residual: Figures = ()  # powers of ten: exact figures disclose spectra; -1: none
    gap: Figures = ()
    outcome: Short = ""  # a name of `Outcome` once the computation has ended
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """One site's answer to one step: words that are added to the others', and parts."""

    run: RunName
    attempt: Natural
    step: Large
    report: Report
    summed: Words | None = None
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()


@dataclass(frozen=True)
class Fault:
    """The agent cannot answer a step. ``received``: because of what it received, by any site."""

    run: RunName
    attempt: Natural
    step: Large
    reason: str
    received: bool = False


@dataclass(frozen=True)
class LedgerHead:
    """The end of a site's ledger. Without a line there is no ledger."""

    lines: Large = 0
    last: Digest = ""  # of the last line, which pins them all
    at: Short = ""  # the site's own clock, ISO 8601 in UTC


NO_HEAD = LedgerHead()


@dataclass(frozen=True)
class Fetched:
    """The site received the run's end. Carries the signed head of its ledger, of all lines before.

    The signature is by the key of the site's certificate.
    """

    run: RunName
    head: LedgerHead = NO_HEAD
    signature: Key = ""


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: its work is done, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = (
    Hello | Offer | PlanRefused | Approval | Unaligned | Wanted | Answer | Fault | Fetched | Leaving
)


# --- to a site ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposal:
    """A plan, and the number of an attempt to execute it. A higher number ends the one before."""

    run: RunName
    attempt: Natural
    plan: Plan
    approval: Seconds = field(default=0.0, compare=False)  # for a site's operator; 0: no limit
    # Fingerprints of the sites' keys, in site order; "" where a site has not enrolled.
    keys: Annotated[tuple[Digest, ...], Len(0, MOST_SITES)] = field(default=(), compare=False)


@dataclass(frozen=True)
class Step:
    """The result of all answers to the step before: their sum, and parts for this site and all.

    Step 0 has the offers of all members instead.
    """

    run: RunName
    attempt: Natural
    step: Large
    roster: Annotated[tuple[Offer, ...], Len(0, MOST_SITES)] = ()
    summed: Words | None = None
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()


@dataclass(frozen=True)
class Finished:
    """The run is over. A site whose computation ended has stored its result before."""

    run: RunName
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Dismissed:
    """The run continues or ends without this site. Its session stays open for other runs."""

    run: RunName
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Countersigned:
    """The coordinator signs the head of a ledger: the answer to `Fetched`.

    It is also sent when a session begins. ``site_signature`` is the site's own, from which it
    recognises the head: a coordinator cannot invent one.
    """

    run: RunName
    head: LedgerHead
    at: Short  # its clock
    signature: Key
    certificate: str
    reason: str = ""  # why there is no signature, or a problem beside it
    site_signature: Key = ""


@dataclass(frozen=True)
class Renewed:
    """The site's next certificate (PEM), for the same key, when the session's one ends soon."""

    certificate: str


@dataclass(frozen=True)
class Rejected:
    """The coordinator rejects this session. ``final``: another attempt to connect fails too."""

    reason: str
    final: bool = False


ToSite: TypeAlias = Proposal | Step | Finished | Dismissed | Countersigned | Renewed | Rejected


def payload_size(message: Answer | Step) -> int:
    """Bytes of its words and parts."""
    size = 0 if message.summed is None else message.summed.values.nbytes
    for part in message.parts:
        size += len(part.data)
    return size
