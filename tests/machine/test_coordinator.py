"""The coordinator, one event at a time: what goes in, and the whole list of what comes out."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tiny import (
    IDS,
    SCHEDULES,
    TIMEOUTS,
    UNLABELLED,
    Pump,
    acceptance,
    column,
    hello,
    make_plan,
    make_site,
    make_sites,
    resumption_of,
    undisturbed,
)

from coordinator.events import (
    Action,
    DeadlinePassed,
    Ended,
    Event,
    Finish,
    Interrupted,
    Membership,
    Persist,
    Received,
    Reject,
    Report,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
    StepTaken,
)
from coordinator.machine import Coordinator
from coordinator.phases import Phase, Timeouts
from coreg_core.messages import Ask, Fault, Finished, Leaving, Plan, PlanRefused, Prediction, Vector
from coreg_core.rounds.schedule import Stop

ZEROS, ONES = Vector(np.zeros((UNLABELLED, 1))), Vector(np.ones((UNLABELLED, 1)))


def small_plan(**changes: object) -> Plan:
    """One column, so that a vector can be read off the page; the consensus iteration, whose first state is plain."""
    return make_plan(**({"coupling": (0.25,), "schedule": "consensus"} | changes))


def begun(plan: Plan | None = None, *joining: str) -> Coordinator:
    """In its first round, with these sites (all of them unless told)."""
    machine = Coordinator(plan or small_plan(), TIMEOUTS)
    machine.start()
    names = joining or machine.plan.sites
    for site in names:
        machine.handle(SiteJoined(hello(site)))
    if machine.phase is Phase.ENROLLING:
        machine.handle(DeadlinePassed(1))
    for site in names:
        machine.handle(Received(site, acceptance(site, machine.plan)))
    assert machine.phase is Phase.ROUND
    return machine


def accepts(machine: Coordinator, site: str, **changes: object) -> Event:
    return Received(site, acceptance(site, machine.plan, **changes))


def answers(site: str, values: Vector = ONES, round_: int = 0, attempt: int = 0) -> Event:
    return Received(site, Prediction("run-1", round_, attempt, values))


def ask(round_: int, attempt: int = 0, targets: Vector = ZEROS, weight: float = 1.5) -> Ask:
    """The consensus iteration's question: 2 λ M = 2 · 0.25 · 3 for three sites."""
    return Ask("run-1", round_, attempt, "affine", (weight,), targets)


def sends(actions: list[Action]) -> list[Send]:
    return [a for a in actions if isinstance(a, Send)]


def all_of(machine: Coordinator, events: Iterator[Event] | list[Event]) -> list[Action]:
    return [action for event in events for action in machine.handle(event)]


def told(machine: Coordinator, event: Event) -> str:
    """The one reason that a site hears when it is rejected, and that the operator sees too."""
    [reject, report, *_] = machine.handle(event)
    assert isinstance(reject, Reject)
    assert report == Report(reject.reason)
    return reject.reason


# --- a run that goes well -----------------------------------------------------------------------------------------


def test_a_run_from_its_first_event_to_its_last() -> None:
    plan = small_plan(sites=("a", "b"), tolerance=0.0, prediction_tolerance=0.0, max_rounds=2)
    machine = Coordinator(plan, TIMEOUTS)
    assert machine.start() == [Report("run run-1: waiting for a, b"), SetDeadline(1, 1.0)]
    assert machine.handle(SiteJoined(hello("b"))) == [Report("b joined (1 of 2)")]
    assert machine.handle(SiteJoined(hello("a"))) == [
        Report("a joined (2 of 2)"),
        Report("plan sent"),
        SetDeadline(2, 2.0),
        Send("a", plan),
        Send("b", plan),
    ]
    assert machine.phase is Phase.PLANNING
    assert machine.handle(accepts(machine, "b")) == [Report("b accepted the plan")]
    first = ask(0, weight=1.0)
    [ready, persist, report, *rest] = machine.handle(accepts(machine, "a"))
    assert (ready, report) == (Report("a accepted the plan"), Report("2 sites: a, b"))
    assert isinstance(persist, Persist)
    assert isinstance(membership := persist.record, Membership)
    assert (membership.attempt, membership.round, membership.n_unlabelled) == (0, 0, UNLABELLED)
    assert membership.ids_digest == IDS
    assert membership.participants == {s: acceptance(s, plan) for s in ("a", "b")}
    assert rest == [SetDeadline(3, 3.0), Send("a", first), Send("b", first)]
    assert machine.phase is Phase.ROUND

    assert machine.handle(answers("b", column(*6 * [3.0]))) == []
    [persist, report, *rest] = machine.handle(answers("a", column(*6 * [1.0])))
    assert isinstance(persist, Persist)
    assert isinstance(step := persist.record, StepTaken)
    assert (step.round, step.attempt, step.answered, step.total) == (0, 0, 2, column(*6 * [4.0]))
    assert report == Report("", step)
    second = ask(1, targets=column(*6 * [2.0]), weight=1.0)
    assert rest == [SetDeadline(4, 3.0), Send("a", second), Send("b", second)]

    machine.handle(answers("a", round_=1))
    [persist, _, *rest] = machine.handle(answers("b", round_=1))
    assert isinstance(persist, Persist)
    finished = Finished("run-1", Stop.MAX_ROUNDS, "", (1.0,), column(*6 * [2.0]))
    assert rest == [Send("a", finished), Send("b", finished), SetDeadline(5, 3.0)]
    assert machine.phase is Phase.DELIVERING
    assert machine.handle(Received("a", Leaving("the run is over"))) == []
    assert machine.missing == ("b",)
    end = Ended(Stop.MAX_ROUNDS, "")
    assert machine.handle(Received("b", Leaving("the run is over"))) == [
        Persist(end),
        Finish(Stop.MAX_ROUNDS, ""),
    ]
    assert machine.phase is Phase.DONE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_real_sites_converge_and_fetch_their_models(schedule: str) -> None:
    pump = undisturbed(make_plan(schedule=schedule))
    assert pump.end == Finish(Stop.CONVERGED, "")
    assert pump.records[-1] == Ended(Stop.CONVERGED, "")
    assert [s.result.stop for s in pump.sites.values() if s.result] == 3 * [Stop.CONVERGED]
    assert all(len(s.result.solutions) == 2 for s in pump.sites.values() if s.result)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_order_of_arrival_changes_no_bit(schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    expected = undisturbed(plan)
    for seed in range(4):
        shuffled = Pump(Coordinator(plan, TIMEOUTS), make_sites(plan.sites), random.Random(seed)).join().run()
        assert shuffled.bits == expected.bits
        assert [r for r in shuffled.records if isinstance(r, StepTaken)][-1].total == (
            [r for r in expected.records if isinstance(r, StepTaken)][-1].total
        )


def test_algorithm_1_asks_one_site_after_another() -> None:
    machine = begun(small_plan(schedule="block-coordinate-descent"))
    assert machine.missing == ("a",)
    assert machine.handle(answers("b")) == []  # nobody asked
    assert [s.site for s in sends(machine.handle(answers("a")))] == ["b"]
    assert [s.site for s in sends(machine.handle(answers("b", round_=1)))] == ["c"]
    assert [s.site for s in sends(machine.handle(answers("c", round_=2)))] == ["a"]


# --- who may join -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (hello("b", protocol=7), ["speaks protocol 7", "this coordinator 1", "Install the same release"]),
        (hello("b", n_unlabelled=5), ["5 unlabelled instances", "a has 6", "compare the two id columns"]),
        (hello("b", n_unlabelled=0), ["shares no unlabelled instance", "--unlabelled FILE"]),
        (hello("b", ids_digest="other-ids"), ["6 unlabelled instances as a", "ids differ", "other-ids", IDS[:12]]),
        (hello("z"), ["not in this run's list of sites (a, b, c)", "federation.toml"]),
    ],
)
def test_a_mismatch_names_the_counts_and_what_to_do(late: object, words: list[str]) -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    machine.handle(SiteJoined(hello("a")))
    reason = told(machine, SiteJoined(late))  # type: ignore[arg-type]
    assert all(word in reason for word in words), reason
    assert machine.missing == ("b", "c")
    assert machine.handle(SiteJoined(hello("b"))) == [Report("b joined (2 of 3)")]  # once it is mended


def test_a_site_that_joined_alone_may_mend_its_own_list() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    machine.handle(SiteJoined(hello("a", n_unlabelled=5)))
    machine.handle(SiteLost("a", "stopped by its operator"))
    assert machine.handle(SiteJoined(hello("a"))) == [Report("a joined (1 of 3)")]
    assert machine.handle(SiteJoined(hello("b"))) == [Report("b joined (2 of 3)")]


def test_a_site_that_joins_twice_counts_once() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    assert machine.handle(SiteJoined(hello("a"))) == [Report("a joined (1 of 3)")]
    assert machine.handle(SiteJoined(hello("a"))) == [Report("a joined (1 of 3)")]
    assert machine.missing == ("b", "c")


def test_nobody_joins_a_run_that_is_over() -> None:
    machine = begun()
    machine.handle(Interrupted())
    assert "run run-1 is over" in told(machine, SiteJoined(hello("a")))


def test_two_hellos_in_one_session_exclude_the_site() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    machine.handle(SiteJoined(hello("a")))
    assert "said hello twice" in told(machine, Received("a", hello("a")))
    assert "no longer in this run" in told(machine, SiteJoined(hello("a")))


# --- the other ends -----------------------------------------------------------------------------------------------


def test_too_few_sites_join() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    machine.handle(SiteJoined(hello("b")))
    reason = "a, c did not join within 1 s"
    assert machine.handle(DeadlinePassed(1)) == [
        Send("b", Finished("run-1", Stop.TOO_FEW_SITES, reason)),
        SetDeadline(2, 3.0),
    ]
    end = [Persist(Ended(Stop.TOO_FEW_SITES, reason)), Finish(Stop.TOO_FEW_SITES, reason)]
    assert machine.handle(Received("b", Leaving("the run is over"))) == end


def test_the_reason_and_the_advice_are_both_told() -> None:
    assert Stop.CONVERGED.told("") == f"converged: {Stop.CONVERGED.value}"
    assert Stop.STALLED.told("b is away") == f"stalled: b is away. {Stop.STALLED.value}"
    assert Stop.SITE_FAULT.told("b: no. Check it.") == f"site_fault: b: no. Check it. {Stop.SITE_FAULT.value}"


def test_nobody_joins_at_all() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    assert machine.handle(DeadlinePassed(1))[-1] == Finish(Stop.TOO_FEW_SITES, "a, b, c did not join within 1 s")


def test_too_few_sites_accept_in_time() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    all_of(machine, [SiteJoined(hello(s)) for s in "abc"])
    machine.handle(accepts(machine, "a"))
    actions = machine.handle(DeadlinePassed(2))
    reason = "b, c did not accept the plan in time"
    assert sends(actions) == [Send(s, Finished("run-1", Stop.TOO_FEW_SITES, reason)) for s in "abc"]


def test_enough_sites_go_on_without_one_that_did_not_join_and_do_not_wait_for_it_again() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    all_of(machine, [SiteJoined(hello(s)) for s in "ab"])
    assert machine.handle(DeadlinePassed(1)) == [
        Report("going on without c, who did not join in time"),
        Report("plan sent"),
        SetDeadline(2, 2.0),
        Send("a", machine.plan),
        Send("b", machine.plan),
    ]
    machine.handle(accepts(machine, "a"))
    machine.handle(accepts(machine, "b"))
    assert (machine.phase, machine.participants) == (Phase.ROUND, ("a", "b"))


def test_a_refusal_ends_a_run_that_needs_the_site() -> None:
    machine = Coordinator(small_plan(min_sites=3), TIMEOUTS)
    machine.start()
    all_of(machine, [SiteJoined(hello(s)) for s in "abc"])
    reason = "b refused the plan: against this site's policy"
    actions = machine.handle(Received("b", PlanRefused("run-1", "against this site's policy")))
    assert actions[:2] == [Reject("b", reason), Report(reason)]
    assert sends(actions) == [Send(s, Finished("run-1", Stop.REFUSED, reason)) for s in "ac"]
    assert all_of(machine, [Received(s, Leaving("")) for s in "ac"])[-1] == Finish(Stop.REFUSED, reason)


def test_a_refusal_before_the_first_round_is_borne_where_enough_remain() -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    all_of(machine, [SiteJoined(hello(s)) for s in "abc"])
    all_of(machine, [accepts(machine, s) for s in "ac"])
    actions = machine.handle(Received("b", PlanRefused("run-1", "no")))
    assert [s.site for s in sends(actions)] == ["a", "c"]
    assert machine.participants == ("a", "c")
    assert machine.handle(Received("b", PlanRefused("another-run", "no"))) == []


def test_a_fault_ends_a_run_whose_plan_waits() -> None:
    machine = begun()
    actions = machine.handle(Received("b", Fault("run-1", 0, 0, "the disk is full")))
    assert actions[:2] == [Reject("b", "b: the disk is full"), Report("b: the disk is full")]
    assert sends(actions) == [Send(s, Finished("run-1", Stop.SITE_FAULT, "b: the disk is full")) for s in "ac"]


def test_a_fault_is_borne_by_a_plan_that_continues() -> None:
    machine = begun(small_plan(on_lost="continue"))
    machine.handle(answers("a"))
    actions = machine.handle(Received("b", Fault("run-1", 0, 0, "the disk is full")))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions) == [Send("a", again), Send("c", again)]
    assert machine.handle(answers("a")) == []  # of the attempt before
    assert "no longer in this run: b: the disk is full" in told(machine, SiteJoined(hello("b")))


def test_a_fault_keeps_the_site_that_is_only_away_for_a_moment() -> None:
    machine = begun(small_plan(on_lost="continue"))
    machine.handle(SiteLost("a", "its stream ended"))
    actions = machine.handle(Received("b", Fault("run-1", 0, 0, "the disk is full")))
    assert machine.participants == ("a", "c")
    assert [s.site for s in sends(actions)] == ["c"]


@pytest.mark.parametrize("late", [Fault("run-1", 0, 1, "x"), Fault("run-1", 1, 0, "x"), Fault("run-2", 0, 0, "x")])
def test_a_fault_about_another_question_changes_nothing(late: Fault) -> None:
    assert begun().handle(Received("b", late)) == []


def test_a_fault_of_a_session_that_has_not_accepted_changes_nothing() -> None:
    """A question that was on its way to the session before this one: a fresh agent can only refuse it."""
    machine = begun()
    machine.handle(SiteJoined(hello("b")))
    assert machine.handle(Received("b", Fault("run-1", 0, 0, "no plan is accepted, so nothing is answered."))) == []
    assert sends(machine.handle(accepts(machine, "b"))) == [Send("b", ask(0))]


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(DeadlinePassed(3)) == [Report("stalled: waiting for b"), SetDeadline(4, 4.0)]
    assert machine.phase is Phase.WAITING
    reason = "b did not come back within 4 s"
    actions = machine.handle(DeadlinePassed(4))
    assert sends(actions) == [Send(s, Finished("run-1", Stop.STALLED, reason)) for s in "abc"]
    assert machine.handle(DeadlinePassed(5)) == [  # nothing is persisted: the same command takes it up again
        Report("a, b, c did not fetch the final models"),
        Finish(Stop.STALLED, reason),
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stalled_run_is_taken_up_where_it_was_and_ends_on_the_same_bits(schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    expected = undisturbed(plan)
    pump = Pump(Coordinator(plan, TIMEOUTS), make_sites(plan.sites)).join()
    while sum(isinstance(r, StepTaken) for r in pump.records) < 4:
        pump.step()
    pump.events.clear()  # every site is away, b for longer than the run waits
    for phase in (Phase.WAITING, Phase.DELIVERING, Phase.DONE):
        pump.carry_out(pump.machine.handle(DeadlinePassed(pump.machine._token)))
        assert pump.machine.phase is phase
    assert pump.end is not None
    assert pump.end.stop is Stop.STALLED
    assert not any(isinstance(r, Ended) for r in pump.records)
    again = Coordinator(plan, TIMEOUTS, resumption_of(pump.records))
    assert Pump(again, make_sites(plan.sites)).join().run().bits == expected.bits


def test_a_run_taken_up_whose_sites_are_late_again_can_be_taken_up_once_more() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    written = expected.records[:4]
    late = Pump(Coordinator(plan, TIMEOUTS, resumption_of(written)), make_sites("ab")).join().run()
    late.carry_out(late.machine.handle(DeadlinePassed(1)))
    late.run()  # those who are here fetch what there is, and leave
    assert late.end == Finish(Stop.TOO_FEW_SITES, "c did not accept the plan in time")
    assert late.records == []
    once_more = Pump(Coordinator(plan, TIMEOUTS, resumption_of(written)), make_sites(plan.sites)).join().run()
    assert once_more.bits == expected.bits


@pytest.mark.parametrize("stop", [Stop.STALLED, Stop.TOO_FEW_SITES])
def test_what_can_be_taken_up_says_so(stop: Stop) -> None:
    assert "the same command" in stop.value
    assert "run again" not in stop.value


def test_max_rounds_is_an_end_with_models() -> None:
    pump = undisturbed(make_plan(max_rounds=3))
    assert pump.end == Finish(Stop.MAX_ROUNDS, "")
    assert all(m.targets is not None for m in pump.models.values())


def test_an_interruption_is_no_end_of_the_run() -> None:
    machine = begun()
    assert machine.handle(Interrupted()) == [Finish(Stop.INTERRUPTED, "")]  # nothing is persisted: it is taken up again
    assert machine.handle(Interrupted()) == []


def test_an_interruption_while_models_are_fetched_keeps_the_outcome() -> None:
    machine = begun()
    machine.handle(Received("b", Fault("run-1", 0, 0, "x")))
    assert machine.handle(Interrupted()) == [Persist(Ended(Stop.SITE_FAULT, "b: x")), Finish(Stop.SITE_FAULT, "b: x")]


# --- answers that are late, repeated or wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray",
    [
        answers("a", round_=1),
        answers("a", attempt=1),
        Received("a", Prediction("run-0", 0, 0, ONES)),
        Received("stranger", Prediction("run-1", 0, 0, ONES)),
        DeadlinePassed(2),
        SiteLost("stranger", ""),
    ],
)
def test_what_belongs_to_no_open_question_changes_nothing(stray: Event) -> None:
    machine = begun()
    assert machine.handle(stray) == []
    assert machine.missing == ("a", "b", "c")


def test_the_first_answer_counts_and_its_repetition_does_not() -> None:
    machine = begun()
    assert all_of(machine, [answers("a"), answers("a", ZEROS), answers("b")]) == []
    [persist, *_] = machine.handle(answers("c"))
    assert isinstance(persist, Persist)
    assert isinstance(persist.record, StepTaken)
    assert persist.record.total == column(*6 * [3.0])
    assert machine.handle(answers("a")) == []  # late


@pytest.mark.parametrize("shape", [(5, 1), (7, 1), (6, 2), (1, 6)])
def test_a_wrong_shape_is_the_fault_of_the_site(shape: tuple[int, int]) -> None:
    machine = begun()
    reason = told(machine, answers("b", Vector(np.zeros(shape))))
    assert reason == (
        f"b: {shape} predictions in round 0, expected (6, 1). Check that its unlabelled file lists the shared instances."
    )
    assert machine.phase is Phase.DELIVERING


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_the_fault_of_the_site(bad: float) -> None:
    machine = begun()
    assert told(machine, answers("b", column(0, 0, 0, 0, 0, bad))).startswith("b: NaN or infinity")


@pytest.mark.parametrize("terms", [{"bound": np.nan}, {"bound": -1.0}, {"scale": np.inf}, {"plan_digest": "other"}])
def test_an_acceptance_that_cannot_be_used_excludes_the_site(terms: dict[str, object]) -> None:
    machine = Coordinator(small_plan(), TIMEOUTS)
    machine.start()
    all_of(machine, [SiteJoined(hello(s)) for s in "abc"])
    assert told(machine, accepts(machine, "b", **terms)).startswith("b")
    all_of(machine, [accepts(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")


# --- sites that are lost and come back ----------------------------------------------------------------------------


def test_a_lost_site_that_returns_is_asked_again_and_the_others_are_not() -> None:
    machine = begun()
    machine.handle(answers("a"))
    assert machine.handle(SiteLost("b", "its stream ended")) == [Report("b lost: its stream ended")]
    assert machine.handle(SiteJoined(hello("b"))) == [Report("b joined (3 of 3)"), Send("b", machine.plan)]
    assert machine.handle(accepts(machine, "b")) == [Report("b accepted the plan"), Send("b", ask(0))]
    machine.handle(answers("b"))
    assert sends(machine.handle(answers("c"))) == [Send(s, ask(1, targets=column(*6 * [1.0]))) for s in "abc"]


def test_a_plan_that_waits_takes_the_lost_site_back_where_it_was() -> None:
    machine = begun()
    all_of(machine, [SiteLost("b", "gone"), answers("a"), answers("c"), DeadlinePassed(3)])
    assert machine.phase is Phase.WAITING
    all_of(machine, [SiteJoined(hello("b")), accepts(machine, "b")])
    [persist, *_] = machine.handle(answers("b"))
    assert isinstance(persist, Persist)
    assert machine.phase is Phase.ROUND
    assert machine.participants == ("a", "b", "c")


def test_a_plan_that_continues_goes_on_without_the_lost_site() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [SiteLost("b", "gone"), answers("a"), answers("c")])
    [note, persist, report, *rest] = machine.handle(DeadlinePassed(3))
    assert note == Report("going on without b, who did not answer in time")
    assert isinstance(persist, Persist)
    assert isinstance(persist.record, Membership)
    assert (persist.record.attempt, list(persist.record.participants)) == (1, ["a", "c"])
    assert report == Report("2 sites: a, c")
    again = ask(0, attempt=1, weight=1.0)
    assert rest == [SetDeadline(4, 3.0), Send("a", again), Send("c", again)]


def test_below_the_minimum_a_plan_that_continues_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [SiteLost("b", "gone"), SiteLost("c", "gone"), answers("a")])
    assert machine.handle(DeadlinePassed(3)) == [Report("stalled: waiting for b, c"), SetDeadline(4, 4.0)]
    all_of(machine, [SiteJoined(hello("b")), accepts(machine, "b")])
    actions = machine.handle(answers("b"))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions) == [Send("a", again), Send("b", again)]
    assert machine.participants == ("a", "b")


def test_below_the_minimum_another_site_of_the_plan_serves_as_well() -> None:
    machine = begun(small_plan(on_lost="continue"), "a", "b")
    all_of(machine, [SiteLost("b", "gone"), answers("a"), DeadlinePassed(3)])
    assert machine.phase is Phase.WAITING
    machine.handle(SiteJoined(hello("c")))
    assert [s.site for s in sends(machine.handle(accepts(machine, "c")))] == ["a", "c"]


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
def test_a_returned_site_is_taken_back_at_a_rounds_end_and_nobody_is_dropped_for_it(on_lost: str) -> None:
    machine = begun(small_plan(on_lost=on_lost), "a", "b")
    all_of(machine, [SiteJoined(hello("c")), accepts(machine, "c"), answers("a"), SiteLost("a", "for a moment")])
    assert machine.participants == ("a", "b")
    actions = machine.handle(answers("b"))
    assert machine.participants == ("a", "b", "c")
    assert sends(actions) == [Send(s, ask(1, attempt=1)) for s in "bc"]
    assert sends(all_of(machine, [SiteJoined(hello("a")), accepts(machine, "a")])) == [
        Send("a", machine.plan),
        Send("a", ask(1, attempt=1)),
    ]


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
def test_a_site_that_is_not_counted_on_may_refuse(on_lost: str) -> None:
    machine = begun(small_plan(on_lost=on_lost), "a", "b")
    machine.handle(SiteJoined(hello("c")))
    reason = "c refused the plan: no"
    assert machine.handle(Received("c", PlanRefused("run-1", "no"))) == [Reject("c", reason), Report(reason)]
    assert (machine.phase, machine.participants) == (Phase.ROUND, ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"data_digest": "other"}, "data (or how they are preprocessed)"), ({"threads": 2}, "thread count")],
)
def test_a_site_that_comes_back_changed_is_refused_and_may_come_back_as_it_was(
    changes: dict[str, object], words: str
) -> None:
    machine = begun()
    all_of(machine, [SiteLost("b", "gone"), SiteJoined(hello("b"))])
    assert words in told(machine, accepts(machine, "b", **changes))
    assert machine.phase is Phase.ROUND
    assert machine.handle(answers("b")) == []  # its session is closed
    all_of(machine, [SiteJoined(hello("b"))])
    assert sends(machine.handle(accepts(machine, "b"))) == [Send("b", ask(0))]


def test_a_site_that_missed_the_end_fetches_its_model_later() -> None:
    plan = small_plan(tolerance=1e9, prediction_tolerance=1e9)  # converged after one round
    machine = begun(plan)
    all_of(machine, [answers(s) for s in "ab"])
    machine.handle(answers("c"))
    assert machine.phase is Phase.DELIVERING
    all_of(machine, [Received(s, Leaving("")) for s in "ab"])
    all_of(machine, [SiteLost("c", "gone"), SiteJoined(hello("c"))])
    finished = Finished("run-1", Stop.CONVERGED, "", (1.5,), ZEROS)
    assert sends(machine.handle(accepts(machine, "c"))) == [Send("c", finished)]
    assert machine.handle(Received("c", Leaving("")))[-1] == Finish(Stop.CONVERGED, "")


# --- a coordinator that was killed --------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_killed_after_any_record_a_run_ends_on_the_same_bits(schedule: str) -> None:
    plan = make_plan(schedule=schedule, sites=("a", "b"), coupling=(0.3, 0.8))
    expected = undisturbed(plan)
    assert expected.end == Finish(Stop.CONVERGED, "")
    assert len(expected.records) > 5
    sites = {name: make_site(name) for name in plan.sites}
    for kept in range(len(expected.records)):
        left = resumption_of(expected.records[:kept])
        pump = Pump(Coordinator(plan, TIMEOUTS, left), sites if kept % 2 else make_sites(plan.sites)).join().run()
        assert pump.bits == expected.bits, f"killed after {kept} records"
        assert pump.end == expected.end
        sites = {name: make_site(name) for name in plan.sites}


def test_killed_between_a_question_and_its_last_answer_the_same_sites_answer_from_their_cache() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    pump = Pump(Coordinator(plan, TIMEOUTS), make_sites(plan.sites)).join()
    while sum(isinstance(r, StepTaken) for r in pump.records) < 4:
        pump.step()
    asked = {name: site.answered for name, site in pump.sites.items()}  # question 4 is answered, nothing is written
    again = Pump(Coordinator(plan, TIMEOUTS, resumption_of(pump.records)), pump.sites).join()
    while sum(isinstance(r, StepTaken) for r in again.records) < 1:
        again.step()
    assert {name: site.answered - asked[name] for name, site in again.sites.items()} == {"a": 1, "b": 1, "c": 1}
    assert again.run().bits == expected.bits


def test_killed_while_models_are_fetched_it_goes_on_delivering() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    written = [r for r in expected.records if not isinstance(r, Ended)]
    machine = Coordinator(plan, TIMEOUTS, resumption_of(written))
    assert machine.start() == [Report("taking up run run-1, which is over"), SetDeadline(1, 3.0)]
    assert machine.phase is Phase.DELIVERING
    late = Pump(Coordinator(plan, TIMEOUTS, resumption_of(written)), make_sites(plan.sites)).join("b").run()
    assert late.bits == {"b": expected.bits["b"]}
    late.carry_out(late.machine.handle(DeadlinePassed(1)))
    assert late.end == Finish(Stop.CONVERGED, "")


def test_a_run_taken_up_waits_for_its_own_sites_and_sends_the_plan_at_once() -> None:
    written = [
        r for r in undisturbed(make_plan(sites=("a", "b", "c")), ("a", "b", "c")).records if not isinstance(r, Ended)
    ]
    plan = make_plan()
    machine = Coordinator(plan, TIMEOUTS, resumption_of(written[:4]))
    assert machine.start()[0] == Report("taking up run run-1 at question 3: waiting for a, b, c")
    assert machine.handle(SiteJoined(hello("a"))) == [Report("a joined (1 of 3)"), Send("a", plan)]
    assert "a has 6" in told(machine, SiteJoined(hello("b", n_unlabelled=7)))
    assert machine.handle(DeadlinePassed(1))[-1] == SetDeadline(2, 3.0)
    assert machine.phase is Phase.DELIVERING
    assert machine.handle(DeadlinePassed(2))[-1] == Finish(
        Stop.TOO_FEW_SITES, "a, b, c did not accept the plan in time"
    )


def test_a_run_taken_up_goes_on_without_a_site_that_now_refuses() -> None:
    plan = make_plan(on_lost="continue")
    machine = Coordinator(plan, TIMEOUTS, resumption_of(undisturbed(plan).records[:4]))
    machine.start()
    sites = make_sites("ab")
    for event in [SiteJoined(sites[s].hello()) for s in "ab"] + [SiteJoined(hello("c"))]:
        machine.handle(event)
    for s in "ab":
        machine.handle(Received(s, sites[s].handle(plan)[0]))
    assert machine.phase is Phase.ENROLLING
    actions = machine.handle(Received("c", PlanRefused("run-1", "no")))
    assert [s.site for s in sends(actions)] == ["a", "b"]
    assert machine.participants == ("a", "b")


def test_time_settings_are_the_callers() -> None:
    machine = Coordinator(small_plan(), replace(Timeouts(), join=9.0))
    assert machine.start()[-1] == SetDeadline(1, 9.0)
