"""What a run writes down before it acts: plain frozen values, from which `state.resume` makes its state again.

The store keeps them; a test keeps them in a list. None holds a number that a site computed from its rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.protocol.messages import Countersigned, Head, Report
from coreg_core.protocol.outcomes import Outcome

Sites: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class SiteExcluded:
    """This site cannot take part in the run any more, and why; it is not taken back."""

    site: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class AttemptBegan:
    """Who takes part from now on. ``steps`` counts those of the run so far.

    ``data`` has the digest of the rows of everybody who ever took part. ``returns`` counts how often a site was taken back,
    ``dropped`` tells after how many steps one was dropped that is out now.
    """

    attempt: int
    participants: Sites
    steps: int = 0
    data: Mapping[str, str] = field(default_factory=dict)
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StepDone:
    """Everybody has answered; ``number`` counts the steps of a run, over its attempts."""

    number: int
    attempt: int
    answered: int
    report: Report


@dataclass(frozen=True)
class Ended:
    """The run is over; ``heads`` are the sites' last ones, where its computation has ended: sites that have them have models."""

    outcome: Outcome
    reason: str
    heads: tuple[Head, ...] = ()


@dataclass(frozen=True)
class HeadSigned:
    """Where this site's ledger stood when it fetched: under its own signature, and countersigned. It decides nothing.

    ``certificate`` is the site's (DER, hex), ``receipt`` what it was sent back.
    """

    site: str
    signature: str
    certificate: str
    receipt: Countersigned


@dataclass(frozen=True)
class Delivered:
    """This site has the run's end, and its models on its disk."""

    site: str


@dataclass(frozen=True)
class Closed:
    """Nobody is waited for any more: the same command begins a new run."""


Record: TypeAlias = SiteExcluded | AttemptBegan | StepDone | Ended | HeadSigned | Delivered | Closed
