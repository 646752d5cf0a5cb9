"""The wall clock, for dates in records and for the validity of certificates.

Nothing waits by it: it can jump.

A simulation (`tests/storm`) replaces ``source``, and moves it under a process.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

source: Callable[[], float] = time.time  # seconds since 1970


def utc_now() -> datetime:
    return datetime.fromtimestamp(source(), UTC)


def timestamp() -> str:
    """ISO 8601, to the millisecond."""
    return datetime.fromtimestamp(source(), UTC).isoformat(timespec="milliseconds")


def today() -> str:
    """The date of `timestamp`."""
    return utc_now().date().isoformat()
