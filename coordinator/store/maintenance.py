"""The run store as a file to keep: copied while it is written, read through to the last checksum, pruned."""

import datetime as dt
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.store.checksums import Damaged, row_seal, unseal, unseal_json
from coordinator.store.schema import open_database, transaction
from coreg_core.errors import StorageError

_BLOBS = (("states", "state"), ("sums", "total"), ("models", "models"))
_TEXTS = (("memberships", "membership"), ("queue", "plan"), ("heads", "head"))


@dataclass(frozen=True)
class Found:
    """What was read, or given back: runs, checksums that fit, bytes."""

    runs: int
    values: int
    bytes: int


def verify(path: Path) -> Found:
    """Read everything.

    Raises
    ------
    StorageError
        something is not what was written; says which value of which run.
    """
    with closing(open_database(path)) as db, _damage(path):
        problems = [row[0] for row in db.execute("pragma integrity_check(3)")]
        if problems != ["ok"]:
            raise Damaged("; ".join(problems))
        db.execute("begin")  # one instant of a store that is written meanwhile
        values = _verify_values(db)
        (runs,) = db.execute("select count(*) from runs").fetchone()
        (pages,) = db.execute("pragma page_count").fetchone()
        (size,) = db.execute("pragma page_size").fetchone()
        db.execute("rollback")
    return Found(runs, values, pages * size)


def _verify_values(db: sqlite3.Connection) -> int:
    values = 0
    for table, column in _BLOBS:
        for row in db.execute(f"select run, {column} as value from {table}"):  # noqa: S608 - our names
            _named(f"{table} of run {row['run']}", unseal, row["value"])
            values += 1
    for table, column in _TEXTS:
        for row in db.execute(f"select run, {column} as value from {table}"):  # noqa: S608 - our names
            _named(f"{table} of run {row['run']}", unseal_json, row["value"])
            values += 1
    for row in db.execute("select * from rounds"):
        if row["seal"] is not None:
            kept = dict(row)
            said = kept.pop("seal")
            names = _ORDER
            if row_seal(kept[name] for name in names) != said:
                raise Damaged(f"question {row['question']} of run {row['run']}: a checksum does not fit")
            values += 1
    for row in db.execute("select run, plan, plan_digest, format from runs"):
        if row["format"] >= 2:
            _named(f"the plan of run {row['run']}", _check_plan, (row["plan"], row["plan_digest"]))
            values += 1
    return values


# As `RunStore` writes them, and seals them.
_ORDER = (
    "run", "question", "attempt", "round", "answered", "verified", "residual", "gap", "prediction_bound", "phase", "seconds",
    "bytes_sent", "bytes_received", "at",
)  # fmt: skip


def _check_plan(said: tuple[str, str]) -> None:
    plan = {name: value for name, value in json.loads(said[0]).items() if name != "run"}
    if hashlib.sha256(json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()).hexdigest() != said[1]:
        raise Damaged("its digest does not fit")


def _named(what: str, check: Any, value: Any) -> None:
    try:
        check(value)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{what}: {error}") from None


def back_up(path: Path, destination: Path) -> Found:
    """Copy it as it is at one instant, and verify the copy.

    Raises
    ------
    StorageError
        something stands there, it cannot be written, or the store is damaged (the copy is removed then).
    """
    try:
        os.close(os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StorageError(f"{destination}: is there already; a backup replaces nothing. Give another name.") from None
    except OSError as error:
        raise StorageError(f"{destination}: cannot be written ({error.strerror}).") from None
    try:
        with closing(open_database(path)) as db, _damage(path), closing(sqlite3.connect(destination)) as copy:
            db.backup(copy)
            copy.execute("pragma journal_mode = delete")  # one file, with nothing beside it
        found = verify(destination)
        with closing(sqlite3.connect(destination)) as copy:
            copy.execute("pragma journal_mode = delete")
        with destination.open("rb") as file:
            os.fsync(file.fileno())
    except BaseException:
        destination.unlink(missing_ok=True)
        raise
    return found


def prune(path: Path, days: float, *, models: bool) -> Found:
    """Forget the rounds of runs that were closed longer ago, and what their sites fetch where ``models`` says so.

    Raises
    ------
    StorageError
        it cannot be written.
    """
    before = path.stat().st_size
    until = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).isoformat(timespec="milliseconds")
    with closing(open_database(path)) as db:
        with transaction(db, path):
            old = [
                row["run"]
                for row in db.execute("select run from runs where closed is not null and closed <= ?", (until,))
            ]
            for table in ("rounds", "memberships", *(("models",) if models else ())):
                db.executemany(f"delete from {table} where run = ?", [(run,) for run in old])  # noqa: S608 - our names
        with _damage(path):
            db.execute("vacuum")
            db.execute("pragma wal_checkpoint(truncate)")
    return Found(len(old), 0, max(0, before - path.stat().st_size))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, Damaged) as error:
        raise StorageError(f"{path}: damaged ({error}). Restore it from a backup (docs/operators-guide.md).") from None
