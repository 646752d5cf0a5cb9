"""One column of a question as a value of its own: its solution, and its weight.

Today a column is one coupling λ of the plan's path. Folds and probes can be columns too, so no other code
can treat a column as a position in a list of couplings.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge


@dataclass(frozen=True)
class Column:
    """λ, and the weight μ of this question."""

    coupling: Annotated[float, Ge(0)]
    weight: Annotated[float, Ge(0)]
