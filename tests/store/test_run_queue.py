"""coordinator/store/runs.py and status.py: what other processes write into a store, and read from it."""

from dataclasses import replace
from pathlib import Path

import pytest
from machine.tiny import make_plan
from store.filled import NOW

from coordinator.machine.events import QueueRead
from coordinator.store.runs import Queue
from coordinator.store.status import SiteStatus, Status
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError, UsageError
from coreg_core.objectives.alignment import Alignment
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import alignment_of

ONE, TWO = make_plan(run="one"), make_plan(run="two", coupling=(9.0,))


@pytest.fixture
def queue(store: Summaries) -> Queue:
    return Queue(store.path)


def test_runs_wait_in_order_until_they_begin(store: Summaries, queue: Queue) -> None:
    assert [queue.submit(plan, NOW) for plan in (ONE, TWO)] == [0, 1]
    assert queue.waiting() == [(ONE, NOW), (TWO, NOW)]
    with pytest.raises(StorageError):
        queue.submit(ONE, NOW)
    store.begin(ONE, NOW)
    assert queue.read() == QueueRead((TWO,), {})
    assert [s.run for s in store.runs()] == ["one"]


def test_a_run_is_cancelled_by_a_beginning_of_its_name_until_it_has_ended(store: Summaries, queue: Queue) -> None:
    for plan in (ONE, TWO):
        queue.submit(plan, NOW)
    store.begin(TWO, NOW)
    assert queue.cancel("o", "not today", NOW) == ("one", False)
    assert queue.cancel("two", "enough", NOW) == ("two", True)
    assert queue.read() == QueueRead((ONE,), {"one": "not today", "two": "enough"})
    assert queue.cancelled() == [(ONE, NOW)]
    assert queue.waiting() == [], "a cancelled run is not listed as queued, also while no coordinator runs"
    for plan in (ONE, TWO):
        store.close_run(plan, Outcome.CANCELLED, "", NOW)
    assert queue.read() == QueueRead((), {})
    for name, words in (("one", "is over, or cancelled already"), ("three", "no runs begin"), ("", "2 runs begin")):
        with pytest.raises(UsageError, match=words):
            queue.cancel(name, "", NOW)


def test_an_alignment_has_a_new_name_once_the_last_one_is_over_and_is_no_run_of_its_own_in_commands(
    store: Summaries, queue: Queue
) -> None:
    """A site keeps the end of the last one: under the same name it would take the new one for over."""
    above = replace(ONE, align=Alignment())
    plan = alignment_of(above, 0)
    store.begin(above, NOW)
    assert [store.begin(plan, NOW).run for _ in range(2)] == ["one-ids-0"] * 2
    store.close_run(plan, Outcome.INTERRUPTED, "", NOW)
    assert [store.begin(plan, NOW) for _ in range(2)] == [replace(plan, run="one-ids-1")] * 2
    assert [found.run for found in store.unfinished()] == ["one", "one-ids-1"]
    assert (store.find("on").run, store.find("one-ids-1").run) == ("one", "one-ids-1")
    assert queue.cancel("on", "enough", NOW) == ("one", True)
    assert queue.cancel("one-ids-1", "this one alone", NOW) == ("one-ids-1", True)


def test_the_status_of_sites_and_of_the_service_is_read_by_other_processes(tmp_path: Path) -> None:
    status = Status(tmp_path / "runs.sqlite")
    status.opened("b", "0.2.0", "2027", "2026-01-01")
    status.opened("a", "", "", "2026-01-02")
    status.ended("a", "2026-01-03")
    status.rejected("c", "revoked", "2026-01-04")
    status.set_service({"state": "ready", "sites": ["a"]}, "2026-01-05")
    reader = Status(status.path, read_only=True)
    a, b, c = reader.sites()
    assert (a.connected, b.connected, c.connected) == (False, True, False)
    assert b == SiteStatus("b", "2026-01-01", None, "0.2.0", "2027")
    assert (c.refusal, c.refused) == ("revoked", "2026-01-04")
    assert reader.service() == {"state": "ready", "sites": ["a"], "updated_at": "2026-01-05"}
    assert (a.seen("2026-01-05"), b.seen("2026-01-05"), c.seen("2026-01-05")) == ("2026-01-03", "2026-01-05", None)
    status.all_ended("2026-01-06")
    assert [site.ended for site in reader.sites()] == ["2026-01-03", "2026-01-06", "2026-01-06"]
