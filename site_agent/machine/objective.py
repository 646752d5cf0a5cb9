"""One objective at a site: the class that a run steps, and the values that pass between the two.

    question = computation.ask()           the next question, which all sites derive alike
    reply = computation.answer(question)   what this site says to it
    computation.take(question, answers)    what all sites said
    computation.result()                   after the last question

A run (`site.SiteMachine`) asks, seals and opens; a computation knows neither keys nor messages.
What a reply contains is the question's shape, which is never more than what the plan declares
(`coreg_core.plan.Plan.shape`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from jaxtyping import UInt64

from coreg_core.agreement.solver import Progress
from coreg_core.outcomes import Notice, Outcome
from coreg_core.shapes import Shape
from site_agent.disclosure import Pairs, RowSet
from site_agent.machine.results import Result

Row: TypeAlias = UInt64[np.ndarray, " w"]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Question:
    """One question to the sites of an attempt.

    ``shapes``: what the answer of each asked site contains. ``summed``: the words of the sum, the
    same in all shapes. ``numbers``: those in an answer, if they are other than its words.
    ``about``: everything else that must be equal at all sites, in canonical form.
    """

    kind: str
    shapes: Mapping[str, Shape]
    summed: int = 0
    has_parts: bool = True
    numbers: int = 0
    about: bytes = b""


@dataclass(frozen=True, eq=False)
class Reply:
    """One site's answer before it is sealed, and what it discloses beyond its numbers."""

    summed: Row | None = None
    to_all: bytes = b""
    to_each: Mapping[str, bytes] = field(default_factory=dict)
    blinded: bool = False  # ``to_each`` are words, of which a receiver reads the sum alone
    rows: RowSet | None = None  # as the next four in `Disclosure`
    labelled: int = 0
    opens: bool = False
    scores: Pairs | None = None
    asked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Answers:
    """All sites' answers: the opened sum, the parts for all members, and those for this site."""

    total: Row | None
    to_all: Mapping[str, bytes]
    to_me: Mapping[str, bytes]


class Fold(Protocol):
    """``make()``, or its earlier result for this key.

    Work that is equal for all members: a simulation does it once. The key has the chain, the digest
    of all that they received.
    """

    def __call__(self, key: tuple[str, bytes], make: Callable[[], Made]) -> Made: ...


class Computation(Protocol):
    """One objective over this site's data, one attempt at a time. An error names no datum."""

    n_unlabelled: int
    ids_digest: str  # of the shared instances' ids
    data_digest: str  # of all data that the answers depend on
    within: float  # seconds within which an attempt's answer that opens something must leave
    rounds: int  # complete ones, as an operator counts them
    progress: Progress | None  # the exact figures of a round, where there are some

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:
        """A new attempt among these sites. ``key`` is known to its members only."""

    def ask(self) -> Question | None:
        """The question that is open; None at the end."""

    def answer(self, question: Question, chain: bytes) -> Reply:
        """This site's reply; ``chain`` is the digest of all that all sites received before."""

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:
        """Take all answers. BadData: some site's answer cannot be used."""

    def news(self, run: str) -> Notice | None:
        """What the operator hears after a step, if there is something new."""

    @property
    def outcome(self) -> tuple[Outcome, str]:
        """Outcome and reason, at the end."""

    def result(self) -> Result:
        """This site's result, at the end."""
