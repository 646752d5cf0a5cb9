"""All file changes of a running agent, in one class that a simulation replaces. Reading uses the ordinary functions."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

from coreg_wire.files.files import sync_folder, write_whole


class AppendFile:
    """A file to append to."""

    def __init__(self, path: Path):
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0)

    def write(self, data: bytes) -> None:
        """Append all bytes and sync them to disk. Raises `OSError`, also if the disk is full and accepts only a part."""
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
    """The operating system's files. Every method can raise `OSError`; `write_whole` raises `StorageError`."""

    def append_to(self, path: Path) -> AppendFile:
        """Open a file for appending. A new file's name is synced to disk before this returns."""
        new = not path.exists()
        file = AppendFile(path)
        if new:
            self.sync_folder(path.parent)
        return file

    def write_whole(self, path: Path, data: bytes) -> None:
        """See `coreg_wire.files.files.write_whole`; mode 0600."""
        write_whole(path, data, mode=0o600)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents with mode 0700, and sync their names to disk."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in missing:
            self.sync_folder(folder.parent)

    def replace(self, path: Path, name: Path) -> None:
        path.replace(name)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def point(self, link: Path, name: str) -> None:
        """Set the target of a symbolic link, atomically."""
        beside = link.with_name(f".{link.name}.new")
        beside.unlink(missing_ok=True)
        beside.symlink_to(name)
        beside.replace(link)

    def sync_folder(self, path: Path) -> None:
        """Sync the names in a folder to disk. If the file system does not support it, the system does so later."""
        with contextlib.suppress(OSError):
            sync_folder(path)
