"""Atomic writes: a temporary file in the same folder, synced to disk, then renamed."""

import errno
import os
import tempfile
from pathlib import Path

from coreg_core.errors import StorageError, UsageError


def read(path: Path, next_step: str) -> bytes:
    """A file's bytes; ``next_step`` is the advice if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist. {next_step}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}): check its owner and mode.") from error


def write_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Replace the file atomically: a crash leaves the old or the new one, and the new one survives a power failure."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            Path(temporary).replace(path)
        finally:  # an interrupted write must not leave data in a temporary file
            Path(temporary).unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        todo = "Free some space" if error.errno == errno.ENOSPC else "Check its folder, its permissions and the disk"
        raise StorageError(f"{path}: cannot be written ({error.strerror}). {todo}.") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, since a new name survives a power failure only after that. Windows syncs no folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
