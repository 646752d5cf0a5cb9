"""Names and sizes that the plan shares with the mathematics, without importing it."""

from typing import Literal, TypeAlias

ScheduleName: TypeAlias = Literal["conjugate-gradients", "block-coordinate-descent"]
SCALAR_WORDS = 68  # words of a scalar in a sum: 2176 bits hold every float64 exactly
TAG_WORDS = 4  # of a sum's tag: 32 bits in each, as of a scalar
