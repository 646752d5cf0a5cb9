"""Every change that a running agent makes to its files, in one class: a simulation puts another in its place.

Reading needs no such class: what was written is read by the ordinary functions.
"""

import contextlib
import errno
import os
import shutil
from pathlib import Path

from coreg_wire.files.files import sync_folder, write_whole


class AppendFile:
    """A file that only grows."""

    def __init__(self, path: Path):
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append all of it, and wait until it is on the disk. Raises `OSError`: a full disk takes a part without one."""
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Disk:
    """The operating system's files. Every method may raise `OSError`, `write_whole` a `StorageError`."""

    def append_to(self, path: Path) -> AppendFile:
        """Open a file for appending; created if it does not exist, and then its name is on the disk when this returns."""
        new = not path.exists()
        file = AppendFile(path)
        if new:
            self.sync_folder(path.parent)
        return file

    def write_whole(self, path: Path, data: bytes) -> None:
        """See `coreg_wire.files.files.write_whole`; for the owner alone."""
        write_whole(path, data, mode=0o600)

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, for their owner alone; their names are on the disk when this returns."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in missing:
            self.sync_folder(folder.parent)

    def link(self, path: Path, name: Path) -> None:
        name.hardlink_to(path)

    def replace(self, path: Path, name: Path) -> None:
        path.replace(name)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def point(self, link: Path, name: str) -> None:
        """Make a symbolic link lead to that name, at one instant."""
        beside = link.with_name(f".{link.name}.new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(name)
        beside.replace(link)

    def sync_folder(self, path: Path) -> None:
        """Put the names in a folder on the disk; where a folder cannot be synchronised, they are there before long."""
        with contextlib.suppress(OSError):
            sync_folder(path)
