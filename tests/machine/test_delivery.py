"""coordinator/machine/delivery.py: how runs end, and how their models are fetched, whoever was killed or away meanwhile."""

from typing import Any

import pytest
from machine.stepwise import (
    CONVERGED,
    RUN,
    all_of,
    answer,
    answers,
    begun,
    comes_back,
    dismissed,
    fetches,
    joins,
    offers,
    sends,
    told,
    written,
)
from machine.tiny import Machine, Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase
from coordinator.machine.records import Closed, Delivered, Ended, HeadSigned, Record, SiteExcluded, StepDone
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(e.DeadlinePassed(RUN, 3)) == [
        e.Notify(n.Stalled(RUN, ("b",), 4.0)),
        e.SetDeadline(RUN, 4, 4.0),
    ]
    assert machine.phase is Phase.STALLED
    reason = "b did not reconnect within 4 s"
    assert machine.handle(e.DeadlinePassed(RUN, 4)) == [  # nothing is persisted: the same command takes it up again
        e.Notify(n.RunEnded(RUN, Outcome.STALLED, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.STALLED, reason)) for s in "abc"),
        e.SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.handle(fetches("a")) == []
    assert machine.handle(e.DeadlinePassed(RUN, 5)) == [
        e.Notify(n.NotFetched(RUN, ("b", "c"))),
        e.Finish(RUN, Outcome.STALLED, reason),
    ]


# --- delivery -----------------------------------------------------------------------------------------------------


def delivering(*sites: str) -> Machine:
    """A run of one step that has converged; ``sites`` are those that are here."""
    machine = begun()
    all_of(machine, [answers("a", report=CONVERGED), answers("b", report=CONVERGED)])
    all_of(machine, [e.SiteLost(s, "gone") for s in "ab" if s not in sites])
    machine.handle(answers("c", report=CONVERGED))
    all_of(machine, [e.SiteLost("c", "gone")] if "c" not in sites else [])
    assert machine.phase is Phase.DELIVERING
    return machine


MODEL = m.Finished(RUN, Outcome.CONVERGED, "", tuple(answer(s).head for s in "abc"))


def test_a_site_that_missed_the_end_fetches_its_model_later() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches(s) for s in "ab"])
    assert sends(machine.handle(joins("c"))) == [e.Send("c", m.Proposal(RUN, 0, machine.plan))], "first it has the plan"
    assert sends(machine.handle(offers(machine, "c"))) == [e.Send("c", MODEL)]
    assert machine.handle(fetches("c")) == [
        e.Persist(RUN, Delivered("c")),
        e.Persist(RUN, Closed()),
        e.Finish(RUN, Outcome.CONVERGED, ""),
    ]


@pytest.mark.parametrize(
    ("event", "lost"), [(e.SiteLost("c", "gone"), True), (e.Received("c", m.Leaving("gone")), False)]
)
def test_a_site_that_goes_without_its_model_is_waited_for(event: e.Event, lost: bool) -> None:
    """`Leaving` says nothing of what it has: only `Fetched` does."""
    machine = delivering("a", "b", "c")
    all_of(machine, [fetches(s) for s in "ab"])
    assert machine.handle(event) == [e.Notify(n.Left(RUN, "c", "gone", lost))]
    assert machine.awaited == ("c",)
    assert e.Send("c", MODEL) in all_of(machine, comes_back(machine, "c"))


def test_what_is_fetched_twice_is_delivered_once() -> None:
    machine = delivering("a", "b", "c")
    assert written(machine.handle(fetches("a"))) == [Delivered("a")]
    assert machine.handle(fetches("a")) == []
    assert e.Send("a", MODEL) in all_of(machine, comes_back(machine, "a")), "it may have lost it"
    assert machine.handle(fetches("a")) == []


HEAD = m.LedgerHead(7, "ab", "2026-01-01")


def head_of(machine: Machine, site: str, signature: str = "05", reason: str = "") -> tuple[HeadSigned, list[e.Action]]:
    """`Fetched` with the ledger's head, which is countersigned beside the loop: the record, and what follows from it."""
    assert machine.handle(e.Received(site, m.Fetched(RUN, HEAD, "03"))) == [
        e.Countersign(site, m.Fetched(RUN, HEAD, "03"))
    ]
    signed = HeadSigned(site, "03", "04", m.Countersigned(RUN, HEAD, "2026-01-02", signature, "06", reason))
    return signed, machine.handle(e.HeadCountersigned(RUN, signed))


def test_a_head_is_on_record_before_the_site_hears_of_it_and_before_the_run_is_closed() -> None:
    machine = delivering("a", "b", "c")
    signed, actions = head_of(machine, "a")
    assert actions == [e.Persist(RUN, signed), e.Persist(RUN, Delivered("a")), e.Send("a", signed.receipt)]
    signed, actions = head_of(machine, "a")
    assert actions == [e.Persist(RUN, signed), e.Send("a", signed.receipt)], "one head more, delivered once"
    machine.handle(fetches("b"))
    signed, actions = head_of(machine, "c")
    assert actions[-3:] == [
        e.Send("c", signed.receipt),
        e.Persist(RUN, Closed()),
        e.Finish(RUN, Outcome.CONVERGED, ""),
    ]
    assert machine.handle(e.HeadCountersigned(RUN, signed)) == [], "of a run that is over nothing is kept any more"


def test_a_head_that_is_not_countersigned_is_not_kept_and_both_receive_the_reason() -> None:
    signed, actions = head_of(delivering("a", "b", "c"), "a", "", "a: of another key")
    assert actions == [
        e.Persist(RUN, Delivered("a")),
        e.Notify(n.LedgerDoubtful(RUN, "a", "a: of another key")),
        e.Send("a", signed.receipt),
    ]


@pytest.mark.parametrize("here", [True, False])
def test_sites_that_have_a_newer_result_than_the_records_end_the_run(here: bool) -> None:
    """They answer the plan with "fetched", as after a restored backup. No model of the older state goes out."""
    machine = begun() if here else Machine(make_plan(), records=undisturbed(make_plan()).records[:2])
    machine.start() if not here else None
    all_of(machine, [joins("a"), joins("b")])
    actions = machine.handle(fetches("a"))
    [ended] = written(actions)
    assert (ended.outcome, ended.heads) == (Outcome.DAMAGED, ())
    assert "older than the sites'" in ended.reason
    told_sites = [s.site for s in sends(actions) if isinstance(s.message, m.Finished)]
    assert told_sites == (["a", "b", "c"] if here else ["a", "b"])
    assert machine.phase is Phase.DELIVERING


def test_a_run_without_its_first_step_does_not_listen_to_fetched() -> None:
    machine = Machine(make_plan())
    machine.start()
    all_of(machine, [joins("a")])
    assert machine.handle(fetches("a")) == []


def test_who_does_not_come_for_its_model_in_time_is_named() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches("a")])
    assert machine.handle(machine.deadline) == [
        e.Notify(n.NotFetched(RUN, ("b", "c"))),
        e.Persist(RUN, Closed()),
        e.Finish(RUN, Outcome.CONVERGED, ""),
    ]


def test_a_site_that_turns_out_faulty_while_models_are_fetched_is_not_waited_for() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches("a"), e.Breached("b", "a message of 10 MB")])
    assert machine.awaited == ("c",)
    machine.handle(joins("c"))
    reason = "c refused the plan: no"
    actions = machine.handle(e.Received("c", m.PlanRefused(RUN, "no")))
    assert told(actions) == [n.SiteDismissed(RUN, "c", reason, excluded=False)]
    assert actions[-1] == e.Finish(RUN, Outcome.CONVERGED, "")
    assert not any(isinstance(r, SiteExcluded) for r in written(actions)), (
        "the run is over: there is nothing to exclude from"
    )


def test_a_site_that_comes_back_changed_gets_no_model() -> None:
    machine = delivering("a", "b")
    machine.handle(joins("c"))
    dismissed(machine, offers(machine, "c", data_digest="other"), Outcome.REFUSED, excluded=False)
    assert machine.awaited == ("a", "b", "c"), "it may come back as it was"


def test_without_models_only_those_who_are_here_are_told() -> None:
    machine = begun()
    machine.handle(e.SiteLost("a", "gone"))
    actions = machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "x")))
    assert [s.site for s in sends(actions) if isinstance(s.message, m.Finished)] == ["c"]
    assert machine.awaited == ("c",)
    assert machine.handle(e.SiteLost("c", "gone"))[-2:] == [
        e.Persist(RUN, Closed()),
        e.Finish(RUN, Outcome.SITE_FAULT, "b: x"),
    ]


def test_an_interruption_while_models_are_fetched_keeps_the_outcome_and_the_run_open() -> None:
    machine = begun()
    machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "x")))
    assert machine.handle(e.Interrupted()) == [e.Finish(RUN, Outcome.SITE_FAULT, "b: x")]
    machine = delivering("a", "b", "c")
    machine.handle(fetches("a"))
    assert machine.handle(e.Interrupted()) == [e.Finish(RUN, Outcome.CONVERGED, "")], (
        "not closed: it goes on delivering"
    )


@pytest.mark.parametrize("last", [StepDone, Ended])
def test_killed_while_models_are_fetched_it_goes_on_delivering(last: type[Record]) -> None:
    """Killed between the last step and the end, its sites' last answers are taken once more."""
    plan, expected = make_plan(), undisturbed(make_plan())
    upto = max(i for i, r in enumerate(expected.records) if isinstance(r, last)) + 1
    first = Pump(plan, make_sites(plan.sites), kill_after=upto).join().run()
    machine = Machine(plan, records=first.records)
    notices = told(machine.start())
    if last is Ended:
        assert notices == [n.DeliveryTakenUp(RUN, ("a", "b", "c"))]
        late = Pump(plan, all_restarted(first.sites), first.records).join("b").run()
        assert late.bits == {"b": expected.bits["b"]}
        assert late.machine.awaited == ("a", "c")
        assert late.out_of_time().records[-2:] == [Delivered("b"), Closed()]
    again = Pump(plan, all_restarted(first.sites), first.records).join().run()
    assert again.end == e.Finish(RUN, Outcome.CONVERGED, "")
    assert again.bits == expected.bits


# --- sites that were killed or away -------------------------------------------------------------------------------


@pytest.mark.parametrize(("terms", "outcome"), [({}, Outcome.CONVERGED), ({"max_rounds": 3}, Outcome.MAX_ROUNDS)])
def test_a_site_killed_after_its_last_answer_is_waited_for_and_has_the_same_model(
    terms: dict[str, Any], outcome: Outcome
) -> None:
    plan = make_plan(**terms)
    expected = undisturbed(plan)
    assert expected.outcome is outcome
    pump = Pump(plan, make_sites(plan.sites)).join()
    pump.steps(sum(isinstance(r, StepDone) for r in expected.records) - 1)
    assert [x.site for x in pump.events if isinstance(x, e.Received)] == ["a", "b", "c"]
    a, b, c = pump.events
    pump.events = type(pump.events)([a, c, e.SiteLost("c", "killed"), b])
    pump.sites |= {"c": all_restarted(pump.sites)["c"]}
    pump.run()
    assert (pump.machine.phase, pump.machine.awaited) == (Phase.DELIVERING, ("c",))
    pump.join("c").run()
    assert pump.end == expected.end
    assert pump.bits == expected.bits


def test_a_site_that_comes_back_to_a_run_that_ended_without_it_hears_so_and_has_no_model() -> None:
    plan = make_plan(on_dropout="continue")
    pump = Pump(plan, make_sites(plan.sites)).join().steps(3).lose("c").out_of_time()
    while pump.machine.phase is not Phase.DELIVERING:
        pump.step()
    pump.events.clear()  # a and b have not said yet that they have it
    pump.join("c").run()
    ends = [s.message for s in pump.sent if s.site == "c" and isinstance(s.message, m.Dismissed)]
    assert [end.outcome for end in ends] == [Outcome.STALLED]
    assert "ended (converged) with a, b, and without this site" in ends[0].reason
    assert pump.bits.keys() == {"a", "b"}
