"""coordinator/store/maintenance.py: a store is copied while it is written, checked, and pruned."""

import datetime as dt
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine.tiny import make_plan
from store.filled import LAP, NOW, PLAN, RECORDS, filled
from typer.testing import CliRunner

from coordinator.cli.app import app
from coordinator.machine import notices as n
from coordinator.machine.records import HeadSigned
from coordinator.store import maintenance
from coordinator.store.overview import overview
from coordinator.store.runs import History, Queue
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, LedgerHead

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operate-a-coordinator.md"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return filled(tmp_path / "runs.sqlite")


def remembered_in(path: Path) -> object:
    with closing(Summaries(path)) as store:
        return store.begun(PLAN.run), store.show(PLAN.run)


def test_a_damaged_store_has_no_backup(whole: Path, tmp_path: Path) -> None:
    content = bytearray(aged(whole).read_bytes())
    page = len(content) // 2 // 32768 * 32768
    content[page : page + 3000] = b"\xff" * 3000
    whole.write_bytes(content)
    with pytest.raises(StorageError, match=rf"{whole}: the run store cannot be read .* restore the newest backup"):
        maintenance.back_up(whole, tmp_path / "copy.sqlite")
    assert not (tmp_path / "copy.sqlite").exists()


def test_a_backup_is_one_whole_file_that_can_be_served(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with closing(Summaries(whole)):  # somebody is writing
        found = maintenance.back_up(whole, copy)
    assert (found.runs, stat.S_IMODE(copy.stat().st_mode)) == (1, 0o600)
    assert [p.name for p in tmp_path.glob("copy*")] == ["copy.sqlite"], "and nothing beside it"
    assert remembered_in(copy) == remembered_in(whole)
    kept = tmp_path / "kept"  # as on a disk that cannot be written
    kept.mkdir()
    maintenance.back_up(whole, kept / "copy.sqlite")
    content = (kept / "copy.sqlite").read_bytes()
    assert PLAN.run in coordinator("runs", "--store", kept / "copy.sqlite")
    assert [(path.name, path.read_bytes()) for path in kept.iterdir()] == [("copy.sqlite", content)]
    with pytest.raises(StorageError, match="exists already"):
        maintenance.back_up(whole, copy)


# --- prune --------------------------------------------------------------------------------------------------------


def aged(path: Path) -> Path:
    """The run of `filled` left a row in every table that has a run."""
    receipt = Countersigned(PLAN.run, LedgerHead(7, "ab", NOW), NOW, "05", "06")
    with closing(Summaries(path)) as store, closing(History(path)) as history, closing(Queue(path)) as queue:
        store.write(PLAN.run, HeadSigned("a", "03", "04", receipt), LAP, NOW)
        history.add(n.answers_in_clear(PLAN.run), NOW)
        history.flush()
        queue._db.execute("insert into cancellations values (?, ?, '')", (PLAN.run, NOW))
    return path


def test_pruning_removes_an_ended_run_from_every_table_but_for_its_figures_and_its_heads(whole: Path) -> None:
    assert maintenance.prune(aged(whole), 0.0).runs == 1
    with closing(Summaries(whole)) as store:
        tables = [row[0] for row in store._db.execute("select name from sqlite_master where type = 'table'")]
        with_run = [t for t in tables if "run" in {row["name"] for row in store._db.execute(f"pragma table_info({t})")}]
        counts = {
            t: store._db.execute(f"select count(*) from {t} where run = ?", (PLAN.run,)).fetchone()[0] for t in with_run
        }
        assert {t for t, count in counts.items() if count} == {"runs", "checkpoints"}
        summary, rounds = store.show(PLAN.run)
        assert (summary.stop, rounds, summary.pruned is not None) == ("CONVERGED", [], True)
        assert summary.gap is not None
    today = f"history pruned on {dt.datetime.now(dt.UTC):%Y-%m-%d}"
    figures = f"{summary.rounds} rounds, residual {summary.residual:.0e}, gap {summary.gap:.0e}"
    assert all(word in coordinator("show", PLAN.run, "--store", whole) for word in (figures, today))
    assert today in coordinator("runs", "--store", whole)
    [run] = overview(whole)["latest"]
    assert (run["steps"], run["pruned"][:10], run["state"]) == (summary.steps, today[-10:], "converged")
    assert maintenance.prune(whole, 0.0).runs == 0, "it is pruned already"
    with closing(Summaries(whole)) as store:
        assert store.end_for(PLAN.run, "a") is not None, "a site that was away still receives how it ended"


def test_pruning_leaves_what_is_open_or_younger(whole: Path) -> None:
    with closing(Summaries(whole)) as store:
        store.begin(make_plan(run="open"), "2020-01-01")
    assert maintenance.prune(whole, 36500.0).runs == 0
    assert maintenance.prune(whole, 0.0).runs == 1
    with closing(Summaries(whole)) as store:
        assert [plan.run for plan in store.unfinished()] == ["open"]


def test_pruning_beside_a_service_gives_the_space_back_a_few_pages_at_a_time(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free between any two of its transactions: held for the whole of it, it ended the service once."""
    monkeypatch.setattr(maintenance, "PAGES_AT_ONCE", 8)
    with closing(Summaries(whole)) as store:
        store._db.execute("update rounds set phase = hex(zeroblob(10000000)) where run = ? and number = 0", (PLAN.run,))
        store._db.execute("pragma wal_checkpoint(truncate)")
        store.begin(make_plan(run="serving"), NOW)
        store._db.execute("pragma busy_timeout = 0")  # a write that had to wait would fail
        size, written, transaction = whole.stat().st_size, list[int](), maintenance._Pruned.transaction

        @contextmanager
        def then_a_write(pruned: Any, **given: Any) -> Iterator[None]:
            with transaction(pruned, **given):
                yield
            store.write("serving", RECORDS[1], LAP, NOW)
            written.append(1)

        monkeypatch.setattr(maintenance._Pruned, "transaction", then_a_write)
        found = maintenance.prune(whole, 0.0)
        assert found.bytes == size - whole.stat().st_size > 15_000_000
        assert len(written) > 50


# --- the restore drill of docs/how-to/operate-a-coordinator.md --------------------------------------------------------


def coordinator(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_restore_drill(whole: Path, tmp_path: Path) -> None:
    """Step by step, on a store that went on after its backup."""
    backup, known = tmp_path / "runs-2026-11.sqlite", remembered_in(whole)
    assert "integrity checked" in coordinator("backup", backup, "--store", whole)
    with closing(Summaries(whole)) as later:
        later.begin(make_plan(run="later"), NOW)
    listed = coordinator("runs", "--store", backup)
    assert PLAN.run in listed
    assert "later" not in listed
    for beside in tmp_path.glob("runs.sqlite-*"):
        beside.unlink()
    shutil.copy(backup, whole)
    assert remembered_in(whole) == known
    told = PAGE.read_text(encoding="utf-8")
    steps = ("backup runs-2026-11.sqlite", "coreg-coordinator runs", "runs.sqlite-wal")
    assert all(step in told for step in steps)
    assert "serve drill/federation.toml --store drill/runs.sqlite" in told, "whatever COREG_STORE names"
