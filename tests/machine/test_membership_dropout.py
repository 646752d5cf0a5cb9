"""coordinator/machine/membership.py: sites that are lost, come back, waver or are excluded in the middle of a run."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from machine.stepwise import (
    RUN,
    accepts,
    all_of,
    answers,
    ask,
    begun,
    comes_back,
    dismissed,
    joins,
    members,
    progress_of,
    sends,
    small_plan,
    told,
    written,
)
from machine.tiny import SCHEDULES, UNLABELLED, Pump, all_restarted, column, make_plan, make_sites, watched

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase
from coordinator.machine.records import MembershipChanged, Record, SiteExcluded, StepTaken
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


def test_a_lost_site_that_returns_is_asked_again_and_the_others_are_not() -> None:
    machine = begun()
    machine.handle(answers("a"))
    assert machine.handle(e.SiteLost("b", "its stream ended")) == [
        e.Notify(n.Left(RUN, "b", "its stream ended", lost=True))
    ]
    assert machine.handle(joins("b")) == [e.Notify(n.Joined(RUN, "b", 3, 3)), e.Send("b", machine.plan)]
    assert machine.handle(accepts(machine, "b")) == [e.Notify(n.PlanAcceptedBy(RUN, "b")), e.Send("b", ask(0))]
    machine.handle(answers("b"))
    assert sends(machine.handle(answers("c"))) == [e.Send(s, ask(1, targets=column(*6 * [1.0]))) for s in "abc"]


def test_a_site_that_answered_and_was_lost_is_not_asked_again() -> None:
    machine = begun()
    all_of(machine, [answers("b"), e.SiteLost("b", "gone")])
    assert sends(all_of(machine, comes_back(machine, "b"))) == [e.Send("b", machine.plan)]
    assert machine.awaited == ("a", "c")


def test_a_plan_that_waits_takes_the_lost_site_back_where_it_was() -> None:
    machine = begun()
    all_of(machine, [e.SiteLost("b", "gone"), answers("a"), answers("c"), e.DeadlinePassed(RUN, 3)])
    assert machine.phase is Phase.STALLED
    all_of(machine, comes_back(machine, "b"))
    assert machine.phase is Phase.STALLED
    [step] = written(machine.handle(answers("b")))
    assert step == StepTaken(0, 0, "affine", column(*6 * [3.0]), 3)
    assert machine.phase is Phase.ASKING
    assert machine.participants == ("a", "b", "c")


def test_a_plan_that_continues_goes_on_without_the_lost_site() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    all_of(machine, [e.SiteLost("b", "gone"), answers("a"), answers("c")])
    [note, persist, members, *rest] = machine.handle(e.DeadlinePassed(RUN, 3))
    assert note == e.Notify(n.GoingOnWithout(RUN, ("b",), "answer in time"))
    [changed] = written([persist])
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.question, changed.participants) == (1, 0, ("a", "c"))
    assert (changed.dropped, changed.returns) == ({"b": 0}, {})
    assert members == e.Notify(n.MembersAre(RUN, 1, ("a", "c")))
    again = ask(0, attempt=1, weight=1.0)
    assert rest == [e.SetDeadline(RUN, 4, 3.0), e.Send("a", again), e.Send("c", again)]


def test_below_the_minimum_a_plan_that_continues_waits_and_goes_on_as_soon_as_it_may() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    all_of(machine, [e.SiteLost("b", "gone"), e.SiteLost("c", "gone"), answers("a")])
    assert machine.handle(e.DeadlinePassed(RUN, 3)) == [
        e.Notify(n.Stalled(RUN, ("b", "c"), 4.0)),
        e.SetDeadline(RUN, 4, 4.0),
    ]
    all_of(machine, comes_back(machine, "b"))
    actions = machine.handle(answers("b"))
    again = ask(0, attempt=1, weight=1.0)
    assert sends(actions) == [e.Send("a", again), e.Send("b", again)]
    assert machine.participants == ("a", "b")


def test_below_the_minimum_another_site_of_the_plan_serves_as_well_once_it_has_answered() -> None:
    machine = begun(small_plan(on_dropout="continue"), "a", "b")
    all_of(machine, [e.SiteLost("b", "gone"), answers("a"), e.DeadlinePassed(RUN, 3)])
    assert machine.phase is Phase.STALLED
    machine.handle(joins("c"))
    assert sends(machine.handle(accepts(machine, "c"))) == [e.Send("c", ask(0, weight=1.0))]
    assert machine.phase is Phase.STALLED
    again = ask(0, attempt=1, weight=1.0)
    assert sends(machine.handle(answers("c"))) == [e.Send("a", again), e.Send("c", again)]
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "c"))


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
def test_a_newcomer_is_taken_in_at_a_rounds_end_and_nobody_is_dropped_for_it(on_dropout: str) -> None:
    machine = begun(small_plan(on_dropout=on_dropout), "a", "b")
    on_trial = all_of(machine, comes_back(machine, "c"))
    assert sends(on_trial) == [e.Send("c", machine.plan), e.Send("c", ask(0, weight=1.0))]
    all_of(machine, [answers("c"), answers("a"), e.SiteLost("a", "for a moment")])
    assert machine.participants == ("a", "b")
    actions = machine.handle(answers("b"))
    assert machine.participants == ("a", "b", "c")
    [step] = [r for r in written(actions) if isinstance(r, StepTaken)]
    assert step.total == column(*6 * [2.0]), "what was answered on trial is in no sum"
    assert sends(actions) == [e.Send(s, ask(1, attempt=1)) for s in "bc"]
    assert sends(all_of(machine, comes_back(machine, "a"))) == [
        e.Send("a", machine.plan),
        e.Send("a", ask(1, attempt=1)),
    ]


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
@pytest.mark.parametrize(
    ("message", "outcome", "reason"),
    [
        (m.PlanRefused(RUN, "no"), Outcome.REFUSED, "c refused the plan: no"),
        (m.Fault(RUN, 0, 0, "no"), Outcome.SITE_FAULT, "c: no"),
        (
            m.Prediction(RUN, 0, 0, column(1.0)),
            Outcome.SITE_FAULT,
            "c: (1, 1) predictions to question 0, expected (6, 1).",
        ),
    ],
)
def test_a_site_that_is_not_counted_on_may_fail(on_dropout: str, message: Any, outcome: Outcome, reason: str) -> None:
    machine = begun(small_plan(on_dropout=on_dropout), "a", "b")
    all_of(machine, comes_back(machine, "c"))
    assert dismissed(machine, e.Received("c", message), outcome, excluded=True).startswith(reason)
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
    all_of(machine, [e.SiteLost("b", "gone"), joins("b")])
    assert words in dismissed(machine, accepts(machine, "b", **changes), Outcome.REFUSED, excluded=False)
    assert machine.phase is Phase.ASKING
    assert machine.handle(answers("b")) == []  # the run does not hear it
    all_of(machine, [joins("b")])
    assert sends(machine.handle(accepts(machine, "b"))) == [e.Send("b", ask(0))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_site_that_sent_nan_stays_excluded_when_the_run_is_resumed(schedule: str) -> None:
    plan = make_plan(on_dropout="continue", schedule=schedule)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(2)
    ask = pump.machine.run.live.ask
    assert ask is not None
    nan = m.Vector(np.full((UNLABELLED, 2), np.nan))
    site = pump.machine.run.live.asked[-1]  # block coordinate descent asks one
    pump.events.appendleft(e.Received(site, m.Prediction(RUN, ask.question, ask.attempt, nan)))
    pump.steps(4)
    others = tuple(s for s in plan.sites if s != site)
    assert pump.machine.participants == others
    again = Pump(plan, all_restarted(pump.sites), pump.records).join()
    assert set(again.machine.run.recorded.excluded) == {site}
    assert again.machine.awaited == others
    again.run()
    assert again.outcome is Outcome.CONVERGED
    assert members(again.records) == []
    assert site not in again.models


# --- a site that is connected and does not answer -----------------------------------------------------------------


DEADLINES = 60
HONEST = ("a", "b")


def with_a_wavering_site(plan: Plan, answers_when: Callable[[Pump, m.Ask], bool], *, late: bool = False) -> Pump:
    """c joins anew at every deadline, accepts, and answers as it likes; ``late``: it gives every answer after its deadline."""
    sites = watched(plan)
    pump = Pump(plan, sites)
    sites["c"].when = lambda ask: answers_when(pump, ask)
    pump.join()
    for _ in range(DEADLINES):
        pump.out_of_time() if pump.end is None else None
        if pump.end is not None:
            break
        if late:
            pump.events.extendleft(e.Received("c", answer) for answer in sites["c"].late)
            sites["c"].late.clear()
        else:
            pump.join("c")
    return pump


def mute(pump: Pump, ask: m.Ask) -> bool:
    return False


def on_trial_alone(pump: Pump, ask: m.Ask) -> bool:
    return "c" not in pump.machine.participants


def twice_and_then_no_more(pump: Pump, ask: m.Ask) -> bool:
    """As a member it answers two questions of every attempt."""
    asked = pump.sites["c"].asked  # type: ignore[attr-defined]
    return on_trial_alone(pump, ask) or sum(a.attempt == ask.attempt for a in asked) <= 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_site_that_never_answers_is_dropped_once(schedule: str) -> None:
    """Two memberships, whatever its stream and its acceptances say; labels leave an honest site once for each."""
    pump = with_a_wavering_site(make_plan(on_dropout="continue", schedule=schedule), mute)
    assert members(pump.records) == [("a", "b", "c"), HONEST]
    assert pump.outcome is Outcome.CONVERGED
    if schedule == "conjugate-gradients":
        assert [pump.sites[s].label_bearing for s in HONEST] == [2, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
@pytest.mark.parametrize(("wavers", "late"), [(on_trial_alone, False), (twice_and_then_no_more, False), (mute, True)])
def test_a_site_that_wavers_costs_a_bounded_number_of_memberships_and_the_run_converges(
    schedule: str, wavers: Callable[[Pump, m.Ask], bool], late: bool
) -> None:
    """At most 2 + 2 · max_rejoins memberships, max_rejoins + 1 deadlines, and two label-bearing answers."""
    plan = make_plan(on_dropout="continue", schedule=schedule, max_rejoins=5)
    most = plan.membership.max_rejoins
    pump = with_a_wavering_site(plan, wavers, late=late)
    assert pump.outcome is Outcome.CONVERGED
    assert pump.models.keys() >= set(HONEST)
    changes = members(pump.records)
    assert len(changes) <= 2 + 2 * most
    assert set(changes) == {("a", "b", "c"), HONEST}
    if schedule == "conjugate-gradients":
        assert [pump.sites[s].label_bearing for s in HONEST] == [2, 2]  # type: ignore[attr-defined]
    certified = [p for p in progress_of(plan, pump.records) if p.verified]
    assert max(certified[-1].gap) < 1e-3 * max(certified[0].gap)
    pauses = pauses_of(pump.records, "c")
    assert all(pause >= 2**i for i, pause in enumerate(pauses)), pauses


def pauses_of(records: Iterable[Record], site: str) -> list[int]:
    """How many questions the run went on without the site, for each time that it was taken back."""
    pauses, since = [], None
    for record in records:
        if isinstance(record, MembershipChanged):
            if site in record.participants and since is not None:
                pauses.append(record.question - since)
            since = None if site in record.participants else since if since is not None else record.question
    return pauses


def test_a_site_that_was_taken_back_often_enough_is_excluded() -> None:
    plan = make_plan(on_dropout="continue", schedule="consensus", max_rejoins=3)
    pump = with_a_wavering_site(plan, mute, late=True)
    assert pauses_of(pump.records, "c") == [1, 2, 4]
    [excluded] = [r for r in pump.records if isinstance(r, SiteExcluded)]
    assert (excluded.site, excluded.outcome) == ("c", Outcome.STALLED)
    assert "after it was taken back 3 times" in excluded.reason
    assert pump.outcome is Outcome.CONVERGED


def test_most_returns_may_be_none_at_all() -> None:
    machine = begun(small_plan(on_dropout="continue", max_rejoins=0))
    all_of(machine, [answers("a"), answers("b")])
    assert any(isinstance(r, SiteExcluded) for r in written(machine.handle(machine.deadline)))
    assert machine.participants == HONEST


def test_returns_are_counted_as_well_where_the_run_stalls_in_between() -> None:
    """c is connected, and silent as a member; b is away at every deadline, so that the run has to wait for it."""
    plan = small_plan(on_dropout="continue", max_rejoins=2, tolerance=0.0, prediction_tolerance=0.0)
    machine = begun(plan)
    for _ in range(4):
        if "c" not in machine.participants:
            break
        question = machine.run.recorded.question
        attempt = machine.run.recorded.attempt
        all_of(machine, [e.SiteLost("b", "gone"), answers("a", question=question, attempt=attempt), machine.deadline])
        assert machine.phase is Phase.STALLED
        all_of(machine, [*comes_back(machine, "b"), answers("b", question=question, attempt=attempt)])
        assert machine.participants == HONEST
        for _ in range(10):  # c answers on trial, and is taken back when its pause is over
            ask = machine.run.live.ask
            assert ask is not None
            all_of(machine, [answers(s, column(*6 * [1.0]), ask.question, ask.attempt) for s in "cab"])
            if "c" in machine.participants:
                break
    assert machine.run.recorded.returns.get("c", 0) <= plan.membership.max_rejoins
    assert machine.participants == HONEST


def test_an_open_stream_and_an_acceptance_do_not_take_a_dropped_site_back() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    for question in range(4):
        all_of(machine, comes_back(machine, "c"))
        all_of(machine, [answers(s, question=question, attempt=1) for s in HONEST])
        assert machine.participants == HONEST


def test_a_late_answer_to_the_question_that_a_site_was_dropped_at_takes_it_back() -> None:
    machine = begun(small_plan(on_dropout="continue"))
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert machine.handle(answers("c")) == [], "proven, and taken back at the round's end"
    all_of(machine, [answers("a", attempt=1)])
    actions = machine.handle(answers("b", attempt=1))
    assert n.MembersAre(RUN, 2, ("a", "b", "c")) in told(actions)
    assert machine.run.recorded.returns == {"c": 1}
    assert [s.site for s in sends(actions)] == ["a", "b", "c"]


def test_a_site_that_joins_accepts_and_leaves_300_times_changes_nothing() -> None:
    """Nobody gets more time for it, nobody is asked anything for it, and the run ends as if it had not been."""
    plan = make_plan(on_dropout="continue")
    expected = Pump(plan, make_sites(HONEST)).join().out_of_time().run()
    sites = watched(plan)
    pump = Pump(plan, sites).join(*HONEST).run()
    pump.carry_out(pump.machine.handle(pump.machine.deadline))
    while pump.machine.phase is not Phase.ASKING:
        pump.step()
    for i in range(300):
        token, asked = pump.machine.token, [len(sites[s].asked) for s in HONEST]
        all_of(pump.machine, [*comes_back(pump.machine, "c"), e.Received("c", m.Leaving("stopped"))])
        assert (pump.machine.token, [len(sites[s].asked) for s in HONEST]) == (token, asked)
        assert pump.machine.participants == HONEST
        if i % 25 == 0 and pump.end is None:
            pump.step()
    pump.run()
    assert pump.end == expected.end
    assert members(pump.records) == [HONEST]
    assert pump.bits == expected.bits
