"""Types of a plan's terms: the names, numbers and choices that a plan can contain.

The limits are annotations. Code that reads a plan from outside enforces them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le

ScheduleName: TypeAlias = Literal["conjugate-gradients", "block-coordinate-descent"]
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
