"""Maintenance of the run store: a verified backup during writes, and pruning."""

import datetime as dt
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.store.schema import Tables, damaged, open_database, open_for_reading
from coreg_core.errors import StorageError
from coreg_wire.clock import utc_now

_HISTORY = ("rounds", "notices", "cancellations")  # tables from which `prune` removes a run's rows
PAGES_AT_ONCE = 256  # freed in one transaction, so that a serving coordinator waits only briefly


@dataclass(frozen=True)
class Copied:
    """The runs and bytes that were copied, or pruned and freed."""

    runs: int
    bytes: int


def back_up(path: Path, destination: Path) -> Copied:
    """Copy a consistent snapshot of the store, and check the copy with SQLite's `integrity_check`."""
    try:
        os.close(os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StorageError(f"{destination}: exists already. A backup overwrites no file: give another name.") from None
    except OSError as error:
        raise StorageError(f"{destination}: cannot be written ({error.strerror}).") from None
    try:
        with closing(open_database(path)) as db, _damage(path), closing(sqlite3.connect(destination)) as copy:
            try:
                db.backup(copy)
                copy.execute("pragma journal_mode = delete")  # one file, without a write-ahead log
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                    raise
                raise StorageError(f"{destination}: cannot be written ({error}). The store was not changed.") from None
        found = _checked(destination, path)
        with destination.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    return found


def _checked(copy: Path, source: Path) -> Copied:
    with closing(open_for_reading(copy)) as db, _damage(source):
        problems = [row[0] for row in db.execute("pragma integrity_check(3)")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError("; ".join(problems))
        (runs,) = db.execute("select count(*) from runs").fetchone()
    return Copied(runs, copy.stat().st_size)


def prune(path: Path, days: float) -> Copied:
    """Remove the history of runs that ended more than ``days`` ago. A coordinator can be running.

    Plans, outcomes and final figures stay. The file shrinks by a few pages at a time, so that writers wait only briefly.
    """
    store = _Pruned(path)
    with closing(store), _damage(path):
        return store.prune(days)


class _Pruned(Tables):
    def prune(self, days: float) -> Copied:
        before = self._pages()
        now = utc_now()
        until = (now - dt.timedelta(days=days)).isoformat(timespec="milliseconds")
        at = now.isoformat(timespec="milliseconds")
        with self.reading():
            query = "select run from runs where pruned is null and ended is not null and ended <= ?"
            old = [row["run"] for row in self._db.execute(query, (until,))]
        for run in old:
            with self.transaction():
                for table in _HISTORY:
                    self._db.execute(f"delete from {table} where run = ?", (run,))  # noqa: S608 - the names above
                self._db.execute("update runs set pruned = ? where run = ?", (at, run))
        while self._db.execute("pragma freelist_count").fetchone()[0]:
            with self.transaction(durable=False):
                self._db.execute(f"pragma incremental_vacuum({PAGES_AT_ONCE})").fetchall()
        self._db.execute("pragma wal_checkpoint(truncate)")
        (size,) = self._db.execute("pragma page_size").fetchone()
        return Copied(len(old), max(0, before - self._pages()) * size)

    def _pages(self) -> int:
        """Pages of the store, those in the write-ahead log included."""
        (count,) = self._db.execute("pragma page_count").fetchone()
        return int(count)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise damaged(path, error) from None
