"""One process per file: a lock that the operating system releases when its holder ends for any reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coreg_core.errors import StorageError

# `is_held` holds the lock for a moment, so `exclusive` must not fail at once. Timeout in seconds.
ACQUIRE_SECONDS = 1.0


def lock_path(path: Path) -> Path:
    """The lock of a file is in the same folder."""
    return path.with_name(path.name + ".lock")


@contextmanager
def exclusive(path: Path, holder: str, timeout: float = ACQUIRE_SECONDS) -> Iterator[None]:
    """Hold the lock of a file, which need not exist. ``holder`` is the error if another process has it after ``timeout``."""
    lock = FileLock(lock_path(path), mode=0o600)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise StorageError(f"{path}: {holder}") from None
    except OSError as error:
        message = f"{lock.lock_file}: cannot be written ({error.strerror}). Check the folder and its permissions."
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
