"""coordinator/store/maintenance.py: a store is verified to the last checksum, copied while it is written, and pruned."""

import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from machine.stepwise import remembered
from machine.tiny import make_plan, undisturbed
from store.filled import LAP, NOW, PLAN, filled
from typer.testing import CliRunner

from coordinator.cli.app import app
from coordinator.machine import notices as n
from coordinator.machine.records import HeadSigned, StepTaken
from coordinator.machine.state import resume
from coordinator.store import maintenance
from coordinator.store.history import History
from coordinator.store.queue import Queue
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, Head

PAGE = Path(__file__).resolve().parents[2] / "docs" / "production.md"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return filled(tmp_path / "runs.sqlite")


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(statement, values).rowcount


def remembered_in(path: Path) -> object:
    with closing(Summaries(path)) as store:
        return remembered(resume(PLAN, store.records(PLAN.run)))


def test_a_whole_store_is_whole(whole: Path) -> None:
    found = maintenance.verify(whole)
    assert found.runs == 1
    assert found.values > 10, "each round, the models, the memberships and the plan"


BLOBS = {"models": "models", "states": "state", "sums": "total"}


@pytest.mark.parametrize("table", BLOBS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("how", ["a bit", "zeroes"])
def test_what_was_changed_in_a_value_is_found(tmp_path: Path, table: str, where: str, how: str) -> None:
    path, column = filled(tmp_path / "runs.sqlite", whole=table == "models"), BLOBS[table]
    with closing(sqlite3.connect(path)) as db:
        row, value = db.execute(f"select rowid, {column} from {table} limit 1").fetchone()
    at = {"first": 0, "middle": len(value) // 2, "last": len(value) - 8}[where]
    changed = bytearray(value)
    changed[at : at + 8] = bytes(8) if how == "zeroes" else bytes([changed[at] ^ 1]) + bytes(changed[at + 1 : at + 8])
    if bytes(changed) == value:
        changed[at] ^= 1  # there were zeroes there
    change(path, f"update {table} set {column} = ? where rowid = ?", bytes(changed), row)
    with pytest.raises(StorageError, match="damaged"):
        maintenance.verify(path)
    with pytest.raises(StorageError, match="cannot be read"):
        remembered_in(path)


@pytest.mark.parametrize(
    "statement",
    [
        "update rounds set gap = '[1e-30, 1e-30]' where question = 3",
        "update rounds set seconds = 0 where question = 2",
        "update memberships set membership = replace(membership, '\"a\"', '\"b\"')",
        "update runs set plan = replace(plan, 'tiny', 'other')",
    ],
)
def test_a_damaged_store_is_found_and_has_no_backup(whole: Path, tmp_path: Path, statement: str) -> None:
    change(whole, statement)
    with pytest.raises(StorageError, match="damaged"):
        maintenance.verify(whole)
    with pytest.raises(StorageError, match="damaged"):
        maintenance.back_up(whole, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


def test_a_backup_is_one_whole_file_that_can_be_served(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with closing(Summaries(whole)):  # somebody is writing
        found = maintenance.back_up(whole, copy)
    assert (found.runs, stat.S_IMODE(copy.stat().st_mode)) == (1, 0o600)
    assert [p.name for p in tmp_path.glob("copy*")] == ["copy.sqlite"], "and nothing beside it"
    assert remembered_in(copy) == remembered_in(whole)
    with pytest.raises(StorageError, match="exists already"):
        maintenance.back_up(whole, copy)


# --- prune --------------------------------------------------------------------------------------------------------


def aged(path: Path) -> Path:
    """The run of `filled` left a row in every table that has a run."""
    receipt = Countersigned(PLAN.run, Head(7, "ab", NOW), NOW, "05", "06")
    with closing(Summaries(path)) as store, closing(History(path)) as history, closing(Queue(path)) as queue:
        store.write(PLAN.run, HeadSigned("a", "03", "04", receipt), None, LAP, NOW)
        history.write([(NOW, n.AnswersInClear(PLAN.run))], {(PLAN.run, "a", "Hello"): 1}, {(PLAN.run, "a", "Hello"): 0})
        queue._db.execute("insert into cancellations values (?, ?, '')", (PLAN.run, NOW))
        store._db.execute("insert into exclusions values (?, 'd', 'REFUSED', 'no')", (PLAN.run,))
        for table in ("states", "sums"):  # as where the run was closed in its middle
            columns = {"states": "(?, 0, x'00')", "sums": "(?, 0, 'affine', 3, x'00')"}[table]
            store._db.execute(f"insert into {table} values {columns}", (PLAN.run,))
    return path


@pytest.mark.parametrize("models", [False, True])
def test_pruning_removes_a_closed_run_from_every_table_but_for_its_figures_and_its_heads(
    whole: Path, models: bool
) -> None:
    before = remembered_in(whole)
    assert maintenance.prune(aged(whole), 0.0, models=models).runs == 1
    with closing(Summaries(whole)) as store:
        tables = [row[0] for row in store._db.execute("select name from sqlite_master where type = 'table'")]
        with_run = [t for t in tables if "run" in {row["name"] for row in store._db.execute(f"pragma table_info({t})")}]
        counts = {
            t: store._db.execute(f"select count(*) from {t} where run = ?", (PLAN.run,)).fetchone()[0] for t in with_run
        }
        kept = {"runs", "checkpoints"} | (set() if models else {"models", "deliveries", "memberships", "exclusions"})
        assert {t for t, count in counts.items() if count} == kept
        summary, rounds = store.show(PLAN.run)
        assert (summary.stop, rounds, summary.pruned is not None) == ("CONVERGED", [], True)
        assert summary.gap is not None
    if not models:
        change(whole, "delete from exclusions")
        assert remembered_in(whole) == before, "it can still be delivered"
    assert maintenance.verify(whole).runs == 1


def test_pruning_leaves_what_is_open_or_younger(whole: Path) -> None:
    with closing(Summaries(whole)) as store:
        store.begin(make_plan(run="open"), "2020-01-01")
    assert maintenance.prune(whole, 36500.0, models=True).runs == 0
    assert maintenance.prune(whole, 0.0, models=True).runs == 1
    with closing(Summaries(whole)) as store:
        assert [plan.run for plan in store.unfinished(NOW)[0]] == ["open"]


def test_pruning_beside_a_service_gives_the_space_back_a_few_pages_at_a_time(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No writer waits for the whole of it: it used to hold the lock for longer than a writer waits, and ended the service."""
    monkeypatch.setattr(maintenance, "PAGES_AT_ONCE", 8)
    steps = [r for r in undisturbed(PLAN).records if isinstance(r, StepTaken)]
    with closing(Summaries(whole)) as store:
        store._db.execute("update models set models = zeroblob(20000000)")
        store._db.execute("pragma wal_checkpoint(truncate)")
        store.begin(make_plan(run="serving"), NOW)
        size, over, written = whole.stat().st_size, threading.Event(), list[int]()

        def serve() -> None:
            while not over.is_set():
                store.write("serving", steps[0], None, LAP, NOW)
                written.append(1)

        writer = threading.Thread(target=serve)
        writer.start()
        while not written:
            pass
        before = len(written)
        found = maintenance.prune(whole, 0.0, models=True)
        during = len(written) - before
        over.set()
        writer.join()
        assert found.bytes > 15_000_000
        assert whole.stat().st_size < size - 15_000_000
        assert during > 5, "the service wrote all the time"
    assert maintenance.verify(whole).runs == 2


# --- the restore drill of docs/production.md ----------------------------------------------------------------------


def coordinator(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_restore_drill(whole: Path, tmp_path: Path) -> None:
    """Step by step, on a store that went on after its backup."""
    backup, known = tmp_path / "runs-2026-11.sqlite", remembered_in(whole)
    assert "whole" in coordinator("backup", backup, "--store", whole)
    with closing(Summaries(whole)) as later:
        later.begin(make_plan(run="later"), NOW)
    assert "checksums fit" in coordinator("verify", "--store", backup)
    listed = coordinator("runs", "--store", backup)
    assert PLAN.run in listed
    assert "later" not in listed
    for beside in tmp_path.glob("runs.sqlite-*"):
        beside.unlink()
    shutil.copy(backup, whole)
    assert remembered_in(whole) == known
    assert "checksums fit" in coordinator("verify", "--store", whole)
    told = PAGE.read_text(encoding="utf-8")
    steps = ("backup runs-2026-11.sqlite", "coreg-coordinator verify", "coreg-coordinator runs", "runs.sqlite-wal")
    assert all(step in told for step in steps)
    assert "tests/store/test_maintenance.py" in told
