"""The number of BLAS threads, which only drivers change: with another number sums round
differently.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    """One for the process: to look for its libraries takes 9 ms.

    Imported here, so that `--help` does without.
    """
    import scipy.linalg  # noqa: F401 - loads a BLAS of its own beside numpy's, which is to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def pin_threads(threads: int) -> int:
    """Limit every BLAS in this process to so many threads from now on, and return the number."""
    _controller().limit(limits=threads)
    return threads


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block: products of narrow matrices gain nothing from more, and
    wait for busy cores.
    """
    with _controller().limit(limits=1):
        yield
