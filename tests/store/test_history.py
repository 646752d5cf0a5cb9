"""coordinator/store/runs.py: the notices of a coordinator."""

from pathlib import Path

import pytest
from machine.stepwise import RUN

import coordinator.store.runs as history
from coordinator.machine import notices as n
from coordinator.store.runs import History
from coreg_core.protocol.messages import Report


@pytest.fixture
def tables(tmp_path: Path) -> History:
    return History(tmp_path / "runs.sqlite")


def test_notices_come_back_as_json_the_last_first(tables: History) -> None:
    stalled, joined = n.stalled(RUN, ("b",), 600.0), n.joined("run-2", "a", 1, 3)
    for at, notice in ((1, stalled), (2, joined), (3, n.step_answered(RUN, 0, 0, 3, Report()))):
        tables.add(notice, f"2026-01-0{at}")
    assert tables.notices() == []
    tables.flush()
    tables.flush()  # nothing is new
    second = {"at": "2026-01-02", **joined.to_dict()}
    first = {"at": "2026-01-01", **stalled.to_dict(), "sites": ["b"]}
    assert tables.notices() == [second, first]
    assert tables.notices(run=RUN) == [first]
    assert tables.notices(limit=1) == [second]


def test_the_oldest_notices_go(tables: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_NOTICES", 3)
    for i in range(8):
        tables.add(n.session_ended("a", f"{i}"), f"2026-01-0{i + 1}")
        tables.flush()
    assert [row["reason"] for row in tables.notices()] == ["7", "6", "5"]
