"""What a power cut leaves of files: all that was synced, and a random part of the rest."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Durable:
    """The sizes that `os.fsync` has made durable, by inode. SQLite syncs by itself and is not followed."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}

    def fsync(self, descriptor: int) -> None:
        """Instead of `os.fsync`: the files live in memory."""
        found = os.fstat(descriptor)
        self._sizes[found.st_ino] = found.st_size

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
