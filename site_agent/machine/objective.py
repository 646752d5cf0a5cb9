"""One objective at a site: the class that a run steps, and the values that pass between the two.

    question = computation.ask()           the next question, which all sites derive alike
    reply = computation.answer(question)   what this site says to it
    computation.take(question, answers)    what all sites said
    computation.result()                   after the last question

A run (`site.Site`) asks, seals and opens; a computation knows neither keys nor messages. What a
reply contains is the question's shape, which is never more than what the plan declares
(`coreg_core.plan.Plan.shape`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from jaxtyping import UInt64

from coreg_core.agreement.schedules import Progress
from coreg_core.objectives.setting import Shape
from coreg_core.outcomes import Outcome
from site_agent.disclosure import Pairs, RowSet
from site_agent.machine.results import Result

Row: TypeAlias = UInt64[np.ndarray, " w"]
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Question:
    """One question to the sites of an attempt.

    ``shapes``: what the answer of each asked site contains; the words of all are added.
    ``numbers``: those in an answer, if they are other than its words.
    ``about``: everything else that must be equal at all sites, in canonical form.
    """

    kind: str
    shapes: Mapping[str, Shape]
    numbers: int = 0
    about: bytes = b""

    @property
    def summed(self) -> int:
        """The words of the sum."""
        return next(iter(self.shapes.values())).summed


@dataclass(frozen=True, eq=False)
class Reply:
    """One site's answer before it is sealed, and what it discloses beyond its numbers."""

    summed: Row | None = None
    to_all: bytes = b""
    to_each: Mapping[str, bytes] = field(default_factory=dict)
    blinded: bool = False  # ``to_each`` are words, of which a receiver reads the sum alone
    rows: RowSet | None = None  # as the next three in `Disclosure`
    labelled: int = 0
    opens: bool = False
    scores: Pairs | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """All sites' answers: the opened sum, the parts for all members, and those for this site."""

    total: Row | None
    to_all: Mapping[str, bytes]
    to_me: Mapping[str, bytes]


class Fold(Protocol):
    """``make()``, or its earlier result for this key.

    Work that is equal for all members: a simulation does it once.
    """

    def __call__(self, key: Any, make: Callable[[], Made]) -> Made: ...


def each_by_itself(key: Any, make: Callable[[], Made]) -> Made:  # noqa: ARG001
    """No cache."""
    return make()


class Computation(Protocol):
    """One objective over this site's data, one attempt at a time. An error names no datum."""

    @property
    def ids_digest(self) -> str:
        """Digest of the shared instances' ids."""

    @property
    def n_unlabelled(self) -> int: ...

    @property
    def data_digest(self) -> str:
        """Digest of all data that the answers depend on."""

    @property
    def within(self) -> float:
        """Seconds within which an attempt's answer that opens something must leave."""

    def begin(self, sites: tuple[str, ...], key: bytes, share: Fold) -> None:
        """A new attempt among these sites. ``key`` is known to its members only."""

    def ask(self) -> Question | None:
        """The question that is open; None at the end."""

    def answer(self, question: Question, chain: bytes) -> Reply:
        """This site's reply; ``chain`` is the digest of all that all sites received before."""

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:
        """Take all answers. BadData: some site's answer cannot be used."""

    @property
    def rounds(self) -> int:
        """Complete rounds, as an operator counts them."""

    @property
    def progress(self) -> Progress | None:
        """The exact figures of a round; None where there are none."""

    @property
    def portion(self) -> float | None:
        """How much is done, if that is known."""

    @property
    def outcome(self) -> tuple[Outcome, str]:
        """Outcome and reason, at the end."""

    def result(self) -> Result:
        """This site's result, at the end."""
