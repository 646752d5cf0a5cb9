"""The number of BLAS threads, which only drivers change: with another number sums round
differently.
"""

import threading
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
    _limit(threads)
    return threads


def _limit(threads: int) -> Any:
    _take_control()
    return _controller().limit(limits=threads)


def _take_control() -> None:
    """Let this thread change the number: from release 3.7 on, threadpoolctl silently ignores every
    thread but the first one that did.
    """
    from threadpoolctl import OpenBLASController

    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread inside the block: products of narrow matrices gain nothing from more, and
    wait for busy cores.
    """
    with _one_thread:
        yield


class _OneThread:
    """One thread while any caller is inside: the last one restores what the first one found."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _limit(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                _take_control()
                self._limit.restore_original_limits()


_one_thread = _OneThread()
