"""coordinator/machine/ending.py: every site hears how its run ended, also after a kill or an absence."""

from typing import Any

import pytest
from machine.stepwise import (
    CONVERGED,
    RUN,
    all_of,
    answers,
    begun,
    comes_back,
    fetches,
    joins,
    offers,
    sends,
    started,
    told,
    written,
)
from machine.tiny import Machine, Pump, all_restarted, make_plan, make_sites, restarted, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.records import Begun, Ended, HeadSigned, Phase, StepDone
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome

END = m.Finished(RUN, Outcome.CONVERGED, "")
OVER = e.Finish(RUN, Outcome.CONVERGED, "")


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c"), e.SiteLost("b", "gone")])
    assert machine.handle(machine.deadline) == [e.Notify(n.stalled(RUN, ("b",), 4.0)), e.SetDeadline(RUN, 4, 4.0)]
    assert machine.phase is Phase.STALLED
    reason = "b did not reconnect within 4 s"
    assert machine.handle(machine.deadline) == [  # nothing is persisted: the run begins again
        e.Notify(n.run_ended(RUN, Outcome.STALLED, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.STALLED, reason)) for s in "ac"),
        e.SetDeadline(RUN, 5, 3.0),
    ]
    assert not machine.run.final
    assert machine.handle(fetches("a")) == []
    assert machine.handle(machine.deadline) == [e.Finish(RUN, Outcome.STALLED, reason)]


# --- who hears of the end -----------------------------------------------------------------------------------------


def ending(*sites: str) -> Machine:
    """A run of one step that has converged; ``sites`` are those that are here."""
    machine = begun()
    all_of(machine, [answers(s, report=CONVERGED) for s in "ab"])
    all_of(machine, [e.SiteLost(s, "gone") for s in "ab" if s not in sites])
    machine.handle(answers("c", report=CONVERGED))
    all_of(machine, [e.SiteLost("c", "gone")] if "c" not in sites else [])
    return machine


def test_the_end_waits_for_connected_sites_alone() -> None:
    machine = ending("a", "c")
    assert (machine.phase, machine.awaited) == (Phase.ENDING, ("a", "c"))
    assert machine.handle(fetches("a")) == []
    assert machine.handle(fetches("a")) == [], "twice is once"
    assert machine.handle(fetches("c")) == [OVER]


def test_a_run_whose_sites_are_all_away_is_over_at_once() -> None:
    machine = begun()
    all_of(machine, [answers(s, report=CONVERGED) for s in "ab"])
    all_of(machine, [e.SiteLost(s, "gone") for s in "ab"])
    machine.handle(answers("c", report=CONVERGED))
    assert machine.handle(e.SiteLost("c", "gone")) == [e.Notify(n.left(RUN, "c", "gone", lost=True)), OVER]
    assert machine.phase is Phase.DONE


@pytest.mark.parametrize(
    ("event", "lost"), [(e.SiteLost("c", "gone"), True), (e.Received("c", m.Leaving("gone")), False)]
)
def test_a_site_that_goes_is_not_waited_for(event: e.Event, lost: bool) -> None:
    machine = ending("a", "b", "c")
    all_of(machine, [fetches(s) for s in "ab"])
    assert machine.handle(event) == [e.Notify(n.left(RUN, "c", "gone", lost=lost)), OVER]


def test_a_site_that_connects_before_the_run_is_over_has_the_end_at_once_and_is_waited_for() -> None:
    machine = ending("a", "b")
    assert machine.handle(joins("c")) == [e.Notify(n.joined(RUN, "c", 3, 3)), e.Send("c", END)]
    assert machine.awaited == ("a", "b", "c")
    all_of(machine, [fetches("a")])
    assert e.Send("a", END) in machine.handle(joins("a"))
    assert machine.awaited == ("b", "c"), "it has said that it has it"
    assert all_of(machine, [fetches(s) for s in "bc"]) == [OVER]


def test_a_session_that_breaks_between_the_last_answer_and_the_end_changes_nothing() -> None:
    """c stored its result before its last answer left. It is in the same process and offers the same keys."""
    machine = begun()
    all_of(machine, [answers("c", report=CONVERGED), e.SiteLost("c", "gone"), answers("a", report=CONVERGED)])
    assert not [s for s in sends(all_of(machine, comes_back(machine, "c"))) if isinstance(s.message, m.Step)]
    actions = machine.handle(answers("b", report=CONVERGED))
    assert sends(actions) == [e.Send(s, END) for s in "abc"]
    assert machine.attempt == 0


def test_a_site_that_was_not_in_the_run_does_not_hear_of_its_end() -> None:
    machine = begun(None, "a", "b")
    all_of(machine, [answers(s, report=CONVERGED) for s in "ab"])
    [send] = sends(machine.handle(joins("c")))
    reason = "c: no longer in this run: c: the run began without this site."
    assert send.message == m.Dismissed(RUN, Outcome.STALLED, reason)
    assert machine.awaited == ("a", "b")


@pytest.mark.parametrize("event", [e.Breached("b", "10 MB"), e.SiteLost("b", "gone")])
def test_a_site_that_turns_out_faulty_at_the_end_is_not_waited_for(event: e.Event) -> None:
    machine = ending("a", "b")
    all_of(machine, [fetches("a")])
    actions = machine.handle(event)
    assert (written(actions), actions[-1]) == ([], OVER)


@pytest.mark.parametrize(
    "late", [answers("b"), e.Received("b", m.PlanRefused(RUN, "no")), e.Received("b", m.Fault(RUN, 0, 0, "x"))]
)
def test_at_the_end_nothing_else_is_heard(late: e.Event) -> None:
    machine = ending("a", "b", "c")
    assert machine.handle(late) == machine.handle(offers(machine, "b")) == []
    assert machine.awaited == ("a", "b", "c")


def test_of_an_end_that_is_too_early_nothing_is_heard() -> None:
    for machine in (started(), begun()):
        all_of(machine, [joins("a"), fetches("a")])
        assert machine.phase is not Phase.ENDING


def test_without_a_result_connected_sites_are_told() -> None:
    machine = begun()
    machine.handle(e.SiteLost("a", "gone"))
    actions = machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "x")))
    assert written(actions) == [Ended(Outcome.SITE_FAULT, "b: x")]
    assert [s.site for s in sends(actions) if isinstance(s.message, m.Finished)] == ["c"]
    assert machine.handle(e.SiteLost("c", "gone"))[-1] == e.Finish(RUN, Outcome.SITE_FAULT, "b: x")


def test_an_interruption_keeps_the_outcome() -> None:
    machine = ending("a", "b", "c")
    machine.handle(fetches("a"))
    assert machine.handle(e.Interrupted()) == [OVER]
    assert ending("a").handle(e.Cancelled(RUN, "enough")) == [], "it is over"


# --- the heads of ledgers -----------------------------------------------------------------------------------------

HEAD = m.LedgerHead(7, "ab", "2026-01-01")
FETCHED = m.Fetched(RUN, HEAD, "03")


def signed_by(site: str, signature: str = "05", reason: str = "") -> HeadSigned:
    return HeadSigned(site, "03", "04", m.Countersigned(RUN, HEAD, "2026-01-02", signature, "06", reason))


def head_of(machine: Machine, site: str, *signed: str) -> tuple[HeadSigned, list[e.Action]]:
    """`Fetched` with the ledger's head, which is countersigned beside the loop: the record, and what follows from it."""
    assert machine.handle(e.Received(site, FETCHED)) == [e.Countersign(site, FETCHED)]
    record = signed_by(site, *signed)
    return record, machine.handle(e.HeadCountersigned(RUN, record))


def test_a_head_is_on_record_before_the_site_hears_of_it_and_before_the_run_is_over() -> None:
    machine = ending("a", "b", "c")
    for _ in range(2):
        signed, actions = head_of(machine, "a")
        assert actions == [e.Persist(RUN, signed), e.Send("a", signed.receipt)]
    machine.handle(fetches("b"))
    signed, actions = head_of(machine, "c")
    assert actions == [e.Persist(RUN, signed), e.Send("c", signed.receipt), OVER]
    assert machine.handle(e.HeadCountersigned(RUN, signed)) == [], "of a run that is over nothing is kept any more"


def test_a_site_that_leaves_while_its_head_is_signed_loses_no_signature() -> None:
    machine = ending("a")
    machine.handle(e.Received("a", FETCHED))
    assert told(machine.handle(e.Received("a", m.Leaving("done")))) == [n.left(RUN, "a", "done", lost=False)]
    signed = signed_by("a")
    assert machine.handle(e.HeadCountersigned(RUN, signed)) == [
        e.Persist(RUN, signed),
        e.Send("a", signed.receipt),
        OVER,
    ]


def test_a_head_that_is_not_countersigned_is_not_kept_and_both_receive_the_reason() -> None:
    signed, actions = head_of(ending("a", "b", "c"), "a", "", "a: of another key")
    assert actions == [e.Notify(n.ledger_doubtful(RUN, "a", "a: of another key")), e.Send("a", signed.receipt)]


# --- processes that end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [StepDone, Ended])
@pytest.mark.parametrize("agents", [False, True])
def test_a_coordinator_that_is_killed_before_its_end_is_on_record_begins_again(last: type[Any], agents: bool) -> None:
    """Its sites have a result already, and the next attempt replaces it by the same one."""
    plan, expected = make_plan(), undisturbed(make_plan())
    upto = max(i for i, r in enumerate(expected.records) if isinstance(r, last)) + 1
    first = Pump(plan, make_sites(plan.sites), kill_after=upto).join().run()
    assert first.bits == expected.bits
    if last is Ended:
        return  # the sites hear of it in the greetings of the next process
    first.sites = all_restarted(first.sites) if agents else first.sites
    again = first.restarted().join().run()
    assert (again.machine.attempt, again.end, again.bits) == (1, OVER, expected.bits)


@pytest.mark.parametrize(("terms", "outcome"), [({}, Outcome.CONVERGED), ({"max_rounds": 3}, Outcome.MAX_ROUNDS)])
def test_a_site_killed_after_its_last_answer_begins_another_attempt_if_the_end_is_not_there(
    terms: dict[str, Any], outcome: Outcome
) -> None:
    plan = make_plan(**terms)
    expected = undisturbed(plan)
    pump = Pump(plan, make_sites(plan.sites)).join()
    pump.steps(sum(isinstance(r, StepDone) for r in expected.records) - 1)
    assert [x.site for x in pump.events if isinstance(x, e.Received)] == ["a", "b", "c"]
    a, b, c = pump.events
    pump.events = type(pump.events)([a, c, e.SiteLost("c", "killed"), b])
    pump.sites["c"] = restarted(pump.sites["c"])
    pump.run()
    assert (pump.outcome, pump.machine.phase) == (outcome, Phase.DONE), "c is not waited for"
    assert pump.bits == expected.bits
    pump = Pump(plan, make_sites(plan.sites)).join()
    pump.steps(sum(isinstance(r, StepDone) for r in expected.records) - 1)
    pump.step()  # a has answered, and the last answers of b and c come too late
    pump.events.clear()
    pump.kill("a").run()
    assert (pump.outcome, pump.machine.attempt) == (outcome, 1)
    assert pump.bits == expected.bits


def test_a_run_that_begins_again_and_ends_before_its_sites_are_back_is_not_over_for_good() -> None:
    machine = started(None, Begun(0, ("a", "b", "c"), 4))
    assert machine.handle(machine.deadline) == [
        e.Notify(n.run_ended(RUN, Outcome.TOO_FEW_SITES, "a, b, c did not join within 1 s")),
        e.Finish(RUN, Outcome.TOO_FEW_SITES, "a, b, c did not join within 1 s"),
    ]
    assert not machine.run.final
