"""What a replica steps: a job over a site's data, stage by stage; what it tells and hears; the result of a run at this site."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from jaxtyping import UInt64

from coreg_core.additive.check import Verdict
from coreg_core.additive.site_model import SiteModel
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.agreement.views import Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.computation.question import Question
from coreg_core.evaluation import Probability
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class Told:
    """The disclosure of an answer, for the ledger: the question, the sites of its sum, and whether these can change."""

    asked: Question
    sites: tuple[str, ...]
    may_change: bool
    sealed: bool


@dataclass(frozen=True, eq=False)
class Judged:
    """Does joining pay? The verdict of a site's own labels, each left out, and these labels, of common rows first."""

    verdict: Verdict
    labels: Arr


@dataclass(frozen=True)
class Aligned:
    """The shared ids of this site, how many of its ids at least so many sites have: (2, 940), (3, 712), and how many ids it
    has.
    """

    ids: tuple[str, ...]
    known_to: tuple[tuple[int, int], ...]
    own: int


@dataclass(frozen=True)
class SiteResult:
    """The result of a run at this site.

    Parameters
    ----------
    solutions, couplings, choice
        its models of an agreement in the run's units, one for each column (λ); their λ; of a path, the one with the least
        left-out error on this site's labels.
    additive, judged, probabilities
        its models of an additive training in the labels' units; whether joining pays here; for a yes/no target, the
        probabilities of the joined model, of the score and of the local model.
    scores, present, missing
        joint scores, NaN where too few sites have a record; the sites in each; the deviation that the other sites leave.
    findings
        sentences about the training at this site.
    progress
        the exact figures of the last round.
    name, sites
        of the opened sums, and of the sites in them; empty if the run ended before its computation did.
    """

    outcome: Outcome
    reason: str
    plan: Plan | None
    solutions: tuple[Solution, ...] = ()
    alone: Solution | None = None
    shift: float = 0.0
    divisor: float = 1.0
    additive: SiteModel | None = None
    findings: tuple[str, ...] = ()
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None
    scores: Arr | None = None
    present: tuple[tuple[str, ...], ...] = ()
    missing: Arr | None = None
    judged: Judged | None = None
    aligned: Aligned | None = None
    probabilities: tuple[Probability, ...] = ()
    progress: Progress | None = None
    name: str = ""
    sites: tuple[str, ...] = ()


Row: TypeAlias = UInt64[np.ndarray, " w"]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Telling:
    """One answer: words of a sum, words for all, a text for all members, and texts for each other site (by position).

    ``blinded``: the texts for each are words, to be blinded with the other senders.
    """

    summed: Row | None = None
    shown: Row | None = None
    to_all: bytes | None = None
    to_each: Mapping[int, bytes] = field(default_factory=dict)
    blinded: bool = False


@dataclass(frozen=True, eq=False)
class Heard:
    """All answers to a question: the opened sum, and what each site showed, told all members, and told this site alone."""

    total: Row | None
    shown: Sequence[Row] = ()
    to_all: Sequence[bytes] = ()
    to_me: Mapping[int, bytes] = field(default_factory=dict)


class Share(Protocol):
    """``make()``, or the result of another member in this process."""

    def __call__(self, name: object, make: Callable[[], Made]) -> Made: ...


class Job(Protocol):
    """One kind of run over this site's data: questions and answers of one attempt at a time."""

    @property
    def ids_digest(self) -> str:
        """Digest of the shared instances' ids."""
        ...

    @property
    def n_unlabelled(self) -> int: ...

    @property
    def data_digest(self) -> str:
        """Digest of all data that the answers depend on."""
        ...

    def begin(self, sites: tuple[str, ...], key: bytes, share: Share) -> Question:
        """The first question of a new attempt among these sites. ``key`` is known to its members only."""
        ...

    def tell(self, asked: Question, chain: bytes) -> Telling:
        """This site's answer; ``chain`` is the digest of everything that all sites heard before.

        Raises
        ------
        CoregError
            these rows do not allow an answer; the message names no datum.
        """
        ...

    def hear(self, asked: Question, heard: Heard, chain: bytes) -> Question | None:
        """The next question, after all answers to this one; None at the end.

        Raises
        ------
        CoregError
            a rule forbids to go on, or honest sites cannot have told this.
        """
        ...

    @property
    def rounds(self) -> int:
        """Complete rounds, as an operator counts them."""
        ...

    @property
    def progress(self) -> Progress | None: ...

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        """Outcome and reason; None before the end."""
        ...

    def result(self) -> SiteResult:
        """This site's result, after the end."""
        ...


class Fold(Protocol):
    """A cache of work that is equal for all members; a simulation of many sites shares it among them."""

    def __call__(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """``make()``, or its earlier result for this key."""
        ...


def each_by_itself(key: tuple[Any, ...], make: Callable[[], Made]) -> Made:  # noqa: ARG001
    """No cache."""
    return make()
