"""The terms of a plan under every objective: names, numbers and choices, and its common sections.

Limits are annotations. Code that reads a plan from outside enforces them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len

SolverName: TypeAlias = Literal["conjugate-gradients", "block-coordinate-descent"]
DropoutPolicy: TypeAlias = Literal["wait", "continue"]
Aggregation: TypeAlias = Literal["secure", "plaintext"]
MOST_SITES = 10_000
_LARGEST = 2**31 - 1  # fits the wire's integers, with margin
_HUGE = 1e100  # its square is a float64


@dataclass(frozen=True)
class Named:
    """An annotation: the text is a name (`coreg_core.names`), or empty where that is allowed."""

    what: str
    optional: bool = False


SiteName: TypeAlias = Annotated[str, Named("site")]
StudyName: TypeAlias = Annotated[str, Named("study", optional=True)]
RunName: TypeAlias = Annotated[str, Named("run")]
Positive: TypeAlias = Annotated[float, Gt(0), Le(_HUGE)]
NotNegative: TypeAlias = Annotated[float, Ge(0), Le(_HUGE)]
Natural: TypeAlias = Annotated[int, Ge(0), Le(_LARGEST)]
Count: TypeAlias = Annotated[int, Ge(1), Le(_LARGEST)]


@dataclass(frozen=True)
class Iteration:
    """The solver and its stopping rule: gap ≤ tolerance · Q(0), and prediction bounds."""

    name: SolverName = "conjugate-gradients"
    tolerance: NotNegative = 1e-10
    prediction_tolerance: NotNegative = 1e-6
    max_rounds: Count = 1000
    threads: Annotated[int, Ge(1), Le(1024)] = 1


@dataclass(frozen=True)
class Membership:
    """Who can take part, and how many must; a lost site stalls ("wait") or is dropped."""

    sites: Annotated[tuple[SiteName, ...], Len(1, MOST_SITES)]
    min_sites: Count
    on_dropout: DropoutPolicy = "wait"


@dataclass(frozen=True)
class Privacy:
    """What the coordinator reads: no site's answers ("secure"), or each of them ("plaintext")."""

    aggregation: Aggregation = "secure"
    # Sums with one site more or fewer, which disclose that one's answers.
    membership_changes: bool = False
