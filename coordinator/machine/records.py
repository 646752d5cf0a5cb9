"""Records that a run writes before it acts: plain frozen values, from which `state.resume` restores its state.

No record has a number that a site computed from its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.protocol.messages import Countersigned, Head, Report
from coreg_core.protocol.outcomes import Outcome

Sites: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class SiteExcluded:
    """The site is excluded from the run permanently."""

    site: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class AttemptBegan:
    """The participants from now on. ``steps`` counts the steps of the run so far.

    ``data`` has the digest of the rows of each site that ever took part. ``returns`` counts how often each site rejoined.
    ``dropped`` has, for each site that is dropped now, the number of steps before.
    """

    attempt: int
    participants: Sites
    steps: int = 0
    data: Mapping[str, str] = field(default_factory=dict)
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepDone:
    """All sites have answered; ``number`` counts the steps of a run over its attempts."""

    number: int
    attempt: int
    answered: int
    report: Report


@dataclass(frozen=True)
class Ended:
    """The run has ended. ``heads`` are the sites' last heads if the computation has ended; their sites have models."""

    outcome: Outcome
    reason: str
    heads: tuple[Head, ...] = ()


@dataclass(frozen=True)
class HeadSigned:
    """The head of a site's ledger at the time of its `Fetched`, with both signatures. It has no effect on the run.

    ``certificate`` is the site's (DER, hexadecimal); ``receipt`` was sent to the site.
    """

    site: str
    signature: str
    certificate: str
    receipt: Countersigned


@dataclass(frozen=True)
class Delivered:
    """The site has stored the run's end and its models."""

    site: str


@dataclass(frozen=True)
class Closed:
    """No site is awaited: the same command begins a new run."""


Record: TypeAlias = SiteExcluded | AttemptBegan | StepDone | Ended | HeadSigned | Delivered | Closed
