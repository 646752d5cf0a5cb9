"""coordinator/machine/delivery.py: how runs end, and how their models are fetched, whoever was killed or away meanwhile."""

import pytest
from machine.stepwise import (
    RUN,
    ZEROS,
    accepts,
    all_of,
    answers,
    begun,
    comes_back,
    dismissed,
    fetches,
    joins,
    sends,
    small_plan,
    told,
    written,
)
from machine.tiny import Machine, Pump, all_restarted, make_plan, make_sites, restarted, undisturbed, watched

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase
from coordinator.machine.records import Closed, Delivered, Ended, HeadSigned, Record, SiteExcluded, StepTaken
from coreg_core.agreement.columns import Column
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome, advice, exit_code
from coreg_core.protocol.outcomes import told as message_for


def test_an_end_is_its_outcome_its_reason_and_what_to_do_next() -> None:
    assert message_for(Outcome.CONVERGED, "") == f"converged: {Outcome.CONVERGED.value}"
    for outcome, reason in ((Outcome.STALLED, "b is away."), (Outcome.SITE_FAULT, "b: no. Check it.")):
        for given in (reason, reason.rstrip(".")):
            assert message_for(outcome, given) == f"{outcome.name.lower()}: {reason} {advice(outcome)}"
    assert {o for o in Outcome if not advice(o)} == {o for o in Outcome if exit_code(o) == 0} == {Outcome.CONVERGED}
    for resumable in (Outcome.STALLED, Outcome.TOO_FEW_SITES):
        assert "the same command" in advice(resumable)


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(e.DeadlinePassed(RUN, 3)) == [
        e.Notify(n.Stalled(RUN, ("b",), 4.0)),
        e.SetDeadline(RUN, 4, 4.0),
    ]
    assert machine.phase is Phase.STALLED
    reason = "b did not come back within 4 s"
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


def test_max_rounds_is_an_end_with_models() -> None:
    pump = undisturbed(make_plan(max_rounds=3))
    assert pump.end == e.Finish(RUN, Outcome.MAX_ROUNDS, "")
    assert all(x.targets is not None for x in pump.models.values())


# --- delivery -----------------------------------------------------------------------------------------------------


def delivering(*sites: str) -> Machine:
    """A run of one round that has converged; ``sites`` are those that are here."""
    machine = begun(small_plan(tolerance=1e9, prediction_tolerance=1e9))
    all_of(machine, [answers("a"), answers("b")])
    all_of(machine, [e.SiteLost(s, "gone") for s in "ab" if s not in sites])
    machine.handle(answers("c"))
    all_of(machine, [e.SiteLost("c", "gone")] if "c" not in sites else [])
    assert machine.phase is Phase.DELIVERING
    return machine


MODEL = m.Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 1.5),), ZEROS)


def test_a_site_that_missed_the_end_fetches_its_model_later() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches(s) for s in "ab"])
    assert sends(machine.handle(joins("c"))) == [e.Send("c", machine.plan)], "no vector before it has the plan"
    assert sends(machine.handle(accepts(machine, "c"))) == [e.Send("c", MODEL)]
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


HEAD = m.Head(7, "ab", "2026-01-01")


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
    machine = begun() if here else Machine(small_plan(), records=undisturbed(small_plan()).records[:2])
    machine.start() if not here else None
    all_of(machine, [joins("a"), joins("b")])
    actions = machine.handle(fetches("a"))
    [ended] = written(actions)
    assert (ended.outcome, ended.models) == (Outcome.DAMAGED, None)
    assert "older than the sites'" in ended.reason
    told_sites = [s.site for s in sends(actions) if isinstance(s.message, m.Finished)]
    assert told_sites == (["a", "b", "c"] if here else ["a", "b"])
    assert machine.phase is Phase.DELIVERING


def test_a_run_without_its_first_question_does_not_listen_to_fetched() -> None:
    machine = Machine(small_plan())
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
    dismissed(machine, accepts(machine, "c", data_digest="other"), Outcome.REFUSED, excluded=False)
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


@pytest.mark.parametrize("last", [StepTaken, Ended])
def test_killed_while_models_are_fetched_it_goes_on_delivering(last: type[Record]) -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    upto = max(i for i, r in enumerate(expected.records) if isinstance(r, last)) + 1
    first = Pump(plan, make_sites(plan.sites), kill_after=upto).join().run()
    machine = Machine(plan, records=first.records)
    [*ended, notify, deadline] = machine.start()
    assert [type(r) for r in written(ended)] == ([Ended] if last is StepTaken else [])
    assert (notify, deadline) == (e.Notify(n.DeliveryTakenUp(RUN, ("a", "b", "c"))), e.SetDeadline(RUN, 1, 3.0))
    assert machine.phase is Phase.DELIVERING
    late = Pump(plan, all_restarted(first.sites), first.records).join("b").run()
    assert late.bits == {"b": expected.bits["b"]}
    assert late.machine.awaited == ("a", "c")
    late.out_of_time()
    assert late.end == e.Finish(RUN, Outcome.CONVERGED, "")
    assert late.records[-2:] == [Delivered("b"), Closed()]


# --- sites that were killed or away -------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
@pytest.mark.parametrize(
    ("terms", "outcome"),
    [
        ({}, Outcome.CONVERGED),
        ({"max_rounds": 3}, Outcome.MAX_ROUNDS),
        ({"tolerance": 0.0, "prediction_tolerance": 0.0}, Outcome.STAGNATED),
    ],
)
def test_a_site_killed_after_its_last_answer_is_waited_for(
    schedule: str, terms: dict[str, float], outcome: Outcome
) -> None:
    plan = make_plan(schedule=schedule, **terms)
    expected = undisturbed(plan)
    assert expected.outcome is outcome
    count = sum(isinstance(r, StepTaken) for r in expected.records)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(count - 1)
    assert [x.site for x in pump.events if isinstance(x, e.Received)] == ["a", "b", "c"]
    a, b, c = pump.events
    pump.events = type(pump.events)([a, c, e.SiteLost("c", "killed"), b])
    pump.sites["c"] = restarted(pump.sites["c"])
    pump.run()
    assert pump.end is None
    assert (pump.machine.phase, pump.machine.awaited) == (Phase.DELIVERING, ("c",))
    pump.join("c").run()
    assert pump.end == expected.end
    assert pump.bits == expected.bits


def test_a_site_that_comes_back_to_a_run_that_converged_without_it_blames_nobody() -> None:
    """It answered questions that could become the result, and was dropped; a and b converged, and have not all fetched."""
    plan = make_plan(on_dropout="continue", schedule="consensus")
    pump = Pump(plan, make_sites(plan.sites)).join().steps(3).without("c")
    pump.events.append(e.SiteLost("c", "gone"))
    pump.out_of_time()
    while pump.machine.phase is not Phase.DELIVERING:
        pump.step()
    pump.events.clear()
    pump.join("c").run()
    assert pump.sites["c"].breach is None


def test_a_site_that_is_connected_when_the_others_converge_without_it_receives_one_end() -> None:
    plan = make_plan(on_dropout="continue", schedule="consensus")
    sites = watched(plan)
    sites["c"].when = lambda ask: ask.question < 3
    pump = Pump(plan, sites).join().run().out_of_time()
    ends, carry_out = list[e.Action](), pump.carry_out

    def watch(actions: list[e.Action]) -> None:
        ends.extend(a for a in sends(actions) if a.site == "c" and not isinstance(a.message, m.Ask))
        carry_out(actions)

    pump.carry_out = watch  # type: ignore[method-assign]
    pump.run()
    assert pump.outcome is Outcome.CONVERGED
    assert len(ends) == 1
    assert pump.sites["c"].breach is None
