"""coordinator/machine/rounds.py and questions.py: answers that are late, repeated or wrong, and answers that are held."""

import random
from collections.abc import Iterable

import numpy as np
import pytest
from machine.stepwise import (
    ONES,
    RUN,
    ZEROS,
    accepts,
    all_of,
    answers,
    ask,
    begun,
    dismissed,
    fetches,
    joins,
    members,
    sends,
    small_plan,
    told,
    written,
)
from machine.tiny import (
    IDS,
    SCHEDULES,
    UNLABELLED,
    Machine,
    Pump,
    Watched,
    acceptance,
    all_restarted,
    column,
    make_plan,
    make_sites,
    undisturbed,
    watched,
)

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase
from coordinator.machine.records import Closed, Delivered, Ended, MembershipChanged, Record, SiteExcluded, StepTaken
from coreg_core.agreement.columns import Column
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome


def test_a_run_from_its_first_event_to_its_last() -> None:
    plan = small_plan(sites=("a", "b"), tolerance=0.0, prediction_tolerance=0.0, max_rounds=2)
    machine = Machine(plan)
    clear = e.Notify(n.AnswersInClear(RUN))
    assert machine.start() == [clear, e.Notify(n.RunBegan(RUN, ("a", "b"))), e.SetDeadline(RUN, 1, 1.0)]
    assert machine.handle(joins("b")) == [e.Notify(n.Joined(RUN, "b", 1, 2))]
    assert machine.handle(joins("a")) == [
        e.Notify(n.Joined(RUN, "a", 2, 2)),
        e.Notify(n.PlanSent(RUN, ("a", "b"))),
        e.SetDeadline(RUN, 2, 2.0),
        e.Send("a", plan),
        e.Send("b", plan),
    ]
    assert machine.phase is Phase.PLANNING
    [_, ready] = machine.handle(accepts(machine, "b"))  # the first is `Expect`: test_membership.py
    assert ready == e.Notify(n.PlanAcceptedBy(RUN, "b"))
    first = ask(0, weight=1.0)
    [ready, persist, members, *rest] = machine.handle(accepts(machine, "a"))
    assert ready == e.Notify(n.PlanAcceptedBy(RUN, "a"))
    assert members == e.Notify(n.MembersAre(RUN, 0, ("a", "b")))
    [changed] = written([persist])
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.question, changed.participants) == (0, 0, ("a", "b"))
    assert changed.accepted == {s: acceptance(s, plan) for s in ("a", "b")}
    assert {(a.n_unlabelled, a.ids_digest) for a in changed.accepted.values()} == {(UNLABELLED, IDS)}
    assert (changed.returns, changed.dropped, changed.affine) == ({}, {}, {})
    assert rest == [e.SetDeadline(RUN, 3, 3.0), e.Send("a", first), e.Send("b", first)]
    assert machine.phase is Phase.ASKING

    assert machine.handle(answers("b", column(*6 * [3.0]))) == []
    [persist, shown, *rest] = machine.handle(answers("a", column(*6 * [1.0])))
    assert isinstance(persist, e.Persist)
    assert persist.record == StepTaken(0, 0, "affine", column(*6 * [4.0]), 2)
    [answered] = told([shown])
    assert isinstance(answered, n.QuestionAnswered)
    assert (answered.run, answered.question, answered.attempt, answered.answered) == (RUN, 0, 0, 2)
    assert answered.progress is not None
    assert persist.progress is not None
    assert (answered.progress.round, answered.progress.residual.tolist()) == (1, [np.linalg.norm(6 * [2.0])])
    assert persist.progress.residual.tolist() == answered.progress.residual.tolist()
    second = ask(1, targets=column(*6 * [2.0]), weight=1.0)
    assert rest == [e.SetDeadline(RUN, 4, 3.0), e.Send("a", second), e.Send("b", second)]

    machine.handle(answers("a", question=1))
    [_, _, persist, *rest] = machine.handle(answers("b", question=1))
    [ended] = written([persist])
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.reason) == (Outcome.MAX_ROUNDS, "")
    assert ended.models is not None
    assert m.Vector(ended.models.of(0)) == column(*6 * [2.0])
    finished = m.Finished(RUN, Outcome.MAX_ROUNDS, "", (Column(0.25, 1.0),), column(*6 * [2.0]))
    assert rest == [
        e.Notify(n.RunEnded(RUN, Outcome.MAX_ROUNDS, "")),
        e.Send("a", finished),
        e.Send("b", finished),
        e.SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.phase is Phase.DELIVERING
    assert machine.handle(fetches("a")) == [e.Persist(RUN, Delivered("a"))]
    assert machine.handle(e.Received("a", m.Leaving("it has its model"))) == []
    assert machine.awaited == ("b",)
    assert machine.handle(fetches("b")) == [
        e.Persist(RUN, Delivered("b")),
        e.Persist(RUN, Closed()),
        e.Finish(RUN, Outcome.MAX_ROUNDS, ""),
    ]
    assert machine.phase is Phase.DONE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_real_sites_converge_and_fetch_their_models(schedule: str) -> None:
    pump = undisturbed(make_plan(schedule=schedule))
    assert pump.end == e.Finish(RUN, Outcome.CONVERGED, "")
    ended, *rest = pump.records[-5:]
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.reason) == (Outcome.CONVERGED, "")
    assert rest == [Delivered("a"), Delivered("b"), Delivered("c"), Closed()]
    assert [s.result.outcome for s in pump.sites.values() if s.result] == 3 * [Outcome.CONVERGED]
    assert all(len(s.result.solutions) == 2 for s in pump.sites.values() if s.result)
    assert not any(s.breach for s in pump.sites.values())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_order_of_arrival_changes_no_bit(schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    expected = undisturbed(plan)
    for seed in range(4):
        shuffled = Pump(plan, make_sites(plan.sites), shuffle=random.Random(seed)).join().run()
        assert shuffled.bits == expected.bits
        assert [r for r in shuffled.records if isinstance(r, StepTaken)] == (
            [r for r in expected.records if isinstance(r, StepTaken)]
        )


def test_algorithm_1_asks_one_site_after_another() -> None:
    machine = begun(small_plan(schedule="block-coordinate-descent"))
    assert machine.awaited == ("a",)
    assert machine.handle(answers("b")) == []  # nobody asked
    assert [s.site for s in sends(machine.handle(answers("a")))] == ["b"]
    assert [s.site for s in sends(machine.handle(answers("b", question=1)))] == ["c"]
    assert [s.site for s in sends(machine.handle(answers("c", question=2)))] == ["a"]


@pytest.mark.parametrize(
    "stray",
    [
        answers("a", question=1),
        answers("a", attempt=1),
        e.Received("a", m.Prediction("run-0", 0, 0, ONES)),
        e.Received("stranger", m.Prediction(RUN, 0, 0, ONES)),
        e.DeadlinePassed(RUN, 2),
        e.DeadlinePassed("run-0", 3),
        e.SiteLost("stranger", ""),
    ],
)
def test_what_belongs_to_no_open_question_changes_nothing(stray: e.Event) -> None:
    machine = begun()
    before = machine.federation
    assert machine.handle(stray) == []
    assert machine.awaited == ("a", "b", "c")
    assert machine.federation == before


def test_the_first_answer_counts_and_its_repetition_does_not() -> None:
    machine = begun()
    assert all_of(machine, [answers("a"), answers("a", ZEROS), answers("b")]) == []
    [step] = written(machine.handle(answers("c")))
    assert step == StepTaken(0, 0, "affine", column(*6 * [3.0]), 3)
    assert machine.handle(answers("a")) == []  # late


@pytest.mark.parametrize("shape", [(5, 1), (7, 1), (6, 2), (1, 6)])
def test_a_wrong_shape_is_the_fault_of_the_site(shape: tuple[int, int]) -> None:
    machine = begun()
    reason = dismissed(machine, answers("b", m.Vector(np.zeros(shape))), Outcome.SITE_FAULT, excluded=True)
    assert reason == (
        f"b: {shape} predictions to question 0, expected (6, 1). "
        "Check that its unlabelled file lists the shared instances."
    )
    assert machine.phase is Phase.DELIVERING


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_the_fault_of_the_site(bad: float) -> None:
    machine = begun()
    reason = dismissed(machine, answers("b", column(0, 0, 0, 0, 0, bad)), Outcome.SITE_FAULT, excluded=True)
    assert reason.startswith("b: NaN or infinity")


def test_a_fault_ends_a_run_whose_plan_waits() -> None:
    machine = begun()
    reason = "b: the disk is full"
    actions = machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "the disk is full")))
    assert [type(r) for r in written(actions)] == [SiteExcluded, Ended]
    assert written(actions)[0] == SiteExcluded("b", Outcome.SITE_FAULT, reason)
    assert told(actions) == [
        n.SiteDismissed(RUN, "b", reason, excluded=True),
        n.RunEnded(RUN, Outcome.SITE_FAULT, reason),
    ]
    assert sends(actions) == [
        e.Send("b", m.Dismissed(RUN, Outcome.SITE_FAULT, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.SITE_FAULT, reason)) for s in "ac"),
    ]
    assert machine.awaited == ("a", "c"), "nobody waits for the site at fault"


def test_a_fault_is_borne_by_a_plan_that_continues() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    machine.handle(answers("a"))
    actions = machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "the disk is full")))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions)[1:] == [e.Send("a", again), e.Send("c", again)]
    assert machine.handle(answers("a")) == []  # of the attempt before
    reason = dismissed(machine, joins("b"), Outcome.SITE_FAULT, excluded=True)
    assert reason == "b: no longer in this run: b: the disk is full"
    assert machine.handle(accepts(machine, "b")) == []


def test_a_fault_keeps_the_site_that_is_only_away_for_a_moment() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    machine.handle(e.SiteLost("a", "its stream ended"))
    actions = machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "the disk is full")))
    assert machine.participants == ("a", "c")
    assert sends(actions)[1:] == [e.Send("c", ask(0, attempt=1, weight=1.0))]


@pytest.mark.parametrize("late", [m.Fault(RUN, 0, 1, "x"), m.Fault(RUN, 1, 0, "x"), m.Fault("run-2", 0, 0, "x")])
def test_a_fault_about_another_question_changes_nothing(late: m.Fault) -> None:
    assert begun().handle(e.Received("b", late)) == []


def test_a_fault_of_a_session_that_has_not_accepted_changes_nothing() -> None:
    """A question that was on its way to the session before this one: a fresh agent can only refuse it."""
    machine = begun()
    machine.handle(joins("b"))
    assert machine.handle(e.Received("b", m.Fault(RUN, 0, 0, "no plan is accepted, so nothing is answered."))) == []
    assert machine.handle(answers("b")) == []
    assert sends(machine.handle(accepts(machine, "b"))) == [e.Send("b", ask(0))]


@pytest.mark.parametrize("stalled", [False, True])
def test_an_interruption_is_no_end_of_the_run(stalled: bool) -> None:
    machine = begun()  # nothing is persisted: it is resumed
    machine.handle(machine.deadline) if stalled else None
    assert machine.phase is (Phase.STALLED if stalled else Phase.ASKING)
    assert machine.handle(e.Interrupted()) == [e.Finish(RUN, Outcome.INTERRUPTED, "")]
    assert machine.handle(e.Interrupted()) == []


# --- labels are asked for once ------------------------------------------------------------------------------------


HONEST = ("a", "b")


def summed(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """The memberships over which label-bearing answers were summed, in order."""
    found, now = [], ()
    for record in records:
        match record:
            case MembershipChanged(participants=now):
                pass
            case StepTaken(part="affine"):
                found.append(now)
    return found


def drop_c(pump: Pump) -> None:
    """Its session breaks before it answers, and time passes."""
    pump.without("c").events.append(e.SiteLost("c", "gone"))
    pump.out_of_time()


@pytest.fixture
def three() -> Pump:
    """At the first question of {a, b, c}, whose answers are on their way."""
    plan = make_plan(on_dropout="continue", tolerance=1e-13, prediction_tolerance=1e-10)
    pump = Pump(plan, watched(plan)).join()
    while pump.machine.phase is not Phase.ASKING:
        pump.step()
    return pump


def labels_asked(pump: Pump) -> dict[str, int]:
    return {name: site.label_bearing for name, site in pump.sites.items()}  # type: ignore[attr-defined]


def until_membership(pump: Pump, number: int) -> Pump:
    while len(members(pump.records)) < number:
        pump.step()
    return pump


def on_trial(pump: Pump, site: str) -> int:
    """Label-bearing questions that the site was asked of a membership that it was not of: they are answered once as well."""
    attempts = [r.participants for r in pump.records if isinstance(r, MembershipChanged)]
    asked = pump.sites[site].asked  # type: ignore[attr-defined]
    return sum(ask.part == "affine" and site not in attempts[ask.attempt] for ask in asked)


def test_the_sum_of_a_membership_that_was_is_used_again(three: Pump) -> None:
    drop_c(three.steps(1))
    assert members(three.records) == [("a", "b", "c"), HONEST]
    three.join("c").run()
    assert members(three.records) == [("a", "b", "c"), HONEST, ("a", "b", "c")]
    assert summed(three.records) == [("a", "b", "c"), HONEST]
    assert labels_asked(three) == {"a": 2, "b": 2, "c": 1 + on_trial(three, "c")}
    assert three.outcome is Outcome.CONVERGED
    total = next(r.total for r in three.records if isinstance(r, StepTaken))
    back = [r for r in three.records if isinstance(r, MembershipChanged)][-1]
    assert back.affine[("a", "b", "c")] == total
    assert np.array_equal(back.state["b"], total.values / 3)


@pytest.mark.parametrize("kept", ["before", "after"])
def test_the_sum_is_used_again_by_a_coordinator_that_was_killed(three: Pump, kept: str) -> None:
    """Killed while c was away, or just after it had been taken back."""
    drop_c(three.steps(1))
    plan = three.machine.plan
    if kept == "before":
        three.steps(3)
    else:
        until_membership(three.join("c"), 3)
        three.records = three.records[
            : 1 + max(i for i, r in enumerate(three.records) if isinstance(r, MembershipChanged))
        ]
    sites = {name: Watched(site) for name, site in all_restarted(three.sites).items()}
    again = Pump(plan, sites, three.records).join().run()
    assert again.outcome is Outcome.CONVERGED
    assert again.machine.participants == ("a", "b", "c")
    everything = [*three.records, *again.records]
    assert summed(everything) == [("a", "b", "c"), HONEST]
    assert labels_asked(again)["a"] == labels_asked(again)["b"] == 0


def test_answers_to_a_question_that_was_cut_short_are_held(three: Pump) -> None:
    """a and b answered it, c did not in time; its answer comes late, and then nobody has to be asked."""
    late = [x for x in three.events if getattr(x, "site", None) == "c"]
    assert len(late) == 1
    three.without("c").out_of_time()
    assert members(three.records) == [("a", "b", "c"), HONEST]
    three.events.extendleft(late)
    three.run()
    assert members(three.records) == [("a", "b", "c"), HONEST, ("a", "b", "c")]
    assert summed(three.records) == [HONEST, ("a", "b", "c")]
    assert labels_asked(three)["a"] == labels_asked(three)["b"] == 2
    assert three.outcome is Outcome.CONVERGED
