"""coordinator/store: what is written is read back to the bit, by this and by other processes; how a
store is opened.
"""

import json
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machine.stepwise import RUN
from machine.tiny import begun_by, make_plan, undisturbed
from store.filled import INTERRUPTED, LAP, NOW, RECORDS, begun, noticed, write

from coordinator.machine import notices as n
from coordinator.machine.events import QueueRead
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import (
    AttemptBegan,
    Begun,
    Ended,
    HeadSigned,
    Record,
    StepDone,
    Timing,
)
from coordinator.store import schema
from coordinator.store.runs import RunStore
from coordinator.store.status import SiteStatus, Status
from coreg_core.errors import StorageError, UsageError
from coreg_core.messages import Countersigned, Dismissed, Finished, LedgerHead, Report, Step
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import alignment_of, is_on_demand
from coreg_core.terms import Privacy


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with closing(RunStore(tmp_path / "runs.sqlite")) as opened:
        yield opened


def changed_by_hand(store: RunStore, statement: str) -> None:
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute(statement)


def test_a_site_that_waits_for_the_end_of_a_run_receives_it(store: RunStore) -> None:
    plan = begun(store, INTERRUPTED[:-1])
    assert store.end_for(plan.run, "a") is None, "it has not ended"
    write(store, plan, [Ended(Outcome.MAX_ROUNDS, "too few")])
    assert store.end_for(plan.run, "a") == Finished(plan.run, Outcome.MAX_ROUNDS, "too few")
    assert store.end_for(plan.run, "stranger") is None, "its plan does not list that site"
    why = "c: the run ended (max_rounds) with a, b, and without this site."
    assert store.end_for(plan.run, "c") == Dismissed(plan.run, Outcome.STALLED, why), (
        "it was dropped"
    )
    assert store.end_for("another run", "a") is None
    for damage in ("participants = '{'", "participants = '7'", "stop = 'NO_SUCH_OUTCOME'"):
        changed_by_hand(store, f"update runs set {damage}")
        with pytest.raises(
            StorageError, match=r"the run store cannot be read.*restore the newest backup"
        ):
            store.end_for(plan.run, "a")


def test_no_file_of_the_store_has_a_number_of_a_site_in_it(store: RunStore) -> None:
    """The sums stay with the sites, in plaintext too."""
    plan = make_plan()
    pump = undisturbed(plan)
    store.begin(plan, NOW)
    write(store, plan, pump.records)
    sums = [
        send.message.summed.values
        for send in pump.sent
        if isinstance(send.message, Step) and send.message.summed
    ]
    assert len(sums) > 10
    content = b"".join(file.read_bytes() for file in store.path.parent.glob("runs.sqlite*"))
    assert not any(word.tobytes() in content for words in sums for word in words if word > 1 << 32)


@pytest.mark.parametrize("kept", [0, 5, len(RECORDS)])
def test_a_run_that_is_not_under_way_is_ended_and_what_it_ended_with_stays(
    store: RunStore, kept: int
) -> None:
    plan = begun(store, RECORDS[:kept])
    store.close_run(plan, Outcome.INTERRUPTED, "abandoned", "2026-02-02")
    [summary] = store.runs()
    ends = ("2026-02-02", "INTERRUPTED", "abandoned")
    if kept == len(RECORDS):
        ends = (NOW, "CONVERGED", "")
    assert (store.unfinished(), summary.ended, summary.stop, summary.reason) == ([], *ends)


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_failed_write_leaves_nothing_half_done(store: RunStore) -> None:
    plan = begun(store, RECORDS[:3])
    before = store.begun(plan.run)
    full = "select raise(abort, 'disk is full')"
    changed_by_hand(store, f"create trigger full before insert on rounds begin {full}; end")
    with pytest.raises(StorageError, match="disk is full"):
        store.write(plan.run, RECORDS[3], LAP, NOW)
    assert store.begun(plan.run) == before


def test_every_record_but_a_step_is_durable_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut can undo a step: the next attempt begins from its beginning."""
    connections = list[sqlite3.Connection]()
    connect = sqlite3.connect

    def connected(*words: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*words, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    normal = 1
    full = 2
    with closing(RunStore(tmp_path / "runs.sqlite")) as store:
        plan = begun(store)
        receipt = Countersigned(plan.run, LedgerHead(7, "ab", NOW), NOW, "05", "06")
        for record in (*RECORDS, HeadSigned("a", "03", "04", receipt)):
            store.write(plan.run, record, LAP, NOW)
            [mode] = connections[-1].execute("pragma synchronous").fetchone()
            expected = full
            if isinstance(record, StepDone):
                expected = normal
            assert mode == expected, record


# --- the queue, and the status of sites -----------------------------------------------------------


ONE = make_plan(run="one")
TWO = make_plan(run="two", coupling=(9.0,))


def test_runs_wait_in_order_until_they_begin(store: RunStore) -> None:
    assert [store.submit(plan, NOW) for plan in (ONE, TWO)] == [0, 1]
    assert store.waiting() == [(ONE, NOW), (TWO, NOW)]
    with pytest.raises(StorageError):
        store.submit(ONE, NOW)
    store.begin(ONE, NOW)
    assert store.read() == QueueRead((TWO,), {})
    assert [s.run for s in store.runs()] == ["one"]


def test_a_run_is_cancelled_by_a_beginning_of_its_name_until_it_has_ended(store: RunStore) -> None:
    for plan in (ONE, TWO):
        store.submit(plan, NOW)
    store.begin(TWO, NOW)
    assert store.cancel("o", "not today", NOW) == ("one", False)
    assert store.cancel("two", "enough", NOW) == ("two", True)
    assert store.read() == QueueRead((ONE,), {"one": "not today", "two": "enough"})
    assert store.cancelled() == [(ONE, NOW)]
    assert store.waiting() == [], (
        "a cancelled run is not listed as queued, also while no coordinator runs"
    )
    for plan in (ONE, TWO):
        store.close_run(plan, Outcome.CANCELLED, "", NOW)
    assert store.read() == QueueRead((), {})
    for name, words in (
        ("one", "is over, or cancelled already"),
        ("three", "no runs begin"),
        ("", "2 runs begin"),
    ):
        with pytest.raises(UsageError, match=words):
            store.cancel(name, "", NOW)


def test_an_alignment_has_a_new_name_once_the_last_one_is_over(store: RunStore) -> None:
    """A site keeps the end of the last one: under the same name it would take the new one for
    over.
    """
    above = replace(ONE, align=Alignment())
    plan = alignment_of(above, 0)
    store.begin(above, NOW)
    assert [store.begin(plan, NOW)[0].run for _ in range(2)] == ["one-ids-0"] * 2
    store.close_run(plan, Outcome.INTERRUPTED, "", NOW)
    assert [store.begin(plan, NOW)[0] for _ in range(2)] == [replace(plan, run="one-ids-1")] * 2
    assert [found.run for found in store.unfinished()] == ["one", "one-ids-1"]
    assert store.find("on").run == "one"
    assert store.find("one-ids-1").run == "one-ids-1"
    assert store.cancel("on", "enough", NOW) == ("one", True)
    assert store.cancel("one-ids-1", "this one alone", NOW) == ("one-ids-1", True)


def test_the_status_of_sites_and_of_the_service_is_read_by_other_processes(tmp_path: Path) -> None:
    status = Status(tmp_path / "runs.sqlite")
    noticed(status, "2026-01-01", n.session_opened("b", "0.2.0", "2027"))
    noticed(status, "2026-01-02", n.session_opened("a", "", ""))
    noticed(status, "2026-01-03", n.notice(NoticeName.SESSION_ENDED, site="a", reason="gone"))
    noticed(
        status,
        "2026-01-04",
        n.notice(NoticeName.SESSION_REJECTED, site="c", reason="revoked"),
        n.access_denied("", "nameless"),
    )
    status.set_service({"state": "ready", "sites": ["a"]}, "2026-01-05")
    reader = Status(status.path, read_only=True)
    a, b, c = reader.sites()
    assert not a.connected
    assert b.connected
    assert not c.connected
    assert b == SiteStatus("b", "2026-01-01", None, "0.2.0", "2027")
    assert c.refusal == "revoked"
    assert c.refused == "2026-01-04"
    assert reader.service() == {"state": "ready", "sites": ["a"], "updated_at": "2026-01-05"}
    assert a.seen("2026-01-05") == "2026-01-03"
    assert b.seen("2026-01-05") == "2026-01-05"
    assert c.seen("2026-01-05") is None
    status.all_ended("2026-01-06")
    assert [site.ended for site in reader.sites()] == ["2026-01-03", "2026-01-06", "2026-01-06"]


# --- runs as people look at them ------------------------------------------------------------------


SHOWN = ("round", "phase", "verified", "residual", "gap")


def test_a_run_and_its_rounds_show_what_happened(store: RunStore) -> None:
    plan = begun(store, RECORDS)
    summary, rounds = store.show(plan.run)
    assert summary.run == plan.run
    assert summary.started == NOW
    assert summary.ended == NOW
    assert summary.stop == Outcome.CONVERGED.name
    assert summary.federation == "tiny"
    assert summary.plan == json.loads(json.dumps(plan.to_dict()))
    steps = [record for record in RECORDS if isinstance(record, StepDone)]
    assert summary.steps == len(steps) == len(rounds)
    for row, step in zip(rounds, steps, strict=True):
        assert row["number"] == step.number
        assert row["attempt"] == step.attempt
        assert row["answered"] == step.answered
        assert row["seconds"] == 0.25
        assert row["bytes_sent"] == 100
        assert row["bytes_received"] == 200
        assert row["at"] == NOW
        told = {name: tuple(x) if isinstance(x := row[name], list) else x for name in SHOWN}
        assert told == {"phase": step.phase} | {
            name: getattr(step.report, name) for name in SHOWN if name != "phase"
        }
    certified = [row for row in rounds if row["verified"]][-1]
    assert summary.rounds == rounds[-1]["round"]
    assert summary.residual == max(certified["residual"])
    assert summary.gap == max(certified["gap"])
    other = begun(store, run="other")
    first = Report(round=1, verified=True, residual=(-1.0, -1.0), gap=(1.0, -1.0))
    for number, report in enumerate((first, Report(round=2, gap=(9.0, 9.0)), Report(round=2))):
        store.write(other.run, StepDone(number, 0, 3, report), LAP, NOW)
    found = store.find(other.run)
    assert found.steps == 3, "-1 is no number"
    assert found.rounds == 2, "-1 is no number"
    assert found.gap == 1.0, "-1 is no number"
    assert found.residual is None, "-1 is no number"


@pytest.mark.parametrize("records", [RECORDS, INTERRUPTED], ids=["undisturbed", "interrupted"])
def test_the_last_attempt_that_began_is_read_back_after_each_record(
    store: RunStore, records: list[Record]
) -> None:
    plan = begun(store)
    assert store.begun(plan.run) == Begun()
    for kept, record in enumerate(records, 1):
        store.write(plan.run, record, LAP, NOW)
        assert store.begun(plan.run) == begun_by(records[:kept])
        expected = [plan]
        if isinstance(record, Ended):
            expected = []
        assert store.unfinished() == expected
    if records is INTERRUPTED:
        found, rounds = store.show(plan.run)
        assert found.steps == 12
        assert found.rounds == 3
        assert found.residual == 1e-3
        assert [row["attempt"] for row in rounds] == 6 * [0] + 2 * [1] + 4 * [2]
        store.write(plan.run, AttemptBegan(3, ("a", "b")), LAP, NOW)
        found = store.find(plan.run)
        assert found.steps == 12
        assert found.rounds == 0
        assert found.residual is None
        assert found.gap is None


def test_a_run_is_found_by_its_name_or_by_a_unique_beginning(store: RunStore) -> None:
    for run in ("alpha-1", "alpha-12", "beta_%"):
        store.begin(make_plan(run=run), NOW)
    assert store.show("b")[0].run == "beta_%"
    assert store.show("alpha-12")[0].run == "alpha-12"
    assert store.show("alpha-1")[0].run == "alpha-1", "a whole name is no ambiguity"
    for name, count in (("alpha", 2), ("%", "no"), ("gamma", "no"), ("", 3)):
        with pytest.raises(UsageError, match=f"{count} runs begin with"):
            store.show(name)


def test_runs_are_listed_the_latest_first_and_unfinished_ones_in_the_order_in_which_they_began(
    store: RunStore,
) -> None:
    for run, started in [("old", "01"), ("new", "03"), ("middle", "02")]:
        store.begin(make_plan(run=run), f"2026-01-{started}")
    store.begin(make_plan(run="other", coupling=(9.0,)), "2026-01-08")
    assert [s.run for s in store.runs()] == ["other", "new", "middle", "old"]
    assert [plan.run for plan in store.unfinished()] == ["old", "middle", "new", "other"]
    for run in ("new", "middle", "old"):
        assert store.latest(make_plan().digest).run == run
        store.close_run(make_plan(run=run), Outcome.CANCELLED, "", NOW)
    assert store.latest(make_plan().digest) is None


def test_signed_heads_are_read_by_run_and_the_last_one_by_site(store: RunStore) -> None:
    for run in ("one", "two"):
        begun(store, run=run)
        for site in ("a", "b"):
            receipt = Countersigned(run, LedgerHead(7, "ab", NOW), NOW, "05", "06")
            store.write(run, HeadSigned(site, "03", "04", receipt), LAP, NOW)
    assert [(c.site, c.receipt.run) for c in store.checkpoints("two")] == [
        ("a", "two"),
        ("b", "two"),
    ]
    last = store.last_checkpoint("a")
    assert last is not None
    assert last.run == "two"
    assert last.head == LedgerHead(7, "ab", NOW)
    assert store.last_checkpoint("c") is None


def test_notices_come_back_the_last_first_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = Status(tmp_path / "runs.sqlite")
    stalled = n.stalled(RUN, ("b",), "", 600.0)
    joined = n.notice(NoticeName.JOINED, "run-2", "a", here=1, of=3)
    for at, notice in (
        (1, stalled),
        (2, joined),
        (3, n.step_answered(RUN, StepDone(0, 0, 3, Report()), Timing())),
    ):
        noticed(status, f"2026-01-0{at}", notice)
    second = {"at": "2026-01-02", **joined.to_dict()}
    first = {"at": "2026-01-01", **stalled.to_dict(), "sites": ["b"]}
    assert status.notices(50) == [second, first]
    assert status.notices(1) == [second]
    monkeypatch.setattr("coordinator.store.status.MAX_NOTICES", 3)
    noticed(
        status,
        NOW,
        *(n.notice(NoticeName.SESSION_ENDED, site="a", reason=f"{i}") for i in range(8)),
    )
    assert [row["reason"] for row in status.notices(50)] == ["7", "6", "5"]
    status.close()


# --- how a store is opened, and how its writers wait for each other -------------------------------


def test_a_store_is_for_its_owner_alone_and_opened_at_once_by_many(tmp_path: Path) -> None:
    """Opening a file and closing it lifts every lock that SQLite holds on it in the process: the
    store must not do that.
    """
    path = tmp_path / "runs.sqlite"
    stores = [RunStore(path) for _ in range(3)]
    RunStore(path).close()
    for i, each in enumerate(stores):
        each.begin(make_plan(run=f"run-{i}"), NOW)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from runs").fetchone() == (3,)
    assert [len(s.runs()) for s in stores] == [3, 3, 3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in stores:
        each.close()


def test_a_reader_changes_nothing_and_a_store_of_another_release_is_an_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.sqlite"
    with pytest.raises(StorageError, match="cannot be opened for reading"):
        RunStore(path, read_only=True)
    with closing(RunStore(path)) as store, closing(RunStore(path, read_only=True)) as reader:
        with pytest.raises(StorageError, match="readonly"):
            reader.begin(make_plan(), NOW)
        assert reader.runs() == []
        changed_by_hand(store, "pragma user_version = 99")
        for read_only in (False, True):
            with pytest.raises(
                StorageError, match=r"another release of coreg-federation.*schema 99"
            ):
                RunStore(path, read_only=read_only)


@pytest.mark.parametrize("content", [b"dear diary, " * 1000, bytes(65536)])
def test_a_file_that_is_no_database_is_a_storage_error_and_stays_as_it_was(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_bytes(content)
    for wrong in (path, tmp_path, tmp_path / "missing" / "runs.sqlite"):
        with pytest.raises(StorageError, match="cannot be opened as a run store"):
            RunStore(wrong)
    assert path.read_bytes() == content


@pytest.mark.parametrize(("patience", "waits"), [(20.0, True), (0.1, False)])
def test_a_writer_waits_for_another_one_that_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, waits: bool
) -> None:
    """A copy of the file holds it for seconds: that ends no service."""
    monkeypatch.setattr(schema, "BUSY_SECONDS", patience)
    store = RunStore(tmp_path / "runs.sqlite")
    held = threading.Event()
    release = threading.Event()

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
            *(
                threads.submit(noticed, status, NOW, n.session_opened(f"site-{i}", "1", ""))
                for i in range(50)
            ),
            *(threads.submit(status.service) for _ in range(50)),
        ]
    for each in writes:
        each.result()
    assert len(status.sites()) == 50
    status.close()


def test_the_latest_run_of_a_study_stands_if_its_plan_does(store: RunStore) -> None:
    terms = Scoring("run-1", standing=True)
    plan = replace(make_plan(), objective=terms, study="now", privacy=Privacy(), align=Alignment())
    store.begin(plan, NOW)
    # Of a list of ids that no earlier run has aligned.
    store.close_run(alignment_of(plan, 0), Outcome.CONVERGED, "", NOW)
    assert store.standing("now", ("a",)) is None, "it has not ended"
    store.write(plan.run, Ended(Outcome.CONVERGED, ""), LAP, NOW)
    found = store.standing("now", ("a", "z"))
    assert found is not None
    assert is_on_demand(found.run)
    assert found.digest == plan.digest
    assert store.standing("now", ("z",)) is None, "no site of the plan"
    assert store.standing("other", ("a",)) is None
    store.close_run(found, Outcome.CONVERGED, "", NOW)
    withdrawn = replace(plan, run="later", objective=replace(terms, standing=False))
    store.close_run(withdrawn, Outcome.CONVERGED, "", NOW)
    assert store.standing("now", ("a",)) is None, "a later run without standing"
