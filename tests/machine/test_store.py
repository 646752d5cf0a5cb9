"""The memory of runs: what is written is read back to the bit, by whoever opens the file next."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepwise import bits, remembered
from tiny import SCHEDULES, Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.driver import Lap
from coordinator.machine.events import Received
from coordinator.machine.records import (
    Closed,
    Delivered,
    Ended,
    MembershipChanged,
    Record,
    SiteExcluded,
    Snapshot,
    StepTaken,
)
from coordinator.machine.state import resume
from coordinator.store.runs import RunStore
from coordinator.store.schema import FORMAT
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.errors import StorageError, UsageError
from coreg_core.protocol.messages import Fault
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

NOW, LAP = "2026-01-01T00:00:00.000+00:00", Lap(0.25, 100, 200)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs.sqlite")
    yield opened
    opened.close()


def write(store: RunStore, plan: Plan, records: Iterable[Record]) -> None:
    """As the driver does: with what each step showed."""
    before: list[Record] = []
    for record in records:
        before.append(record)
        shown = resume(plan, before).progress if isinstance(record, StepTaken) else None
        store.write(plan.run, record, shown, LAP, NOW)


def begun(store: RunStore, records: Iterable[Record], **changes: Any) -> Plan:
    plan = make_plan(**changes)
    store.begin(plan, NOW)
    write(store, plan, records)
    return plan


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_whatever_is_written_is_read_back_to_the_same_bits(store: RunStore, schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    records = undisturbed(plan).records
    assert {type(r) for r in records} >= {MembershipChanged, StepTaken, Ended, Delivered, Closed}
    store.begin(plan, NOW)
    assert store.unfinished(plan.digest) == plan.run
    assert store.records(plan.run) == []
    for kept, record in enumerate(records, 1):
        write_one(store, plan, record)
        found = resume(plan, store.records(plan.run))
        assert remembered(found) == remembered(resume(plan, records[:kept])), f"after {kept} records"
        assert store.unfinished(plan.digest) == (None if isinstance(record, Closed) else plan.run)


def write_one(store: RunStore, plan: Plan, record: Record) -> None:
    store.write(plan.run, record, None, LAP, NOW)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_killed_between_two_writes_a_copy_of_the_files_goes_on_to_the_same_bits(
    store: RunStore, tmp_path: Path, schedule: str
) -> None:
    plan = make_plan(schedule=schedule, sites=("a", "b"))
    expected = undisturbed(plan)
    store.begin(plan, NOW)
    for kept, record in enumerate(expected.records[:-1], 1):
        write_one(store, plan, record)
        if kept % 7 != 1:
            continue
        copies = tmp_path / f"killed-{kept}"
        copies.mkdir()
        for file in tmp_path.glob("runs.sqlite*"):  # the log is part of the store until it is folded in
            shutil.copy(file, copies)
        again = RunStore(copies / "runs.sqlite")
        run = again.unfinished(plan.digest)
        assert run == plan.run
        first = Pump(plan, make_sites(plan.sites), kill_after=kept).join().run()
        pump = Pump(plan, all_restarted(first.sites), again.records(run)).join().run()
        again.close()
        assert pump.end == expected.end
        assert first.bits | pump.bits == expected.bits


def eventful(schedule: str) -> tuple[Plan, Pump]:
    """c comes late, is away at a deadline, and is taken back; d sends a fault and is excluded."""
    plan = make_plan(on_lost="continue", schedule=schedule, sites=("a", "b", "c", "d"))
    pump = Pump(plan, make_sites(plan.sites)).join("a", "b", "d").out_of_time().steps(2)
    pump.join("c").steps(6)
    ask = pump.machine.run.live.ask
    assert ask is not None
    pump.events.appendleft(Received("d", Fault(plan.run, ask.question, ask.attempt, "the disk is full")))
    pump.steps(8)
    pump.events = type(pump.events)(e for e in pump.events if getattr(e, "site", "") != "c")
    pump.out_of_time().steps(10)
    return plan, pump.join("c").run()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memberships_exclusions_and_known_sums_are_read_back_as_well(store: RunStore, schedule: str) -> None:
    plan, pump = eventful(schedule)
    changes = [r for r in pump.records if isinstance(r, MembershipChanged)]
    members = [r.participants for r in changes]
    assert members[0] == ("a", "b", "d")
    assert {("a", "b", "c", "d"), ("a", "b", "c"), ("a", "b")} <= set(members)
    assert changes[-1].returns == {"c": 1}
    assert [r.site for r in pump.records if isinstance(r, SiteExcluded)] == ["d"]
    store.begin(plan, NOW)
    for kept, record in enumerate(pump.records, 1):
        write_one(store, plan, record)
        found = resume(plan, store.records(plan.run))
        assert remembered(found) == remembered(resume(plan, pump.records[:kept])), f"after {kept} records"


def test_models_deliveries_and_exclusions_outlive_the_run(store: RunStore) -> None:
    plan, pump = eventful("consensus")
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    [excluded, changed, ended, *delivered, closed] = store.records(plan.run)
    assert excluded == next(r for r in pump.records if isinstance(r, SiteExcluded))
    assert isinstance(changed, MembershipChanged)
    assert (changed.participants, changed.state, changed.affine) == (("a", "b", "c"), {}, {})
    assert bits(ended) == next(bits(r) for r in pump.records if isinstance(r, Ended))
    assert delivered == [Delivered(s) for s in "abc"]
    assert closed == Closed()
    assert store._db.execute("select count(*) from sums").fetchone()[0] == 0
    assert store._db.execute("select count(*) from states").fetchone()[0] == 0


def test_a_snapshot_replaces_the_sums_before_it(store: RunStore) -> None:
    records = undisturbed(make_plan(schedule="consensus")).records
    upto = next(n for n, r in enumerate(records) if isinstance(r, Snapshot))
    plan = begun(store, records[: upto + 1], schedule="consensus")
    [changed] = store.records(plan.run)
    assert isinstance(changed, MembershipChanged)
    assert changed.question == 20


def test_a_second_process_sees_what_was_written(store: RunStore) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:5])
    program = (
        "import sys; from pathlib import Path; from coordinator.store.runs import RunStore\n"
        "store = RunStore(Path(sys.argv[1])); run = store.unfinished(sys.argv[2]); changed, *steps = store.records(run)\n"
        "print(run, changed.question, len(steps), steps[-1].total.digest, store.show(run)[0].questions)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(store.path), plan.digest],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    last = store.records(plan.run)[-1]
    assert isinstance(last, StepTaken)
    assert out.split() == [plan.run, "0", "4", last.total.digest, "4"]


def test_two_that_open_a_new_file_at_once_both_may(tmp_path: Path) -> None:
    stores = [RunStore(tmp_path / "runs.sqlite") for _ in range(3)]
    begun(stores[0], [])
    assert [len(s.runs()) for s in stores] == [1, 1, 1]
    for s in stores:
        s.close()


def test_the_latest_run_of_the_same_plan_that_is_not_closed_is_found(store: RunStore) -> None:
    plan = make_plan()
    assert store.unfinished(plan.digest) is None
    for run, started in [
        ("old", "2026-01-01"),
        ("new", "2026-01-03"),
        ("middle", "2026-01-02"),
        ("over", "2026-01-09"),
    ]:
        store.begin(make_plan(run=run), started)
    store.begin(make_plan(run="other", coupling=(9.0,)), "2026-01-08")
    write(store, make_plan(run="over"), [Ended(Outcome.CONVERGED, "", None), Closed()])
    assert store.unfinished(plan.digest) == "new"
    write(store, make_plan(run="new"), [Ended(Outcome.SITE_FAULT, "b", None)])
    assert store.unfinished(plan.digest) == "new", "over, and not closed"
    write(store, make_plan(run="new"), [Closed()])
    assert store.unfinished(plan.digest) == "middle"
    assert [s.run for s in store.runs()] == ["over", "other", "new", "middle", "old"]


def test_a_run_has_begun_with_its_first_question(store: RunStore) -> None:
    plan = begun(store, [])
    records = undisturbed(plan).records
    write(store, plan, [SiteExcluded("c", Outcome.REFUSED, "no")])
    assert not store.has_begun(plan.run)
    write(store, plan, records[:1])
    assert store.has_begun(plan.run)


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_an_abandoned_run_is_over_and_what_it_ended_with_stays(store: RunStore, kept: int) -> None:
    pump = undisturbed(make_plan())
    plan = begun(store, pump.records[:kept])
    store.abandon(plan.run, "2026-02-02")
    [summary] = store.runs()
    assert store.unfinished(plan.digest) is None
    assert summary.closed == "2026-02-02"
    if kept == -1:
        assert (summary.ended, summary.stop, summary.reason) == (NOW, "CONVERGED", "")
        assert resume(plan, store.records(plan.run)).models is not None
    else:
        assert (summary.ended, summary.stop) == ("2026-02-02", "INTERRUPTED")
        assert "--new" in str(summary.reason)


def test_runs_and_rounds_tell_what_happened(store: RunStore) -> None:
    pump = undisturbed(make_plan())
    plan = begun(store, pump.records)
    summary, rounds = store.show(plan.run)
    assert (summary.run, summary.started, summary.ended, summary.closed) == (plan.run, NOW, NOW, NOW)
    assert (summary.stop, summary.format, summary.federation) == (Outcome.CONVERGED.name, FORMAT, "tiny")
    assert summary.plan == json.loads(json.dumps(plan.to_dict()))
    steps = [i for i, r in enumerate(pump.records) if isinstance(r, StepTaken)]
    assert summary.questions == len(steps) == len(rounds)
    for row, i in zip(rounds, steps, strict=True):
        step, p = pump.records[i], resume(plan, pump.records[: i + 1]).progress
        assert isinstance(step, StepTaken)
        assert (row["question"], row["attempt"], row["answered"]) == (step.question, step.attempt, 3)
        assert (row["seconds"], row["bytes_sent"], row["bytes_received"], row["at"]) == (0.25, 100, 200, NOW)
        assert p is not None
        assert (row["round"], row["verified"]) == (p.round, p.verified)
        assert (row["gap"], row["residual"]) == (p.gap.tolist(), p.residual.tolist())
        assert row["prediction_bound"] == p.prediction_bound.tolist()
    assert summary.rounds == rounds[-1]["round"]


def test_what_is_not_a_number_is_shown_as_none(store: RunStore) -> None:
    plan = begun(store, [])
    step = next(r for r in undisturbed(plan).records if isinstance(r, StepTaken))
    shown = Progress(1, True, np.array([np.nan, 2.0]), np.array([np.inf, 1.0]), np.array([0.0, 1.0]), (None, None))
    store.write(plan.run, step, shown, LAP, NOW)
    store.write(plan.run, replace(step, question=1), None, LAP, NOW)
    [first, second] = store.show("run-1")[1]
    assert (first["gap"], first["residual"]) == ([None, 1.0], [None, 2.0])
    assert (second["gap"], second["verified"], second["round"]) == (None, None, None)


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
    store._db.execute("delete from sums where question = 2")
    with pytest.raises(StorageError, match="lacks a step"):
        store.records(plan.run)


@pytest.mark.parametrize(
    "damage",
    [
        "update sums set total = x'00112233'",
        "update states set state = x'ffffffffffffffffffffffff'",
        "update memberships set membership = '{'",
        "update memberships set membership = '{}'",
        "update memberships set membership = '[]'",
        "delete from states",
        "update runs set stop = 'NO_SUCH_OUTCOME', ended = started",
    ],
)
def test_damaged_contents_are_a_storage_error(store: RunStore, damage: str) -> None:
    plan = begun(store, undisturbed(make_plan()).records[:6])
    store._db.execute(damage)
    with pytest.raises(StorageError, match="cannot be read"):
        store.records(plan.run)


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
            opened.records(plan.run)
            opened.runs()
            opened.show(plan.run)
        finally:
            opened.close()


@pytest.mark.parametrize("damage", ["update models set models = x'00'", "update exclusions set outcome = 'NONE'"])
def test_damaged_ends_are_a_storage_error(store: RunStore, damage: str) -> None:
    plan, pump = eventful("consensus")
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    store._db.execute(damage)
    with pytest.raises(StorageError, match="cannot be read"):
        store.records(plan.run)


def test_a_failed_write_leaves_nothing_half_done(store: RunStore) -> None:
    records = undisturbed(make_plan()).records
    plan = begun(store, records[:3])
    before = store.records(plan.run)
    store._db.execute("create trigger full before insert on rounds begin select raise(abort, 'disk is full'); end")
    with pytest.raises(StorageError, match="disk is full"):
        write_one(store, plan, records[3])
    after = store.records(plan.run)
    assert remembered(resume(plan, after)) == remembered(resume(plan, before))
