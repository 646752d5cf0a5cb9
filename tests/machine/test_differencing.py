"""site_agent/consent/differences.py: no two sums whose difference is the answer of one site, in one
run or in several.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from machine.tiny import (
    IDS,
    Pump,
    allowing,
    make_plan,
    private_data,
    sealed,
    site_with,
    summed_before,
    undisturbed,
)

from coordinator.machine.records import Phase
from coreg_core.errors import Refused
from coreg_core.messages import PlanRefused, Proposal, Step
from coreg_core.outcomes import Outcome
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.objection import Objection
from site_agent.consent.policy import Policy
from site_agent.disclosure import Disclosure
from site_agent.site_data import PrivateData


def test_two_runs_at_once_are_not_summed_with_sets_that_differ() -> None:
    """Both rosters before either question: neither run's answers are on record when the other is
    judged.
    """
    memory = Memory()
    judged = list[Callable[[], object]]()
    for run, members in (("one", "abcd"), ("two", "abc")):
        plan = sealed(make_plan(sites=tuple(members), min_sites=3, run=run))
        sites = {s: site_with(s, private_data(s), memory=Memory()) for s in members}
        sites["a"] = site_with("a", private_data("a"), memory=memory)
        roster = Step(
            run, 0, 0, tuple(site.handle(Proposal(run, 0, plan))[0] for site in sites.values())
        )
        judged.append(partial(sites["a"].handle, roster))
    one, two = judged
    assert not isinstance(one()[0], PlanRefused)
    [refused] = two()
    assert isinstance(refused, PlanRefused)
    assert "reveals the answers of d alone" in refused.reason
    memory.release("one")
    assert not isinstance(two()[0], PlanRefused)


def test_a_promise_is_its_run_s_and_gives_way_to_that_run_s_next_roster() -> None:
    consent = Consent.simulated()
    plan = sealed(make_plan(sites=tuple("abcd"), min_sites=3))

    def sums(run: str, ids: str, sites: str, *, sealed: bool = True) -> None:
        named = make_plan()
        if sealed:
            named = plan
        named = replace(named, run=run)
        consent.permit(named, ids, Disclosure("respond linear", tuple(sites)), 0.0)

    sums("in the clear", "i", "abc", sealed=False)  # nothing is hidden there: it is no promise
    for run, ids, sites in (("r", "i", "abcd"), ("r", "i", "abc"), ("q", "other", "abcd")):
        sums(run, ids, sites)
    with pytest.raises(Refused):
        sums("p", "i", "abcd")


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        (["abc", "cde"], "abde"),
        (["abc", "def"], "abcdefg"),
        (["abcdefg"], "abc"),
        (["abcd"], "abcde"),
    ],
)
def test_no_site_is_summed_with_two_sets(earlier: list[str], now: str) -> None:
    """S(abc) + S(cde) − S(abde) = 2 S(c), and no site is in all three: some site of the last set
    refuses all the same.
    """

    plan = sealed(make_plan(sites=tuple(now), min_sites=3, membership_changes=True))

    def judged(sets: Iterable[str], *, may_change: bool, consents: bool) -> list[Objection]:
        memory = summed_before("ids", *sets, may_change=may_change)
        policy = Policy(membership_changes=consents)
        answer = Disclosure("respond linear", tuple(now))
        consent = Consent(policy, memory, lambda: 0.0)
        return list(consent.objections_to_answer(plan, "ids", answer))

    assert any(
        judged([s for s in earlier if site in s], may_change=False, consents=True) for site in now
    )
    assert not judged(earlier, may_change=True, consents=True)
    assert judged(earlier, may_change=True, consents=False)


@pytest.mark.parametrize("consents", [False, True])
@pytest.mark.parametrize("may_change", [False, True])
def test_a_sealed_run_goes_on_without_a_site_only_where_all_allow_it(
    consents: bool, may_change: bool
) -> None:
    plan = sealed(make_plan(on_dropout="continue", membership_changes=may_change))
    before = summed_before(IDS, "abc", may_change=may_change)
    policy = allowing(membership_changes=consents)
    pump = Pump(
        plan, {n: site_with(n, private_data(n), policy, copy(before)) for n in "abc"}
    ).join()
    if may_change and not consents:
        assert "(membership_changes = false)" in pump.run().end.reason
        return
    pump.steps(5).lose("c").out_of_time().run()
    if not may_change:
        assert pump.machine.phase is Phase.STALLED, "it waits for c"
    else:
        assert pump.outcome is Outcome.CONVERGED
        assert pump.bits == undisturbed(make_plan(sites=("a", "b"))).bits


@pytest.mark.parametrize(("most", "answers"), [(0.99, True), (0.15, False)])
def test_what_a_sum_would_show_of_one_label_is_measured_before_any_label_is_in_it(
    most: float, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared instances that are the labelled rows: more than 0.2 of the sum at one of them is one
    label.
    """
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 2))
    y = rng.normal(size=12)
    data = PrivateData(rows, y, np.concatenate([rows, rng.normal(size=(20, 2))]), "ids", b"a")
    plan = sealed(make_plan(min_sites=3, coupling=(0.1,)))
    monkeypatch.setattr("site_agent.machine.agreement.LABEL_SHARE_MAX", most)
    pump = Pump(plan, {n: site_with(n, data) for n in "abc"}).join().run()
    assert (pump.outcome is Outcome.CONVERGED) is answers
    if not answers:
        reason = f"one label of this site would make up more than {most} of the variance"
        assert reason in pump.end.reason
