"""Stores with something in them, for tests."""

from collections.abc import Iterable

from machine.tiny import make_plan

from coordinator.machine.records import AttemptBegan, Ended, Record, StepDone, Timing
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coreg_core.messages import Report
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan

NOW = "2026-01-01T00:00:00.000+00:00"
LAP = Timing(0.25, 100, 200)
PLAN = make_plan()


def steps(attempt: int, first: int, count: int, answered: int) -> list[Record]:
    """Steps of one attempt; every other round is verified, in two columns."""
    figures = [(10.0**-n, 10.0 ** -(n + 1)) for n in range(count)]
    reports = [
        Report(round=n, verified=n % 2 == 1, residual=figures[n], gap=figures[n])
        for n in range(count)
    ]
    return [StepDone(first + n, attempt, answered, report) for n, report in enumerate(reports)]


END = Ended(Outcome.CONVERGED, "")
RECORDS: list[Record] = [AttemptBegan(0, ("a", "b", "c")), *steps(0, 0, 8, 3), END]
# Two attempts are interrupted; the last one begins without c.
INTERRUPTED: list[Record] = [
    AttemptBegan(0, ("a", "b", "c")),
    *steps(0, 0, 6, 3),
    AttemptBegan(1, ("a", "b", "c")),
    *steps(1, 6, 2, 3),
    AttemptBegan(2, ("a", "b")),
    *steps(2, 8, 4, 2),
    END,
]


def write(store: RunStore, plan: Plan, records: Iterable[Record]) -> None:
    for record in records:
        store.write(plan.run, record, LAP, NOW)


def begun(store: RunStore, records: Iterable[Record] = (), **changes: object) -> Plan:
    plan = make_plan(**changes)
    store.begin(plan, NOW)
    write(store, plan, records)
    return plan


def noticed(status: Status, at: str, *notices: Notice) -> None:
    status.record((notice, notice.site or notice.fields.get("name", ""), at) for notice in notices)
