"""What every objective states of itself, and what it reads of the plan around it. Values and text only: commands stay light."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from annotated_types import Ge, Gt, Le, Len

ScheduleName: TypeAlias = Literal["conjugate-gradients", "block-coordinate-descent"]
Labels: TypeAlias = Literal["none", "in the scalars", "in the vectors"]
Needs: TypeAlias = Literal["rows", "ids", "batch"]
DropoutPolicy: TypeAlias = Literal["wait", "continue"]
Aggregation: TypeAlias = Literal["secure", "plaintext"]
SCALAR_WORDS = 68  # words of a scalar in a sum: 2176 bits hold every float64 exactly
TAG_WORDS = 4  # of a sum's tag: 32 bits in each, as of a scalar
RUNS = 100  # attempts at a plan on one data set, over all its runs
_LARGEST = 2**31 - 1  # fits the wire's integers, with margin
Positive: TypeAlias = Annotated[float, Gt(0)]
NotNegative: TypeAlias = Annotated[float, Ge(0)]
Natural: TypeAlias = Annotated[int, Ge(0), Le(_LARGEST)]
Count: TypeAlias = Annotated[int, Ge(1), Le(_LARGEST)]


@dataclass(frozen=True)
class Kind:
    """A kind of question: the phase of the run, what an answer discloses, and where it depends on labels."""

    phase: str
    discloses: str
    labels: Labels = "none"


@dataclass(frozen=True)
class Iteration:
    """The schedule and its stopping rule: gap ≤ tolerance · Q(0) and every prediction bound ≤ its tolerance."""

    name: ScheduleName = "conjugate-gradients"
    tolerance: NotNegative = 1e-10
    prediction_tolerance: NotNegative = 1e-6
    max_rounds: Count = 1000
    threads: Annotated[int, Ge(1), Le(1024)] = 1


@dataclass(frozen=True)
class Membership:
    """Who can take part, and how many must; ``on_dropout`` "wait" stalls, "continue" drops the site for the run."""

    sites: Annotated[tuple[str, ...], Len(1, 10_000)]
    min_sites: Count
    on_dropout: DropoutPolicy = "wait"


@dataclass(frozen=True)
class Privacy:
    """The coordinator's view: none of the sites' answers ("secure"), or each of them ("plaintext")."""

    aggregation: Aggregation = "secure"
    membership_changes: bool = (
        False  # sums with one site more or fewer, which disclose that one's answers
    )


@runtime_checkable
class Setting(Protocol):
    """A plan without its objective."""

    @property
    def membership(self) -> Membership: ...
    @property
    def iteration(self) -> Iteration: ...
    @property
    def privacy(self) -> Privacy: ...
    @property
    def sites(self) -> tuple[str, ...]: ...
    @property
    def masked(self) -> bool: ...


class Statement:
    """What an objective states of itself, with the usual answers."""

    name: ClassVar[str]  # in files and on the wire
    called: ClassVar[str]  # in sentences, with its article
    needs: ClassVar[Needs] = "rows"  # of a site
    questions: ClassVar[Mapping[str, Kind]]
    attempts: ClassVar[int] = 10  # of a run at most
    one_set: ClassVar[bool] = True  # its sums on the same instances are over one set of sites
    usual: ClassVar[str] = "some dozens"  # answers that a run needs

    def fault(self, plan: Setting) -> str | None:
        """Why the plan's terms do not fit together, or None."""
        return None if plan.masked else f'aggregation="plaintext": {self.called} needs sealed sums.'

    def most_numbers(self, shared: int) -> int:
        """The most words of an answer, without its scalars and tag."""
        return shared

    def most_answers(self, plan: Setting) -> int:  # noqa: ARG002
        """The most answers of a site to one plan on one set of instances, over all its runs."""
        return RUNS * len(self.questions)

    def method(self, plan: Setting) -> str:
        """What is computed, as an operator reads it."""
        raise NotImplementedError

    def leaves(self, shared: int) -> str:
        """What a site sends."""
        raise NotImplementedError

    def computable(self, plan: Setting, both: int) -> str:
        """What members can compute from it; ``both``: labelled rows that are shared too."""
        raise NotImplementedError
