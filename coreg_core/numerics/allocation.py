"""Memory that was given back to the allocator stays with the process, and the next vector is made in it.

Every round makes and drops the same vectors. glibc hands what is freed at the top of its heap, and every block of 128 KiB or
more, back to the system, which clears each page again at its next use. With threads, glibc keeps a heap for each; here there
is one. Like threads.py, process-wide state that drivers touch and nothing pure does.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # of <malloc.h>
LARGEST = 1 << 27  # bytes of a block that is kept; a factor that is larger goes back to the system when it is dropped
MOST_KEPT = 1 << 28  # bytes free at the top of the heap, beyond which what is above goes back


def keep_freed_memory() -> bool:
    """From now on; before threads are started. False where there is no glibc, and nothing was changed.

    What a process holds at its peak does not change; after it, at most `MOST_KEPT` more than before.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = ((_MMAP_THRESHOLD, LARGEST), (_TRIM_THRESHOLD, MOST_KEPT), (_TOP_PAD, 1 << 20), (_ARENA_MAX, 1))
    return all(library.mallopt(name, value) == 1 for name, value in settings)
