"""Files of a process: written whole, or appended and synced; locked against another process."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coreg_core.errors import StorageError, UsageError


class AppendFile:
    """A file to append to."""

    def __init__(self, path: Path):
        self._file = os.fdopen(
            os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0
        )

    def write(self, data: bytes) -> None:
        """Append all bytes and sync them to disk.

        Raises `OSError`, also if the disk is full and accepts only a part.
        """
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._file.fileno())

    def truncate(self, size: int) -> None:
        """Remove what follows the first `size` bytes, and sync."""
        self._file.truncate(size)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Disk:
    """The operating system's files.

    Every method can raise `OSError`; `write_whole` raises `StorageError`.
    """

    def append_to(self, path: Path) -> AppendFile:
        """Open a file for appending. A new file's name is synced to disk before this returns."""
        new = not path.exists()
        file = AppendFile(path)
        if new:
            self.sync_folder(path.parent)
        return file

    def write_whole(self, path: Path, data: bytes) -> None:
        """See `coreg_wire.files.disk.write_whole`; mode 0600."""
        write_whole(path, data, mode=0o600)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents with mode 0700, and sync their names to disk."""
        for folder in make_private_folder(path):
            self.sync_folder(folder.parent)

    def replace(self, path: Path, name: Path) -> None:
        path.replace(name)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder to disk.

        If the file system does not support it, the system does so later.
        """
        with contextlib.suppress(OSError):
            sync_folder(path)


# `is_held` holds the lock for a moment, so `exclusive` must not fail at once. Timeout in seconds.
ACQUIRE_SECONDS = 1.0


def lock_path(path: Path) -> Path:
    """The lock of a file is in the same folder."""
    return path.with_name(path.name + ".lock")


@contextmanager
def exclusive(path: Path, holder: str, timeout: float = ACQUIRE_SECONDS) -> Iterator[None]:
    """Hold the lock of a file, which need not exist.

    ``holder`` is the error if another process has it after ``timeout``.
    """
    lock = FileLock(lock_path(path), mode=0o600)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise StorageError(f"{path}: {holder}") from None
    except OSError as error:
        message = (
            f"{lock.lock_file}: cannot be written ({error.strerror}). Check the folder and its"
            " permissions."
        )
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


def make_private_folder(path: Path) -> list[Path]:
    """Create a folder and its missing parents, each with mode 0700; the created ones."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):  # `parents=True` would give parents the mode of the umask
        folder.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(exist_ok=True)  # FileExistsError: it is a file
    return missing


def read(path: Path, next_step: str) -> bytes:
    """A file's bytes; ``next_step`` is the advice if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist. {next_step}") from error
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read ({error.strerror}): check its owner and mode."
        ) from error


def write_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Replace the file atomically: a crash leaves the old or the new one, and the new one survives
    a power failure.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            Path(temporary).replace(path)
        finally:  # an interrupted write must not leave data in a temporary file
            Path(temporary).unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        todo = (
            "Free some space"
            if error.errno == errno.ENOSPC
            else "Check its folder, its permissions and the disk"
        )
        raise StorageError(f"{path}: cannot be written ({error.strerror}). {todo}.") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, since a new name survives a power failure only after that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
