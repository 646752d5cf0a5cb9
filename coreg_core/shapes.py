"""The shape of an answer: how many words of a sum and how many bytes of parts it contains."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SCALAR_WORDS = 68  # words of a scalar in a sum: 2176 bits hold every float64 exactly
TAG_WORDS = 4  # of a sum's tag: 32 bits in each, as of a scalar
SEAL_BYTES = 16  # that a sealed text is longer than the text
KEY_SIZE = 32  # bytes of a contribution to the run's key


@dataclass(frozen=True)
class Shape:
    """What one answer contains; as a bound, at most: 64-bit words of a sum, and bytes of parts.

    Sizes are those before masks and seals.
    """

    summed: int = 0  # words
    to_all: int = 0  # bytes for all members; 0: no such part
    to_each: Mapping[str, int] = field(default_factory=dict)  # bytes, by receiver

    @property
    def size(self) -> int:
        """Bytes of the payload, with tag and seals."""
        summed = 8 * (self.summed + TAG_WORDS) if self.summed else 0
        parts = [self.to_all, *self.to_each.values()]
        return summed + sum(part + SEAL_BYTES for part in parts if part)
