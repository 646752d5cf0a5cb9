"""coordinator/machine/federation.py: ends that are delivered on demand, stores that are older than the sites."""

import pytest
from machine.service import SITES, AgentOfRuns, Service, holding_back, until_answered, without
from machine.tiny import make_plan, undisturbed

from coordinator.machine import events as e
from coordinator.machine.phases import Phase
from coordinator.machine.records import Delivered
from coordinator.machine.scheduler import Undelivered
from coreg_core.protocol.messages import (
    Fetched,
    Finished,
    LedgerHead,
    Proposal,
    ToSite,
)
from coreg_core.protocol.outcomes import Outcome

# --- delivery stays open for each site (issue 19, section 6, 1) ---------------------------------------------------


def missing(agent: AgentOfRuns, kind: type[ToSite]) -> None:
    """From here on, messages of that kind do not reach this agent."""
    handle = agent.handle
    agent.handle = lambda message: [] if isinstance(message, kind) else handle(message)  # type: ignore[method-assign]


def ended_without(*away: str) -> Service:
    """A run of a, b, c is over; these agents were killed before its end, and started again after the round's time."""
    service = Service().joined()
    for name in away:
        missing(service.agents[name], Finished)
    service.submit(make_plan(run="run-1")).lost(*away)
    if away:
        service.out_of_time("run-1")
    for name in away:
        before, service.agents[name] = service.agents[name], AgentOfRuns(name)
        before.killed()
        service.agents[name].disk = before.disk
    assert service.finished["run-1"].outcome is Outcome.CONVERGED
    assert service.federation.runs == {}
    return service


@pytest.mark.parametrize("killed", [False, True])
def test_a_site_that_was_away_gets_its_model_whenever_it_connects(killed: bool) -> None:
    service, whole = ended_without("b", "c"), undisturbed(make_plan(run="run-1")).bits
    assert service.federation.scheduler.undelivered == {"run-1": Undelivered(make_plan(), frozenset("bc"))}
    if killed:
        service = service.restarted((), undelivered=service.federation.scheduler.undelivered).joined("a")
    assert service.federation.runs == {}, "a has its model"
    for name in ("c", "b"):
        service.joined(name)
        assert service.models["run-1", name].heads
        assert service.bits("run-1")[name] == whole[name]
        assert service.federation.runs == {}, "and nothing waits for the other"
    assert [r for r in service.records["run-1"] if isinstance(r, Delivered)] == [Delivered(s) for s in "acb"]
    assert service.federation.scheduler.undelivered == {}
    service.lost("b").models.clear()
    assert service.joined("b").models == {}, "it is not asked again"


def test_a_site_that_comes_while_another_fetches_gets_its_model_too() -> None:
    service = ended_without("b", "c")
    held = {name: holding_back(service.agents[name], Proposal) for name in "bc"}
    service.joined("b").joined("c")
    for name, accepting in held.items():
        service.tell(*(e.Received(name, answer) for answer in accepting))
    assert service.federation.scheduler.undelivered == {}
    assert {name for _, name in service.models} == set(SITES)


@pytest.mark.parametrize("again", [False, True])
def test_a_site_that_has_its_model_is_free_while_another_fetches_the_old_one(again: bool) -> None:
    """Its agent has forgotten the run, and may have started for the next one."""
    service = ended_without("c")
    held, told = holding_back(service.agents["c"], Proposal), holding_back(service.agents["a"], Proposal)
    if again:
        service.lost("a")
    service.joined("c")
    if again:
        service.joined("a")
    assert told == []
    assert "run-1" in service.federation.runs
    service.tell(*(e.Received("c", answer) for answer in held))
    assert service.federation.scheduler.undelivered == {}
    assert service.models["run-1", "c"].heads


def test_a_site_that_goes_again_without_its_model_gets_it_the_next_time() -> None:
    service = ended_without("c")
    held = holding_back(service.agents["c"], Proposal)
    service.joined("c").lost("c")
    assert held
    service.out_of_time("run-1")
    assert service.federation.runs == {}
    del service.agents["c"].handle
    service.joined("c")
    assert service.federation.scheduler.undelivered == {}


def test_a_delivery_takes_no_slot_of_a_run() -> None:
    service = ended_without("c")
    service.tell(e.Reconfigured(SITES, 1))
    holding_back(service.agents["c"], Proposal)
    service.joined("c").submit(make_plan(run="run-2", sites=("a", "b")))
    assert service.finished["run-2"].outcome is Outcome.CONVERGED
    assert "run-1" in service.federation.runs


# --- a store that is older than the sites (2) ---------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 4])
def test_a_run_that_every_site_has_is_ended_when_an_older_store_resumes_it(kept: int) -> None:
    whole = ended_without()
    again = whole.restarted([make_plan(run="run-1")])
    again.records = {"run-1": whole.records["run-1"][:kept]}
    again.submit().joined()
    end = again.finished["run-1"]
    assert end.outcome is Outcome.DAMAGED
    assert "older than the sites'" in end.reason
    assert again.federation.runs == {}
    assert again.federation.scheduler.parked == {}, "it holds no slot"
    assert again.is_closed("run-1")
    assert not any(m.heads for m in again.models.values()), "no model of an older state goes out"
    again.submit(make_plan(run="run-2"))
    assert again.finished["run-2"].outcome is Outcome.CONVERGED


def test_a_late_word_about_an_earlier_end_does_not_damage_a_run_that_was_resumed() -> None:
    """c is slow: it says "fetched" to the end of the run's first life in its second."""
    service, plan = Service().joined(), make_plan(run="run-1")
    fetching = holding_back(service.agents["c"], Finished)
    service.queue.append(plan)
    service.events.append(e.QueueChanged())
    until_answered(service)
    service.events = without(service.events, "c")
    service.tell().out_of_time("run-1").out_of_time("run-1").out_of_time("run-1")
    assert list(service.federation.scheduler.parked) == ["run-1"]
    accepting = holding_back(service.agents["c"], Proposal)
    service.out_of_time("run-1")
    assert fetching == [Fetched("run-1")]
    for words in (fetching, accepting):
        assert service.states() == {"run-1": Phase.RETURNING}
        service.tell(*(e.Received("c", word) for word in words))
    del service.agents["c"].handle
    service.joined("c")
    assert service.finished["run-1"].outcome is Outcome.CONVERGED


# --- countersigning (7) -------------------------------------------------------------------------------------------


def test_only_the_head_of_a_run_that_ends_is_countersigned() -> None:
    signed = LedgerHead(7, "ab", "2026-01-01")
    service = Service().joined()
    service.events.append(e.Submitted(make_plan(run="run-1")))
    until_answered(service).events.append(e.Received("a", Fetched("invented", signed, "03")))
    asked = list[e.Action]()
    while service.events:
        asked += [a for a in service.one() if isinstance(a, e.Countersign)]
    assert asked == []
    assert service.finished["run-1"].outcome is Outcome.CONVERGED
