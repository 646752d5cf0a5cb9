"""The number of BLAS threads, pinned for the whole process: with another count, sums round differently.

This is process-wide state, which only drivers change.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


def pin_threads(threads: int) -> int:
    """Limit every BLAS in this process to so many threads from now on, and return the number."""
    ThreadpoolController().limit(limits=threads)
    return threads


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block: products of narrow matrices gain nothing from more, and wait for busy cores."""
    with ThreadpoolController().limit(limits=1):
        yield
