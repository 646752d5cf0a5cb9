"""The number of BLAS threads, pinned for the whole process: with another count, sums round differently.

The one place of the mathematics that touches process-wide state; drivers call it, nothing pure does.
"""

from threadpoolctl import ThreadpoolController


def pin_threads(threads: int) -> int:
    """Limit every BLAS in this process to so many threads from now on, and tell the number."""
    ThreadpoolController().limit(limits=threads)
    return threads
