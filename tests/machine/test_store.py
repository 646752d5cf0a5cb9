"""The memory of runs: what is written is read back to the bit, by whoever opens the file next."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import SCHEDULES, TIMEOUTS, Pump, make_plan, make_sites, resumption_of, undisturbed

from coordinator.events import DeadlinePassed, Ended, Membership, Record, Resumption, Snapshot, StepTaken
from coordinator.machine import Coordinator
from coordinator.store import Measured, RunStore
from coreg_core.errors import StorageError, UsageError
from coreg_core.messages import Plan
from coreg_core.rounds.schedule import Stop

NOW, MEASURED = "2026-01-01T00:00:00.000+00:00", Measured(0.25, 100, 200)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs.sqlite")
    yield opened
    opened.close()


def write(store: RunStore, plan: Plan, records: list[Record]) -> None:
    for record in records:
        store.write(plan.run, record, MEASURED, NOW)


def begun(store: RunStore, records: list[Record], **changes: object) -> Plan:
    plan = make_plan(**changes)
    store.begin(plan, NOW)
    write(store, plan, records)
    return plan


def same(one: Resumption | None, other: Resumption | None) -> bool:
    """To the bit, arrays and their types included."""
    if one is None or other is None:
        return one is other
    bits = [{k: (a.dtype.str, a.shape, a.tobytes()) for k, a in r.state.items()} for r in (one, other)]
    return bits[0] == bits[1] and replace(one, state={}) == replace(other, state={})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_whatever_is_written_is_read_back_to_the_same_bits(store: RunStore, schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    records = undisturbed(plan).records
    assert {type(r) for r in records} >= {Membership, StepTaken, Ended}
    store.begin(plan, NOW)
    assert store.unfinished(plan.digest) == (plan.run, None)
    for kept, record in enumerate(records[:-1], 1):
        store.write(plan.run, record, MEASURED, NOW)
        found = store.unfinished(plan.digest)
        assert found is not None
        assert found[0] == plan.run
        assert same(found[1], resumption_of(records[:kept])), f"after {kept} records"
    write(store, plan, records[-1:])
    assert store.unfinished(plan.digest) is None


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_killed_between_two_writes_a_copy_of_the_files_goes_on_to_the_same_bits(
    store: RunStore, tmp_path: Path, schedule: str
) -> None:
    plan = make_plan(schedule=schedule, sites=("a", "b"))
    expected = undisturbed(plan)
    store.begin(plan, NOW)
    for number, record in enumerate(expected.records[:-1]):
        store.write(plan.run, record, MEASURED, NOW)
        if number % 7:
            continue
        copies = tmp_path / f"killed-{number}"
        copies.mkdir()
        for file in tmp_path.glob("runs.sqlite*"):  # the log is part of the store until it is folded in
            shutil.copy(file, copies)
        again = RunStore(copies / "runs.sqlite")
        found = again.unfinished(plan.digest)
        assert found is not None
        pump = Pump(Coordinator(plan, TIMEOUTS, found[1]), make_sites(plan.sites)).join().run()
        again.close()
        assert pump.bits == expected.bits


def test_a_changed_membership_is_taken_up_from_its_own_state(store: RunStore) -> None:
    plan = make_plan(on_lost="continue", schedule="consensus")
    pump = Pump(Coordinator(plan, TIMEOUTS), make_sites("ab")).join()
    pump.carry_out(pump.machine.handle(_deadline(pump)))  # c did not come
    while sum(isinstance(r, StepTaken) for r in pump.records) < 3:
        pump.step()
    pump.sites |= make_sites("c")
    pump.join("c").run()
    changed = [r for r in pump.records if isinstance(r, Membership)]
    assert [r.attempt for r in changed] == [0, 1]
    store.begin(plan, NOW)
    for kept, record in enumerate(pump.records[:-1], 1):
        store.write(plan.run, record, MEASURED, NOW)
        found = store.unfinished(plan.digest)
        assert found is not None
        assert same(found[1], resumption_of(pump.records[:kept]))
        if kept % 5 == 0 and found[1] is not None and found[1].membership.attempt == 1:
            again = Pump(Coordinator(plan, TIMEOUTS, found[1]), make_sites("abc")).join().run()
            assert again.bits == pump.bits


def _deadline(pump: Pump) -> DeadlinePassed:
    while pump.events:
        pump.step()
    return DeadlinePassed(1)


def test_a_snapshot_replaces_the_sums_before_it(store: RunStore) -> None:
    plan = make_plan(schedule="consensus")
    records = undisturbed(plan).records
    upto = next(n for n, r in enumerate(records) if isinstance(r, Snapshot))
    begun(store, records[: upto + 1], schedule="consensus")
    found = store.unfinished(plan.digest)
    assert found is not None
    assert found[1] is not None
    assert (found[1].round, found[1].totals) == (20, ())


def test_a_second_process_sees_what_was_written(store: RunStore) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:5])
    program = (
        "import sys; from pathlib import Path; from coordinator.store import RunStore\n"
        "store = RunStore(Path(sys.argv[1])); run, left = store.unfinished(sys.argv[2])\n"
        "print(run, left.round, len(left.totals), left.totals[-1].digest, store.show(run)[0].questions)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(store.path), plan.digest],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    here = store.unfinished(plan.digest)
    assert here is not None
    assert here[1] is not None
    assert out.split() == [plan.run, "0", "4", here[1].totals[-1].digest, "4"]


def test_two_that_open_a_new_file_at_once_both_may(tmp_path: Path) -> None:
    stores = [RunStore(tmp_path / "runs.sqlite") for _ in range(3)]
    begun(stores[0], [])
    assert [len(s.runs()) for s in stores] == [1, 1, 1]
    for s in stores:
        s.close()


def test_the_latest_unfinished_run_of_the_same_plan_is_found(store: RunStore) -> None:
    digest = make_plan().digest
    assert store.unfinished(digest) is None
    for run, started in [
        ("old", "2026-01-01"),
        ("new", "2026-01-03"),
        ("middle", "2026-01-02"),
        ("over", "2026-01-09"),
    ]:
        store.begin(make_plan(run=run), started)
    store.begin(make_plan(run="other", coupling=(9.0,)), "2026-01-08")
    store.write("over", Ended(Stop.CONVERGED, ""), MEASURED, NOW)
    assert store.unfinished(digest) == ("new", None)
    store.write("new", Ended(Stop.STALLED, "b"), MEASURED, NOW)
    assert store.unfinished(digest) == ("middle", None)
    assert [s.run for s in store.runs()] == ["over", "other", "new", "middle", "old"]


def test_runs_and_rounds_tell_what_happened(store: RunStore) -> None:
    pump = undisturbed(make_plan())
    plan = begun(store, pump.records)
    summary, rounds = store.show(plan.run)
    assert (summary.run, summary.started, summary.ended) == (plan.run, NOW, NOW)
    assert summary.stop == Stop.CONVERGED.name
    assert Plan(**{**summary.plan, "sites": tuple(summary.plan["sites"]), "coupling": (0.1, 1.0)}) == plan
    steps = [r for r in pump.records if isinstance(r, StepTaken)]
    assert summary.questions == len(steps) == len(rounds)
    for row, step in zip(rounds, steps, strict=True):
        assert (row["round"], row["attempt"], row["answered"]) == (step.round, step.attempt, 3)
        assert (row["seconds"], row["bytes_sent"], row["bytes_received"], row["at"]) == (0.25, 100, 200, NOW)
        p = step.progress
        assert p is not None
        assert row["verified"] is p.verified
        assert (row["gap"], row["residual"]) == (p.gap.tolist(), p.residual.tolist())


def test_what_is_not_a_number_is_shown_as_none(store: RunStore) -> None:
    step = next(r for r in undisturbed(make_plan()).records if isinstance(r, StepTaken) and r.progress)
    assert step.progress is not None
    progress = replace(step.progress, gap=np.array([np.inf, 1.0]), residual=np.array([np.nan, 2.0]))
    begun(store, [replace(step, progress=progress), replace(step, round=1, progress=None)])
    [first, second] = store.show("run-1")[1]
    assert (first["gap"], first["residual"]) == ([None, 1.0], [None, 2.0])
    assert (second["gap"], second["verified"], second["sweep"]) == (None, None, None)


def test_a_run_is_shown_by_its_name_or_by_a_unique_beginning(store: RunStore) -> None:
    for run in ("alpha-1", "alpha-12", "beta_%"):
        store.begin(make_plan(run=run), NOW)
    assert store.show("b")[0].run == "beta_%"
    assert store.show("alpha-12")[0].run == "alpha-12"
    assert store.show("alpha-1")[0].run == "alpha-1", "a whole name is no ambiguity"
    for name, count in (("alpha", 2), ("%", 0), ("gamma", 0), ("", 3)):
        with pytest.raises(UsageError, match=f"{count} runs begin with"):
            store.show(name)


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_path_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "runs.sqlite"):
        with pytest.raises(StorageError, match="cannot be opened as a run store"):
            RunStore(path)


def test_a_file_that_is_no_database_is_a_storage_error_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(StorageError, match="cannot be opened as a run store"):
        RunStore(path)
    assert path.read_bytes() == b"dear diary, " * 1000


def test_another_schema_is_a_storage_error(store: RunStore) -> None:
    store._db.execute("pragma user_version = 99")
    with pytest.raises(StorageError, match="schema 99"):
        RunStore(store.path)


def test_the_same_run_begun_twice_is_a_storage_error(store: RunStore) -> None:
    begun(store, [])
    with pytest.raises(StorageError):
        begun(store, [])


def test_a_record_of_a_run_that_was_not_begun_is_a_storage_error(store: RunStore) -> None:
    with pytest.raises(StorageError):
        write(store, make_plan(), undisturbed(make_plan()).records[:1])


def test_a_missing_sum_is_a_storage_error(store: RunStore) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:6])
    store._db.execute("delete from sums where round = 2")
    with pytest.raises(StorageError, match="lacks a step"):
        store.unfinished(plan.digest)


@pytest.mark.parametrize(
    "damage",
    [
        "update sums set total = x'00112233'",
        "update states set state = x'ffffffffffffffffffffffff'",
        "update memberships set membership = '{'",
        "update memberships set membership = '{}'",
        "update memberships set membership = '[]'",
        "delete from states",
    ],
)
def test_damaged_contents_are_a_storage_error(store: RunStore, damage: str) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:6])
    store._db.execute(damage)
    with pytest.raises(StorageError, match="cannot be read"):
        store.unfinished(plan.digest)


def test_damaged_pages_are_a_storage_error(store: RunStore, tmp_path: Path) -> None:
    plan = begun(store, undisturbed(make_plan(schedule="consensus")).records[:40], schedule="consensus")
    store.close()
    data = bytearray(store.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(data)
    with pytest.raises(StorageError):  # noqa: PT012 - where it shows is the library's business
        opened = RunStore(damaged)
        try:
            opened.unfinished(plan.digest)
            opened.runs()
            opened.show(plan.run)
        finally:
            opened.close()


def test_a_failed_write_leaves_nothing_half_done(store: RunStore) -> None:
    records = undisturbed(make_plan()).records
    plan = begun(store, records[:3])
    before = store.unfinished(plan.digest)
    store._db.execute("create trigger full before insert on rounds begin select raise(abort, 'disk is full'); end")
    with pytest.raises(StorageError, match="disk is full"):
        write(store, plan, records[3:4])
    after = store.unfinished(plan.digest)
    assert before is not None
    assert after is not None
    assert same(before[1], after[1])
