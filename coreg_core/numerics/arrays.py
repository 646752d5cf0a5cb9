"""The array type for shapes, and the size of a block.

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

# A block of kernel values is kept near this many bytes: large enough for BLAS-3 to reach its speed, small enough
# to stay in the outer cache, and independent of m, which bounds memory.
BLOCK_BYTES = 4 * 2**20


def block_rows(row_length: int) -> int:
    """Rows of a float64 block of at most ``BLOCK_BYTES`` whose rows hold ``row_length`` numbers (at least 1)."""
    return max(1, BLOCK_BYTES // (8 * max(1, row_length)))
