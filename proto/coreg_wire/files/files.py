"""A file written whole or not at all: beside its place, onto the disk, then moved there."""

import os
import tempfile
from pathlib import Path

from coreg_core.errors import StorageError, UsageError


def read(path: Path, next_step: str) -> bytes:
    """A file's bytes.

    Raises
    ------
    UsageError
        it is not there; ``next_step`` says what to do.
    StorageError
        it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist. {next_step}") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror}): check its owner and mode.") from error


def write_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Replace the file at one instant: a crash leaves the old one or the new one, and the new one survives a power cut.

    Raises
    ------
    StorageError
        it cannot be written there; nothing is left behind.
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
        finally:  # nothing is left to remove once it was moved; an interrupted write leaves no rows lying about
            Path(temporary).unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written ({error.strerror}). Check its folder, its rights and the disk."
        ) from error


def sync_folder(folder: Path) -> None:
    """The name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
