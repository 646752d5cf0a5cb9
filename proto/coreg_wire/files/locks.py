"""One process per file: a lock that the system releases, however its holder ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coreg_core.errors import StorageError

# `is_held` holds the lock for an instant: a process that starts waits that long before it gives up.
ACQUIRE_SECONDS = 1.0


def lock_path(path: Path) -> Path:
    """The lock of a file stands beside it."""
    return path.with_name(path.name + ".lock")


@contextmanager
def exclusive(path: Path, holder: str, timeout: float = ACQUIRE_SECONDS) -> Iterator[None]:
    """Hold the lock of a file.

    Parameters
    ----------
    path
        the file; it need not exist.
    holder
        who holds the lock if it is taken, and what to do, for the error message.
    timeout
        seconds to wait for it.

    Raises
    ------
    StorageError
        another process holds it, or it cannot be made.
    """
    lock = FileLock(lock_path(path), mode=0o600)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise StorageError(f"{path}: {holder}") from None
    except OSError as error:
        message = f"{lock.lock_file}: cannot be written ({error.strerror}). Check the folder and its rights."
        raise StorageError(message) from None
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of this file now."""
    if not lock_path(path).exists():
        return False
    try:
        with FileLock(lock_path(path), timeout=0, mode=0o600):
            return False
    except Timeout:
        return True
    except OSError:
        return False
