"""coordinator/store/runs.py: what is written is read back to the bit."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from machine.tiny import Pump, all_restarted, begun_by, make_plan, make_sites, sealed, undisturbed
from store.filled import END, INTERRUPTED, LAP, NOW, RECORDS, begun, write

from coordinator.machine.records import Begun, Ended, HeadSigned, Record, StepDone
from coordinator.store.runs import RunStore
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, Dismissed, Finished, LedgerHead, Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


def unfinished(store: RunStore) -> list[str]:
    plans = store.unfinished()
    return [plan.run for plan in plans]


@pytest.mark.parametrize("records", [RECORDS, INTERRUPTED], ids=["undisturbed", "interrupted"])
def test_the_last_attempt_that_began_is_read_back_after_each_record(store: Summaries, records: list[Record]) -> None:
    plan = begun(store)
    assert (store.begun(plan.run), store.has_begun(plan.run)) == (Begun(), False)
    for kept, record in enumerate(records, 1):
        store.write(plan.run, record, LAP, NOW)
        assert (store.begun(plan.run), store.has_begun(plan.run)) == (begun_by(records[:kept]), True)
        assert unfinished(store) == ([] if isinstance(record, Ended) else [plan.run])


@pytest.mark.parametrize("plan", [make_plan(sites=("a", "b")), sealed(make_plan(sites=("a", "b")))])
def test_killed_between_two_writes_a_copy_of_the_files_begins_again_and_ends_with_the_same_bits(
    tmp_path: Path, plan: Plan
) -> None:
    expected = undisturbed(plan)
    for kept in range(1, len(expected.records), 7):
        first = Pump(plan, make_sites(plan.sites), kill_after=kept).join().run()
        written, copies = tmp_path / f"run-{kept}", tmp_path / f"killed-{kept}"
        written.mkdir()
        store = RunStore(written / "runs.sqlite")
        store.begin(plan, NOW)
        write(store, plan, first.records)
        shutil.copytree(written, copies)  # the log is part of the store until it is folded in
        again = RunStore(copies / "runs.sqlite")
        assert (unfinished(again), again.begun(plan.run)) == ([plan.run], begun_by(first.records))
        pump = Pump(plan, all_restarted(first.sites), first.records).join().run()
        again.close()
        store.close()
        assert pump.outcome is expected.outcome
        assert pump.bits == expected.bits


def test_a_site_that_waits_for_the_end_of_a_run_receives_it(store: Summaries) -> None:
    plan = begun(store, INTERRUPTED[:-1])
    assert store.end_for(plan.run, "a") is None, "it has not ended"
    write(store, plan, [Ended(Outcome.MAX_ROUNDS, "too few")])
    assert store.end_for(plan.run, "a") == Finished(plan.run, Outcome.MAX_ROUNDS, "too few")
    why = "c: the run ended (max_rounds) with a, b, and without this site."
    assert store.end_for(plan.run, "c") == Dismissed(plan.run, Outcome.STALLED, why), "it was dropped"
    assert store.end_for("another run", "a") is None


def test_no_file_of_the_store_has_a_number_of_a_site_in_it(store: Summaries) -> None:
    """The sums stay with the sites, in plaintext too."""
    plan = make_plan()
    pump = undisturbed(plan)
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    sums = [send.message.words.values for send in pump.sent if isinstance(send.message, Step) and send.message.words]
    assert len(sums) > 10
    content = b"".join(file.read_bytes() for file in store.path.parent.glob("runs.sqlite*"))
    assert not any(word.tobytes() in content for words in sums for word in words if word > 1 << 32)


def test_unfinished_runs_come_in_the_order_in_which_they_began(store: Summaries) -> None:
    for run, started in [("old", "01"), ("new", "03"), ("middle", "02"), ("over", "09")]:
        store.begin(make_plan(run=run), f"2026-01-{started}")
    write(store, make_plan(run="over"), [END])
    assert unfinished(store) == ["old", "middle", "new"]
    assert store.latest(make_plan().digest).run == "new"


@pytest.mark.parametrize("kept", [0, 5, len(RECORDS)])
def test_a_run_that_is_not_under_way_is_ended_and_what_it_ended_with_stays(store: Summaries, kept: int) -> None:
    plan = begun(store, RECORDS[:kept])
    store.close_run(plan, Outcome.INTERRUPTED, "abandoned", "2026-02-02")
    [summary] = store.runs()
    ends = (NOW, "CONVERGED", "") if kept == len(RECORDS) else ("2026-02-02", "INTERRUPTED", "abandoned")
    assert (unfinished(store), summary.ended, summary.stop, summary.reason) == ([], *ends)


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["participants = '{'", "participants = '7'", "stop = 'NO_SUCH_OUTCOME'"])
def test_damaged_records_are_one_error_that_says_what_to_do(store: Summaries, damage: str) -> None:
    plan = begun(store, INTERRUPTED)
    assert store._db.execute(f"update runs set {damage}").rowcount
    with pytest.raises(StorageError, match=r"the run store cannot be read.*restore the newest backup"):
        store.end_for(plan.run, "a")


def test_damaged_pages_are_a_storage_error(store: Summaries) -> None:
    plan = begun(store, RECORDS)
    store.close()
    data = bytearray(store.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    store.path.write_bytes(data)

    def read() -> None:
        opened = Summaries(store.path)
        try:
            opened.begun(plan.run)
            opened.show(plan.run)
        finally:
            opened.close()

    with pytest.raises(StorageError):  # where it shows is the library's business
        read()


def test_a_failed_write_leaves_nothing_half_done(store: Summaries) -> None:
    plan = begun(store, RECORDS[:3])
    before = store.begun(plan.run)
    store._db.execute("create trigger full before insert on rounds begin select raise(abort, 'disk is full'); end")
    with pytest.raises(StorageError, match="disk is full"):
        store.write(plan.run, RECORDS[3], LAP, NOW)
    assert store.begun(plan.run) == before


def test_every_record_but_a_step_is_durable_when_it_is_written(store: Summaries) -> None:
    """A power cut can undo a step: the next attempt begins from its beginning."""
    plan, modes = begun(store), list[tuple[type[Record], int]]()
    receipt = Countersigned(plan.run, LedgerHead(7, "ab", NOW), NOW, "05", "06")
    for record in (*RECORDS, HeadSigned("a", "03", "04", receipt)):
        store.write(plan.run, record, LAP, NOW)
        modes.append((type(record), store._db.execute("pragma synchronous").fetchone()[0]))
    normal, full = 1, 2
    assert {mode for kind, mode in modes if kind is StepDone} == {normal}
    assert {mode for kind, mode in modes if kind is not StepDone} == {full}


def test_two_connections_of_one_process_and_one_of_another_keep_each_others_writes(tmp_path: Path) -> None:
    """Opening a file and closing it lifts every lock that SQLite holds on it in the process: the store must not do that."""
    path = tmp_path / "runs.sqlite"
    stores = [RunStore(path) for _ in range(2)]
    RunStore(path).close()
    for i, each in enumerate(stores):
        each.begin(make_plan(run=f"run-{i}"), NOW)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from runs").fetchone() == (2,)
