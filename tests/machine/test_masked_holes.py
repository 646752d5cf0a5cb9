"""What a coordinator tried to get one site's answer by, and got before: an attack a test, each on the agent's own code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked import another_process, data_of, masked_sites, sums
from tiny import Pump, private_data

from coreg_core.agreement.columns import Column
from coreg_core.agreement.question_rules import weight_of
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.protocol.messages import (
    Ask,
    Fault,
    Inquiry,
    Masked,
    Participant,
    PlanAccepted,
    PlanRefused,
    Roster,
    Vector,
)
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring
from coreg_sim.federation.masks import fingerprint_of, simulated_keys
from site_agent.ledger import Ledger
from site_agent.machine.differencing import Promises, SummedWith, objection
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy


@pytest.mark.parametrize("objective", ["agreement", "additive"])
def test_a_question_that_was_answered_is_not_answered_again_without_a_roster(objective: str) -> None:
    plan, asked = sums(objective), list[Any]()
    sites = masked_sites(plan)
    before = sites["b"].handle

    def listening(message: Any) -> Any:
        asked.append(message)
        return before(message)

    sites["b"].handle = listening  # type: ignore[method-assign]
    Pump(plan, sites).join().run()
    again = another_process(sites["b"])
    again.handle(plan)
    questions = [m for m in asked if isinstance(m, Ask | Inquiry)]
    assert len(questions) > 4
    for ask in questions:
        [answer] = again.handle(ask)
        assert isinstance(answer, Fault), type(answer)
        assert "no roster" in answer.reason


def accepted_by(sites: dict[str, Site], plan: Plan) -> dict[str, PlanAccepted]:
    found = {}
    for name in plan.sites:
        [answer] = sites[name].handle(plan)
        assert isinstance(answer, PlanAccepted), answer
        found[name] = answer
    return found


def roster_of(plan: Plan, accepted: dict[str, PlanAccepted], attempt: int = 0) -> Roster:
    told = [(name, accepted[name]) for name in plan.sites]
    return Roster(plan.run, attempt, tuple(Participant(n, a.key, a.signature, a.identity) for n, a in told))


def first_question(plan: Plan, accepted: dict[str, PlanAccepted], m: int = 6) -> Ask:
    coupling, M = plan.couplings[0], len(plan.sites)
    column = Column(coupling, weight_of("conjugate-gradients", coupling, M))

    reach = 2.0 ** max(a.reach for a in accepted.values())
    exponents = (exponent_for(reach, M),)
    return Ask(plan.run, 0, 0, "affine", (column,), False, Vector(np.zeros((m, 1))), exponents)


def test_a_job_that_begins_anew_has_another_key_since_its_data_may_be_others() -> None:
    """Under `serve` a table is read again: two rows under one stream would tell their difference."""
    plan, keys = sums(coupling=(0.1,)), {name: simulated_keys(name) for name in "abc"}

    def answered(seed: int) -> Any:
        sites = {n: Site(n, private_data(n, seed if n == "b" else 0), Terms(keys=keys[n])) for n in "abc"}
        accepted = accepted_by(sites, plan)
        assert sites["b"].handle(roster_of(plan, accepted)) == []
        [answer] = sites["b"].handle(first_question(plan, accepted))
        assert isinstance(answer, Masked), answer
        return accepted["b"].key, answer.words.values

    (key, words), (other_key, other_words) = answered(0), answered(1)
    assert key != other_key
    difference = (words - other_words).view(np.int64).astype(float)
    assert np.abs(difference).max() > 2.0**50, "two pads, not one"


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
        plan = Plan(f"run-{len(sites)}", "f", Membership(sites, len(sites)), Scoring("m1"), privacy=Privacy("sums"))
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
    [coupling] = plan.objective.couplings(labels, 3, 32)  # type: ignore[union-attr]
    column = Column(coupling, weight_of("conjugate-gradients", coupling, 3))
    [answer] = sites["a"].handle(replace(first_question(plan, accepted, 32), columns=(column,)))
    assert isinstance(answer, Masked if answers else Fault), answer
    assert isinstance(answer, Masked) or "label_share_max" in answer.reason
