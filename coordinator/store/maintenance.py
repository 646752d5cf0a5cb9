"""Maintenance of the run store: backup during writes, verification of all checksums, pruning."""

import datetime as dt
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.store.checksums import Damaged, row_checksum, verify_json_checksum
from coordinator.store.runs import ROUND_COLUMNS
from coordinator.store.schema import Tables, open_database, open_for_reading
from coreg_core.errors import StorageError
from coreg_wire.clock import utc_now

_TEXTS = (("attempts", "began"), ("queue", "plan"), ("checkpoints", "checkpoint"))
# Tables with a column `run`; `prune` removes a run's rows from those that are history.
_HISTORY = ("rounds", "notices", "cancellations")  # what each site sent stays, in a few rows a run
_RESULTS = ("deliveries", "attempts", "exclusions")  # needed to deliver models to late sites
PAGES_AT_ONCE = 256  # freed in one transaction, so that a serving coordinator waits only briefly


@dataclass(frozen=True)
class StoreCheck:
    """Runs, matching checksums and bytes that were read or freed."""

    runs: int
    values: int
    bytes: int


def verify(path: Path, *, source: Path | None = None) -> StoreCheck:
    """Read the whole store and compare all checksums. Errors name ``source``, if the file is a copy of it.

    Raises
    ------
    StorageError
        a value differs from the written one; the message names it and its run.
    """
    with closing(open_for_reading(path)) as db, _damage(source or path):
        problems = [row[0] for row in db.execute("pragma integrity_check(3)")]
        if problems != ["ok"]:
            raise sqlite3.DatabaseError("; ".join(problems))
        db.execute("begin")  # a consistent snapshot, since a coordinator may be writing
        values = _verify_values(db)
        (runs,) = db.execute("select count(*) from runs").fetchone()
        (pages,) = db.execute("pragma page_count").fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
        db.execute("rollback")
    return StoreCheck(runs, values, pages * size)


def _verify_values(db: sqlite3.Connection) -> int:
    values = 0
    for table, column in (*_TEXTS, ("runs", "heads")):
        # The names are those above, and no value is in the text.
        for row in db.execute(f"select run, {column} as value from {table} where {column} is not null"):  # noqa: S608
            _checked(f"{table} of run {row['run']}", verify_json_checksum, row["value"])
            values += 1
    for row in db.execute("select * from rounds"):
        if row_checksum(row[name] for name in ROUND_COLUMNS) != row["checksum"]:
            raise Damaged(f"step {row['number']} of run {row['run']}: a checksum does not match")
        values += 1
    for row in db.execute("select run, plan, plan_digest from runs"):
        _checked(f"the plan of run {row['run']}", _check_plan, (row["plan"], row["plan_digest"]))
        values += 1
    return values


def _check_plan(stored: tuple[str, str]) -> None:
    plan = {name: value for name, value in json.loads(stored[0]).items() if name != "run"}
    if hashlib.sha256(json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()).hexdigest() != stored[1]:
        raise Damaged("its digest does not match")


def _checked(what: str, check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{what}: {error}") from None


def back_up(path: Path, destination: Path) -> StoreCheck:
    """Copy a consistent snapshot of the store, and verify the copy.

    Raises
    ------
    StorageError
        the destination exists or cannot be written, or the store is damaged (then the copy is removed).
    """
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
        found = verify(destination, source=path)
        with destination.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    return found


def prune(path: Path, days: float, *, models: bool) -> StoreCheck:
    """Remove the history of runs closed more than ``days`` ago, and their models if ``models``. A coordinator may be serving.

    Plans, outcomes and final figures stay. The file shrinks by a few pages at a time, so that writers wait only briefly.

    Raises
    ------
    StorageError
        the store cannot be written.
    """
    store = _Pruned(path)
    with closing(store), _damage(path):
        return store.prune(days, models=models)


class _Pruned(Tables):
    def prune(self, days: float, *, models: bool) -> StoreCheck:
        before = self._pages()
        now = utc_now()
        until = (now - dt.timedelta(days=days)).isoformat(timespec="milliseconds")
        at = now.isoformat(timespec="milliseconds")
        with self.reading():
            query = "select run, pruned, heads from runs where closed is not null and closed <= ?"
            old = {row["run"]: row for row in self._db.execute(query, (until,))}
        fresh = [run for run, row in old.items() if row["pruned"] is None or (models and row["heads"] is not None)]
        for run in old:
            with self.transaction():
                for table in (*_HISTORY, *(_RESULTS if models else ())):
                    self._db.execute(f"delete from {table} where run = ?", (run,))  # noqa: S608 - the names above
                self._db.execute("update runs set pruned = coalesce(pruned, ?) where run = ?", (at, run))
                if models:
                    self._db.execute("update runs set heads = null where run = ?", (run,))
        while self._db.execute("pragma freelist_count").fetchone()[0]:
            with self.transaction(durable=False):
                self._db.execute(f"pragma incremental_vacuum({PAGES_AT_ONCE})").fetchall()
        self._db.execute("pragma wal_checkpoint(truncate)")
        (size,) = self._db.execute("pragma page_size").fetchone()
        return StoreCheck(len(fresh), 0, max(0, before - self._pages()) * size)

    def _pages(self) -> int:
        """Pages of the store, those in the write-ahead log included."""
        (count,) = self._db.execute("pragma page_count").fetchone()
        return int(count)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(
            f"{path}: damaged ({error}). A coordinator cannot start with this file. Restore the newest backup that `verify` "
            "accepts (docs/how-to/back-up-and-restore.md)."
        ) from None
    except Damaged as error:
        raise StorageError(
            f"{path}: damaged ({error}). Other runs go on. Restore a backup, if this value or new backups are needed "
            "(docs/how-to/back-up-and-restore.md)."
        ) from None
