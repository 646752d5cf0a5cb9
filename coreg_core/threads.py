"""Process-wide settings, which only drivers change: BLAS threads, and freed memory.

With another number of BLAS threads sums round differently. Every round allocates and frees the same vectors: glibc returns memory
at the top of its heap, and every block of 128 KiB or more, to the system, which clears each page at its next use. With threads,
glibc keeps a heap for each; here there is one.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    """One for the process: to look for its libraries takes 9 ms. Imported here, so that `--help` does without."""
    import scipy.linalg  # noqa: F401 - loads a BLAS of its own beside numpy's, which is to be found
    from threadpoolctl import ThreadpoolController

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


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # of <malloc.h>
LARGEST = 1 << 27  # largest block that is kept, in bytes; larger factors return to the system when they are freed
MOST_KEPT = 1 << 28  # free bytes at the top of the heap; more than this returns to the system


def keep_freed_memory() -> bool:
    """Keep freed memory, at most `MOST_KEPT`; call it before threads start. False without glibc."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, LARGEST), (_TRIM_THRESHOLD, MOST_KEPT), (_TOP_PAD, 1 << 20), (_ARENA_MAX, 1))
    return all(library.mallopt(name, value) == 1 for name, value in settings)
