"""Disks: what a power cut leaves (all that was synced, and a random part of the rest), and full ones."""

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coreg_sim.storm.loop import process_name


class Durable:
    """The sizes that `os.fsync` has made durable, by inode. SQLite syncs by itself and is not followed."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.full: set[str] = set()  # processes whose disk accepts nothing more

    def fsync(self, descriptor: int) -> None:
        """Instead of `os.fsync`: the files live in memory."""
        if process_name() in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = os.fstat(descriptor)
        self._sizes[found.st_ino] = found.st_size

    def all_synced(self, folder: Path) -> None:
        self._sizes |= {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}

    def power_cut(self, folder: Path, chance: random.Random) -> None:
        """Cut each file of a folder between what is durable and what was written."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                found = path.stat()
                durable = min(self._sizes.get(found.st_ino, 0), found.st_size)
                if durable < found.st_size:
                    os.truncate(path, chance.randint(durable, found.st_size))


@contextmanager
def followed() -> Iterator[Durable]:
    """What is synced while the block runs."""
    durable, real = Durable(), os.fsync
    os.fsync = durable.fsync  # type: ignore[assignment]
    try:
        yield durable
    finally:
        os.fsync = real
