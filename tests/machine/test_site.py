"""A site as a function: one message in, a list of answers out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tiny import IDS, UNLABELLED, make_plan, make_site, private_data, undisturbed

from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight, sweep_weight
from coreg_core.agreement.question_rules import most_questions
from coreg_core.agreement.views import View
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import (
    PROTOCOL_VERSION,
    Ask,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    Hello,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Rejected,
    Vector,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger, recall
from site_agent.machine.factoring import data_digest
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData

TARGETS = Vector(np.linspace(-1.0, 1.0, 2 * UNLABELLED).reshape(UNLABELLED, 2))
ZERO = Vector(np.zeros((UNLABELLED, 2)))
COUPLING = (0.1, 1.0)  # of the tiny plan, whose three sites go on while two are there


def weights_of(M: int, rule: Callable[[float, int], float] = consensus_weight) -> tuple[float, ...]:
    return tuple(rule(lam, M) for lam in COUPLING)


WEIGHTS = weights_of(3)


def columns(*weights: float) -> tuple[Column, ...]:
    """The plan's couplings, each at its weight."""
    return tuple(Column(lam, mu) for lam, mu in zip(COUPLING, weights, strict=True))


COLUMNS = columns(*WEIGHTS)


def question(number: int = 0, attempt: int = 0, **changes: object) -> Ask:
    """Of conjugate gradients: the linear part at some target; ``weights`` make other columns."""
    if "weights" in changes:
        changes["columns"] = columns(*changes.pop("weights"))  # type: ignore[misc]
    return replace(Ask("run-1", number, attempt, "linear", COLUMNS, True, TARGETS), **changes)  # type: ignore[arg-type]


def affine(number: int = 0, attempt: int = 0, **changes: object) -> Ask:
    """What consensus asks of its sites in every round."""
    return question(number, attempt, **({"part": "affine"} | changes))


def finished(outcome: Outcome = Outcome.CONVERGED, **changes: object) -> Finished:
    """A run's end whose model is the answer to `question` and `affine`."""
    return replace(Finished("run-1", outcome, "", COLUMNS, TARGETS), **changes)  # type: ignore[arg-type]


def taking_part(plan: Plan | None = None, **changes: object) -> Site:
    site = make_site("a", **changes)  # type: ignore[arg-type]
    [accepted] = site.handle(plan or make_plan())
    assert isinstance(accepted, PlanAccepted)
    return site


def fault(site: Site, ask: Ask) -> str:
    [answer] = site.handle(ask)
    assert isinstance(answer, Fault)
    assert (answer.run, answer.question, answer.attempt) == (ask.run, ask.question, ask.attempt)
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


def test_hello_tells_the_name_and_what_the_agent_speaks_and_nothing_of_its_data() -> None:
    assert Site("a", private_data("a"), release="9.9").hello() == Hello("a", PROTOCOL_VERSION, "9.9")


def test_nothing_is_answered_outside_a_plan() -> None:
    site = make_site("a")
    assert fault(site, question()) == "no plan of this run is accepted, so nothing is answered."
    assert site.answered == 0
    assert site.breach == "asked for run run-1, whose plan was not accepted in this session."
    assert site.expected == {}, "and no vector is taken"


def test_nothing_is_answered_after_a_refusal() -> None:
    site = make_site("a", objection=lambda plan: "max_rounds is above mine")
    assert refused(site, make_plan()) == "max_rounds is above mine"
    assert "no plan" in fault(site, question())
    assert site.view is None, "a plan is objected to before anything is computed"


def test_nothing_is_answered_once_the_run_is_over() -> None:
    site = taking_part()
    site.handle(question())
    assert site.handle(finished()) == [Fetched("run-1")]
    assert fault(site, question(1)) == "the run is over for this site."
    assert site.answered == 1


def test_a_plan_without_this_site_is_refused() -> None:
    assert refused(make_site("z"), make_plan()) == "the plan does not list z."


def test_a_plan_that_cannot_be_computed_is_refused_with_the_parameter() -> None:
    assert "landmarks=1000" in refused(make_site("a"), make_plan(form="landmarks", landmarks=1000))
    alike = replace(private_data("a"), X=np.ones((4, 2)))
    assert "bandwidth" in refused(Site("a", alike), make_plan(bandwidth="paper"))


def test_a_failure_to_pin_threads_is_a_refusal() -> None:
    def cannot(threads: int) -> int:
        raise UsageError(f"{threads} threads cannot be had here")

    assert refused(make_site("a", pin_threads=cannot), make_plan()) == "1 threads cannot be had here"


def test_the_acceptance_states_what_was_agreed_and_no_more() -> None:
    plan, site = make_plan(), make_site("a", pin_threads=lambda threads: 3)
    answer, y = accepted(site, plan), private_data("a").y
    assert (answer.run, answer.plan_digest, answer.threads) == (plan.run, plan.digest, 3)
    assert (answer.n_unlabelled, answer.ids_digest) == (UNLABELLED, IDS)
    assert site.expected == {"run-1": (UNLABELLED, 2)}, "so many rows and columns have its vectors"
    assert_allclose(answer.squared_norm, np.sum((y - y.mean()) ** 2))
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
    [before] = site.handle(question())
    site.hello()
    assert site.expected == {}, "in a new session nothing is taken before the plan came again"
    assert accepted(site) is first
    assert site.view is view
    assert site.handle(question())[0] is before, "and it still knows what it answered"


def test_nothing_is_answered_in_a_new_session_until_the_plan_came_again() -> None:
    site = taking_part()
    site.handle(question())
    site.hello()
    assert "no plan of this run" in fault(site, question())
    assert site.breach is not None


def test_a_plan_may_not_change_in_the_middle_of_its_run() -> None:
    site = taking_part()
    assert refused(site, make_plan(coupling=(5.0, 9.0))) == "the plan changed in the middle of the run."
    [answer] = site.handle(question())
    assert isinstance(answer, Prediction), "the plan that was accepted still holds"


class Remembering:
    """A site whose answers stand in a ledger, as the agent keeps them; `again` is the agent after a restart."""

    def __init__(self, path: Path, most: int | None = None):
        self.path = path
        self.again(most)

    def again(self, most: int | None = None) -> None:
        terms = Terms(recall=lambda plan, ids_digest: recall(self.path, plan, ids_digest))
        if most is not None:
            terms = replace(terms, most_questions=lambda plan: most)
        self.site = Site("a", private_data("a"), terms)

    def handle(self, message: Plan | Ask) -> list[object]:
        ledger = Ledger(self.path)
        answers = self.site.handle(message)
        for answer in answers:
            ledger.record(answer, message if isinstance(message, Ask) else None)
        ledger.close()
        return list(answers)


@pytest.mark.parametrize("restarts", [False, True])
def test_another_run_begins_afresh_but_for_the_count(tmp_path: Path, restarts: bool) -> None:
    """A coordinator begins a run whenever it likes: what was answered in the last one is not forgotten."""
    agent = Remembering(tmp_path / "ledger.jsonl")

    def begin(run: str) -> None:
        if restarts:
            agent.again()
        agent.site.hello()
        assert isinstance(agent.handle(make_plan(run=run, max_rounds=2))[0], PlanAccepted)

    begin("run-1")
    for number in range(3):
        assert isinstance(agent.handle(question(number))[0], Prediction)
    begin("run-2")
    for number in range(3):
        assert isinstance(agent.handle(question(number, run="run-2"))[0], Prediction)
    assert "no plan of this run" in fault(agent.site, question())
    assert "more than 6 questions" in fault(agent.site, question(3, run="run-2"))
    begin("run-3")
    assert "more than 6 questions" in fault(agent.site, question(0, run="run-3"))


def test_a_refused_run_leaves_the_one_before_it_as_it_was() -> None:
    site = taking_part(make_plan(label_units="raw"))
    site.handle(question())
    other = make_plan(run="run-2", label_units="standardised", form="landmarks", landmarks=1000)
    assert refused(site, other) == "this site takes part in run run-1, and in one run at a time."
    site.handle(finished())
    assert site.result is not None
    assert (site.result.shift, site.result.divisor) == (0.0, 1.0)


def test_a_run_that_cannot_be_begun_does_not_keep_the_one_before_it_from_going_on() -> None:
    site = make_site("a")
    before = accepted(site)
    site.hello()
    assert "landmarks=1000" in refused(site, make_plan(run="run-2", form="landmarks", landmarks=1000))
    assert accepted(site) == before
    assert isinstance(site.handle(question())[0], Prediction)


def test_one_run_after_another_in_one_session() -> None:
    site = taking_part()
    site.handle(question())
    site.handle(finished())
    accepted(site, make_plan(run="run-2"))
    assert isinstance(site.handle(question(run="run-2"))[0], Prediction)
    assert site.handle(finished(run="run-2")) == [Fetched("run-2")]
    assert site.breach is None


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
    assert data_digest(one, "run-1") != data_digest(other, "run-1")


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
    expected = site.view.respond(asked.targets.values, asked.weights, asked.part)
    assert site.handle(asked) == [Prediction("run-1", 0, 0, Vector(expected))]


def test_a_repeated_question_gets_the_same_object_and_is_not_computed_again() -> None:
    site = taking_part()
    [first], [second] = site.handle(question()), site.handle(question())
    assert second is first
    assert site.answered == 2, "it left the site twice"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": Vector(TARGETS.values + 1e-16)}, "came with another target"),
        ({"part": "affine", "targets": ZERO}, "came with another target"),
        ({"weights": weights_of(2)}, "came with another target, or other weights"),
    ],
)
def test_another_question_under_an_old_number_is_refused(changes: dict[str, object], words: str) -> None:
    site = taking_part()
    [first] = site.handle(question())
    assert words in fault(site, question(**changes))
    assert site.answered == 1
    assert site.handle(question()) == [first]


def test_an_older_question_is_refused() -> None:
    site = taking_part()
    site.handle(question(3, attempt=1))
    assert "older than the last answered" in fault(site, question(2, attempt=1))
    assert "older than the last answered" in fault(site, question(3, attempt=0))


def test_a_new_attempt_at_the_same_question_is_answered() -> None:
    site = taking_part()
    site.handle(question(3))
    assert isinstance(site.handle(question(3, attempt=1))[0], Prediction)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": Vector(np.zeros((UNLABELLED - 1, 2)))}, "shape (5, 2)"),
        ({"targets": Vector(np.zeros((UNLABELLED, 3)))}, "shape (6, 3)"),
        ({"columns": ()}, "with 0 columns"),
        ({"columns": COLUMNS[:1]}, "with 1 columns"),
        ({"columns": (*COLUMNS, Column(3.0, 3.0))}, "with 3 columns"),
        ({"columns": COLUMNS[::-1]}, "columns of coupling 1, 0.1, where the plan has 0.1, 1"),
        ({"columns": (COLUMNS[0], Column(2.0, WEIGHTS[1]))}, "columns of coupling 0.1, 2"),
        ({"weights": (0.5, -2.0)}, "weights 0.5, -2"),
        ({"weights": (0.5, float("nan"))}, "weights 0.5, nan"),
        ({"targets": Vector(np.full((UNLABELLED, 2), np.inf))}, "not finite"),
        ({"run": "run-9"}, "no plan of this run"),
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
    accepted(site, make_plan(label_units=target, form=form, ridge=1e-9, coupling=(0.0, 0.0)))
    alone = (Column(0.0, 0.0), Column(0.0, 0.0))
    assert isinstance(site.handle(affine(columns=alone, targets=ZERO))[0], Prediction)
    assert site.handle(finished(columns=alone, targets=ZERO)) == [Fetched("run-1")]
    result = site.result
    assert result is not None
    assert result.outcome is Outcome.CONVERGED
    for function in result.functions:
        assert_allclose(function.predict(far.X) * result.divisor + result.shift, far.y, rtol=1e-6)
    assert result.alone is not None
    assert_allclose(result.alone.predict(far.X), result.functions[0].predict(far.X))


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(0.01, 100.0))
def test_standardised_answers_do_not_depend_on_the_units(shift: float, scale: float) -> None:
    data = private_data("a")
    plan = make_plan(label_units="standardised", schedule="consensus")
    one, other = Site("a", data), Site("a", replace(data, y=shift + scale * data.y))
    assert_allclose(accepted(one, plan).squared_norm, accepted(other, plan).squared_norm, rtol=1e-6)
    [p], [q] = one.handle(affine()), other.handle(affine())
    assert isinstance(p, Prediction)
    assert isinstance(q, Prediction)
    assert_allclose(p.values.values, q.values.values, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n", [1, 3, 10])
@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_constant_targets_stay_constant_when_standardised(value: float, n: int) -> None:
    data = private_data("a")
    site = Site("a", replace(data, X=np.resize(data.X, (n, 2)), y=np.full(n, value)))
    assert accepted(site, make_plan(label_units="standardised")).squared_norm <= 1e-20


def test_models_are_the_answers_to_the_final_targets() -> None:
    site = taking_part(make_plan(schedule="consensus"))
    [answer] = site.handle(affine())
    assert isinstance(answer, Prediction)
    site.handle(finished())
    assert site.result is not None
    for column, solution in zip(answer.values.values.T, site.result.solutions, strict=True):
        assert_allclose(solution.prediction, column, rtol=1e-12, atol=1e-14)
        assert_allclose(solution.predict(private_data("a").Z), column, rtol=1e-8, atol=1e-10)


def test_an_end_without_a_verified_round_leaves_no_model() -> None:
    site = taking_part()
    assert site.handle(Finished("run-1", Outcome.STALLED, "b did not come back")) == [Fetched("run-1")]
    assert site.result is not None
    assert site.result.functions == ()
    assert (site.result.outcome, site.result.reason) == (Outcome.STALLED, "b did not come back")
    assert site.runs["run-1"].over
    assert site.breach is None


def test_the_end_is_taken_once_and_confirmed_as_often_as_it_comes() -> None:
    site = taking_part()
    site.handle(question())
    assert site.handle(finished()) == [Fetched("run-1")]
    result = site.result
    assert site.handle(finished(Outcome.STALLED, targets=ZERO)) == [Fetched("run-1")]
    assert site.result is result


@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.STALLED])
def test_the_end_of_another_run_is_not_ours(outcome: Outcome) -> None:
    site = taking_part()
    assert site.handle(Finished("run-9", outcome, "")) == []
    assert site.result is None
    assert isinstance(site.handle(question())[0], Prediction)


def test_final_targets_of_a_wrong_shape_make_no_model() -> None:
    site = taking_part()
    site.handle(question())
    assert site.handle(finished(targets=Vector(np.zeros((UNLABELLED + 1, 2))))) == []
    assert site.result is None
    assert "not those of the last verified question" in (site.breach or "")


def test_an_end_before_any_plan_is_an_end() -> None:
    site = make_site("a")
    assert site.handle(Finished("run-1", Outcome.TOO_FEW_SITES, "b did not join")) == [Fetched("run-1")]
    assert site.result is not None
    assert site.result.plan is None


@pytest.mark.parametrize("message", [Rejected("no"), Dismissed("run-1", Outcome.REFUSED, "no")])
def test_a_rejection_is_heard_in_silence(message: Rejected | Dismissed) -> None:
    assert taking_part().handle(message) == []


def test_what_cannot_be_solved_is_a_fault_and_no_crash() -> None:
    """λ = 1e20 on repeated rows: rounding outweighs the identity in I + (μ/ν)Σ; the plan is as it is, the site goes on."""
    data = private_data("a")
    repeated = replace(data, Z=np.repeat(data.Z[:1], UNLABELLED, axis=0))
    plan = make_plan(coupling=(1e20, 1e20), form="exact", ridge=1e-8)
    site = Site("a", repeated)
    [answer] = site.handle(plan)
    assert isinstance(answer, PlanAccepted)
    asked = 2 * (Column(1e20, consensus_weight(1e20, 3)),)
    [answer] = site.handle(question(columns=asked))
    assert isinstance(answer, Fault)
    assert "lower the coupling" in answer.reason
    assert site.answered == 0


def test_a_path_whose_factors_do_not_fit_is_refused_with_what_would_fit() -> None:
    """500 bytes grant so many factors of 8 m² bytes; a single one is always granted."""
    site = Site("a", private_data("a"), Terms(factor_memory=500 / 2**30))
    m = len(private_data("a").Z)
    fits = 500 // (8 * m * m)
    site.hello()
    assert isinstance(site.handle(make_plan(form="exact", coupling=(0.0, 0.1, 0.2, 0.3, 0.4)))[0], PlanRefused)
    (refused,) = site.handle(make_plan(run="b", form="exact", coupling=(0.0, 0.1, 0.2, 0.3, 0.4)))
    assert isinstance(refused, PlanRefused)
    assert f"{max(1, fits)} would fit" in refused.reason
    assert "factor_memory" in refused.reason
    (accepted,) = site.handle(make_plan(run="c", form="exact", coupling=(0.0, 0.1)))
    assert isinstance(accepted, PlanAccepted), "one factor is always granted"
