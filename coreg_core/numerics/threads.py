"""The number of BLAS threads, pinned for the whole process: with another count, sums round differently.

This is process-wide state, which only drivers change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    """One for the process: to look for its libraries takes 9 ms."""
    import scipy.linalg  # noqa: F401 - loads a BLAS of its own beside numpy's, which is to be found

    return ThreadpoolController()


def pin_threads(threads: int) -> int:
    """Limit every BLAS in this process to so many threads from now on, and return the number."""
    _controller().limit(limits=threads)
    return threads


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block: products of narrow matrices gain nothing from more, and wait for busy cores."""
    with _controller().limit(limits=1):
        yield
