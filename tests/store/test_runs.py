"""coordinator/store/runs.py: what is written is read back to the bit."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from machine.tiny import Pump, all_restarted, make_plan, make_sites, sealed, undisturbed
from store.filled import LAP, NOW, begun, eventful, remembered, write

from coordinator.machine.records import AttemptBegan, Closed, Delivered, Ended, Record, SiteExcluded, StepDone
from coordinator.machine.scheduler import Undelivered
from coordinator.store.runs import RunStore
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


def unfinished(store: RunStore) -> list[str]:
    plans = store.unfinished()
    return [plan.run for plan in plans]


@pytest.mark.parametrize("disturbed", [False, True])
def test_every_record_is_read_back_to_the_same_state(store: Summaries, disturbed: bool) -> None:
    """Whatever was written last: attempts, exclusions, steps, the end, deliveries."""
    plan, pump = eventful() if disturbed else (make_plan(), undisturbed(make_plan()))
    kinds = {type(r) for r in pump.records}
    assert kinds >= {AttemptBegan, StepDone, Ended, Delivered, Closed}
    assert (SiteExcluded in kinds) is disturbed
    store.begin(plan, NOW)
    assert store.records(plan.run) == []
    for kept, record in enumerate(pump.records, 1):
        store.write(plan.run, record, LAP, NOW)
        assert remembered(plan, store.records(plan.run)) == remembered(plan, pump.records[:kept])
        assert unfinished(store) == ([] if isinstance(record, Closed) else [plan.run])


@pytest.mark.parametrize("plan", [make_plan(sites=("a", "b")), sealed(make_plan(sites=("a", "b")))])
def test_killed_between_two_writes_a_copy_of_the_files_goes_on_to_the_same_bits(tmp_path: Path, plan: Plan) -> None:
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
        assert unfinished(again) == [plan.run]
        pump = Pump(plan, all_restarted(first.sites), again.records(plan.run)).join().run()
        again.close()
        store.close()
        assert pump.outcome is expected.outcome
        assert first.bits | pump.bits == expected.bits


def test_ends_deliveries_and_exclusions_outlive_the_run(store: Summaries) -> None:
    plan, pump = eventful()
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    [excluded, attempt, ended, *delivered, closed] = store.records(plan.run)
    assert excluded == next(r for r in pump.records if isinstance(r, SiteExcluded))
    steps = sum(isinstance(r, StepDone) for r in pump.records)
    assert (attempt.participants, attempt.steps) == (("a", "b", "c"), steps)  # type: ignore[union-attr]
    assert ended == next(r for r in pump.records if isinstance(r, Ended))
    assert (delivered, closed) == ([Delivered(s) for s in "abc"], Closed())


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
    write(store, make_plan(run="over"), [Ended(Outcome.CONVERGED, ""), Closed()])
    write(store, make_plan(run="new"), [Ended(Outcome.SITE_FAULT, "b")])
    assert unfinished(store) == ["old", "middle", "new"], "an end that is not closed is still delivered"
    assert store.latest(make_plan().digest).run == "new"


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_a_run_that_is_not_under_way_is_closed_and_what_it_ended_with_stays(store: Summaries, kept: int) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:kept])
    store.close_run(plan, Outcome.INTERRUPTED, "abandoned", "2026-02-02")
    [summary] = store.runs()
    assert (unfinished(store), summary.closed) == ([], "2026-02-02")
    if kept == -1:
        assert (summary.ended, summary.stop, summary.reason) == (NOW, "CONVERGED", "")
        assert remembered(plan, store.records(plan.run)).has_models
    else:
        assert (summary.ended, summary.stop, summary.reason) == ("2026-02-02", "INTERRUPTED", "abandoned")


# --- delivery on demand -------------------------------------------------------------------------------------------


def ended(store: RunStore, run: str, *fetched: str) -> Plan:
    """A run that is closed, and that these sites have fetched."""
    plan = make_plan(run=run)
    records = [r for r in undisturbed(plan).records if not isinstance(r, Delivered) or r.site in fetched]
    store.begin(plan, NOW)
    write(store, plan, records)
    return plan


def test_the_sites_that_have_not_fetched_a_closed_run_are_known_until_they_do(store: Summaries) -> None:
    plan = ended(store, "run-1", "a")
    ended(store, "run-2", "a", "b", "c")
    begun(store, undisturbed(make_plan()).records[:4], run="run-3")
    assert store.undelivered() == {"run-1": Undelivered(plan, frozenset("bc"))}
    store.write("run-1", Delivered("b"), LAP, NOW)
    assert store.undelivered() == {"run-1": Undelivered(plan, frozenset("c"))}
    assert remembered(plan, store.records("run-1")).has_models
    store.write("run-1", Delivered("c"), LAP, NOW)
    assert store.undelivered() == {}


# --- what goes wrong ----------------------------------------------------------------------------------------------


DAMAGE = [
    *(f"update attempts set began = '{text}'" for text in ("{", "{}", "[]")),
    "update runs set heads = '{'",
    "update runs set stop = 'NO_SUCH_OUTCOME'",
    "update exclusions set outcome = 'NONE'",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_records_are_one_error_that_says_what_to_do(store: Summaries, damage: str) -> None:
    plan, pump = eventful()
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    assert store._db.execute(damage).rowcount
    with pytest.raises(StorageError, match=r"the run store cannot be read.*restore the newest backup"):
        store.records(plan.run)


def test_damaged_pages_are_a_storage_error(store: Summaries) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:40])
    store.close()
    data = bytearray(store.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    store.path.write_bytes(data)

    def read() -> None:
        opened = Summaries(store.path)
        try:
            opened.records(plan.run)
            opened.show(plan.run)
        finally:
            opened.close()

    with pytest.raises(StorageError):  # where it shows is the library's business
        read()


def test_a_failed_write_leaves_nothing_half_done(store: Summaries) -> None:
    records = undisturbed(make_plan()).records
    plan = begun(store, records[:3])
    before = store.records(plan.run)
    store._db.execute("create trigger full before insert on rounds begin select raise(abort, 'disk is full'); end")
    with pytest.raises(StorageError, match="disk is full"):
        store.write(plan.run, records[3], LAP, NOW)
    assert store.records(plan.run) == before


def test_every_record_but_a_step_is_durable_when_it_is_written(store: Summaries) -> None:
    """A power cut may undo a step: the sites know how far they are."""
    plan, modes = make_plan(), list[tuple[type[Record], int]]()
    store.begin(plan, NOW)
    for record in undisturbed(plan).records:
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
