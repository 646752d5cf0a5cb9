"""The array type for shapes, and the checks of every public function.

Inside the mathematics arrays are float64, finite, and of the stated shape, without further checks.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from coreg_core.errors import BadData

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


def as_matrix(values: Any, name: str) -> Arr:
    """``values`` as a C-contiguous float64 matrix, without a copy if it is one already.

    Raises
    ------
    BadData
        not two-dimensional, not numeric, or not finite; the message names the first bad row and column.
    """
    try:
        matrix = _real(values)
    except (TypeError, ValueError) as error:
        raise BadData(f"{name}: not a table of numbers ({error}). Encode text columns first.") from None
    if np.ndim(values) != 2:  # ascontiguousarray turns a scalar into a vector, so the original is checked
        raise BadData(
            f"{name}: expected a 2D array (instances, features), got {np.ndim(values)}D. Reshape your data: "
            "X.reshape(-1, 1) if it has a single feature, X.reshape(1, -1) if it is a single instance."
        )
    _require_finite(matrix, name)
    return matrix


def _real(values: Any) -> Arr:
    if np.iscomplexobj(values):  # numpy would drop the imaginary part with a warning
        raise TypeError("complex numbers")
    return np.ascontiguousarray(values, dtype=np.float64)


def _require_finite(array: Arr, name: str) -> None:
    # The sum of finite numbers is finite or overflows; only then is the slow search worth its memory.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):
            return
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        where = " column ".join(str(i + 1) for i in bad[0])
        raise BadData(
            f"{name}: NaN or infinity at row {where} (counted from 1). "
            "Missing values have to be filled before this point."
        )
