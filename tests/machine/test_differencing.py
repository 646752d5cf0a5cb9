"""site_agent/machine/differencing.py: no two sums whose difference is the answer of one site, in one run or in several."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from machine.masked import accepted_by, data_of, first_question, roster_of, sums

from coreg_core.agreement.columns import Column
from coreg_core.agreement.question_rules import weight_of
from coreg_core.protocol.messages import Fault, Masked, PlanAccepted, PlanRefused
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring
from coreg_sim.federation.masks import fingerprint_of, simulated_keys
from site_agent.ledger import Ledger
from site_agent.machine.differencing import Promises, SummedWith, objection
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy


def test_two_runs_at_once_are_not_summed_with_sets_that_differ() -> None:
    """Both rosters before either question: neither run's answers are on record when the other is judged."""
    whole, less = sums(sites=("a", "b", "c", "d"), run="one"), sums(sites=("a", "b", "c"), run="two")
    promises = {name: Promises() for name in "abcd"}

    def of(plan: Plan) -> dict[str, Site]:
        return {n: Site(n, d, Terms(keys=simulated_keys(n), promises=promises[n])) for n, d in data_of(plan).items()}

    first, second = of(whole), of(less)
    one, two = accepted_by(first, whole), accepted_by(second, less)
    assert first["a"].handle(roster_of(whole, one)) == []
    [refused] = second["a"].handle(roster_of(less, two))
    assert isinstance(refused, PlanRefused)
    assert "d gone" in refused.reason or "d come" in refused.reason
    promises["a"].release("one")
    assert second["a"].handle(roster_of(less, two)) == []


def test_a_promise_is_its_run_s_and_gives_way_to_that_run_s_next_roster() -> None:
    promises = Promises()
    judged = [
        promises.judge(run, ids, SummedWith(frozenset(sites), False), frozenset, consents=False)
        for run, ids, sites in (("r", "i", "abcd"), ("r", "i", "abc"), ("q", "i", "abcd"), ("q", "other", "abcd"))
    ]
    assert [reason is None for reason in judged] == [True, True, False, True]


@pytest.mark.parametrize(
    ("earlier", "now"),
    [(["abc", "cde"], "abde"), (["abc", "def"], "abcdefg"), (["abcdefg"], "abc"), (["abcd"], "abcde")],
)
def test_no_site_is_summed_with_two_sets(earlier: list[str], now: str) -> None:
    """S(abc) + S(cde) − S(abde) = 2 S(c), and no site is in all three: some site of the last set refuses all the same."""

    def judged(site: str) -> str | None:
        seen = [SummedWith(frozenset(s), False) for s in earlier if site in s]
        return objection(frozenset(now), seen, consents=True)

    assert any(judged(site) is not None for site in now)
    consented = [SummedWith(frozenset(s), True) for s in earlier]
    assert objection(frozenset(now), consented, consents=True) is None
    assert objection(frozenset(now), consented, consents=False) is not None


def test_models_are_not_scored_with_fewer_sites_than_trained_them(tmp_path: Path) -> None:
    """On a list with one instance more the earlier sum would not be known again."""
    names = tuple("abcd")
    policy = Policy(scoring=True, objectives=("additive",), peers={n: fingerprint_of(n) for n in names})
    ledger = Ledger(tmp_path / "ledger.jsonl")
    batch = Batch(np.zeros(21), np.zeros(21, bool), 0.0, 0.0, "m1", "additive", names, "ids", b"a")
    for sites, said in ((names, None), (names[:3], "d took part in run m1 and would be left out")):
        plan = Plan(f"run-{len(sites)}", "f", Membership(sites, len(sites)), Scoring("m1"), privacy=Privacy("secure"))
        [answer] = Site("a", batch, terms_of(policy, ledger, simulated_keys("a"), batch)).handle(plan)
        if said is None:
            assert isinstance(answer, PlanAccepted), answer
        else:
            assert isinstance(answer, PlanRefused)
            assert said in answer.reason
    ledger.close()


@pytest.mark.parametrize(("labels", "answers"), [(36, True), (10**9, False)])
def test_relative_couplings_are_judged_by_what_the_coordinator_says_they_come_to(labels: int, answers: bool) -> None:
    """The number of labels that it claims makes λ; what a sum then shows of one label is measured when it is said."""
    plan = sums(coupling=(0.01,), relative=True)
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    Z = np.concatenate(
        [rows, rng.normal(size=(20, 2))]
    )  # 0.38 of the sum at one instance is one label, and 0.85 at the end
    data = {n: PrivateData(rows, y, Z, "ids", n.encode()) for n in "abc"}
    sites = {n: Site(n, d, Terms(keys=simulated_keys(n), label_share_max=0.5)) for n, d in data.items()}
    accepted = accepted_by(sites, plan)
    assert sites["a"].handle(roster_of(plan, accepted)) == []
    [coupling] = plan.objective.couplings(labels, 3, 32)
    column = Column(coupling, weight_of("conjugate-gradients", coupling, 3))
    [answer] = sites["a"].handle(replace(first_question(plan, accepted, 32), columns=(column,)))
    assert isinstance(answer, Masked if answers else Fault), answer
    assert isinstance(answer, Masked) or "label_share_max" in answer.reason
