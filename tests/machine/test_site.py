"""site_agent/machine/site.py: plans that are taken or refused, what an offer tells, how much is
answered, words for faults.
"""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.tiny import (
    IDS,
    UNLABELLED,
    Pump,
    TinySite,
    allowing,
    make_plan,
    make_site,
    make_sites,
    private_data,
    sealed,
    site_with,
)
from numpy.testing import assert_allclose

from coordinator.machine.records import StepDone
from coreg_core.agreement.views import make_view
from coreg_core.errors import BadData, UsageError
from coreg_core.kernels import Gaussian
from coreg_core.messages import PROTOCOL_VERSION, Fetched, Finished, Hello, PlanRefused, Proposal
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, plan_fault
from coreg_core.spans import LabelledPoints
from coreg_core.terms import Membership
from site_agent.machine.agreement import factor, many_labels
from site_agent.machine.site import power_of_ten
from site_agent.site_data import PrivateData


def proposed(site: TinySite, plan: Plan | None = None, attempt: int = 0) -> Any:
    plan = plan or make_plan()
    [said] = site.handle(Proposal(plan.run, attempt, plan))
    return said


def refused(site: TinySite, plan: Plan | None = None) -> str:
    said = proposed(site, plan)
    assert isinstance(said, PlanRefused), said
    return said.reason


def cannot(threads: int) -> int:
    raise UsageError(f"{threads} threads cannot be had here")


@pytest.mark.parametrize(
    ("site", "plan", "words"),
    [
        (make_site("z"), make_plan(), "the plan does not list z among its sites"),
        (
            site_with("a", replace(private_data("a"), X=np.ones((4, 2)))),
            make_plan(bandwidth="paper"),
            "bandwidth",
        ),
        (make_site("a", pin_threads=cannot), make_plan(), "1 threads cannot be had here"),
        (
            make_site("a", policy=allowing(max_rounds=1)),
            make_plan(),
            "max_rounds = 300 is above max_rounds = 1",
        ),
        (
            site_with("a", replace(private_data("a"), X=np.zeros((0, 2)), y=np.zeros(0))),
            make_plan(),
            "needs labelled rows",
        ),
        (make_site("a"), sealed(make_plan(min_sites=1)), "sealed sums need 2 sites"),
    ],
)
def test_a_plan_that_this_site_cannot_carry_out_is_refused_with_the_reason(
    site: TinySite, plan: Plan, words: str
) -> None:
    assert words in refused(site, plan)


def test_hello_and_offer_tell_what_was_agreed_and_no_more() -> None:
    plan = make_plan()
    site = make_site("a")
    assert site.hello() == Hello("a", PROTOCOL_VERSION, "test")
    offer = proposed(site, plan)
    assert offer.run == plan.run
    assert offer.plan_digest == plan.digest
    assert offer.site == "a"
    assert offer.release == "test"
    assert offer.n_unlabelled == UNLABELLED
    assert offer.ids_digest == IDS
    assert {offer.signature, offer.identity} == {""}
    assert proposed(site, plan) is offer, "a session later too"
    assert len({proposed(make_site("a"), plan).key for _ in range(3)}) == 3, (
        "each process has a name of its own"
    )


def test_a_plan_may_not_change_in_the_middle_of_its_run() -> None:
    site = make_site("a")
    view = proposed(site) and site.computation.view
    assert (
        refused(site, make_plan(coupling=(5.0, 9.0)))
        == "the plan changed in the middle of the run."
    )
    assert proposed(site, attempt=1).attempt == 1
    assert site.computation.view is view, "nothing is factored again"


def test_the_digest_changes_with_every_array_and_shape_and_is_salted_by_site_and_run() -> None:
    data = private_data("a")
    seen = {proposed(make_site("a")).data_digest}
    assert {proposed(make_site("a")).data_digest} == seen
    for array in ("X", "y", "Z"):
        changed = getattr(data, array).copy()
        changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf)
        seen.add(proposed(site_with("a", replace(data, **{array: changed}))).data_digest)
    for other in (data, replace(data, X=data.X.reshape(2, 4)), replace(data, salt=b"another")):
        seen |= {other.digest(run) for run in ("run-2", "run-3")}
    assert len(seen) == 10


# --- how much is answered -------------------------------------------------------------------------


def test_no_more_questions_are_answered_than_an_agents_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = sealed(make_plan(min_sites=3, max_rounds=7))
    assert plan.objective.most_answers(plan) == 90, "ten attempts: seven rounds and two before"
    monkeypatch.setattr(Agreement, "most_answers", lambda self, plan: 6)
    sites = make_sites("abc")
    first = Pump(plan, sites).join().steps(5).kill("b").run()
    assert first.outcome is Outcome.REFUSED
    assert "refused the plan: more than 6 questions: an agent's limit" in first.end.reason
    assert sum(len(site.disclosed) for site in (first.sites["b"], sites["b"])) <= 6


def test_every_answer_with_numbers_comes_with_what_it_discloses_and_no_other_does() -> None:
    pump = Pump(sealed(make_plan(min_sites=3)), make_sites("abc")).join().run()
    disclosed = pump.sites["a"].disclosed
    assert {(d.sites, d.may_change, d.sealed) for d in disclosed} == {
        (("a", "b", "c"), False, True)
    }
    steps = [r for r in pump.records if isinstance(r, StepDone)]
    assert len(disclosed) == len(steps) - 2, "all steps but that of the keys, and the end"
    numbers = {d.question: d.numbers for d in disclosed}
    assert numbers == {"sizes": 5, "respond affine": 12, "respond linear": 12}


# --- numbers that overflow, and plans too large ---------------------------------------------------


@pytest.mark.parametrize("form", ["exact", "semi-parametric", "linear"])
def test_numbers_that_overflow_are_a_refusal_in_words(form: str) -> None:
    """Below 1e-155 every certificate was 0, and the run converged to a wrong model."""
    data = private_data("a")
    site = site_with("a", replace(data, X=1e160 * data.X, Z=1e160 * data.Z))
    assert "features, of size inf, leave no digit" in refused(
        site, make_plan(form=form, kernel="linear")
    )
    for scale in (1e-160, 1e160, 1e200):
        assert "Scale" in refused(
            site_with("a", replace(data, y=scale * data.y)), make_plan(form=form)
        )


@pytest.mark.parametrize("form", ["exact", "linear"])
def test_a_bound_that_cannot_be_summed_is_a_refusal_and_no_fault_of_the_first_step(
    form: str,
) -> None:
    data = private_data("a")
    site = site_with("a", replace(data, Z=1e20 * data.Z))
    reason = refused(site, make_plan(form=form, kernel="linear"))
    assert "a bound of this site is too large to be summed. Scale the features" in reason


def test_a_coupling_at_which_the_system_is_singular_is_a_fault_that_says_what_to_do() -> None:
    """λ = 1e20 on repeated rows: rounding outweighs the identity in I + (μ/ν)Σ."""
    data = private_data("a")
    repeated = replace(data, Z=np.repeat(data.Z[:1], UNLABELLED, axis=0))
    plan = make_plan(coupling=(1e20,), form="exact", ridge=1e-8, min_sites=3)
    pump = Pump(plan, make_sites("bc") | {"a": site_with("a", repeated)}).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "lower the coupling" in pump.end.reason


@pytest.mark.parametrize(
    ("n", "shared", "words"),
    [
        (
            50,
            200_000,
            (
                r'894 GiB .*3 couplings, 200000 unlabelled .* Use form = "semi-parametric", or'
                r" fewer couplings"
            ),
        ),
        (100_000, 10, r'74.5 GiB .* 100000 labelled rows.* Use form = "semi-parametric"'),
    ],
)
def test_a_refusal_names_the_memory_and_the_form_that_serves(
    n: int, shared: int, words: str
) -> None:
    """A factor is 8 m² bytes for each coupling, and 8 n² for the labelled rows."""
    large = PrivateData(np.zeros((n, 1)), np.arange(float(n)), np.zeros((shared, 1)), "ids")
    with pytest.raises(BadData, match=words):
        factor(
            Agreement(form="exact", bandwidth=1.0, ridge=1.0, coupling=(0.1, 0.2, 0.3)),
            large,
            large.y,
        )


def many(n: int) -> PrivateData:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return PrivateData(
        X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n), rng.normal(size=(30, 2)), "ids"
    )


def test_a_site_with_many_labels_uses_landmarks_and_says_so() -> None:
    data = many(301)
    terms = Agreement(form="semi-parametric", bandwidth=4.0, ridge=1.0, landmarks=300)
    view = factor(terms, data, data.y)
    assert len(view.basis.points) == 300
    whole = make_view(LabelledPoints(), Gaussian(4.0), data.X, data.y, data.Z, 1.0)
    target = np.zeros((30, 1))
    weight = np.ones(1)
    # The landmarks' span holds the smooth functions of two columns: what it lacks is far below the
    # noise of 0.1.
    assert_allclose(view.respond(target, weight), whole.respond(target, weight), atol=1e-5)
    [finding] = many_labels(terms, 301)
    assert finding.startswith("This site has 301 labelled rows, more than landmarks = 300")
    assert many_labels(terms, 300) == ()
    assert many_labels(Agreement(form="exact"), 301) == ()


def test_the_memory_of_many_labels_is_their_features_and_a_block() -> None:
    data = many(20_000)
    tracemalloc.start()
    try:
        factor(Agreement(form="semi-parametric"), data, data.y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The features, three times a block of 8 x 1,000 rows (values, their product, the triangle), and
    # the basis.
    assert peak < 8 * 1_000 * (20_000 + 3 * 8 * 1_000 + 10 * 1_000)


# --- the end, and plans that cannot be carried out ------------------------------------------------


@pytest.mark.parametrize("where", ["target", "id", "class"])
def test_no_name_of_a_plan_makes_lines_of_the_question_to_operators(where: str) -> None:
    forged = "high; no label leaves this machine"
    plan = replace(make_plan(), objective=Additive(classes=("low", forged, "other")))
    if where != "class":
        plan = replace(make_plan(), **{where: forged})
    assert "separate the parts of the question to operators" in (plan_fault(plan) or "")


def test_an_end_with_a_result_that_this_site_has_not_come_to_is_told() -> None:
    site = Pump(make_plan(), make_sites("abc")).join().steps(3).sites["a"]
    assert site.handle(Finished("run-1", Outcome.CONVERGED, "")) == [Fetched("run-1")]
    assert "before this site had received its last step" in site.missed


def test_the_result_is_there_with_the_last_answer_and_the_end_changes_nothing() -> None:
    pump = Pump(
        make_plan(),
        make_sites("abc"),
        wire=lambda site, x: None if isinstance(x, Finished) else x,
    )
    site = pump.join().run().sites["a"]
    result = site.result
    assert result.outcome is Outcome.CONVERGED
    assert result.sites == ("a", "b", "c")
    assert len(result.name) == 64
    assert site.handle(Finished("run-1", Outcome.CANCELLED, "")) == [Fetched("run-1")]
    assert site.result is result
    site.handle(Proposal("run-1", 1, pump.machine.plan))
    assert site.result is None, "another attempt replaces it"


@pytest.mark.parametrize(
    ("sites", "least", "words"),
    [
        ("aaa", 2, "lists a twice"),
        ("abc", 50, "min_sites=50"),
        ("ba", 2, "site order"),
        ([f"s{i}" for i in range(10, 75)], 2, "at most 64 sites"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(
    sites: str | list[str], least: int, words: str
) -> None:
    plan = replace(sealed(make_plan()), membership=Membership(tuple(sites), least))
    assert words in (plan_fault(plan) or "")
    assert words in refused(make_site("a"), plan)


def test_a_report_has_powers_of_ten_alone():
    """Exact figures disclose spectra."""
    plan = make_plan(coupling=(0.01, 1.0))
    records = Pump(plan, {name: make_site(name) for name in plan.sites}).join().run().records
    reports = [record.report for record in records if isinstance(record, StepDone)]
    told = {x for report in reports for x in (*report.residual, *report.gap)}
    assert len(told) > 4
    assert all(x in (-1.0, 0.0) or f"{x:e}".startswith("1.000000e") for x in told)
    nearest = [power_of_ten(value) for value in (2e-7, 5e-7, float("inf"), 0.0, -1.0)]
    assert nearest == [1e-7, 1e-6, -1.0, 0.0, -1.0]
