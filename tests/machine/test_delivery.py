"""How runs end, how their models are fetched, and how a run is taken up again after its coordinator was killed."""

import pytest
from stepwise import (
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
    started,
    told,
    without,
    written,
)
from tiny import SCHEDULES, Machine, Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.machine import notices as n
from coordinator.machine.events import (
    Breached,
    DeadlinePassed,
    Event,
    Finish,
    Interrupted,
    Notify,
    Persist,
    Received,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
)
from coordinator.machine.phases import Phase
from coordinator.machine.records import (
    Closed,
    Delivered,
    Ended,
    HeadSigned,
    MembershipChanged,
    Record,
    SiteExcluded,
    StepTaken,
)
from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Ask, Countersigned, Fault, Fetched, Finished, Head, Leaving, PlanRefused
from coreg_core.protocol.outcomes import Outcome, advice, exit_code
from coreg_core.protocol.outcomes import told as worded
from coreg_core.protocol.plan import Plan

# --- ends ---------------------------------------------------------------------------------------------------------


def test_the_reason_and_the_advice_are_both_told() -> None:
    assert worded(Outcome.CONVERGED, "") == f"converged: {Outcome.CONVERGED.value}"
    assert worded(Outcome.STALLED, "b is away") == f"stalled: b is away. {advice(Outcome.STALLED)}"
    assert (
        worded(Outcome.SITE_FAULT, "b: no. Check it.") == f"site_fault: b: no. Check it. {advice(Outcome.SITE_FAULT)}"
    )


@pytest.mark.parametrize("outcome", [Outcome.STALLED, Outcome.TOO_FEW_SITES])
def test_what_can_be_taken_up_says_so(outcome: Outcome) -> None:
    assert "the same command" in advice(outcome)
    assert "run again" not in advice(outcome)


def test_every_outcome_but_a_good_one_has_advice_and_an_exit_code() -> None:
    assert {o for o in Outcome if not advice(o)} == {o for o in Outcome if exit_code(o) == 0} == {Outcome.CONVERGED}


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(DeadlinePassed(RUN, 3)) == [Notify(n.Stalled(RUN, ("b",), 4.0)), SetDeadline(RUN, 4, 4.0)]
    assert machine.phase is Phase.STALLED
    reason = "b did not come back within 4 s"
    assert machine.handle(DeadlinePassed(RUN, 4)) == [  # nothing is persisted: the same command takes it up again
        Notify(n.RunEnded(RUN, Outcome.STALLED, reason)),
        *(Send(s, Finished(RUN, Outcome.STALLED, reason)) for s in "abc"),
        SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.handle(fetches("a")) == []
    assert machine.handle(DeadlinePassed(RUN, 5)) == [
        Notify(n.NotFetched(RUN, ("b", "c"))),
        Finish(RUN, Outcome.STALLED, reason),
    ]


def test_max_rounds_is_an_end_with_models() -> None:
    pump = undisturbed(make_plan(max_rounds=3))
    assert pump.end == Finish(RUN, Outcome.MAX_ROUNDS, "")
    assert all(m.targets is not None for m in pump.models.values())


# --- delivery -----------------------------------------------------------------------------------------------------


def delivering(*sites: str) -> Machine:
    """A run of one round that has converged; ``sites`` are those that are here."""
    machine = begun(small_plan(tolerance=1e9, prediction_tolerance=1e9))
    all_of(machine, [answers("a"), answers("b")])
    all_of(machine, [SiteLost(s, "gone") for s in "ab" if s not in sites])
    machine.handle(answers("c"))
    all_of(machine, [SiteLost("c", "gone")] if "c" not in sites else [])
    assert machine.phase is Phase.DELIVERING
    return machine


MODEL = Finished(RUN, Outcome.CONVERGED, "", (Column(0.25, 1.5),), ZEROS)


def test_a_site_that_missed_the_end_fetches_its_model_later() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches(s) for s in "ab"])
    assert sends(machine.handle(joins("c"))) == [Send("c", machine.plan)], "no vector before it has the plan"
    assert sends(machine.handle(accepts(machine, "c"))) == [Send("c", MODEL)]
    assert machine.handle(fetches("c")) == [
        Persist(RUN, Delivered("c")),
        Persist(RUN, Closed()),
        Finish(RUN, Outcome.CONVERGED, ""),
    ]


@pytest.mark.parametrize(("event", "lost"), [(SiteLost("c", "gone"), True), (Received("c", Leaving("gone")), False)])
def test_a_site_that_goes_without_its_model_is_waited_for(event: Event, lost: bool) -> None:
    """`Leaving` says nothing of what it has: only `Fetched` does."""
    machine = delivering("a", "b", "c")
    all_of(machine, [fetches(s) for s in "ab"])
    assert machine.handle(event) == [Notify(n.Left(RUN, "c", "gone", lost))]
    assert machine.awaited == ("c",)
    assert Send("c", MODEL) in all_of(machine, comes_back(machine, "c"))


def test_what_is_fetched_twice_is_delivered_once() -> None:
    machine = delivering("a", "b", "c")
    assert written(machine.handle(fetches("a"))) == [Delivered("a")]
    assert machine.handle(fetches("a")) == []
    assert Send("a", MODEL) in all_of(machine, comes_back(machine, "a")), "it may have lost it"
    assert machine.handle(fetches("a")) == []


def head_of(site: str, signature: str = "05", reason: str = "") -> Received:
    """`Fetched` with the ledger's head, as whoever has the key countersigned it."""
    fetched = Fetched(RUN, Head(7, "ab", "2026-01-01"), "03")
    receipt = Countersigned(RUN, fetched.head, "2026-01-02", signature, "06", reason)
    return Received(site, fetched, HeadSigned(site, fetched.signature, "04", receipt))


def test_a_head_is_on_record_before_the_site_hears_that_it_is_and_before_the_run_is_closed() -> None:
    machine = delivering("a", "b", "c")
    event = head_of("a")
    assert event.signed is not None
    told = [Persist(RUN, event.signed), Persist(RUN, Delivered("a")), Send("a", event.signed.receipt)]
    assert machine.handle(event) == told
    assert machine.handle(head_of("a")) == [told[0], told[2]], "it came back for it: one head more, delivered once"
    machine.handle(fetches("b"))
    assert machine.handle(head_of("c"))[-3:] == [
        Send("c", event.signed.receipt),
        Persist(RUN, Closed()),
        Finish(RUN, Outcome.CONVERGED, ""),
    ]
    assert machine.handle(head_of("c")) == [], "of a run that is over nothing is kept any more"


def test_a_head_that_is_not_countersigned_is_not_kept_and_both_are_told_why() -> None:
    machine = delivering("a", "b", "c")
    event = head_of("a", "", "a: of another key")
    assert event.signed is not None
    assert machine.handle(event) == [
        Persist(RUN, Delivered("a")),
        Notify(n.NotCountersigned(RUN, "a", "a: of another key")),
        Send("a", event.signed.receipt),
    ]


def test_who_does_not_come_for_its_model_in_time_is_named() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches("a")])
    assert machine.handle(machine.deadline) == [
        Notify(n.NotFetched(RUN, ("b", "c"))),
        Persist(RUN, Closed()),
        Finish(RUN, Outcome.CONVERGED, ""),
    ]


def test_a_site_that_turns_out_faulty_while_models_are_fetched_is_not_waited_for() -> None:
    machine = delivering("a", "b")
    all_of(machine, [fetches("a"), Breached("b", "a message of 10 MB")])
    assert machine.awaited == ("c",)
    machine.handle(joins("c"))
    reason = "c refused the plan: no"
    actions = machine.handle(Received("c", PlanRefused(RUN, "no")))
    assert told(actions) == [n.SiteDismissed(RUN, "c", reason, excluded=False)]
    assert actions[-1] == Finish(RUN, Outcome.CONVERGED, "")
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
    machine.handle(SiteLost("a", "gone"))
    actions = machine.handle(Received("b", Fault(RUN, 0, 0, "x")))
    assert [s.site for s in sends(actions) if isinstance(s.message, Finished)] == ["c"]
    assert machine.awaited == ("c",)
    assert machine.handle(SiteLost("c", "gone"))[-2:] == [
        Persist(RUN, Closed()),
        Finish(RUN, Outcome.SITE_FAULT, "b: x"),
    ]


def test_an_interruption_while_models_are_fetched_keeps_the_outcome_and_the_run_open() -> None:
    machine = begun()
    machine.handle(Received("b", Fault(RUN, 0, 0, "x")))
    assert machine.handle(Interrupted()) == [Finish(RUN, Outcome.SITE_FAULT, "b: x")]
    machine = delivering("a", "b", "c")
    machine.handle(fetches("a"))
    assert machine.handle(Interrupted()) == [Finish(RUN, Outcome.CONVERGED, "")], "not closed: it goes on delivering"


# --- a coordinator that was killed --------------------------------------------------------------------------------


def taken_up(first: Pump, *, restarted: bool) -> Pump:
    """The same command after a kill; ``restarted``: its sites are other processes too, with what their ledgers tell."""
    sites = all_restarted(first.sites) if restarted else first.sites
    return Pump(first.machine.plan, sites, [*first.machine.records, *first.records]).join().run()


def same_bits(expected: Pump, *pumps: Pump) -> bool:
    """What sites ended with, in whichever process they heard of it."""
    bits = {site: bits for pump in pumps for site, bits in pump.bits.items()}
    clean = not any(site.breach for pump in pumps for site in pump.sites.values())
    return bits == expected.bits and clean and pumps[-1].end == expected.end


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_killed_after_any_record_a_run_ends_on_the_same_bits(schedule: str, restarted: bool) -> None:
    plan = make_plan(schedule=schedule, sites=("a", "b"), coupling=(0.3, 0.8))
    expected = undisturbed(plan)
    assert expected.end == Finish(RUN, Outcome.CONVERGED, "")
    assert len(expected.records) > 5
    for kept in range(1, len(expected.records)):
        first = Pump(plan, make_sites(plan.sites), kill_after=kept).join().run()
        assert len(first.records) == kept
        again = taken_up(first, restarted=restarted)
        assert same_bits(expected, first, again), f"killed after {kept} records"


def test_killed_again_and_again_it_still_ends_on_the_same_bits() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    lives = [Pump(plan, make_sites(plan.sites), kill_after=1).join().run()]
    while lives[-1].end is None:
        last = lives[-1]
        records = [*last.machine.records, *last.records]
        again = Pump(plan, all_restarted(last.sites), records, kill_after=1 if len(lives) % 2 else 2)
        lives.append(again.join().run())
    assert len(lives) > 6
    assert same_bits(expected, *lives)


def test_killed_between_a_question_and_its_last_answer_the_same_sites_answer_from_their_cache() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(4)
    asked = {name: site.answered for name, site in pump.sites.items()}  # question 4 is answered, nothing is written
    views = {name: site.view for name, site in pump.sites.items()}
    again = Pump(plan, pump.sites, pump.records).join().steps(1)
    # Question 4 once more, and question 5, whose answers are on their way.
    assert {name: site.answered - asked[name] for name, site in again.sites.items()} == {"a": 2, "b": 2, "c": 2}
    assert {name: site.view for name, site in again.sites.items()} == views, "nothing is factored again"
    assert again.run().bits == expected.bits


@pytest.mark.parametrize("last", [StepTaken, Ended])
def test_killed_while_models_are_fetched_it_goes_on_delivering(last: type[Record]) -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    upto = max(i for i, r in enumerate(expected.records) if isinstance(r, last)) + 1
    first = Pump(plan, make_sites(plan.sites), kill_after=upto).join().run()
    machine = Machine(plan, records=first.records)
    [*ended, notify, deadline] = machine.start()
    assert [type(r) for r in written(ended)] == ([Ended] if last is StepTaken else [])
    assert (notify, deadline) == (Notify(n.DeliveryTakenUp(RUN, ("a", "b", "c"))), SetDeadline(RUN, 1, 3.0))
    assert machine.phase is Phase.DELIVERING
    late = Pump(plan, all_restarted(first.sites), first.records).join("b").run()
    assert late.bits == {"b": expected.bits["b"]}
    assert late.machine.awaited == ("a", "c")
    late.out_of_time()
    assert late.end == Finish(RUN, Outcome.CONVERGED, "")
    assert late.records[-2:] == [Delivered("b"), Closed()]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stalled_run_is_taken_up_where_it_was_and_ends_on_the_same_bits(schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    expected = undisturbed(plan)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(4)
    ledgers = all_restarted(pump.sites)
    pump.events.clear()  # every site is away, b for longer than the run waits
    assert pump.out_of_time().machine.phase is Phase.STALLED
    while pump.end is None:
        pump.out_of_time()
    assert pump.end.outcome is Outcome.STALLED
    assert not any(isinstance(r, Ended) for r in pump.records)
    assert Pump(plan, ledgers, pump.records).join().run().bits == expected.bits


def test_a_run_taken_up_whose_sites_are_late_again_can_be_taken_up_once_more() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    first = Pump(plan, make_sites(plan.sites), kill_after=4).join().run()
    late = Pump(plan, all_restarted(first.sites), first.records).join("a", "b").out_of_time()
    late.run()  # those who are here fetch what there is
    assert late.end == Finish(RUN, Outcome.TOO_FEW_SITES, "c did not accept the plan in time")
    assert not any(site.breach for site in late.sites.values())
    assert late.records == []
    once_more = Pump(plan, all_restarted(late.sites), first.records).join().run()
    assert once_more.bits == expected.bits


def test_a_run_taken_up_waits_for_its_own_sites_and_sends_the_plan_at_once() -> None:
    plan = make_plan(sites=("a", "b", "c", "d"), min_sites=3)
    first = Pump(plan, make_sites("abc"), kill_after=4).join().out_of_time().run()
    machine = Machine(plan, records=first.records)
    assert machine.start() == [
        Notify(n.AnswersInClear(RUN)),
        Notify(n.RunTakenUp(RUN, 3, ("a", "b", "c"))),
        SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.phase is Phase.RETURNING
    assert machine.handle(joins("a")) == [Notify(n.Joined(RUN, "a", 1, 4)), Send("a", plan)]
    machine.handle(joins("b"))
    reason = dismissed(machine, accepts(machine, "b", n_unlabelled=7), Outcome.REFUSED, excluded=False)
    assert "came back with another data" in reason
    machine.handle(joins("d"))
    reason = dismissed(machine, accepts(machine, "d", n_unlabelled=7), Outcome.REFUSED, excluded=False)
    assert "7 unlabelled instances, a has 6" in reason
    reason = "a, b, c did not accept the plan in time"
    assert machine.handle(DeadlinePassed(RUN, 1)) == [
        Notify(n.RunEnded(RUN, Outcome.TOO_FEW_SITES, reason)),
        Finish(RUN, Outcome.TOO_FEW_SITES, reason),
    ]


def returning(on_lost: str) -> tuple[Machine, dict[str, Event]]:
    """Killed after three questions of a, b and c; everybody is back, and the events are their acceptances."""
    plan = make_plan(on_lost=on_lost)
    first = Pump(plan, make_sites(plan.sites), kill_after=4).join().run()
    machine = started(plan, first.records)
    accepting: dict[str, Event] = {}
    for name, site in all_restarted(first.sites).items():
        machine.handle(SiteJoined(site.hello()))
        [answer] = site.handle(plan)
        accepting[name] = Received(name, answer)
    return machine, accepting


def test_a_run_taken_up_goes_on_without_a_site_that_now_refuses() -> None:
    machine, accepting = returning("continue")
    all_of(machine, [accepting["a"], accepting["b"]])
    assert machine.phase is Phase.RETURNING
    actions = machine.handle(Received("c", PlanRefused(RUN, "no")))
    assert [s.site for s in sends(actions) if isinstance(s.message, Ask)] == ["a", "b"]
    assert machine.participants == ("a", "b")


def test_a_run_taken_up_goes_on_without_a_site_that_is_late_where_its_plan_continues() -> None:
    machine, accepting = returning("continue")
    all_of(machine, [accepting["a"], accepting["b"]])
    actions = machine.handle(machine.deadline)
    assert told(actions)[0] == n.GoingOnWithout(RUN, ("c",), "answer the plan")
    [changed] = written(actions)
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.participants, changed.dropped) == (1, ("a", "b"), {"c": 3})


def test_a_run_taken_up_ends_where_its_plan_waits_for_a_site_that_now_refuses() -> None:
    machine, accepting = returning("wait")
    all_of(machine, [accepting["a"], accepting["b"]])
    assert told(machine.handle(Received("c", PlanRefused(RUN, "no"))))[-1] == (
        n.RunEnded(RUN, Outcome.REFUSED, "c refused the plan: no")
    )
    assert machine.phase is Phase.DELIVERING


def test_a_site_that_is_no_member_waits_for_those_that_are_when_a_run_is_taken_up() -> None:
    plan = make_plan(sites=("a", "b", "c"), on_lost="continue")
    first = Pump(plan, make_sites("ab"), kill_after=4).join().out_of_time().run()
    machine = started(plan, first.records)
    assert machine.awaited == ("a", "b")
    all_of(machine, comes_back(machine, "c"))
    assert machine.phase is Phase.RETURNING


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
@pytest.mark.parametrize("min_sites", [2, 3])
def test_killed_between_an_exclusion_and_what_follows_from_it_the_same_follows(on_lost: str, min_sites: int) -> None:
    """A fault of c is on record, and what the run makes of it is not: an end, or another membership."""
    plan = make_plan(on_lost=on_lost, min_sites=min_sites)
    alive, killed = faulted(plan), faulted(plan, kill_after=5)
    assert killed.records[4:] == [SiteExcluded("c", Outcome.SITE_FAULT, "c: the disk is full")]
    honest = {name: site for name, site in all_restarted(killed.sites).items() if name != "c"}
    again = Pump(plan, honest, killed.records).join().run()
    goes_on = on_lost == "continue" and min_sites == 2
    assert again.end == alive.end
    assert again.end is not None
    assert again.end.outcome is (Outcome.CONVERGED if goes_on else Outcome.SITE_FAULT)
    assert again.bits == {name: bits for name, bits in alive.bits.items() if name != "c"}
    assert not any(site.breach for site in honest.values())


def faulted(plan: Plan, kill_after: int | None = None) -> Pump:
    """c cannot answer the fourth question."""
    pump = Pump(plan, make_sites(plan.sites), kill_after=kill_after).join().steps(3)
    ask = pump.machine.run.live.ask
    assert ask is not None
    pump.events = type(pump.events)(without(pump.events, "c"))
    pump.events.append(Received("c", Fault(RUN, ask.question, ask.attempt, "the disk is full")))
    return pump.run()
