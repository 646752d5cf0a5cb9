"""A site as a function: one message in, a list of answers out."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tiny import UNLABELLED, make_plan, make_site, private_data, undisturbed

from coreg_core.errors import UsageError
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fault,
    Finished,
    Hello,
    Leaving,
    Plan,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Rejected,
    Vector,
)
from coreg_core.objective import consensus_weight, sweep_weight
from coreg_core.rounds.questions import most_questions
from coreg_core.rounds.schedule import Stop
from coreg_core.views import View
from site_agent.machine import PrivateData, Site, SitePhase

TARGETS = Vector(np.linspace(-1.0, 1.0, 2 * UNLABELLED).reshape(UNLABELLED, 2))
ZERO = Vector(np.zeros((UNLABELLED, 2)))
COUPLING = (0.1, 1.0)  # of the tiny plan, whose three sites go on while two are there


def weights_of(M: int, rule: Callable[[float, int], float] = consensus_weight) -> tuple[float, ...]:
    return tuple(rule(lam, M) for lam in COUPLING)


WEIGHTS = weights_of(3)


def question(round_: int = 0, attempt: int = 0, **changes: object) -> Ask:
    return replace(Ask("run-1", round_, attempt, "linear", WEIGHTS, TARGETS), **changes)  # type: ignore[arg-type]


def affine(round_: int = 0, attempt: int = 0, **changes: object) -> Ask:
    """What consensus asks of its sites in every round."""
    return question(round_, attempt, **({"part": "affine"} | changes))


def taking_part(plan: Plan | None = None, **changes: object) -> Site:
    site = make_site("a", **changes)  # type: ignore[arg-type]
    [accepted] = site.handle(plan or make_plan())
    assert isinstance(accepted, PlanAccepted)
    return site


def fault(site: Site, ask: Ask) -> str:
    [answer] = site.handle(ask)
    assert isinstance(answer, Fault)
    assert (answer.run, answer.round, answer.attempt) == (ask.run, ask.round, ask.attempt)
    return answer.reason


def accepted(site: Site, plan: Plan | None = None) -> PlanAccepted:
    [answer] = site.handle(plan or make_plan())
    assert isinstance(answer, PlanAccepted), answer
    return answer


def refused(site: Site, plan: Plan) -> str:
    [answer] = site.handle(plan)
    assert isinstance(answer, PlanRefused), answer
    assert answer.run == plan.run
    return answer.reason


# --- the plan -----------------------------------------------------------------------------------------------------


def test_hello_tells_the_size_and_the_digest_and_nothing_else() -> None:
    assert make_site("a").hello() == Hello("a", PROTOCOL_VERSION, UNLABELLED, private_data("a").ids_digest)


def test_nothing_is_answered_outside_a_plan() -> None:
    site = make_site("a")
    assert fault(site, question()) == "no plan is accepted, so nothing is answered."
    assert site.answered == 0


def test_nothing_is_answered_after_a_refusal() -> None:
    site = make_site("a", objection=lambda plan: "max_rounds is above mine")
    assert refused(site, make_plan()) == "max_rounds is above mine"
    assert "no plan" in fault(site, question())
    assert site.view is None, "a plan is objected to before anything is computed"


def test_nothing_is_answered_once_the_run_is_over() -> None:
    site = taking_part()
    site.handle(Finished("run-1", Stop.CONVERGED, "", (0.5, 2.0), TARGETS))
    assert "no plan" in fault(site, question())


def test_a_plan_without_this_site_is_refused() -> None:
    assert refused(make_site("z"), make_plan()) == "the plan does not list z."


def test_a_plan_that_cannot_be_computed_is_refused_with_the_parameter() -> None:
    assert "landmarks=1000" in refused(make_site("a"), make_plan(form="landmarks", landmarks=1000))
    assert "bandwidth" in refused(make_site("a"), make_plan(bandwidth="no-such-rule"))


def test_a_failure_to_pin_threads_is_a_refusal() -> None:
    def cannot(threads: int) -> int:
        raise UsageError(f"{threads} threads cannot be had here")

    assert refused(make_site("a", pin_threads=cannot), make_plan()) == "1 threads cannot be had here"


def test_the_acceptance_states_what_was_agreed_and_no_more() -> None:
    plan, site = make_plan(), make_site("a", pin_threads=lambda threads: 3)
    answer, y = accepted(site, plan), private_data("a").y
    assert (answer.run, answer.plan_digest, answer.threads) == (plan.run, plan.digest, 3)
    assert_allclose(answer.scale, np.sum((y - y.mean()) ** 2))
    assert site.view is not None
    assert answer.bound == site.view.bound("tight")
    assert accepted(make_site("a"), make_plan(bound="a-priori")).bound >= answer.bound


@pytest.mark.parametrize("form", ["exact", "semi-parametric", "landmarks", "linear"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "polynomial", "linear"])
def test_every_form_and_kernel_of_the_wire_can_be_asked_for(form: str, kernel: str) -> None:
    site = taking_part(make_plan(form=form, kernel=kernel))
    [answer] = site.handle(question())
    assert isinstance(answer, Prediction)
    assert answer.values.shape == TARGETS.shape


def test_a_site_that_rejoins_keeps_its_acceptance_and_factors_nothing_again() -> None:
    site = make_site("a")
    first, view = accepted(site), site.view
    site.handle(question())
    assert accepted(site) is first
    assert site.view is view
    [answer] = site.handle(question())
    assert isinstance(answer, Prediction)
    assert site.answered == 1, "and it still knows what it answered"


def test_a_plan_may_not_change_in_the_middle_of_its_run() -> None:
    site = taking_part()
    assert refused(site, make_plan(coupling=(5.0, 9.0))) == "the plan changed in the middle of the run."
    [answer] = site.handle(question())
    assert isinstance(answer, Prediction), "the plan that was accepted still holds"


def test_another_run_begins_afresh_but_for_the_count() -> None:
    """A coordinator begins a run whenever it likes: what was answered in the last one is not forgotten."""
    site = taking_part(make_plan(max_rounds=2))
    for round_ in range(3):
        assert isinstance(site.handle(question(round_))[0], Prediction)
    accepted(site, make_plan(run="run-2", max_rounds=2))
    for round_ in range(3):
        assert isinstance(site.handle(question(round_, run="run-2"))[0], Prediction)
    assert "asked for run run-1" in fault(site, question())
    assert "more than 6 questions" in fault(site, question(3, run="run-2"))
    accepted(site, make_plan(run="run-3", max_rounds=2))
    assert "more than 6 questions" in fault(site, question(0, run="run-3"))


def test_a_refused_run_leaves_the_one_before_it_as_it_was() -> None:
    site = taking_part(make_plan(target="raw"))
    refused(site, make_plan(run="run-2", target="standardised", form="landmarks", landmarks=1000))
    site.handle(Finished("run-1", Stop.CONVERGED, "", (0.5, 2.0), TARGETS))
    assert site.result is not None
    assert (site.result.shift, site.result.scale) == (0.0, 1.0)


# --- the digest of the data ---------------------------------------------------------------------------------------


def test_the_same_data_under_the_same_run_have_the_same_digest() -> None:
    assert accepted(make_site("a")) == accepted(make_site("a"))


@pytest.mark.parametrize("array", ["X", "y", "Z"])
def test_the_digest_changes_with_every_array(array: str) -> None:
    data = private_data("a")
    changed = getattr(data, array).copy()
    changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf)
    other = accepted(Site("a", replace(data, **{array: changed})))
    assert other.data_digest != accepted(make_site("a")).data_digest


def test_rows_that_move_from_one_array_to_the_next_change_the_digest() -> None:
    X, y = np.arange(8.0).reshape(4, 2), np.arange(4.0)
    one = PrivateData(X, y, np.arange(6.0).reshape(3, 2), "ids")
    other = PrivateData(X.reshape(2, 4), y, np.arange(6.0).reshape(3, 2), "ids")
    plan = make_plan(form="linear", kernel="linear")
    digests = {Site("a", data)._digest(plan) for data in (one, other)}
    assert len(digests) == 2


def test_the_digest_is_salted_by_the_site_and_by_the_run() -> None:
    data = private_data("a")
    digests = {
        accepted(Site("a", replace(data, salt=salt)), make_plan(run=run)).data_digest
        for salt in (b"one", b"two")
        for run in ("run-1", "run-2")
    }
    assert len(digests) == 4


# --- questions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "asked"),
    [
        ("conjugate-gradients", question()),
        ("conjugate-gradients", affine(targets=ZERO)),
        ("consensus", affine()),
        ("block-coordinate-descent", affine(weights=weights_of(3, sweep_weight))),
    ],
)
def test_an_answer_is_the_respond_of_the_factored_view(schedule: str, asked: Ask) -> None:
    site = taking_part(make_plan(schedule=schedule))
    assert isinstance(site.view, View)
    expected = site.view.respond(asked.targets.values, np.array(asked.weights), asked.part)
    assert site.handle(asked) == [Prediction("run-1", 0, 0, Vector(expected))]


def test_a_repeated_question_gets_the_same_object_and_is_not_computed_again() -> None:
    site = taking_part()
    [first], [second] = site.handle(question()), site.handle(question())
    assert second is first
    assert site.answered == 1


@pytest.mark.parametrize(
    "changes",
    [{"targets": Vector(TARGETS.values + 1e-16)}, {"weights": weights_of(2)}, {"part": "affine"}],
)
def test_another_target_under_an_old_number_is_refused(changes: dict[str, object]) -> None:
    site = taking_part()
    [first] = site.handle(question())
    assert "came with another target" in fault(site, question(**changes))
    assert site.handle(question()) == [first]
    assert site.answered == 1


def test_an_older_question_is_refused() -> None:
    site = taking_part()
    site.handle(question(3, attempt=1))
    assert "older than the last answered" in fault(site, question(2, attempt=1))
    assert "older than the last answered" in fault(site, question(3, attempt=0))


def test_a_new_attempt_at_the_same_round_is_answered() -> None:
    site = taking_part()
    site.handle(question(3))
    assert isinstance(site.handle(question(3, attempt=1))[0], Prediction)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": Vector(np.zeros((UNLABELLED - 1, 2)))}, "shape (5, 2)"),
        ({"targets": Vector(np.zeros((UNLABELLED, 3)))}, "shape (6, 3)"),
        ({"weights": WEIGHTS[:1]}, "with 1 weights"),
        ({"weights": (*WEIGHTS, 3.0)}, "with 3 weights"),
        ({"weights": (0.5, -2.0)}, "weight is negative"),
        ({"weights": (0.5, float("nan"))}, "not finite"),
        ({"targets": Vector(np.full((UNLABELLED, 2), np.inf))}, "not finite"),
        ({"run": "run-9"}, "asked for run run-9"),
    ],
)
def test_a_question_of_another_form_is_refused(changes: dict[str, object], words: str) -> None:
    site = taking_part()
    assert words in fault(site, question(**changes))
    assert site.answered == 0


NOT_ASKED = {
    "no label but by respond(0)": ("conjugate-gradients", affine(), "another target than 0"),
    "a target that is nearly 0": ("conjugate-gradients", affine(targets=Vector(ZERO.values + 1e-300)), "than 0"),
    "the linear part under consensus": ("consensus", question(), "a linear question, where consensus asks affine"),
    "the linear part of Algorithm 1": ("block-coordinate-descent", question(), "a linear question"),
    "the model of the site alone": ("conjugate-gradients", affine(targets=ZERO, weights=(0.0, 0.0)), "weights 0, 0"),
    "a weight of the coordinator's own": ("consensus", affine(weights=(0.6, 1.0)), "weights 0.6, 1"),
    "a weight beside another's": ("consensus", affine(weights=(WEIGHTS[0], weights_of(2)[1])), "no number of sites"),
    "weights in another order": ("consensus", affine(weights=WEIGHTS[::-1]), "no number of sites from 2 to 3"),
    "fewer sites than min_sites": ("consensus", affine(weights=weights_of(1, lambda lam, M: 2 * lam * M)), "from 2"),
    "more sites than the plan's": ("consensus", affine(weights=weights_of(4)), "from 2 to 3"),
    "consensus' weight under Algorithm 1": ("block-coordinate-descent", affine(), "no number of sites"),
    "Algorithm 1's under consensus": ("consensus", affine(weights=weights_of(2, sweep_weight)), "no number of sites"),
}


@pytest.mark.parametrize("what", NOT_ASKED)
def test_what_the_plans_schedule_never_asks_is_refused(what: str) -> None:
    schedule, asked, words = NOT_ASKED[what]
    site = taking_part(make_plan(schedule=schedule))
    reason = fault(site, asked)
    assert reason.startswith("nothing that the plan's schedule asks: ")
    assert words in reason
    assert site.answered == 0


def test_a_smaller_membership_asks_with_its_own_weights_in_an_attempt_of_its_own() -> None:
    site = taking_part()
    assert isinstance(site.handle(affine(0, targets=ZERO))[0], Prediction)
    assert "other weights than before in the same attempt" in fault(site, question(1, weights=weights_of(2)))
    assert isinstance(site.handle(affine(1, 1, targets=ZERO, weights=weights_of(2)))[0], Prediction)
    assert isinstance(site.handle(question(2, 1, weights=weights_of(2)))[0], Prediction)


def test_a_plan_for_one_site_may_ask_for_its_own_model() -> None:
    site = taking_part(make_plan(sites=("a",), min_sites=1))
    assert isinstance(site.handle(affine(targets=ZERO, weights=(0.0, 0.0)))[0], Prediction)


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus", "block-coordinate-descent"])
@pytest.mark.parametrize("attempts", [0, 1, 1000])
def test_no_more_is_answered_than_the_plan_allows_whatever_attempt_is_claimed(schedule: str, attempts: int) -> None:
    site = taking_part(make_plan(max_rounds=5, schedule=schedule))
    weights = weights_of(3, sweep_weight if schedule == "block-coordinate-descent" else consensus_weight)
    part = "linear" if schedule == "conjugate-gradients" else "affine"
    kinds = [type(site.handle(question(n, n * attempts, weights=weights, part=part))[0]) for n in range(40)]
    assert kinds.index(Fault) == most_questions(5) == 12
    assert set(kinds[12:]) == {Fault}
    assert "more than 12 questions" in fault(site, question(50, 50_000, weights=weights, part=part))


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus", "block-coordinate-descent"])
@pytest.mark.parametrize("max_rounds", [1, 3, 7])
def test_an_undisturbed_run_takes_half_of_what_may_be_asked(schedule: str, max_rounds: int) -> None:
    pump = undisturbed(make_plan(schedule=schedule, max_rounds=max_rounds, tolerance=0.0, prediction_tolerance=0.0))
    assert {site.answered for site in pump.sites.values()} == {max_rounds}
    assert max_rounds < most_questions(max_rounds) / 2


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["raw", "centred", "standardised"])
@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
def test_predictions_come_back_in_the_sites_own_units(target: str, form: str) -> None:
    """With next to no ridge and no coupling a model repeats its labels, whatever was done to them on the way."""
    data = private_data("a")
    far = replace(data, y=1000.0 + 50.0 * data.y)
    site = Site("a", far)
    accepted(site, make_plan(target=target, form=form, ridge=1e-9, coupling=(0.0, 0.0)))
    zero = Vector(np.zeros((UNLABELLED, 2)))
    assert site.handle(Finished("run-1", Stop.CONVERGED, "", (0.0, 0.0), zero)) == [Leaving("the run is over")]
    result = site.result
    assert result is not None
    assert result.stop is Stop.CONVERGED
    for function in result.functions:
        assert_allclose(function.predict(far.X) * result.scale + result.shift, far.y, rtol=1e-6)
    assert result.alone is not None
    assert_allclose(result.alone.predict(far.X), result.functions[0].predict(far.X))


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(0.01, 100.0))
def test_standardised_answers_do_not_depend_on_the_units(shift: float, scale: float) -> None:
    data = private_data("a")
    plan = make_plan(target="standardised", schedule="consensus")
    one, other = Site("a", data), Site("a", replace(data, y=shift + scale * data.y))
    assert_allclose(accepted(one, plan).scale, accepted(other, plan).scale, rtol=1e-6)
    [p], [q] = one.handle(affine()), other.handle(affine())
    assert isinstance(p, Prediction)
    assert isinstance(q, Prediction)
    assert_allclose(p.values.values, q.values.values, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n", [1, 3, 10])
@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_constant_targets_stay_constant_when_standardised(value: float, n: int) -> None:
    data = private_data("a")
    site = Site("a", replace(data, X=np.resize(data.X, (n, 2)), y=np.full(n, value)))
    assert accepted(site, make_plan(target="standardised")).scale <= 1e-20


def test_models_are_the_answers_to_the_final_targets() -> None:
    site = taking_part(make_plan(schedule="consensus"))
    [answer] = site.handle(affine())
    assert isinstance(answer, Prediction)
    site.handle(Finished("run-1", Stop.CONVERGED, "", WEIGHTS, TARGETS))
    assert site.result is not None
    for column, solution in zip(answer.values.values.T, site.result.solutions, strict=True):
        assert_allclose(solution.prediction, column, rtol=1e-12, atol=1e-14)
        assert_allclose(solution.predict(private_data("a").Z), column, rtol=1e-8, atol=1e-10)


def test_an_end_without_a_verified_round_leaves_no_model() -> None:
    site = taking_part()
    assert site.handle(Finished("run-1", Stop.STALLED, "b did not come back")) == [Leaving("the run is over")]
    assert site.result is not None
    assert site.result.functions == ()
    assert (site.result.stop, site.result.reason) == (Stop.STALLED, "b did not come back")
    assert site.phase is SitePhase.OVER


def test_the_end_of_another_run_is_not_ours() -> None:
    site = taking_part()
    assert site.handle(Finished("run-9", Stop.CONVERGED, "")) == []
    assert isinstance(site.handle(question())[0], Prediction)


def test_final_targets_of_a_wrong_shape_make_no_model() -> None:
    site = taking_part()
    site.handle(Finished("run-1", Stop.CONVERGED, "", (0.5, 2.0), Vector(np.zeros((UNLABELLED + 1, 2)))))
    assert site.result is not None
    assert site.result.functions == ()


def test_an_end_before_any_plan_is_an_end() -> None:
    site = make_site("a")
    assert site.handle(Finished("run-1", Stop.TOO_FEW_SITES, "b did not join")) == [Leaving("the run is over")]
    assert site.result is not None
    assert site.result.plan is None


def test_a_rejection_is_heard_in_silence() -> None:
    assert taking_part().handle(Rejected("no")) == []


def test_what_cannot_be_solved_is_a_fault_and_no_crash() -> None:
    """λ = 1e20 on repeated rows: rounding outweighs the identity in I + (μ/ν)Σ; the plan is as it is, the site goes on."""
    data = private_data("a")
    repeated = replace(data, Z=np.repeat(data.Z[:1], UNLABELLED, axis=0))
    plan = make_plan(coupling=(1e20, 1e20), form="exact", ridge=1e-8)
    site = Site("a", repeated)
    [answer] = site.handle(plan)
    assert isinstance(answer, PlanAccepted)
    weights = (consensus_weight(1e20, 3),) * 2
    [answer] = site.handle(question(weights=weights))
    assert isinstance(answer, Fault)
    assert "lower the coupling" in answer.reason
    assert site.answered == 0
