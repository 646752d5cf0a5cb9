"""How far a run store was written, kept beside it: a store that knows less than was once on the disk says so.

SQLite takes up a file whose write-ahead log was removed, or one that was emptied, without a word. The store counts its
commits in a table; the highest count stands in `STORE.mark` too. After a power cut the last commits may be gone for
good (`synchronous = normal`), and the run goes on from those before, so a mark of an earlier boot of the machine is not
compared.
"""

import os
from pathlib import Path

from coreg_core.errors import StorageError

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def mark_path(store: Path) -> Path:
    """Where the mark of a store is."""
    return store.with_name(store.name + ".mark")


def write_mark(store: Path, commits: int) -> None:
    try:
        descriptor = os.open(mark_path(store), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, f"{commits:020d} {_boot():<36}\n".encode(), 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"{mark_path(store)}: cannot be written ({error.strerror}). Check the folder.") from None


def read_mark(store: Path) -> int:
    """How many commits the store knew once, since the machine started; 0 where nobody can tell.

    Read it before the store is: a commit is marked after it is made, so the store is never behind a mark of its own.
    """
    try:
        words = mark_path(store).read_text(encoding="ascii").split()
        return int(words[0]) if words[1] == _boot() else 0
    except (OSError, IndexError, ValueError):
        return 0


def check_mark(store: Path, commits: int, marked: int) -> None:
    """Whether the store knows everything that was written to it.

    Raises
    ------
    StorageError
        it knows less: its log is missing, it was emptied, or another file stands in its place.
    """
    if commits < marked:
        raise StorageError(
            f"{store}: lacks its last {marked - commits} writes: its log ({store.name}-wal) was removed or replaced, or the "
            f"file itself was. Put both back, or restore a backup and remove {mark_path(store).name}."
        )


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
