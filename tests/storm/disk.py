"""Disks: what a power cut leaves (all that was synced, and a random part of the rest), and full ones.

SQLite syncs by itself, so its durable commits are followed instead: what was committed later is in the last frames of its
write-ahead log (https://sqlite.org/walformat.html), and a power cut loses a random number of them.
"""

import errno
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.store.schema import Tables
from tests.storm.loop import process_name

_WAL_HEADER, _FRAME_HEADER, _INDEX_HEADER = 32, 24, 40  # bytes


class Durable:
    """The sizes that `os.fsync` has made durable, by inode; and a store's frames at its last durable commit."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.full: set[str] = set()  # processes whose disk accepts nothing more
        self._committed: dict[Path, tuple[int, bytes]] = {}

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

    def committed(self, store: Path) -> None:
        """A durable transaction has ended."""
        frames, salt, _ = _log_of(store)
        self._committed[store] = frames, salt

    def left_of(self, store: Path, chance: random.Random) -> tuple[bytes, bytes]:
        """The store and its log after a power cut at this moment."""
        frames, salt, page = _log_of(store)
        durable, then = self._committed.get(store, (0, b""))
        kept = chance.randint(durable if then == salt else 0, frames)  # another salt: the log began anew
        log = _beside(store, "-wal").read_bytes()[: _WAL_HEADER + kept * (_FRAME_HEADER + page)]
        return store.read_bytes(), log


def _beside(store: Path, end: str) -> Path:
    return store.with_name(store.name + end)


def _log_of(store: Path) -> tuple[int, bytes, int]:
    """Frames, salt and page size, of the index of an open store's write-ahead log."""
    with _beside(store, "-shm").open("rb") as file:
        index = file.read(_INDEX_HEADER)
    return struct.unpack_from("=I", index, 16)[0], index[32:40], struct.unpack_from("=H", index, 14)[0]


@contextmanager
def followed() -> Iterator[Durable]:
    """What is synced while the block runs."""
    disk, real, transaction = Durable(), os.fsync, Tables.transaction

    @contextmanager
    def watched(self: Tables, *, durable: bool = True) -> Iterator[None]:
        with transaction(self, durable=durable):
            yield
        if durable:
            disk.committed(self.path)

    os.fsync = disk.fsync  # type: ignore[assignment]
    Tables.transaction = watched  # type: ignore[method-assign]
    try:
        yield disk
    finally:
        os.fsync, Tables.transaction = real, transaction  # type: ignore[method-assign]
