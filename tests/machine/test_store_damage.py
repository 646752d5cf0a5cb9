"""A store that is not what was written says so, with exit code 8; one that is whole can be copied and pruned."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from stepwise import remembered
from test_store import LAP, NOW
from tiny import make_plan, undisturbed

from coordinator.machine.records import Ended, Record, StepTaken
from coordinator.machine.state import resume
from coordinator.store import maintenance
from coordinator.store.queue import Queue
from coordinator.store.runs import RunStore
from coordinator.store.watermark import mark_path
from coreg_core.errors import StorageError
from coreg_core.protocol.plan import Plan

PLAN = make_plan()


def filled(path: Path, *, whole: bool = True) -> Plan:
    store = RunStore(path)
    store.begin(PLAN, NOW)
    written: list[Record] = []
    for record in undisturbed(PLAN).records:
        if isinstance(record, Ended) and not whole:
            break
        written.append(record)
        shown = resume(PLAN, written).progress if isinstance(record, StepTaken) else None
        store.write(PLAN.run, record, shown, LAP, NOW)
    store.close()
    return PLAN


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "runs.sqlite"
    filled(path)
    return path


def test_a_whole_store_is_said_to_be_whole_and_is_for_its_owner_alone(whole: Path) -> None:
    found = maintenance.verify(whole)
    assert found.runs == 1
    assert found.values > 10, "each round, the models, the memberships and the plan"
    assert stat.S_IMODE(whole.stat().st_mode) == 0o600
    assert stat.S_IMODE(mark_path(whole).stat().st_mode) == 0o600


BLOBS = {"models": "models", "states": "state", "sums": "total"}


@pytest.mark.parametrize("table", BLOBS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("how", ["a bit", "zeroes"])
def test_what_was_changed_in_a_value_is_found(tmp_path: Path, table: str, where: str, how: str) -> None:
    path = tmp_path / "runs.sqlite"
    filled(path, whole=table == "models")
    db = sqlite3.connect(path)
    column = BLOBS[table]
    row, value = db.execute(f"select rowid, {column} from {table} limit 1").fetchone()
    at = {"first": 0, "middle": len(value) // 2, "last": len(value) - 8}[where]
    changed = bytearray(value)
    changed[at : at + 8] = bytes(8) if how == "zeroes" else bytes([changed[at] ^ 1]) + bytes(changed[at + 1 : at + 8])
    if bytes(changed) == value:
        changed[at] ^= 1  # there were zeroes there
    db.execute(f"update {table} set {column} = ? where rowid = ?", (bytes(changed), row))
    db.commit()
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        maintenance.verify(path)
    store = RunStore(path)
    with pytest.raises(StorageError, match="cannot be read"):
        store.records(PLAN.run)
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "update rounds set gap = '[1e-30, 1e-30]' where question = 3",
        "update rounds set seconds = 0 where question = 2",
        "update memberships set membership = replace(membership, '\"a\"', '\"b\"')",
        "update runs set plan = replace(plan, 'tiny', 'other')",
    ],
)
def test_what_was_changed_in_the_history_is_found(whole: Path, change: str) -> None:
    db = sqlite3.connect(whole)
    assert db.execute(change).rowcount
    db.commit()
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        maintenance.verify(whole)


def killed_while_writing(tmp_path: Path) -> Path:
    """A store as a killed coordinator leaves it: its last writes are in the log alone."""
    path = tmp_path / "runs.sqlite"
    filled(path, whole=False)
    store = RunStore(path)
    store.begin(make_plan(run="run-2"), NOW)
    left = tmp_path / "left"
    left.mkdir()
    for name in (path.name, f"{path.name}-wal", f"{path.name}.mark"):
        shutil.copy(tmp_path / name, left / name)
    store.close()
    return left / path.name


def test_a_log_that_is_missing_is_missed(tmp_path: Path) -> None:
    path = killed_while_writing(tmp_path)
    kept = path.with_name("kept")
    log = path.with_name(f"{path.name}-wal")
    shutil.copytree(path.parent, kept)
    assert len(RunStore(kept / path.name).runs()) == 2
    log.unlink()
    with pytest.raises(StorageError, match="lacks its last 1 writes"):
        RunStore(path)
    mark_path(path).unlink()  # as the sentence says
    assert len(RunStore(path).runs()) == 1


@pytest.mark.parametrize("content", [b"", bytes(65536)], ids=["emptied", "zeroes"])
def test_a_store_that_was_emptied_is_no_new_store(whole: Path, content: bytes) -> None:
    whole.write_bytes(content)
    with pytest.raises(StorageError):
        RunStore(whole)


def test_a_mark_of_an_earlier_boot_is_not_compared(whole: Path) -> None:
    mark_path(whole).write_text(f"{10**6:020d} another-boot\n")
    RunStore(whole).close()


def test_two_connections_of_one_process_and_one_of_another_keep_each_others_writes(tmp_path: Path) -> None:
    """Opening a file and closing it lifts every lock that SQLite holds on it in the process: the store must not do that."""
    path = tmp_path / "runs.sqlite"
    store, queue = RunStore(path), Queue(path)
    third = RunStore(path)
    third.close()
    queue.submit(make_plan(run="run-1"), NOW)
    assert [plan.run for plan, _ in Queue(path).waiting()] == ["run-1"]
    store.begin(make_plan(run="run-2"), NOW)
    assert len(RunStore(path).runs()) == 1


def test_a_backup_is_one_whole_file_that_can_be_served(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    store = RunStore(whole)  # somebody is writing
    found = maintenance.back_up(whole, copy)
    store.close()
    assert (found.runs, stat.S_IMODE(copy.stat().st_mode)) == (1, 0o600)
    assert [p.name for p in tmp_path.glob("copy*")] == ["copy.sqlite"], "and nothing beside it"
    assert remembered(resume(PLAN, RunStore(copy).records(PLAN.run))) == remembered(
        resume(PLAN, RunStore(whole).records(PLAN.run))
    )
    with pytest.raises(StorageError, match="there already"):
        maintenance.back_up(whole, copy)


def test_a_damaged_store_has_no_backup(whole: Path, tmp_path: Path) -> None:
    db = sqlite3.connect(whole)
    db.execute("update rounds set seconds = 0 where question = 2")
    db.commit()
    db.close()
    with pytest.raises(StorageError, match="damaged"):
        maintenance.back_up(whole, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


def test_pruning_forgets_the_rounds_of_old_runs_and_nothing_else(whole: Path) -> None:
    assert maintenance.prune(whole, 0.0, models=False).runs == 1
    store = RunStore(whole)
    summary, rounds = store.show(PLAN.run)
    assert (summary.stop, rounds) == ("CONVERGED", [])
    assert any(isinstance(r, Ended) and r.models is not None for r in store.records(PLAN.run)), (
        "it can be delivered again"
    )
    store.close()
    assert maintenance.verify(whole).runs == 1
