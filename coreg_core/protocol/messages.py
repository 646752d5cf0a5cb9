r"""The closed list of what may cross a site's boundary. Nothing else can: the wire encodes these and no other type.

A run is a log of numbered steps. The coordinator proposes a plan and collects the sites' offers; then it gathers one
`Answer` of every site, adds the words of those that have any, and sends the result to all as the next `Step`. It does
not know what the words mean. The log of an attempt:

| step | carries | is answered with |
|---|---|---|
| 0 | every site's offer | this site's contribution to the run key, wrapped for each other site |
| 1 | the wrapped contributions | a proof that this site has the key |
| 2 | the proofs | words: the first answer of the computation |
| 3, … | the sum of the words | the next answer; at the end none, and how it ended |

In plaintext there are no keys, and step 0 is answered with words. Every message is a frozen value. A session's own
messages (`Hello`, `Leaving`, `Rejected`) name no run; every other names the run that it belongs to.
"""

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from annotated_types import Ge, Le, Len

from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Natural, NotNegative, Plan
from coreg_core.protocol.words import Words

PROTOCOL_VERSION = 3
MOST_SITES = 10_000  # parts, heads and offers of one message
Large: TypeAlias = Annotated[int, Ge(0)]
Level: TypeAlias = Annotated[int, Ge(-10_000), Le(10_000)]


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message of a session: who this is, and what its agent speaks."""

    site: str
    protocol: Natural
    release: str = ""


@dataclass(frozen=True)
class Resume:
    """A state that this site can go on from: after so many sums, and a keyed digest of them. Only members know the key."""

    position: Large
    digest: str


@dataclass(frozen=True)
class Offer:
    """The agent takes part in this attempt of a run. ``signature`` is its certificate's key's, on everything else here.

    Parameters
    ----------
    run, attempt, plan_digest, site
        what it takes part in.
    n_unlabelled, ids_digest
        how many shared instances this site lists, and the digest of their ids.
    data_digest
        salted: tells whether a site that comes back has the rows that it began with, and nothing else.
    key
        X25519 public key of this attempt.
    session_key
        Ed25519 public key that signs this attempt's answers.
    commitment
        SHA-256 of this site's contribution to the run key.
    resume
        states that it can go on from, the latest last.
    machine
        digest of sums that have to be the same on every machine.
    release
        of the agent.
    identity
        the public key of its certificate: the peers have its fingerprint in their policies.

    In plaintext key, session_key, signature and identity are empty, and the commitment tells one process from another.
    """

    run: str
    attempt: Natural
    plan_digest: str
    site: str
    n_unlabelled: Large
    ids_digest: str
    data_digest: str
    key: str
    session_key: str
    commitment: str
    resume: Annotated[tuple[Resume, ...], Len(0, 8)]
    machine: str
    release: str
    identity: str
    signature: str


@dataclass(frozen=True)
class PlanRefused:
    """The agent will not take part; the reason names policy and parameters, never data."""

    run: str
    reason: str


@dataclass(frozen=True)
class Approval:
    """The plan waits for this site's operator (``given`` is false), or the operator approved it."""

    run: str
    given: bool


@dataclass(frozen=True)
class Part:
    """A text for one site, or for all where ``site`` is empty (of an answer); from one (of a step). Hex."""

    site: str
    data: str


@dataclass(frozen=True)
class Report:
    """What a site says of the computation to the coordinator, which cannot see it.

    ``level`` is ⌈log₂(gap/tolerance)⌉ of each column after a verified round: coarse on purpose. ``residual``, ``gap`` and
    ``bound`` come only where the plan and every policy say so (convergence_report = "exact"). ``outcome`` is a name of
    `Outcome` once the computation has ended, and empty before.
    """

    round: Large = 0
    phase: str = ""
    verified: bool = False
    level: Annotated[tuple[Level, ...], Len(0, 64)] = ()
    residual: Annotated[tuple[float, ...], Len(0, 64)] = ()
    gap: Annotated[tuple[float, ...], Len(0, 64)] = ()
    bound: Annotated[tuple[float, ...], Len(0, 64)] = ()
    outcome: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Head:
    """Where a site stands in the log when it answers: hex, signed with the session key of its offer.

    ``chain`` pins every step so far, ``state`` is a keyed digest of the question that followed from them, and ``content`` is
    SHA-256 of what this answer carries.
    """

    site: str
    chain: str
    state: str
    content: str
    signature: str


@dataclass(frozen=True)
class Answer:
    """One site's answer to one step."""

    run: str
    attempt: Natural
    step: Large
    head: Head
    report: Report
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()
    words: Words | None = None


@dataclass(frozen=True)
class Fault:
    """A step that the agent cannot or may not answer, and why."""

    run: str
    attempt: Natural
    step: Large
    reason: str


@dataclass(frozen=True)
class LedgerHead:
    """Where a site's ledger stands: so many lines since it was begun, and the SHA-256 of the last, which pins them all.

    ``at`` is the site's own clock, ISO 8601 in UTC. A ledger of no lines is none.
    """

    lines: Large = 0
    last: str = ""
    at: str = ""


NO_HEAD = LedgerHead()


@dataclass(frozen=True)
class Fetched:
    """The run's end has arrived, and the site's models, where there are any, are on its disk; its ledger's head, signed.

    ``signature`` is that of the site's certificate's key on the head of everything that it wrote down before this message
    (`coreg_wire.identity.checkpoints`). Without TLS there is no key, and neither.
    """

    run: str
    head: LedgerHead = NO_HEAD
    signature: str = ""


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: it has what it came for, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = Hello | Offer | PlanRefused | Approval | Answer | Fault | Fetched | Leaving


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposal:
    """A plan, and the number of the attempt to carry it out. A higher number ends the attempt before.

    ``approval`` is how many seconds the coordinator waits for a site's operator; 0 is without end.
    """

    run: str
    attempt: Natural
    plan: Plan
    approval: NotNegative = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Step:
    """What all sites' answers to the step before come to; see the module's table. ``heads`` are those of the answers."""

    run: str
    attempt: Natural
    step: Large
    roster: Annotated[tuple[Offer, ...], Len(0, MOST_SITES)] = ()
    parts: Annotated[tuple[Part, ...], Len(0, MOST_SITES)] = ()
    heads: Annotated[tuple[Head, ...], Len(0, MOST_SITES)] = ()
    words: Words | None = None


@dataclass(frozen=True)
class Finished:
    """The run is over. ``heads`` are those of the last answers: of every site whose computation has ended."""

    run: str
    outcome: Outcome
    reason: str
    heads: Annotated[tuple[Head, ...], Len(0, MOST_SITES)] = ()


@dataclass(frozen=True)
class Dismissed:
    """The run goes on, or ends, without this site, and why. Its session stays open for other runs."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Countersigned:
    """The answer to `Fetched`: the coordinator has the head of this site's ledger, and says so under its own key.

    ``at`` is its clock. An empty ``signature`` is none, and ``reason`` says why; beside a signature it says what is wrong.
    """

    run: str
    head: LedgerHead
    at: str
    signature: str
    certificate: str
    reason: str = ""


@dataclass(frozen=True)
class Rejected:
    """The coordinator will not have this session. ``final``: dialling again would not mend it."""

    reason: str
    final: bool = False


ToSite: TypeAlias = Proposal | Step | Finished | Dismissed | Countersigned | Rejected
