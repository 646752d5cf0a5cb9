"""The run store's tables, how an older file becomes one of this release, and who may write it: one coordinator at a
time.
"""

import fcntl
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from coordinator.store.watermark import check_mark, read_mark, write_mark
from coreg_core.errors import StorageError
from coreg_wire.files.files import is_locked

SCHEMA_VERSION = 5
FORMAT = 2  # of a run's records; those of release 0.1 are format 1, and can be read but not taken up
SCHEMA = """
create table runs (
    run text primary key, plan_digest text not null, plan text not null,
    started text not null, ended text, stop text, reason text, closed text, format integer not null
);
create index runs_by_plan on runs (plan_digest, started);
create table exclusions (
    run text not null references runs, site text not null, outcome text not null, reason text not null,
    primary key (run, site)
);
create table memberships (
    run text not null references runs, attempt integer not null, question integer not null, membership text not null,
    primary key (run, attempt)
);
create table states (run text not null references runs, question integer not null, state blob not null, primary key (run));
create table sums (
    run text not null references runs, question integer not null, part text not null, answered integer not null,
    total blob not null, primary key (run, question)
);
create table models (run text not null references runs, models blob not null, primary key (run));
create table deliveries (
    run text not null references runs, site text not null, at text not null, primary key (run, site)
);
create table heads (
    run text not null references runs, site text not null, lines integer not null, head text not null,
    primary key (run, site, lines)
);
create table notices (
    number integer primary key, run text not null, at text not null, grave integer not null, text text not null,
    times integer not null
);
create table disclosed (
    run text not null, site text not null, kind text not null, messages integer not null, numbers integer not null,
    primary key (run, site, kind)
);
create table rounds (
    run text not null references runs, question integer not null, attempt integer not null, round integer,
    answered integer not null, verified integer, residual text, gap text, prediction_bound text, phase text,
    seconds real not null, bytes_sent integer not null, bytes_received integer not null, at text not null, seal text,
    primary key (run, question, attempt)
);
create table queue (
    number integer primary key, run text not null unique, plan text not null, submitted text not null, begun text
);
create table cancellations (run text primary key, at text not null, reason text not null);
create table attendance (
    site text primary key, since text, ended text, release text not null, until text not null, refusal text, refused text
);
create table service (name text primary key, value text not null);
create table commits (only integer primary key check (only = 0), number integer not null);
insert into commits values (0, 0);
"""
# Release 0.1 counted questions as rounds and rounds as sweeps; its unfinished runs cannot be taken up, so their state goes.
FROM_1_TO_2 = """
alter table runs add column closed text;
alter table runs add column format integer not null default 1;
update runs set closed = ended;
drop table memberships;
drop table states;
drop table sums;
alter table rounds rename column round to question;
alter table rounds rename column sweep to round;
alter table rounds add column phase text;
"""
FROM_2_TO_3 = "alter table rounds add column seal text;"


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The store at that path, which nothing done with this connection changes.

    Raises
    ------
    StorageError
        it cannot be opened, is no store, or was written by another release.
    """
    try:
        db = sqlite3.connect(
            f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        db.row_factory = sqlite3.Row
        version = db.execute("pragma user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise StorageError(f"{path}: cannot be opened for reading ({error}).") from None
    if version != SCHEMA_VERSION:
        db.close()
        raise StorageError(
            f"{path}: not a run store of this release (schema {version}); a coordinator brings it up to date."
        )
    return db


def open_database(path: Path) -> sqlite3.Connection:
    """The store at that path, made or brought up to date.

    Raises
    ------
    StorageError
        it cannot be opened, is no store, or was written by a later release.
    """
    marked = read_mark(path)
    try:
        _make(path)
        db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("pragma page_size = 32768")  # of a new file: vectors are large
        db.execute("pragma journal_mode = wal")
        db.execute("pragma synchronous = normal")
        db.execute("pragma wal_autocheckpoint = 4096")
        db.execute("pragma foreign_keys = on")
        version = db.execute("pragma user_version").fetchone()[0]
        if version not in (*range(SCHEMA_VERSION), SCHEMA_VERSION):
            raise StorageError(
                f"{path}: written by another release (schema {version}, this is {SCHEMA_VERSION}). "
                "Use that release of coreg-federation to read it."
            )
        if version != SCHEMA_VERSION:
            _bring_up_to_date(db)
        check_mark(path, db.execute("select number from commits").fetchone()[0], marked)
    except (sqlite3.Error, TypeError) as error:  # a damaged table may lack its only row
        raise StorageError(
            f"{path}: cannot be opened as a run store ({error}). Check the path and its rights, or restore a backup."
        ) from None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be opened as a run store ({error.strerror}). Check the path and its rights."
        ) from None
    return db


class Tables:
    """Some tables of a store, over a connection of their own: use it from one thread at a time. Any may raise `StorageError`."""

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path = path
        self._db = open_for_reading(path) if read_only else open_database(path)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A file that was damaged raises many things; all of them mean this."""
        try:
            yield
        except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
            raise StorageError(f"{self.path}: cannot be read ({error}). Restore it from a backup.") from None


def _make(path: Path) -> None:
    """A new file is for its owner alone, and so are its log and its index then.

    One that is there is not opened: closing it again would lift the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def transaction(db: sqlite3.Connection, path: Path, *, marked: bool = True) -> Iterator[None]:
    """Everything in it or nothing; ``marked``: a store that lost it shall be told from one that has it
    (`coordinator.store.watermark`).

    Raises
    ------
    StorageError
        it cannot be written.
    """
    try:
        db.execute("begin immediate")
        commits = 0
        try:
            yield
            if marked:
                commits = db.execute("update commits set number = number + 1 returning number").fetchone()[0]
        except BaseException:
            db.execute("rollback")
            raise
        db.execute("commit")
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {error}. Free some space or mend the disk, then run again.") from None
    if marked:
        write_mark(path, commits)


def _bring_up_to_date(db: sqlite3.Connection) -> None:
    db.execute("begin immediate")
    try:
        version = db.execute("pragma user_version").fetchone()[0]  # another process may have done it meanwhile
        if version == 1:
            _execute(db, FROM_1_TO_2)
        if version in (1, 2):
            _execute(db, FROM_2_TO_3)
        if version != SCHEMA_VERSION:
            _execute(db, SCHEMA if version == 0 else _missing_tables(db))
            db.execute(f"pragma user_version = {SCHEMA_VERSION}")
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


def _missing_tables(db: sqlite3.Connection) -> str:
    there = {row["name"] for row in db.execute("select name from sqlite_master where type in ('table', 'index')")}
    statements = [s for s in SCHEMA.split(";\n") if s.strip()]
    return ";\n".join(s for s in statements if s.split()[2] not in there)  # a table's first row goes with it


def _execute(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";\n"):
        if statement.strip():
            db.execute(statement)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the store for one coordinator; the system lifts the lock, however it ends. Readers need none.

    Raises
    ------
    StorageError
        another coordinator holds it; the message says which.
    """
    lock = _lock_of(path)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"{lock}: cannot be written ({error.strerror}). Check the folder and its rights.") from None
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"{path}: in use by {_holder(file.read())}. End it first, or give another --store."
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a coordinator holds the store now."""
    return is_locked(_lock_of(path))


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _holder(text: str) -> str:
    try:
        held = json.loads(text)
        return f"the coordinator with process id {held['pid']} on {held['host']}"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not written who it is yet
        return "another coordinator"
