"""A site that is connected and does not answer: release 0.1 dropped it and took it back for ever, and the run with it."""

from collections.abc import Callable, Iterable

import pytest
from stepwise import (
    RUN,
    all_of,
    answers,
    begun,
    comes_back,
    members,
    progress_of,
    sends,
    small_plan,
    told,
    written,
)
from tiny import (
    SCHEDULES,
    Pump,
    column,
    make_plan,
    make_sites,
    watched,
)

from coordinator.machine import notices as n
from coordinator.machine.events import Received, SiteLost
from coordinator.machine.phases import Phase
from coordinator.machine.records import MembershipChanged, Record, SiteExcluded
from coreg_core.protocol.messages import Ask, Leaving
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

DEADLINES = 60
HONEST = ("a", "b")


def with_a_wavering_site(plan: Plan, answers_when: Callable[[Pump, Ask], bool], *, late: bool = False) -> Pump:
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
            pump.events.extendleft(Received("c", answer) for answer in sites["c"].late)
            sites["c"].late.clear()
        else:
            pump.join("c")
    return pump


def mute(pump: Pump, ask: Ask) -> bool:
    return False


def on_trial_alone(pump: Pump, ask: Ask) -> bool:
    return "c" not in pump.machine.participants


def twice_and_then_no_more(pump: Pump, ask: Ask) -> bool:
    """As a member it answers two questions of every attempt."""
    asked = pump.sites["c"].asked  # type: ignore[attr-defined]
    return on_trial_alone(pump, ask) or sum(a.attempt == ask.attempt for a in asked) <= 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_site_that_never_answers_is_dropped_once(schedule: str) -> None:
    """Two memberships, whatever its stream and its acceptances say; labels leave an honest site once for each."""
    pump = with_a_wavering_site(make_plan(on_lost="continue", schedule=schedule), mute)
    assert members(pump.records) == [("a", "b", "c"), HONEST]
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    if schedule == "conjugate-gradients":
        assert [pump.sites[s].label_bearing for s in HONEST] == [2, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
@pytest.mark.parametrize(("wavers", "late"), [(on_trial_alone, False), (twice_and_then_no_more, False), (mute, True)])
def test_a_site_that_wavers_costs_a_bounded_number_of_memberships_and_the_run_converges(
    schedule: str, wavers: Callable[[Pump, Ask], bool], late: bool
) -> None:
    """At most 2 + 2 · most_returns memberships, most_returns + 1 deadlines, and two label-bearing answers."""
    plan = make_plan(on_lost="continue", schedule=schedule, most_returns=5)
    most = plan.membership.most_returns
    pump = with_a_wavering_site(plan, wavers, late=late)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
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
    plan = make_plan(on_lost="continue", schedule="consensus", most_returns=3)
    pump = with_a_wavering_site(plan, mute, late=True)
    assert pauses_of(pump.records, "c") == [1, 2, 4]
    [excluded] = [r for r in pump.records if isinstance(r, SiteExcluded)]
    assert (excluded.site, excluded.outcome) == ("c", Outcome.STALLED)
    assert "after it was taken back 3 times" in excluded.reason
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED


def test_most_returns_may_be_none_at_all() -> None:
    machine = begun(small_plan(on_lost="continue", most_returns=0))
    all_of(machine, [answers("a"), answers("b")])
    assert any(isinstance(r, SiteExcluded) for r in written(machine.handle(machine.deadline)))
    assert machine.participants == HONEST


def test_returns_are_counted_as_well_where_the_run_stalls_in_between() -> None:
    """c is connected, and silent as a member; b is away at every deadline, so that the run has to wait for it."""
    plan = small_plan(on_lost="continue", most_returns=2, tolerance=0.0, prediction_tolerance=0.0)
    machine = begun(plan)
    for _ in range(4):
        if "c" not in machine.participants:
            break
        question = machine.run.recorded.question
        attempt = machine.run.recorded.attempt
        all_of(machine, [SiteLost("b", "gone"), answers("a", question=question, attempt=attempt), machine.deadline])
        assert machine.phase is Phase.STALLED
        all_of(machine, [*comes_back(machine, "b"), answers("b", question=question, attempt=attempt)])
        assert machine.participants == HONEST
        for _ in range(10):  # c answers on trial, and is taken back when its pause is over
            ask = machine.run.live.ask
            assert ask is not None
            all_of(machine, [answers(s, column(*6 * [1.0]), ask.question, ask.attempt) for s in "cab"])
            if "c" in machine.participants:
                break
    assert machine.run.recorded.returns.get("c", 0) <= plan.membership.most_returns
    assert machine.participants == HONEST


def test_an_open_stream_and_an_acceptance_do_not_take_a_dropped_site_back() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    for question in range(4):
        all_of(machine, comes_back(machine, "c"))
        all_of(machine, [answers(s, question=question, attempt=1) for s in HONEST])
        assert machine.participants == HONEST


def test_a_late_answer_to_the_question_that_a_site_was_dropped_at_takes_it_back() -> None:
    machine = begun(small_plan(on_lost="continue"))
    all_of(machine, [answers("a"), answers("b"), machine.deadline])
    assert machine.handle(answers("c")) == [], "proven, and taken back at the round's end"
    all_of(machine, [answers("a", attempt=1)])
    actions = machine.handle(answers("b", attempt=1))
    assert n.MembersAre(RUN, 2, ("a", "b", "c")) in told(actions)
    assert machine.run.recorded.returns == {"c": 1}
    assert [s.site for s in sends(actions)] == ["a", "b", "c"]


def test_a_site_that_joins_accepts_and_leaves_300_times_changes_nothing() -> None:
    """Nobody gets more time for it, nobody is asked anything for it, and the run ends as if it had not been."""
    plan = make_plan(on_lost="continue")
    expected = Pump(plan, make_sites(HONEST)).join().out_of_time().run()
    sites = watched(plan)
    pump = Pump(plan, sites).join(*HONEST).run()
    pump.carry_out(pump.machine.handle(pump.machine.deadline))
    while pump.machine.phase is not Phase.ASKING:
        pump.step()
    for i in range(300):
        token, asked = pump.machine.token, [len(sites[s].asked) for s in HONEST]
        all_of(pump.machine, [*comes_back(pump.machine, "c"), Received("c", Leaving("stopped"))])
        assert (pump.machine.token, [len(sites[s].asked) for s in HONEST]) == (token, asked)
        assert pump.machine.participants == HONEST
        if i % 25 == 0 and pump.end is None:
            pump.step()
    pump.run()
    assert pump.end == expected.end
    assert members(pump.records) == [HONEST]
    assert pump.bits == expected.bits
