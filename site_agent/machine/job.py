"""What a replica steps: a job over a site's data, stage by stage; what it tells and hears; the result of a run at this site."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from jaxtyping import UInt64

from coreg_core.additive.check import Verdict
from coreg_core.additive.site_model import SiteModel
from coreg_core.agreement.schedules import Progress
from coreg_core.agreement.views import PathChoice, Solution
from coreg_core.arrays import Arr
from coreg_core.computation.agreement import AgreementComputation
from coreg_core.computation.alignment import AlignmentComputation
from coreg_core.computation.question import Question
from coreg_core.errors import BadData
from coreg_core.evaluation import Probability
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import opened, summand


@dataclass(frozen=True)
class Disclosure:
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
    """The shared ids of this site, and how many of its ids at least so many sites have: (2, 940), (3, 712)."""

    ids: tuple[str, ...]
    known_to: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SiteResult:
    """The result of a run at this site, in the run's units: labels are numbers · ``divisor`` + ``shift``."""

    outcome: Outcome
    reason: str
    plan: Plan | None
    solutions: tuple[Solution, ...] = ()  # of an agreement, one for each λ of ``couplings``
    alone: Solution | None = None
    shift: float = 0.0
    divisor: float = 1.0
    additive: SiteModel | None = None  # of an additive training, with ``judged``
    findings: tuple[str, ...] = ()
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None  # of the own labels among ``solutions``
    scores: Arr | None = None  # of a scoring; NaN where too few sites have a record
    present: tuple[tuple[str, ...], ...] = ()  # the sites in each score
    missing: Arr | None = None  # the deviation that absent sites leave
    contributions: Mapping[str, Arr] = field(default_factory=dict)  # of each site to a score
    judged: Judged | None = None
    aligned: Aligned | None = None
    probabilities: tuple[
        Probability, ...
    ] = ()  # yes/no: of the joined model, the score, the local model
    progress: Progress | None = None
    name: str = ""  # of the opened sums; "" if the run ended before
    sites: tuple[str, ...] = ()


Row: TypeAlias = UInt64[np.ndarray, " w"]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Reply:
    """One answer: words of a sum, words and a text for all, texts for each site; ``blinded``: those are words."""

    summed: Row | None = None
    shown: Row | None = None
    to_all: bytes | None = None
    to_each: Mapping[int, bytes] = field(default_factory=dict)
    blinded: bool = False


@dataclass(frozen=True, eq=False)
class Delivery:
    """All answers to a question: the opened sum, and what each site showed, sent to all members, and sent to this site alone."""

    total: Row | None
    shown: Sequence[Row] = ()
    to_all: Sequence[bytes] = ()
    to_me: Mapping[int, bytes] = field(default_factory=dict)


class Fold(Protocol):
    """``make()``, or its earlier result for this key: work that is equal for all members, which a simulation does once."""

    def __call__(self, key: Any, make: Callable[[], Made]) -> Made: ...


class Job(Protocol):
    """One kind of run over this site's data: questions and answers of one attempt at a time."""

    @property
    def ids_digest(self) -> str:
        """Digest of the shared instances' ids."""

    @property
    def n_unlabelled(self) -> int: ...

    @property
    def data_digest(self) -> str:
        """Digest of all data that the answers depend on."""

    def begin(self, sites: tuple[str, ...], key: bytes, share: Fold) -> Question:
        """The first question of a new attempt among these sites. ``key`` is known to its members only."""

    def reply(self, asked: Question, chain: bytes) -> Reply:
        """This site's answer; ``chain`` is the digest of everything that all sites received before. An error names no datum."""

    def receive(self, asked: Question, delivery: Delivery, chain: bytes) -> Question | None:
        """The next question, after all answers to this one; None at the end."""

    @property
    def rounds(self) -> int:
        """Complete rounds, as an operator counts them."""

    @property
    def progress(self) -> Progress | None: ...

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        """Outcome and reason; None before the end."""

    def result(self) -> SiteResult:
        """This site's result, after the end."""


def each_by_itself(key: Any, make: Callable[[], Made]) -> Made:  # noqa: ARG001
    """No cache."""
    return make()


# --- a job whose answers are only added -------------------------------------------------------------------------------

Computation: TypeAlias = AgreementComputation | AlignmentComputation


class Sums(ABC):
    """A `Job` that steps a computation of sums. ``computation`` and ``state`` are those of the attempt."""

    def __init__(self, plan: Plan, name: str, n_unlabelled: int, ids_digest: str, data_digest: str):
        self.plan, self.name, self.progress = plan, name, cast("Progress | None", None)
        self.n_unlabelled, self.ids_digest, self.data_digest = n_unlabelled, ids_digest, data_digest
        self.computation: Any = None
        self.state: Any = None
        self._fault = ""  # of a sum that honest sites cannot give: the run ends at every site with this reason

    @abstractmethod
    def enter(self, sites: tuple[str, ...], key: bytes) -> Computation:
        """Begin an attempt; what its sums are of."""

    @abstractmethod
    def answer(self, asked: Question) -> tuple[Arr, tuple[float, ...]]:
        """Vectors and scalars. An error names no datum."""

    @abstractmethod
    def ended(self, outcome: Outcome, reason: str) -> SiteResult:
        """From the last state."""

    def begin(self, sites: tuple[str, ...], key: bytes, share: Fold) -> Question:
        self.sites, self._share, self._fault, self.progress = sites, share, "", None
        self.computation = computation = self.enter(sites, key)
        first = self._stepped("start", computation.start)
        assert first is not None, "no computation ends without a question"
        return first

    def reply(self, asked: Question, chain: bytes) -> Reply:  # noqa: ARG002
        values, scalars = self.answer(asked)
        return Reply(summand(asked.layout, values, scalars, asked.exponents, len(self.sites)))

    def receive(self, asked: Question, delivery: Delivery, chain: bytes) -> Question | None:  # noqa: ARG002
        total, computation, state = delivery.total, self.computation, self.state
        assert total is not None
        values, scalars = self._share("sum", lambda: opened(asked.layout, total, asked.exponents))
        return self._stepped("step", lambda: computation.step(state, asked, values, scalars))

    def _stepped(self, name: str, step: Callable[[], Any]) -> Question | None:
        computation = self.computation

        def made() -> tuple[Any, Question | None, Progress | None, str]:
            try:
                state = step()
                asked = None if computation.outcome(state) is not None else computation.round(state)
                return state, asked, computation.progress(state), ""
            except BadData as error:
                return self.state, None, None, str(error)

        self.state, asked, self.progress, self._fault = self._share(name, made)
        return asked

    @property
    def rounds(self) -> int:
        return 0 if self._fault else int(self.computation.rounds(self.state))

    @property
    def portion(self) -> float | None:
        """How much of an alignment is done; None for other runs."""
        return None if self.computation is None else self.computation.portion(self.state)

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        return (
            (Outcome.SITE_FAULT, self._fault)
            if self._fault
            else self.computation.outcome(self.state)
        )

    def result(self) -> SiteResult:
        assert self.outcome is not None
        return SiteResult(*self.outcome, self.plan) if self._fault else self.ended(*self.outcome)
