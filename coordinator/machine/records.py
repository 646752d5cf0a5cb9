"""What a run writes down before it acts: plain frozen values, from which `jobs.recorded.resume` makes its state again.

The store keeps them; a test keeps them in a list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_core.agreement.schedules.schedule import FinalTargets
from coreg_core.agreement.views import Part
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Countersigned, PlanAccepted
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.vectors import Vector

Sites: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class SiteExcluded:
    """This site cannot take part in the run any more, and why; it is not taken back."""

    site: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class MembershipChanged:
    """Who takes part from this attempt on, and the schedule's state at that point (empty once the run is over).

    ``accepted`` is what everybody agreed to who ever took part;
    ``returns`` counts how often a site was taken back, ``dropped`` tells at which question one was dropped that is out now;
    ``affine`` holds the sums of the label-bearing answers that are known, by the sites that they were summed over.
    """

    attempt: int
    question: int
    participants: Sites
    accepted: Mapping[str, PlanAccepted]
    state: Mapping[str, Arr]
    returns: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    affine: Mapping[Sites, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class StepTaken:
    """One answered question: the sum of the answers, from which the next state follows bit by bit.

    ``scalars`` are summed like the vectors, and ``total`` is None where there are none of these (additive objective);
    ``phase`` is what the question belonged to, in words, where the objective has phases.
    """

    question: int
    attempt: int
    part: Part
    total: Vector | None
    answered: int
    scalars: tuple[float, ...] = ()
    phase: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The schedule's whole state; the sums before it are no longer needed."""

    question: int
    state: Mapping[str, Arr]
    affine: Mapping[Sites, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """The run is over; ``models`` are what the sites fetch, for as long as the store has them."""

    outcome: Outcome
    reason: str
    models: FinalTargets | None


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


Record: TypeAlias = SiteExcluded | MembershipChanged | StepTaken | Snapshot | Ended | HeadSigned | Delivered | Closed
