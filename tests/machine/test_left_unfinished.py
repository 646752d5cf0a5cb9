"""What a coordinator that stands finds in its store when it starts: runs to take up, and scorings that nobody can go on with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny import make_plan

from coordinator.service.daemon import NOT_TAKEN_UP, left_to_take_up
from coordinator.store.runs import RunStore
from coreg_core.protocol.plan import Scoring


class Heard:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})

    info = error = warning


def test_runs_are_taken_up_in_order_and_a_scoring_is_closed_with_a_sentence(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.sqlite")
    plans = [make_plan(run=f"run-{i}") for i in (1, 2, 3)]
    plans[1] = replace(plans[1], objective=Scoring("run-1", "agreement"))
    for plan in plans:
        store.begin(plan, "2026-11-21T20:00:00+00:00")
    log = Heard()
    assert left_to_take_up(store, log) == [plans[0], plans[2]]
    assert log.lines == [{"event": "not_taken_up", "run": "run-2", "text": NOT_TAKEN_UP}]
    closed = store.find("run-2")
    assert (closed.stop, closed.reason) == ("CANCELLED", NOT_TAKEN_UP)
    assert closed.closed is not None
    assert left_to_take_up(store, log) == [plans[0], plans[2]]
    assert len(log.lines) == 1, "it is said once"
    store.close()
