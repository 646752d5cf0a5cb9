"""Keep freed memory in the process, so that the next vector reuses it.

Every round allocates and frees the same vectors. glibc returns memory at the top of its heap, and every block of 128 KiB or
more, to the system, which clears each page at its next use. With threads, glibc keeps a heap for each; here there is one.
Like threads.py this is process-wide state, which only drivers change.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # of <malloc.h>
LARGEST = 1 << 27  # largest block that is kept, in bytes; larger factors return to the system when they are freed
MOST_KEPT = 1 << 28  # free bytes at the top of the heap; more than this returns to the system


def keep_freed_memory() -> bool:
    """Apply the setting; call it before threads start. Returns False without glibc, where it changes nothing.

    The peak memory of the process does not change. After the peak it holds at most `MOST_KEPT` more than before.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, LARGEST), (_TRIM_THRESHOLD, MOST_KEPT), (_TOP_PAD, 1 << 20), (_ARENA_MAX, 1))
    return all(library.mallopt(name, value) == 1 for name, value in settings)
