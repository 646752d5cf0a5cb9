"""The array type for shapes, the size of a block, and sums with the same bits on every machine.

Inside the mathematics arrays are float64, finite, and of the stated shape, without further checks.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arr = NDArray[np.float64]
    Ints = NDArray[np.int64]
else:  # jaxtyping reads the class itself, at run time, when the tests execute the shapes
    Arr = Ints = np.ndarray

# A block of kernel values is kept near this many bytes: large enough for BLAS-3 to reach its speed,
# small enough to stay in the outer cache, and independent of m, which bounds memory.
BLOCK_BYTES = 4 * 2**20


def block_rows(row_length: int) -> int:
    """Rows of a float64 block of at most ``BLOCK_BYTES`` whose rows hold ``row_length`` numbers (at
    least 1).
    """
    return max(1, BLOCK_BYTES // (8 * max(1, row_length)))


def evenly(n: int, most: int) -> "Ints":
    """At most so many places of n, spread evenly."""
    if n <= most:
        return np.arange(n)
    return np.linspace(0, n - 1, most).astype(np.int64)


# Every site steps the same solver, and one other bit at one site ends the run. The second half is
# added to the first until one number is left. Single additions round alike everywhere (IEEE 754),
# and their order follows from the length alone; that of BLAS follows from the processor, and numpy
# promises none for `sum` and `einsum`. `math.fsum` takes 20 to 100 times as long.


def _added(rest: Arr) -> Arr:
    """Σ over the first axis, in place."""
    left = len(rest)
    while left > 1:
        half = (left + 1) // 2
        np.add(rest[: left - half], rest[half:left], out=rest[: left - half])
        left = half
    if left:
        return np.asarray(rest[0])
    return np.zeros(rest.shape[1:])


def dot(a: Arr, b: Arr) -> float:
    """aᵀb of two (n,)."""
    return float(_added(a * b))


def norms(columns: Arr) -> Arr:
    """‖·‖₂ of every column of (n, k)."""
    return np.sqrt(_added(columns * columns))
