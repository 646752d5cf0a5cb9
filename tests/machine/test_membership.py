"""coordinator/machine/membership.py: joining, the plan, and who takes part in a run that is new or resumed."""

import pytest
from machine.stepwise import (
    RUN,
    accepts,
    all_of,
    comes_back,
    dismissed,
    fetches,
    joins,
    planned,
    sends,
    small_plan,
    started,
    told,
    written,
)
from machine.tiny import IDS, UNLABELLED, Machine, Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.phases import Phase, Timeouts
from coordinator.machine.records import MembershipChanged, SiteExcluded
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome


@pytest.mark.parametrize(
    ("event", "lost"),
    [(e.SiteLost("a", "its stream ended"), True), (e.Received("a", m.Leaving("its stream ended")), False)],
)
def test_a_site_that_goes_before_the_plan_is_out_is_awaited_again(event: e.Event, lost: bool) -> None:
    machine = started()
    machine.handle(joins("a"))
    assert machine.handle(event) == [e.Notify(n.Left(RUN, "a", "its stream ended", lost))]
    assert machine.awaited == ("a", "b", "c")
    assert machine.handle(event) == []


def test_time_settings_are_the_callers() -> None:
    machine = Machine(small_plan(), Timeouts(join=9.0))
    assert machine.start()[-1] == e.SetDeadline(RUN, 1, 9.0)


def test_too_few_sites_join() -> None:
    machine = started()
    machine.handle(joins("b"))
    reason = "a, c did not join within 1 s"
    assert started().handle(e.DeadlinePassed(RUN, 1))[-1] == e.Finish(
        RUN, Outcome.TOO_FEW_SITES, "a, b, c did not join within 1 s"
    )
    actions = machine.handle(e.DeadlinePassed(RUN, 1))
    [ended] = written(actions)
    assert (ended.outcome, ended.reason, ended.models) == (Outcome.TOO_FEW_SITES, reason, None)
    assert actions[1:] == [
        e.Notify(n.RunEnded(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.Send("b", m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.SetDeadline(RUN, 2, 3.0),
    ]
    assert machine.handle(fetches("b"))[-1] == e.Finish(RUN, Outcome.TOO_FEW_SITES, reason)


def test_too_few_sites_accept_in_time() -> None:
    machine = planned()
    machine.handle(accepts(machine, "a"))
    actions = machine.handle(e.DeadlinePassed(RUN, 2))
    reason = "b, c did not accept the plan in time"
    assert sends(actions) == [e.Send(s, m.Finished(RUN, Outcome.TOO_FEW_SITES, reason)) for s in "abc"]


def test_enough_sites_go_on_without_one_that_did_not_join_and_do_not_wait_for_it_again() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("b")])
    assert machine.handle(e.DeadlinePassed(RUN, 1)) == [
        e.Notify(n.GoingOnWithout(RUN, ("c",), "join in time")),
        e.Notify(n.PlanSent(RUN, ("a", "b"))),
        e.SetDeadline(RUN, 2, 2.0),
        e.Send("a", machine.plan),
        e.Send("b", machine.plan),
    ]
    all_of(machine, [accepts(machine, "a"), accepts(machine, "b")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_enough_sites_go_on_without_one_that_did_not_answer_the_plan() -> None:
    machine = planned()
    all_of(machine, [accepts(machine, "a"), accepts(machine, "b")])
    assert machine.handle(e.DeadlinePassed(RUN, 2))[0] == e.Notify(n.GoingOnWithout(RUN, ("c",), "answer the plan"))
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_the_first_acceptance_says_how_many_rows_and_columns_a_vector_has() -> None:
    machine = started(make_plan())
    all_of(machine, [joins(s) for s in "abc"])
    assert machine.handle(accepts(machine, "c"))[0] == e.Expect(RUN, UNLABELLED, 2)
    assert machine.handle(accepts(machine, "a")) == [e.Notify(n.PlanAcceptedBy(RUN, "a"))]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_unlabelled": 5}, ["5 unlabelled instances", "a has 6", "compare the two id columns"]),
        ({"n_unlabelled": 0}, ["shares no unlabelled instance", "--unlabelled FILE"]),
        ({"ids_digest": "other-ids"}, ["6 unlabelled instances as a", "ids differ", "other-ids", IDS[:12]]),
    ],
)
def test_a_mismatch_names_the_counts_and_what_to_do(changes: dict[str, object], words: list[str]) -> None:
    machine = planned()
    machine.handle(accepts(machine, "a"))
    reason = dismissed(machine, accepts(machine, "b", **changes), Outcome.REFUSED, excluded=False)
    assert all(word in reason for word in words), reason
    assert machine.awaited == ("b", "c")
    assert all_of(machine, [joins("b"), accepts(machine, "b")]) == [  # once it is mended
        e.Notify(n.Joined(RUN, "b", 3, 3)),
        e.Send("b", machine.plan),
        e.Notify(n.PlanAcceptedBy(RUN, "b")),
    ]


def test_a_site_that_accepted_alone_may_mend_its_own_list() -> None:
    machine = planned()
    reason = dismissed(machine, accepts(machine, "a", n_unlabelled=0), Outcome.REFUSED, excluded=False)
    assert "shares no unlabelled instance" in reason
    machine.handle(joins("a"))
    machine.handle(accepts(machine, "a", n_unlabelled=5))
    machine.handle(e.SiteLost("a", "stopped by its operator"))
    machine.handle(joins("a"))
    assert machine.handle(accepts(machine, "a"))[0] == e.Expect(RUN, UNLABELLED, 1)
    assert machine.handle(accepts(machine, "b")) == [e.Notify(n.PlanAcceptedBy(RUN, "b"))]


def test_a_site_that_accepts_twice_in_a_session_counts_once() -> None:
    machine = planned()
    machine.handle(accepts(machine, "a"))
    assert machine.handle(accepts(machine, "a", n_unlabelled=5)) == []
    assert machine.awaited == ("b", "c")


@pytest.mark.parametrize(
    "terms",
    [
        {"bound": float("nan")},
        {"bound": -1.0},
        {"squared_norm": float("inf")},
        {"squared_norm": -1.0},
        {"plan_digest": "other"},
    ],
)
def test_an_acceptance_that_cannot_be_used_excludes_the_site(terms: dict[str, object]) -> None:
    machine = planned()
    assert dismissed(machine, accepts(machine, "b", **terms), Outcome.SITE_FAULT, excluded=True).startswith("b")
    all_of(machine, [accepts(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")


def test_a_refusal_ends_a_run_that_needs_the_site() -> None:
    machine = planned(small_plan(min_sites=3))
    reason = "b refused the plan: against this site's policy"
    actions = machine.handle(e.Received("b", m.PlanRefused(RUN, "against this site's policy")))
    assert told(actions)[0] == n.SiteDismissed(RUN, "b", reason, excluded=True)
    assert sends(actions) == [
        e.Send("b", m.Dismissed(RUN, Outcome.REFUSED, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.REFUSED, reason)) for s in "ac"),
    ]
    assert all_of(machine, [fetches(s) for s in "ac"])[-1] == e.Finish(RUN, Outcome.REFUSED, reason)


def test_a_refusal_before_the_first_question_is_borne_where_enough_remain() -> None:
    machine = planned()
    all_of(machine, [accepts(machine, s) for s in "ac"])
    actions = machine.handle(e.Received("b", m.PlanRefused(RUN, "no")))
    assert [s.site for s in sends(actions) if isinstance(s.message, m.Ask)] == ["a", "c"]
    assert machine.participants == ("a", "c")
    assert machine.handle(e.Received("b", m.PlanRefused("another-run", "no"))) == []


def test_after_a_refusal_sites_that_did_not_join_are_needed_again() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("b"), e.DeadlinePassed(RUN, 1), accepts(machine, "a")])
    machine.handle(e.Received("b", m.PlanRefused(RUN, "no")))
    assert (machine.phase, machine.awaited) == (Phase.PLANNING, ("c",))
    all_of(machine, [joins("c"), accepts(machine, "c")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "c"))


# --- a run that is resumed ----------------------------------------------------------------------------------------


def test_a_resumed_run_waits_for_its_own_sites_and_sends_the_plan_at_once() -> None:
    plan = make_plan(sites=("a", "b", "c", "d"), min_sites=3)
    first = Pump(plan, make_sites("abc"), kill_after=4).join().out_of_time().run()
    machine = Machine(plan, records=first.records)
    assert machine.start() == [
        e.Notify(n.AnswersInClear(RUN)),
        e.Notify(n.RunTakenUp(RUN, 3, ("a", "b", "c"))),
        e.SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.phase is Phase.RETURNING
    assert machine.handle(joins("a")) == [e.Notify(n.Joined(RUN, "a", 1, 4)), e.Send("a", plan)]
    machine.handle(joins("b"))
    reason = dismissed(machine, accepts(machine, "b", n_unlabelled=7), Outcome.REFUSED, excluded=False)
    assert "came back with another data" in reason
    machine.handle(joins("d"))
    reason = dismissed(machine, accepts(machine, "d", n_unlabelled=7), Outcome.REFUSED, excluded=False)
    assert "7 unlabelled instances, a has 6" in reason
    reason = "a, b, c did not accept the plan in time"
    assert machine.handle(e.DeadlinePassed(RUN, 1)) == [
        e.Notify(n.RunEnded(RUN, Outcome.TOO_FEW_SITES, reason)),
        e.Finish(RUN, Outcome.TOO_FEW_SITES, reason),
    ]


def returning(on_dropout: str) -> tuple[Machine, dict[str, e.Event]]:
    """Killed after three questions of a, b and c; everybody is back, and the events are their acceptances."""
    plan = make_plan(on_dropout=on_dropout)
    first = Pump(plan, make_sites(plan.sites), kill_after=4).join().run()
    machine = started(plan, first.records)
    accepting: dict[str, e.Event] = {}
    for name, site in all_restarted(first.sites).items():
        machine.handle(e.SiteJoined(site.hello()))
        [answer] = site.handle(plan)
        accepting[name] = e.Received(name, answer)
    return machine, accepting


def test_a_resumed_run_goes_on_without_a_site_that_now_refuses() -> None:
    machine, accepting = returning("continue")
    all_of(machine, [accepting["a"], accepting["b"]])
    assert machine.phase is Phase.RETURNING
    actions = machine.handle(e.Received("c", m.PlanRefused(RUN, "no")))
    assert [s.site for s in sends(actions) if isinstance(s.message, m.Ask)] == ["a", "b"]
    assert machine.participants == ("a", "b")


def test_a_resumed_run_goes_on_without_a_site_that_is_late_where_its_plan_continues() -> None:
    machine, accepting = returning("continue")
    all_of(machine, [accepting["a"], accepting["b"]])
    actions = machine.handle(machine.deadline)
    assert told(actions)[0] == n.GoingOnWithout(RUN, ("c",), "answer the plan")
    [changed] = written(actions)
    assert isinstance(changed, MembershipChanged)
    assert (changed.attempt, changed.participants, changed.dropped) == (1, ("a", "b"), {"c": 3})


def test_a_resumed_run_ends_where_its_plan_waits_for_a_site_that_now_refuses() -> None:
    machine, accepting = returning("wait")
    all_of(machine, [accepting["a"], accepting["b"]])
    assert told(machine.handle(e.Received("c", m.PlanRefused(RUN, "no"))))[-1] == (
        n.RunEnded(RUN, Outcome.REFUSED, "c refused the plan: no")
    )
    assert machine.phase is Phase.DELIVERING


def test_a_site_that_is_no_member_waits_for_those_that_are_when_a_run_is_resumed() -> None:
    plan = make_plan(sites=("a", "b", "c"), on_dropout="continue")
    first = Pump(plan, make_sites("ab"), kill_after=4).join().out_of_time().run()
    machine = started(plan, first.records)
    assert machine.awaited == ("a", "b")
    all_of(machine, comes_back(machine, "c"))
    assert machine.phase is Phase.RETURNING


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
def test_an_excluded_site_is_told_at_once_when_it_comes_back_to_a_resumed_run(on_dropout: str) -> None:
    plan = make_plan(on_dropout=on_dropout)
    records = [*undisturbed(plan).records[:4], SiteExcluded("c", Outcome.SITE_FAULT, "c: NaN")]
    machine = Machine(plan, records=records)
    machine.start()
    actions = machine.handle(joins("c"))
    assert [s.message for s in sends(actions)] == [
        m.Dismissed(RUN, Outcome.SITE_FAULT, "c: no longer in this run: c: NaN")
    ]
    assert machine.handle(accepts(machine, "c")) == []
