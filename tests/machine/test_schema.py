"""The run store's file: one of an older release becomes one of this, and one coordinator at a time writes it."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tiny import make_plan, undisturbed

from coordinator.driver import Lap
from coordinator.machine.events import SiteJoined
from coordinator.machine.state import resume
from coordinator.store.history import Chronicle, Chronicler, Disclosed
from coordinator.store.runs import RunStore
from coordinator.store.schema import SCHEMA_VERSION, exclusive
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Hello

# --- a file of release 0.1 ----------------------------------------------------------------------------------------

SCHEMA_1 = """
create table runs (
    run text primary key, plan_digest text not null, plan text not null,
    started text not null, ended text, stop text, reason text
);
create index runs_by_plan on runs (plan_digest, started);
create table memberships (
    run text not null references runs, attempt integer not null, round integer not null, membership text not null,
    primary key (run, attempt)
);
create table states (run text not null references runs, round integer not null, state blob not null, primary key (run));
create table sums (
    run text not null references runs, round integer not null, total blob not null, primary key (run, round)
);
create table rounds (
    run text not null references runs, round integer not null, attempt integer not null, sweep integer,
    answered integer not null, verified integer, residual text, gap text, prediction_bound text,
    seconds real not null, bytes_sent integer not null, bytes_received integer not null, at text not null,
    primary key (run, round, attempt)
);
pragma user_version = 1;
"""
PLAN_1 = {"run": "old-1", "federation": "clinics", "sites": ["a", "b"], "min_sites": 2, "schedule": "consensus"}


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """Two runs of release 0.1: one converged after two questions, one was left after its first."""
    path = tmp_path / "old.sqlite"
    db = sqlite3.connect(path)
    db.executescript(SCHEMA_1)
    for run, ended, stop in (("old-1", "2025-01-02", "CONVERGED"), ("old-2", None, None)):
        plan = json.dumps(PLAN_1 | {"run": run})
        db.execute(
            "insert into runs values (?, ?, ?, ?, ?, ?, ?)", (run, "d", plan, "2025-01-01", ended, stop, stop and "")
        )
        shown = (3, 1, "[0.5]", "[0.25]", "[null]", 0.1, 10, 20, "2025-01-01")
        db.execute("insert into rounds values (?, 0, 0, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (run, *shown))
    db.execute(
        "insert into rounds select run, 1, 0, 2, 3, 1, '[0.1]', gap, prediction_bound, 0.1, 1, 2, at from rounds limit 1"
    )
    db.execute("insert into memberships values ('old-2', 0, 0, '{}')")
    db.execute("insert into states values ('old-2', 0, x'00')")
    db.execute("insert into sums values ('old-2', 0, x'00')")
    db.commit()
    db.close()
    return path


def test_runs_of_an_older_file_stay_readable(old_file: Path) -> None:
    for _ in range(2):  # brought up to date once, and opened as it is from then on
        store = RunStore(old_file)
        by_name = {s.run: s for s in store.runs()}
        over, left = by_name["old-1"], by_name["old-2"]
        assert (over.federation, over.ended, over.closed, over.stop) == (
            "clinics",
            "2025-01-02",
            "2025-01-02",
            "CONVERGED",
        )
        assert (over.questions, over.rounds, over.format) == (2, 2, 1)
        assert (left.ended, left.closed, left.stop, left.format) == (None, None, None, 1)
        assert [(r["question"], r["round"], r["residual"]) for r in store.show("old-1")[1]] == [
            (0, 1, [0.5]),
            (1, 2, [0.1]),
        ]
        assert store.show("old-2")[1][0]["prediction_bound"] == [None]
        assert store.unfinished("d") is None, "it cannot be taken up"
        assert not store.has_begun("old-2")
        assert store._db.execute("pragma user_version").fetchone()[0] == SCHEMA_VERSION
        store.close()


def test_an_older_file_takes_new_runs(old_file: Path) -> None:
    store = RunStore(old_file)
    pump = undisturbed(plan := make_plan())
    store.begin(plan, "2026-01-01")
    for record in pump.records:
        store.write(plan.run, record, None, Lap(), "2026-01-01")
    assert resume(plan, store.records(plan.run)).models is not None
    assert len(store.runs()) == 3
    fresh = RunStore(old_file.with_name("fresh.sqlite"))
    for kind in ("table", "index"):
        made = [columns_of(s._db, kind) for s in (store, fresh)]
        assert made[0] == made[1], "an older file has the columns of a new one"
    store.close()
    fresh.close()


def columns_of(db: sqlite3.Connection, kind: str) -> dict[str, set[str]]:
    names = [row["name"] for row in db.execute("select name from sqlite_master where type = ?", (kind,))]
    info = "table_info" if kind == "table" else "index_info"
    return {name: {row["name"] for row in db.execute(f"pragma {info}({name})")} for name in names}


def test_a_file_of_an_earlier_build_gets_the_tables_that_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    RunStore(path).close()
    with closing(sqlite3.connect(path)) as db:
        for table in ("notices", "disclosed", "heads"):
            db.execute(f"drop table {table}")
        db.execute("pragma user_version = 3")
    chronicle, chronicler = Chronicle(path), Chronicler()
    assert RunStore(path, read_only=True).heads() == []
    chronicler.heard(SiteJoined(Hello("a", 1)))
    chronicler.flush(chronicle)
    assert chronicle.disclosed() == [Disclosed("a", "Hello", 1, 0)]
    chronicle.close()


# --- one coordinator at a time ------------------------------------------------------------------------------------


def test_the_store_is_one_coordinators_and_readers_need_no_lock(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.sqlite")
    store.begin(make_plan(), "2026-01-01")
    with exclusive(store.path):
        words = f"in use by the coordinator with process id {os.getpid()} on"
        with pytest.raises(StorageError, match=words), exclusive(store.path):
            raise AssertionError("two at once")
        reader = RunStore(store.path)
        assert len(reader.runs()) == 1
        reader.close()
    with exclusive(store.path):
        pass
    store.close()


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    program = (
        "import sys, time; from pathlib import Path; from coordinator.store.schema import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match=f"process id {holder.pid} on"), exclusive(path):
            raise AssertionError("two at once")
        holder.kill()
    with exclusive(path):
        pass


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"lock: cannot be written"), exclusive(tmp_path / "missing" / "runs.sqlite"):
        raise AssertionError("no file to lock")
