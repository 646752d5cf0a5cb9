"""Blocks of numbers as values of a message: read-only, equal by bytes, checked for shape."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import UInt64

from coreg_core.errors import BadData
from coreg_core.masking.fixed_point import WORD
from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True, eq=False)
class Vector:
    """A read-only (m, k) float64 matrix, equal to another by shape and bytes (so that NaN and -0.0 cannot hide)."""

    values: Arr

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float64:
            raise BadData(f"a vector is a float64 matrix (m, k), not {self.values.dtype} {self.values.shape}.")
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        return self.shape == other.shape and bool(
            np.array_equal(self.values.view(np.uint64), other.values.view(np.uint64))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.digest))

    @property
    def shape(self) -> tuple[int, int]:
        """(m, k)."""
        m, k = self.values.shape
        return m, k

    @property
    def wire_bytes(self) -> int:
        """What its numbers take on the wire."""
        return 8 * self.values.size

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the little-endian bytes of float64, row by row, however it travels."""
        return hashlib.sha256(self.values.astype("<f8", copy=False).data.cast("B")).hexdigest()

    @cached_property
    def finite(self) -> bool:
        """No NaN and no infinity; a sum tells, and is checked entry by entry only when it is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(self.values.sum()) or np.isfinite(self.values).all())


@dataclass(frozen=True, eq=False)
class Words:
    """A read-only row of 64-bit integers: what a site adds to a masked sum (`coreg_core.masking.sums`)."""

    values: UInt64[np.ndarray, " w"]

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.dtype != WORD:
            raise BadData(f"words are a row of uint64, not {self.values.dtype} {self.values.shape}.")
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def wire_bytes(self) -> int:
        """What they take on the wire."""
        return self.values.nbytes

    def __eq__(self, other: object) -> bool:
        return bool(np.array_equal(self.values, other.values)) if isinstance(other, Words) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the bytes."""
        return hashlib.sha256(self.values.data.cast("B")).hexdigest()
