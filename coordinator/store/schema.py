"""The tables of the run store, and the connections that read and write them."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from coreg_core.errors import StorageError

Values: TypeAlias = dict[str, Any]  # plain values, as JSON has them
SCHEMA_VERSION = 13
# Errors of permissions and paths.
_UNREACHED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")
RESTORE = (
    "Stop the coordinator, check the disk, and restore the newest backup"
    " (docs/how-to/operate-a-coordinator.md)."
)
# Timeout of a writer for another one: a copy of the file can hold it for seconds.
BUSY_SECONDS = 60.0
SCHEMA = """
create table runs (
    run text primary key, plan_digest text not null, plan text not null,
    started text not null, ended text, stop text, reason text,
    attempt integer not null default -1, participants text not null default '[]',
    steps integer not null default 0, rounds integer not null default 0, residual real, gap real
);
create index runs_by_plan on runs (plan_digest, started);
create index open_runs on runs (started) where ended is null;
create table checkpoints (
    run text not null references runs, site text not null, lines integer not null,
    checkpoint text not null,
    primary key (run, site, lines)
);
create table notices (number integer primary key, at text not null, notice text not null);
create table rounds (
    run text not null references runs, number integer not null, attempt integer not null,
    answered integer not null, round integer not null, phase text not null,
    verified integer not null, residual text not null, gap text not null, seconds real not null,
    bytes_sent integer not null, bytes_received integer not null, at text not null,
    primary key (run, number)
);
create table queue (
    number integer primary key, run text not null unique, plan text not null,
    submitted text not null
);
create table cancellations (run text primary key, at text not null, reason text not null);
create table sites (
    site text primary key, since text, ended text, release text not null, until text not null,
    refusal text, refused text
);
create table service (name text primary key, value text not null);
"""


def open_for_reading(path: Path) -> sqlite3.Connection:
    with _opening(
        path, "opened for reading", f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5.0
    ) as db:
        version = _version(db)
        if version != SCHEMA_VERSION:
            raise _other_release(path, version)
    return db


def open_database(path: Path) -> sqlite3.Connection:
    """Open the store for writing; create it if it does not exist."""
    try:
        # An existing one is not opened: closing it would release SQLite's locks.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be opened as a run store ({error.strerror}). Check the path and its"
            " permissions."
        ) from error
    with _opening(path, "opened as a run store", str(path), timeout=BUSY_SECONDS) as db:
        db.execute("pragma page_size = 32768")  # effective in a new file only
        db.execute("pragma journal_mode = wal")
        db.execute("pragma wal_autocheckpoint = 4096")
        db.execute("pragma foreign_keys = on")
        version = _version(db)
        if version == 0:
            _create(db)
        elif version != SCHEMA_VERSION:
            raise _other_release(path, version)
    return db


@contextmanager
def _opening(path: Path, how: str, database: str, **options: Any) -> Iterator[sqlite3.Connection]:
    """A new connection, which is closed if the body fails."""
    try:
        with ExitStack() as failed:
            db = sqlite3.connect(database, isolation_level=None, check_same_thread=False, **options)
            failed.callback(db.close)
            db.row_factory = sqlite3.Row
            yield db
            failed.pop_all()
    except (
        sqlite3.Error,
        UnicodeDecodeError,
    ) as error:  # the latter: damaged words in SQLite's own message
        raise StorageError(f"{path}: cannot be {how} ({error}). {_todo(error)}") from None


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("pragma user_version").fetchone()[0])


def _todo(error: Exception) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        return "The disk is full, and the store is unharmed: free some space, then start again."
    if name.startswith(_UNREACHED):
        return (
            "The store is unharmed: correct the path, or the owner or mode of the file and its"
            " folder."
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        return "Another process holds it: try again."
    return RESTORE


def _other_release(path: Path, version: int) -> StorageError:
    return StorageError(
        f"{path}: written by another release of coreg-federation (schema {version}, this release"
        f" has {SCHEMA_VERSION}). Read it with that release, or name another [service] store."
    )


def _create(db: sqlite3.Connection) -> None:
    db.execute("begin immediate")
    try:
        if _version(db) == 0:  # another process may have created them
            for statement in SCHEMA.split(";\n"):
                if statement.strip():
                    db.execute(statement)
            db.execute(f"pragma user_version = {SCHEMA_VERSION}")
        db.execute("commit")
    except BaseException:
        db.execute("rollback")
        raise


class StoreTables:
    """Tables of a store over one connection, which threads use in turn.

    Every method may raise `StorageError`.
    """

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path = path
        # A transaction belongs to the connection: a second thread would write into it or fail.
        self._in_turn = threading.RLock()
        self._db = open_for_reading(path) if read_only else open_database(path)
        self._version: int | None = None

    def changed(self) -> bool:
        """Whether another connection has changed the file since the last call."""
        with self.reading():
            before = self._version
            self._version = self._db.execute("pragma data_version").fetchone()[0]
        return before != self._version

    def close(self) -> None:
        """Close the connection. The last one merges the write-ahead log into the file."""
        self._db.close()

    def __del__(self) -> None:
        """A store that nothing holds closes its file; from Python 3.13 on an open one would be a
        warning.
        """
        if hasattr(self, "_db"):
            self._db.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn the many exceptions of a damaged file into a `StorageError`."""
        try:
            with self._in_turn:
                yield
        except (sqlite3.Error, ValueError, LookupError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{self.path}: the run store cannot be read ({error}). {_todo(error)}"
            ) from None

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """An atomic transaction. ``durable``: it survives a power failure after the commit."""
        try:
            with self._in_turn:
                self._db.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
                self._db.execute("begin immediate")
                try:
                    yield
                except BaseException:
                    self._db.execute("rollback")
                    raise
                self._db.execute("commit")
        except (sqlite3.Error, OverflowError) as error:
            raise StorageError(f"{self.path}: {error}. {_todo(error)}") from None
