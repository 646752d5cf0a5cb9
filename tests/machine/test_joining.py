"""Sessions and the plan: who may join, who may accept, and what a run does until its first question."""

import pytest
from stepwise import (
    RUN,
    accepts,
    all_of,
    answers,
    begun,
    dismissed,
    fetches,
    joins,
    planned,
    rejected,
    sends,
    small_plan,
    started,
    told,
    written,
)
from tiny import CLOCKS, IDS, UNLABELLED, Machine, acceptance, column, hello, make_plan

from coordinator.machine import federation as federations
from coordinator.machine import notices as n
from coordinator.machine.events import (
    Breached,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    Interrupted,
    Notify,
    Received,
    Reject,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
    TurnedAway,
)
from coordinator.machine.phases import Clocks, Phase
from coordinator.machine.records import SiteExcluded
from coordinator.machine.state import Recorded
from coreg_core.protocol.messages import Ask, Dismissed, Finished, Hello, Leaving, PlanRefused
from coreg_core.protocol.outcomes import Outcome

# --- who may join -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (hello("b", protocol=7), ["speaks protocol 7", "this coordinator 2", "Install the same release"]),
        (hello("z"), ["not in this federation's list of sites (a, b, c)", "federation.toml"]),
    ],
)
def test_a_session_that_cannot_stay_is_told_why(late: Hello, words: list[str]) -> None:
    machine = started()
    machine.handle(joins("a"))
    reason = rejected(machine, SiteJoined(late))
    assert all(word in reason for word in words), reason
    assert machine.awaited == ("b", "c")
    assert machine.handle(joins("b")) == [Notify(n.Joined(RUN, "b", 2, 3))]  # once it is mended


def test_a_site_that_joins_twice_counts_once() -> None:
    machine = started()
    assert machine.handle(joins("a")) == [Notify(n.Joined(RUN, "a", 1, 3))]
    assert machine.handle(joins("a")) == [Notify(n.Joined(RUN, "a", 1, 3))]
    assert machine.awaited == ("b", "c")


def test_a_session_that_is_replaced_by_one_that_cannot_stay_is_gone_from_the_run_too() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("a", protocol=7)])
    assert machine.awaited == ("a", "b", "c")


def test_nobody_joins_a_run_that_is_over() -> None:
    machine = begun()
    machine.handle(Interrupted())
    assert rejected(machine, joins("a")) == "a: run run-1 is over."


def test_two_hellos_end_the_session_and_exclude_the_site_once_the_plan_is_out() -> None:
    machine = started()
    machine.handle(joins("a"))
    reason = "a said hello twice in one session."
    assert machine.handle(Received("a", hello("a"))) == [
        Reject("a", reason),
        Notify(n.Left(RUN, "a", reason, lost=True)),
    ]
    assert machine.awaited == ("a", "b", "c"), "no plan is out, so it may try again"
    machine = planned()
    [reject, *_] = actions = machine.handle(Received("a", hello("a")))
    assert reject == Reject("a", reason)
    assert written(actions) == [SiteExcluded("a", Outcome.SITE_FAULT, f"a broke the protocol: {reason}")]
    again = machine.handle(joins("a"))
    assert again == [
        Send("a", Dismissed(RUN, Outcome.SITE_FAULT, f"a: no longer in this run: a broke the protocol: {reason}")),
        Notify(n.SiteDismissed(RUN, "a", f"a: no longer in this run: a broke the protocol: {reason}", excluded=True)),
    ]


def test_a_breach_that_the_transport_saw_excludes_the_site_as_well() -> None:
    machine = planned()
    actions = machine.handle(Breached("b", "a message of 10 MB"))
    assert written(actions) == [SiteExcluded("b", Outcome.SITE_FAULT, "b broke the protocol: a message of 10 MB")]
    all_of(machine, [accepts(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")
    assert machine.handle(Breached("b", "again")) == [], "its session has ended"


def test_whoever_is_turned_away_is_shown_and_changes_nothing() -> None:
    machine = started()
    before = machine.federation
    assert machine.handle(TurnedAway("z", "revoked")) == [Notify(n.SessionTurnedAway("z", "revoked"))]
    assert machine.federation == before


@pytest.mark.parametrize(
    ("event", "lost"), [(SiteLost("a", "its stream ended"), True), (Received("a", Leaving("its stream ended")), False)]
)
def test_a_site_that_goes_before_the_plan_is_out_is_awaited_again(event: Event, lost: bool) -> None:
    machine = started()
    machine.handle(joins("a"))
    assert machine.handle(event) == [Notify(n.Left(RUN, "a", "its stream ended", lost))]
    assert machine.awaited == ("a", "b", "c")
    assert machine.handle(event) == []


def test_time_settings_are_the_callers() -> None:
    machine = Machine(small_plan(), Clocks(join=9.0))
    assert machine.start()[-1] == SetDeadline(RUN, 1, 9.0)


# --- too few ------------------------------------------------------------------------------------------------------


def test_too_few_sites_join() -> None:
    machine = started()
    machine.handle(joins("b"))
    reason = "a, c did not join within 1 s"
    actions = machine.handle(DeadlinePassed(RUN, 1))
    [ended] = written(actions)
    assert (ended.outcome, ended.reason, ended.models) == (Outcome.TOO_FEW_SITES, reason, None)
    assert actions[1:] == [
        Notify(n.RunEnded(RUN, Outcome.TOO_FEW_SITES, reason)),
        Send("b", Finished(RUN, Outcome.TOO_FEW_SITES, reason)),
        SetDeadline(RUN, 2, 3.0),
    ]
    assert machine.handle(fetches("b"))[-1] == Finish(RUN, Outcome.TOO_FEW_SITES, reason)


def test_nobody_joins_at_all() -> None:
    machine = started()
    end = Finish(RUN, Outcome.TOO_FEW_SITES, "a, b, c did not join within 1 s")
    assert machine.handle(DeadlinePassed(RUN, 1))[-1] == end


def test_too_few_sites_accept_in_time() -> None:
    machine = planned()
    machine.handle(accepts(machine, "a"))
    actions = machine.handle(DeadlinePassed(RUN, 2))
    reason = "b, c did not accept the plan in time"
    assert sends(actions) == [Send(s, Finished(RUN, Outcome.TOO_FEW_SITES, reason)) for s in "abc"]


def test_enough_sites_go_on_without_one_that_did_not_join_and_do_not_wait_for_it_again() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("b")])
    assert machine.handle(DeadlinePassed(RUN, 1)) == [
        Notify(n.GoingOnWithout(RUN, ("c",), "join in time")),
        Notify(n.PlanSent(RUN, ("a", "b"))),
        SetDeadline(RUN, 2, 2.0),
        Send("a", machine.plan),
        Send("b", machine.plan),
    ]
    all_of(machine, [accepts(machine, "a"), accepts(machine, "b")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_enough_sites_go_on_without_one_that_did_not_answer_the_plan() -> None:
    machine = planned()
    all_of(machine, [accepts(machine, "a"), accepts(machine, "b")])
    assert machine.handle(DeadlinePassed(RUN, 2))[0] == Notify(n.GoingOnWithout(RUN, ("c",), "answer the plan"))
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "b"))


def test_a_timer_that_was_dropped_is_not_heard() -> None:
    machine = planned()
    assert machine.handle(DeadlinePassed(RUN, 1)) == []
    assert machine.handle(DeadlinePassed("run-0", 2)) == []
    assert machine.phase is Phase.PLANNING


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_first_acceptance_says_how_many_rows_and_columns_a_vector_has() -> None:
    machine = started(make_plan())
    all_of(machine, [joins(s) for s in "abc"])
    assert machine.handle(accepts(machine, "c"))[0] == Expect(RUN, UNLABELLED, 2)
    assert machine.handle(accepts(machine, "a")) == [Notify(n.PlanAcceptedBy(RUN, "a"))]


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
        Notify(n.Joined(RUN, "b", 3, 3)),
        Send("b", machine.plan),
        Notify(n.PlanAcceptedBy(RUN, "b")),
    ]


def test_nobody_shares_no_instances_at_all() -> None:
    machine = planned()
    reason = dismissed(machine, accepts(machine, "a", n_unlabelled=0), Outcome.REFUSED, excluded=False)
    assert "shares no unlabelled instance" in reason


def test_a_site_that_accepted_alone_may_mend_its_own_list() -> None:
    machine = planned()
    machine.handle(accepts(machine, "a", n_unlabelled=5))
    machine.handle(SiteLost("a", "stopped by its operator"))
    machine.handle(joins("a"))
    assert machine.handle(accepts(machine, "a"))[0] == Expect(RUN, UNLABELLED, 1)
    assert machine.handle(accepts(machine, "b")) == [Notify(n.PlanAcceptedBy(RUN, "b"))]


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
    actions = machine.handle(Received("b", PlanRefused(RUN, "against this site's policy")))
    assert told(actions)[0] == n.SiteDismissed(RUN, "b", reason, excluded=True)
    assert sends(actions) == [
        Send("b", Dismissed(RUN, Outcome.REFUSED, reason)),
        *(Send(s, Finished(RUN, Outcome.REFUSED, reason)) for s in "ac"),
    ]
    assert all_of(machine, [fetches(s) for s in "ac"])[-1] == Finish(RUN, Outcome.REFUSED, reason)


def test_a_refusal_before_the_first_question_is_borne_where_enough_remain() -> None:
    machine = planned()
    all_of(machine, [accepts(machine, s) for s in "ac"])
    actions = machine.handle(Received("b", PlanRefused(RUN, "no")))
    assert [s.site for s in sends(actions) if isinstance(s.message, Ask)] == ["a", "c"]
    assert machine.participants == ("a", "c")
    assert machine.handle(Received("b", PlanRefused("another-run", "no"))) == []


def test_after_a_refusal_sites_that_did_not_join_are_needed_again() -> None:
    machine = started()
    all_of(machine, [joins("a"), joins("b"), DeadlinePassed(RUN, 1), accepts(machine, "a")])
    machine.handle(Received("b", PlanRefused(RUN, "no")))
    assert (machine.phase, machine.awaited) == (Phase.PLANNING, ("c",))
    all_of(machine, [joins("c"), accepts(machine, "c")])
    assert (machine.phase, machine.participants) == (Phase.ASKING, ("a", "c"))


# --- sessions carry any number of runs ----------------------------------------------------------------------------


def two_runs() -> tuple[Machine, Machine]:
    """Run 1 of a, b, c has begun; run 2 of b, c, d is put in beside it. Both machines show the same federation."""
    first = begun()
    second = Machine(small_plan(run="run-2", sites=("b", "c", "d")))
    second.federation, actions = federations.begin(Recorded(second.plan), CLOCKS, first.federation)
    assert told(actions) == [
        n.AnswersInClear("run-2"),
        n.RunBegan("run-2", ("b", "c", "d")),
        n.Joined("run-2", "b", 1, 3),
        n.Joined("run-2", "c", 2, 3),
    ], "sessions that are open join it at once"
    return first, second


def test_a_run_hears_of_its_own_sites_alone_and_of_the_messages_that_name_it() -> None:
    _, both = two_runs()
    first = both.federation.runs[RUN]
    assert told(both.handle(joins("d"))) == [n.Joined("run-2", "d", 3, 3), n.PlanSent("run-2", ("b", "c", "d"))]
    all_of(both, [accepts(both, s) for s in "bcd"])
    assert both.run.phase is Phase.ASKING
    assert both.federation.runs[RUN] == first, "nothing of this concerns the other run"
    second = both.run
    both.handle(answers("b"))  # of run 1
    assert both.federation.runs[RUN].awaited == ("a", "c")
    assert both.run == second
    assert both.handle(Received("a", acceptance("a", both.plan))) == [], "a is not in run 2"


def test_a_lost_session_concerns_every_run_of_the_site_and_an_exclusion_only_one() -> None:
    _, both = two_runs()
    assert told(both.handle(SiteLost("c", "gone"))) == [
        n.Left(RUN, "c", "gone", lost=True),
        n.Left("run-2", "c", "gone", lost=True),
    ]
    both.handle(answers("b", column(1.0)))
    assert set(both.federation.runs[RUN].recorded.excluded) == {"b"}
    assert "b" in both.federation.sessions
    assert both.run.live.here == {"b"}


def test_the_federation_is_done_when_every_run_is() -> None:
    _, both = two_runs()
    all_of(both, [DeadlinePassed("run-2", both.token)])
    both.handle(accepts(both, "b"))
    assert not both.federation.done
    assert both.handle(Interrupted()) == [
        Finish(RUN, Outcome.INTERRUPTED, ""),
        Finish("run-2", Outcome.INTERRUPTED, ""),
    ]
    assert both.federation.done
    assert rejected(both, joins("a")) == "a: run run-1, run-2 is over."
