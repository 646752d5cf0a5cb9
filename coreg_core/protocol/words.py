"""A row of 64-bit integers as the value of a message: a site's contribution to a sum (`coreg_core.masking.words`)."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import UInt64

from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import WORD


@dataclass(frozen=True, eq=False)
class Words:
    """Read-only, and equal to another by its bytes."""

    values: UInt64[np.ndarray, " w"]

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.dtype != WORD:
            raise BadData(f"words are a row of uint64, not {self.values.dtype} {self.values.shape}.")
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        return bool(np.array_equal(self.values, other.values)) if isinstance(other, Words) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes."""
        return hashlib.sha256(self.values.data.cast("B")).hexdigest()
