"""Questions and answers, event by event: answers that are late, repeated or wrong, sites that are lost and come back."""

import random
from typing import Any

import numpy as np
import pytest
from stepwise import (
    ONES,
    RUN,
    ZEROS,
    accepts,
    all_of,
    answers,
    ask,
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
from tiny import IDS, SCHEDULES, UNLABELLED, Machine, Pump, acceptance, column, make_plan, make_sites, undisturbed

from coordinator.machine import notices as n
from coordinator.machine.events import (
    DeadlinePassed,
    Event,
    Finish,
    Interrupted,
    Notify,
    Persist,
    Received,
    Send,
    SetDeadline,
    SiteLost,
)
from coordinator.machine.phases import Phase
from coordinator.machine.records import Closed, Delivered, Ended, MembershipChanged, SiteExcluded, StepTaken
from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Dismissed, Fault, Finished, Leaving, PlanRefused, Prediction, Vector
from coreg_core.protocol.outcomes import Outcome

# --- a run that goes well -----------------------------------------------------------------------------------------


def test_a_run_from_its_first_event_to_its_last() -> None:
    plan = small_plan(sites=("a", "b"), tolerance=0.0, prediction_tolerance=0.0, max_rounds=2)
    machine = Machine(plan)
    clear = Notify(n.AnswersInClear(RUN))
    assert machine.start() == [clear, Notify(n.RunBegan(RUN, ("a", "b"))), SetDeadline(RUN, 1, 1.0)]
    assert machine.handle(joins("b")) == [Notify(n.Joined(RUN, "b", 1, 2))]
    assert machine.handle(joins("a")) == [
        Notify(n.Joined(RUN, "a", 2, 2)),
        Notify(n.PlanSent(RUN, ("a", "b"))),
        SetDeadline(RUN, 2, 2.0),
        Send("a", plan),
        Send("b", plan),
    ]
    assert machine.phase is Phase.PLANNING
    [_, ready] = machine.handle(accepts(machine, "b"))  # the first is `Expect`: test_joining.py
    assert ready == Notify(n.PlanAcceptedBy(RUN, "b"))
    first = ask(0, weight=1.0)
    [ready, persist, members, *rest] = machine.handle(accepts(machine, "a"))
    assert ready == Notify(n.PlanAcceptedBy(RUN, "a"))
    assert members == Notify(n.MembersAre(RUN, 0, ("a", "b")))
    [changed] = written([persist])
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.question, changed.participants) == (0, 0, ("a", "b"))
    assert changed.accepted == {s: acceptance(s, plan) for s in ("a", "b")}
    assert {(a.n_unlabelled, a.ids_digest) for a in changed.accepted.values()} == {(UNLABELLED, IDS)}
    assert (changed.returns, changed.dropped, changed.affine) == ({}, {}, {})
    assert rest == [SetDeadline(RUN, 3, 3.0), Send("a", first), Send("b", first)]
    assert machine.phase is Phase.ASKING

    assert machine.handle(answers("b", column(*6 * [3.0]))) == []
    [persist, shown, *rest] = machine.handle(answers("a", column(*6 * [1.0])))
    assert isinstance(persist, Persist)
    assert persist.record == StepTaken(0, 0, "affine", column(*6 * [4.0]), 2)
    [answered] = told([shown])
    assert isinstance(answered, n.QuestionAnswered)
    assert (answered.run, answered.question, answered.attempt, answered.answered) == (RUN, 0, 0, 2)
    assert answered.progress is not None
    assert persist.progress is not None
    assert (answered.progress.round, answered.progress.residual.tolist()) == (1, [np.linalg.norm(6 * [2.0])])
    assert persist.progress.residual.tolist() == answered.progress.residual.tolist()
    second = ask(1, targets=column(*6 * [2.0]), weight=1.0)
    assert rest == [SetDeadline(RUN, 4, 3.0), Send("a", second), Send("b", second)]

    machine.handle(answers("a", question=1))
    [_, _, persist, *rest] = machine.handle(answers("b", question=1))
    [ended] = written([persist])
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.reason) == (Outcome.MAX_ROUNDS, "")
    assert ended.models is not None
    assert Vector(ended.models.of(0)) == column(*6 * [2.0])
    finished = Finished(RUN, Outcome.MAX_ROUNDS, "", (Column(0.25, 1.0),), column(*6 * [2.0]))
    assert rest == [
        Notify(n.RunEnded(RUN, Outcome.MAX_ROUNDS, "")),
        Send("a", finished),
        Send("b", finished),
        SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.phase is Phase.DELIVERING
    assert machine.handle(fetches("a")) == [Persist(RUN, Delivered("a"))]
    assert machine.handle(Received("a", Leaving("it has its model"))) == []
    assert machine.awaited == ("b",)
    assert machine.handle(fetches("b")) == [
        Persist(RUN, Delivered("b")),
        Persist(RUN, Closed()),
        Finish(RUN, Outcome.MAX_ROUNDS, ""),
    ]
    assert machine.phase is Phase.DONE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_real_sites_converge_and_fetch_their_models(schedule: str) -> None:
    pump = undisturbed(make_plan(schedule=schedule))
    assert pump.end == Finish(RUN, Outcome.CONVERGED, "")
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


# --- answers that are late, repeated or wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray",
    [
        answers("a", question=1),
        answers("a", attempt=1),
        Received("a", Prediction("run-0", 0, 0, ONES)),
        Received("stranger", Prediction(RUN, 0, 0, ONES)),
        fetches("a"),
        DeadlinePassed(RUN, 2),
        DeadlinePassed("run-0", 3),
        SiteLost("stranger", ""),
    ],
)
def test_what_belongs_to_no_open_question_changes_nothing(stray: Event) -> None:
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
    reason = dismissed(machine, answers("b", Vector(np.zeros(shape))), Outcome.SITE_FAULT, excluded=True)
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


# --- faults -------------------------------------------------------------------------------------------------------


def test_a_fault_ends_a_run_whose_plan_waits() -> None:
    machine = begun()
    reason = "b: the disk is full"
    actions = machine.handle(Received("b", Fault(RUN, 0, 0, "the disk is full")))
    assert [type(r) for r in written(actions)] == [SiteExcluded, Ended]
    assert written(actions)[0] == SiteExcluded("b", Outcome.SITE_FAULT, reason)
    assert told(actions) == [
        n.SiteDismissed(RUN, "b", reason, excluded=True),
        n.RunEnded(RUN, Outcome.SITE_FAULT, reason),
    ]
    assert sends(actions) == [
        Send("b", Dismissed(RUN, Outcome.SITE_FAULT, reason)),
        *(Send(s, Finished(RUN, Outcome.SITE_FAULT, reason)) for s in "ac"),
    ]
    assert machine.awaited == ("a", "c"), "nobody waits for the site at fault"


def test_a_fault_is_borne_by_a_plan_that_continues() -> None:
    machine = begun(small_plan(on_lost="continue"))
    machine.handle(answers("a"))
    actions = machine.handle(Received("b", Fault(RUN, 0, 0, "the disk is full")))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions)[1:] == [Send("a", again), Send("c", again)]
    assert machine.handle(answers("a")) == []  # of the attempt before
    reason = dismissed(machine, joins("b"), Outcome.SITE_FAULT, excluded=True)
    assert reason == "b: no longer in this run: b: the disk is full"
    assert machine.handle(accepts(machine, "b")) == []


def test_a_fault_keeps_the_site_that_is_only_away_for_a_moment() -> None:
    machine = begun(small_plan(on_lost="continue"))
    machine.handle(SiteLost("a", "its stream ended"))
    actions = machine.handle(Received("b", Fault(RUN, 0, 0, "the disk is full")))
    assert machine.participants == ("a", "c")
    assert sends(actions)[1:] == [Send("c", ask(0, attempt=1, weight=1.0))]


@pytest.mark.parametrize("late", [Fault(RUN, 0, 1, "x"), Fault(RUN, 1, 0, "x"), Fault("run-2", 0, 0, "x")])
def test_a_fault_about_another_question_changes_nothing(late: Fault) -> None:
    assert begun().handle(Received("b", late)) == []


def test_a_fault_of_a_session_that_has_not_accepted_changes_nothing() -> None:
    """A question that was on its way to the session before this one: a fresh agent can only refuse it."""
    machine = begun()
    machine.handle(joins("b"))
    assert machine.handle(Received("b", Fault(RUN, 0, 0, "no plan is accepted, so nothing is answered."))) == []
    assert machine.handle(answers("b")) == []
    assert sends(machine.handle(accepts(machine, "b"))) == [Send("b", ask(0))]


# --- sites that are lost and come back ----------------------------------------------------------------------------


def test_a_lost_site_that_returns_is_asked_again_and_the_others_are_not() -> None:
    machine = begun()
    machine.handle(answers("a"))
    assert machine.handle(SiteLost("b", "its stream ended")) == [
        Notify(n.Left(RUN, "b", "its stream ended", lost=True))
    ]
    assert machine.handle(joins("b")) == [Notify(n.Joined(RUN, "b", 3, 3)), Send("b", machine.plan)]
    assert machine.handle(accepts(machine, "b")) == [Notify(n.PlanAcceptedBy(RUN, "b")), Send("b", ask(0))]
    machine.handle(answers("b"))
    assert sends(machine.handle(answers("c"))) == [Send(s, ask(1, targets=column(*6 * [1.0]))) for s in "abc"]


def test_a_site_that_answered_and_was_lost_is_not_asked_again() -> None:
    machine = begun()
    all_of(machine, [answers("b"), SiteLost("b", "gone")])
    assert sends(all_of(machine, comes_back(machine, "b"))) == [Send("b", machine.plan)]
    assert machine.awaited == ("a", "c")


def test_a_plan_that_waits_takes_the_lost_site_back_where_it_was() -> None:
    machine = begun()
    all_of(machine, [SiteLost("b", "gone"), answers("a"), answers("c"), DeadlinePassed(RUN, 3)])
    assert machine.phase is Phase.STALLED
    all_of(machine, comes_back(machine, "b"))
    assert machine.phase is Phase.STALLED
    [step] = written(machine.handle(answers("b")))
    assert step == StepTaken(0, 0, "affine", column(*6 * [3.0]), 3)
    assert machine.phase is Phase.ASKING
    assert machine.participants == ("a", "b", "c")


def test_a_plan_that_continues_goes_on_without_the_lost_site() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [SiteLost("b", "gone"), answers("a"), answers("c")])
    [note, persist, members, *rest] = machine.handle(DeadlinePassed(RUN, 3))
    assert note == Notify(n.GoingOnWithout(RUN, ("b",), "answer in time"))
    [changed] = written([persist])
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.question, changed.participants) == (1, 0, ("a", "c"))
    assert (changed.dropped, changed.returns) == ({"b": 0}, {})
    assert members == Notify(n.MembersAre(RUN, 1, ("a", "c")))
    again = ask(0, attempt=1, weight=1.0)
    assert rest == [SetDeadline(RUN, 4, 3.0), Send("a", again), Send("c", again)]


def test_below_the_minimum_a_plan_that_continues_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [SiteLost("b", "gone"), SiteLost("c", "gone"), answers("a")])
    assert machine.handle(DeadlinePassed(RUN, 3)) == [
        Notify(n.Stalled(RUN, ("b", "c"), 4.0)),
        SetDeadline(RUN, 4, 4.0),
    ]
    all_of(machine, comes_back(machine, "b"))
    actions = machine.handle(answers("b"))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions) == [Send("a", again), Send("b", again)]
    assert machine.participants == ("a", "b")


def test_below_the_minimum_another_site_of_the_plan_serves_as_well_once_it_has_answered() -> None:
    machine = begun(small_plan(on_lost="continue"), "a", "b")
    all_of(machine, [SiteLost("b", "gone"), answers("a"), DeadlinePassed(RUN, 3)])
    assert machine.phase is Phase.STALLED
    machine.handle(joins("c"))
    assert sends(machine.handle(accepts(machine, "c"))) == [Send("c", ask(0, weight=1.0))]
    assert machine.phase is Phase.STALLED
    again = ask(0, attempt=1, weight=1.0)
    assert sends(machine.handle(answers("c"))) == [Send("a", again), Send("c", again)]
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "c"))


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
def test_a_newcomer_is_taken_in_at_a_rounds_end_and_nobody_is_dropped_for_it(on_lost: str) -> None:
    machine = begun(small_plan(on_lost=on_lost), "a", "b")
    on_trial = all_of(machine, comes_back(machine, "c"))
    assert sends(on_trial) == [Send("c", machine.plan), Send("c", ask(0, weight=1.0))]
    all_of(machine, [answers("c"), answers("a"), SiteLost("a", "for a moment")])
    assert machine.participants == ("a", "b")
    actions = machine.handle(answers("b"))
    assert machine.participants == ("a", "b", "c")
    [step] = [r for r in written(actions) if isinstance(r, StepTaken)]
    assert step.total == column(*6 * [2.0]), "what was answered on trial is in no sum"
    assert sends(actions) == [Send(s, ask(1, attempt=1)) for s in "bc"]
    assert sends(all_of(machine, comes_back(machine, "a"))) == [
        Send("a", machine.plan),
        Send("a", ask(1, attempt=1)),
    ]


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
@pytest.mark.parametrize(
    ("message", "outcome", "reason"),
    [
        (PlanRefused(RUN, "no"), Outcome.REFUSED, "c refused the plan: no"),
        (Fault(RUN, 0, 0, "no"), Outcome.SITE_FAULT, "c: no"),
        (
            Prediction(RUN, 0, 0, column(1.0)),
            Outcome.SITE_FAULT,
            "c: (1, 1) predictions to question 0, expected (6, 1).",
        ),
    ],
)
def test_a_site_that_is_not_counted_on_may_fail(on_lost: str, message: Any, outcome: Outcome, reason: str) -> None:
    machine = begun(small_plan(on_lost=on_lost), "a", "b")
    all_of(machine, comes_back(machine, "c"))
    assert dismissed(machine, Received("c", message), outcome, excluded=True).startswith(reason)
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_digest": "other"}, "data (or how they are preprocessed)"),
        ({"n_unlabelled": 5}, "data (or how they are preprocessed)"),
        ({"threads": 2}, "thread count"),
    ],
)
def test_a_site_that_comes_back_changed_is_refused_and_may_come_back_as_it_was(
    changes: dict[str, object], words: str
) -> None:
    machine = begun()
    all_of(machine, [SiteLost("b", "gone"), joins("b")])
    assert words in dismissed(machine, accepts(machine, "b", **changes), Outcome.REFUSED, excluded=False)
    assert machine.phase is Phase.ASKING
    assert machine.handle(answers("b")) == []  # the run does not hear it
    all_of(machine, [joins("b")])
    assert sends(machine.handle(accepts(machine, "b"))) == [Send("b", ask(0))]


def test_an_interruption_is_no_end_of_the_run() -> None:
    machine = begun()  # nothing is persisted: it is taken up again
    assert machine.handle(Interrupted()) == [Finish(RUN, Outcome.INTERRUPTED, "")]
    assert machine.handle(Interrupted()) == []


def test_an_interruption_of_a_run_that_stalled_is_none_either() -> None:
    machine = begun()
    machine.handle(DeadlinePassed(RUN, 3))
    assert machine.phase is Phase.STALLED
    assert machine.handle(Interrupted()) == [Finish(RUN, Outcome.INTERRUPTED, "")]
