"""Stores with something in them, for tests."""

from collections.abc import Iterable
from pathlib import Path

from machine.tiny import Pump, make_plan, make_sites, undisturbed

from coordinator.driver import Timing
from coordinator.machine.events import Received
from coordinator.machine.records import Ended, Record
from coordinator.machine.state import RunState, resume
from coordinator.store.runs import RunStore
from coreg_core.protocol.messages import Fault
from coreg_core.protocol.plan import Plan

NOW, LAP = "2026-01-01T00:00:00.000+00:00", Timing(0.25, 100, 200)
PLAN = make_plan()


def remembered(plan: Plan, records: Iterable[Record]) -> RunState:
    """What comes back with a run."""
    return resume(plan, records)


def write(store: RunStore, plan: Plan, records: Iterable[Record]) -> None:
    for record in records:
        store.write(plan.run, record, LAP, NOW)


def begun(store: RunStore, records: Iterable[Record] = (), **changes: object) -> Plan:
    plan = make_plan(**changes)
    store.begin(plan, NOW)
    write(store, plan, records)
    return plan


def filled(path: Path, *, whole: bool = True) -> Path:
    """A store with one run; without its end unless it is ``whole``."""
    store, records = RunStore(path), undisturbed(PLAN).records
    upto = len(records) if whole else next(i for i, record in enumerate(records) if isinstance(record, Ended))
    begun(store, records[:upto])
    store.close()
    return path


def eventful() -> tuple[Plan, Pump]:
    """c comes late, is away at a deadline, and is taken back; d sends a fault and is excluded."""
    plan = make_plan(on_dropout="continue", sites=("a", "b", "c", "d"), max_rounds=40)
    pump = Pump(plan, make_sites(plan.sites)).join("a", "b", "d").out_of_time().steps(2)
    pump.join("c").steps(6)
    step = pump.machine.run.live.steps["d"]
    pump.events.appendleft(Received("d", Fault(plan.run, step.attempt, step.step, "the disk is full")))
    pump.steps(8).lose("c").out_of_time().steps(10)
    return plan, pump.join("c").run()
