"""Fixed sums that must be equal on every machine: a site with other numbers could not agree with the others."""

import hashlib
from functools import cache

import numpy as np

from coreg_core.numerics.reproducible import column_norms, householder, inner, outer, solve_upper, tree_sum


@cache
def machine_digest() -> str:
    """SHA-256 of this machine's results on fixed numbers, over the operations that schedules use."""
    numbers, state = np.empty(300 * 7), 12345
    for i in range(len(numbers)):
        state = (1103515245 * state + 12345) % (1 << 31)
        numbers[i] = (state - (1 << 30)) / (1 << (i % 37))
    A = numbers.reshape(300, 7)
    Q, R = householder(A[:7])
    found = (tree_sum(A), column_norms(A), inner(A, A), outer(A, A[:7]), Q, R, solve_upper(R, A[7:14]), np.sqrt(abs(A)))
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in found)).hexdigest()
