"""coordinator/store/schema.py: how a store is opened, and how its writers wait for each other."""

import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from machine.tiny import make_plan
from store.filled import NOW

from coordinator.store import schema
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError


def test_a_store_is_for_its_owner_alone_and_opened_at_once_by_many(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    stores = [Summaries(path) for _ in range(3)]
    stores[0].begin(make_plan(), NOW)
    assert [len(s.runs()) for s in stores] == [1, 1, 1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in stores:
        each.close()


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with pytest.raises(StorageError, match="cannot be opened for reading"):
        Summaries(path, read_only=True)
    Summaries(path).close()
    reader = Summaries(path, read_only=True)
    with pytest.raises(StorageError, match="readonly"):
        reader.begin(make_plan(), NOW)
    assert reader.runs() == []
    reader.close()


@pytest.mark.parametrize("name", [".", "missing/runs.sqlite"])
def test_a_path_that_cannot_be_written_is_a_storage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be opened as a run store"):
        RunStore(tmp_path / name)


def test_a_store_that_is_whole_is_not_said_to_need_a_backup(store: RunStore, tmp_path: Path, monkeypatch) -> None:
    full, locked_out = sqlite3.OperationalError("database or disk is full"), sqlite3.OperationalError("unable to open")
    full.sqlite_errorname, locked_out.sqlite_errorname = "SQLITE_FULL", "SQLITE_CANTOPEN"
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorname = "SQLITE_BUSY"
    for error, told in (
        (full, "The disk is full, and the store is unharmed"),
        (locked_out, "owner or mode of the file"),
        (busy, "Another process holds it: try again"),
    ):
        monkeypatch.setattr(sqlite3, "connect", mock.Mock(side_effect=error))
        with pytest.raises(StorageError, match=told):
            RunStore(tmp_path / "another.sqlite")


@pytest.mark.parametrize("content", [b"dear diary, " * 1000, bytes(65536)])
def test_a_file_that_is_no_database_is_a_storage_error_and_stays_as_it_was(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="cannot be opened as a run store"):
        RunStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_of_another_release_is_a_storage_error(store: RunStore, read_only: bool) -> None:
    store._db.execute("pragma user_version = 99")
    with pytest.raises(StorageError, match=r"another release of coreg-federation.*schema 99"):
        RunStore(store.path, read_only=read_only)


@pytest.mark.parametrize(("patience", "waits"), [(20.0, True), (0.1, False)])
def test_a_writer_waits_for_another_one_that_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, waits: bool
) -> None:
    """A backup, or `prune` beside a service, holds it for seconds: that ends no service."""
    monkeypatch.setattr(schema, "BUSY_SECONDS", patience)
    store = Summaries(tmp_path / "runs.sqlite")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
            other.execute("begin immediate")
            held.set()
            release.wait(1.0)
            other.execute("commit")

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    if waits:
        store.begin(make_plan(), NOW)
    else:
        with pytest.raises(StorageError, match="locked"):
            store.begin(make_plan(), NOW)
    release.set()
    holder.join()
    assert len(store.runs()) == int(waits)
    store.close()


def test_threads_take_turns_on_one_connection(tmp_path):
    """A service's heartbeat and its flush of attendance write one `Status` from two threads."""
    status = Status(tmp_path / "runs.sqlite")
    with ThreadPoolExecutor(4) as threads:
        writes = [
            *(threads.submit(status.set_service, {"state": str(i)}, NOW) for i in range(50)),
            *(threads.submit(status.opened, f"site-{i}", "1", "", NOW) for i in range(50)),
            *(threads.submit(status.service) for _ in range(50)),
        ]
    for write in writes:
        write.result()
    assert len(status.sites()) == 50
    status.close()
