"""coordinator/machine/membership.py: who takes part in a run that is resumed."""

import pytest
from machine.stepwise import RUN, all_of, joins, offers, sends, started, told
from machine.tiny import Machine, Pump, make_plan, make_sites, restarted

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase
from coordinator.machine.records import StepDone
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome

CONTINUES = make_plan(on_dropout="continue")


def test_a_resumed_run_waits_for_its_own_sites_and_sends_the_plan_at_once() -> None:
    plan = make_plan(sites=("a", "b", "c", "d"), min_sites=3)
    first = Pump(plan, make_sites("abc"), kill_after=4).join().out_of_time().run()
    machine = Machine(plan, records=first.records)
    done = sum(isinstance(r, StepDone) for r in first.records)
    assert machine.start() == [
        e.Notify(n.AnswersInClear(RUN)),
        e.Notify(n.RunTakenUp(RUN, done, ("a", "b", "c"))),
        e.SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.phase is Phase.RETURNING
    assert sends(machine.handle(joins("a"))) == [e.Send("a", m.Proposal(RUN, 1, plan))]
    machine.handle(joins("d"))
    assert machine.awaited == ("a", "b", "c")


@pytest.mark.parametrize(("on_dropout", "goes_on"), [("wait", False), ("continue", True)])
def test_a_resumed_run_goes_on_without_a_site_only_where_the_plan_says_so(on_dropout: str, goes_on: bool) -> None:
    plan = make_plan(on_dropout=on_dropout)
    first = Pump(plan, make_sites("abc"), kill_after=4).join().run()
    machine = started(plan, first.records)
    all_of(machine, [joins("a"), joins("b")])
    digests = {s: first.machine.run.recorded.data[s] for s in "ab"}
    all_of(machine, [offers(machine, s, data_digest=digests[s]) for s in "ab"])
    actions = machine.handle(machine.deadline)
    assert (machine.phase is Phase.ASKING) is goes_on
    assert ([a.outcome for a in told(actions) if isinstance(a, n.RunEnded)] == [Outcome.TOO_FEW_SITES]) is not goes_on


def test_a_site_that_was_excluded_stays_so_when_the_run_is_resumed() -> None:
    pump = Pump(CONTINUES, make_sites("abc")).join().steps(2)
    step = pump.machine.run.live.steps["c"]
    pump.events.appendleft(e.Received("c", m.Fault(RUN, step.attempt, step.step, "the disk is full")))
    pump.steps(4)
    again = Pump(CONTINUES, {n: restarted(s) for n, s in pump.sites.items()}, pump.records).join()
    assert set(again.machine.run.recorded.excluded) == {"c"}
    assert again.run().outcome is Outcome.CONVERGED
    assert set(again.bits) == {"a", "b"}
    assert again.bits == Pump(CONTINUES, make_sites("ab")).join().out_of_time().run().bits
