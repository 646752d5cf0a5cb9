"""site_agent/machine/site.py and training.py: one message in, a list of answers out; a site is held to nothing but its plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import (
    IDS,
    SCHEDULES,
    UNLABELLED,
    Pump,
    altered,
    make_plan,
    make_site,
    make_sites,
    private_data,
    undisturbed,
)
from numpy.testing import assert_allclose

from coordinator.config.federation_toml import read_configuration
from coordinator.machine.events import SiteLost
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight, sweep_weight
from coreg_core.agreement.question_rules import max_questions
from coreg_core.agreement.views import View
from coreg_core.errors import UsageError
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, plan_fault
from site_agent.ledger import Ledger, recall
from site_agent.machine import training
from site_agent.machine.factoring import data_digest
from site_agent.machine.site import MOST_BEGUN, MOST_FAULTS, Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy

TARGETS = m.Vector(np.linspace(-1.0, 1.0, 2 * UNLABELLED).reshape(UNLABELLED, 2))
ZERO = m.Vector(np.zeros((UNLABELLED, 2)))
COUPLING = (0.1, 1.0)  # of the tiny plan, whose three sites go on while two are there


def weights_of(M: int, rule: Callable[[float, int], float] = consensus_weight) -> tuple[float, ...]:
    return tuple(rule(lam, M) for lam in COUPLING)


WEIGHTS = weights_of(3)


def columns(*weights: float) -> tuple[Column, ...]:
    """The plan's couplings, each at its weight."""
    return tuple(Column(lam, mu) for lam, mu in zip(COUPLING, weights, strict=True))


COLUMNS = columns(*WEIGHTS)


def question(number: int = 0, attempt: int = 0, **changes: object) -> m.Ask:
    """Of conjugate gradients: the linear part at some target; ``weights`` make other columns."""
    if "weights" in changes:
        changes["columns"] = columns(*changes.pop("weights"))
    return replace(m.Ask("run-1", number, attempt, "linear", COLUMNS, True, TARGETS), **changes)


def affine(number: int = 0, attempt: int = 0, **changes: object) -> m.Ask:
    """What consensus asks of its sites in every round."""
    return question(number, attempt, **({"part": "affine"} | changes))


CONSENSUS = make_plan(schedule="consensus")


def targets(seed: int = 0, rows: int = UNLABELLED, k: int = 2) -> m.Vector:
    return m.Vector(np.random.default_rng(seed).normal(size=(rows, k)))


def asked(number: int, vector: m.Vector | None = None, **changes: Any) -> m.Ask:
    """Question ``number`` of consensus, at a target of its own unless one is given."""
    return affine(number, targets=targets(number) if vector is None else vector, **changes)


def ended(vector: m.Vector | None = TARGETS, outcome: Outcome = Outcome.CONVERGED, **changes: Any) -> m.Finished:
    """A run's end; by default, its model is the answer to `question` and `affine`."""
    return replace(m.Finished("run-1", outcome, "", COLUMNS, vector), **changes)


def accepted(site: Site, plan: Plan | None = None) -> m.PlanAccepted:
    [answer] = site.handle(plan or make_plan())
    assert isinstance(answer, m.PlanAccepted), answer
    return answer


def taking_part(plan: Plan | None = None, **changes: object) -> Site:
    site = make_site("a", **changes)
    accepted(site, plan)
    return site


def fault(site: Site, ask: m.Ask) -> str:
    [answer] = site.handle(ask)
    assert isinstance(answer, m.Fault)
    assert (answer.run, answer.question, answer.attempt) == (ask.run, ask.question, ask.attempt)
    return answer.reason


def refused(site: Site, plan: Plan) -> str:
    [answer] = site.handle(plan)
    assert isinstance(answer, m.PlanRefused), answer
    assert answer.run == plan.run
    return answer.reason


class Agent:
    """A site whose ledger is a file, as the real one's is; `restart` forgets everything but that file."""

    def __init__(self, path: Path, policy: Policy | None = None):
        self.path, self.policy = path, policy or Policy(aggregation="plaintext")
        self.restart()

    def restart(self) -> None:
        remember: Callable[..., Any] = lambda plan, ids_digest: recall(self.path, plan, ids_digest)  # noqa: E731
        terms = Terms(self.policy.objection, self.policy.questions, recall=remember)
        self.site = Site("a", private_data("a"), terms)

    def handle(self, *messages: m.ToSite) -> list[m.FromSite]:
        answers: list[m.FromSite] = []
        ledger = Ledger(self.path)
        for message in messages:
            for answer in self.site.handle(message):
                ledger.record(answer, message if isinstance(message, m.Ask) else None)
                answers.append(answer)
        ledger.close()
        return answers

    def kinds(self, *messages: m.ToSite) -> list[type]:
        return [type(answer) for answer in self.handle(*messages)]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path / "ledger.jsonl")


# --- the plan -----------------------------------------------------------------------------------------------------


def test_hello_tells_the_name_and_what_the_agent_speaks_and_nothing_of_its_data() -> None:
    assert Site("a", private_data("a"), release="9.9").hello() == m.Hello("a", m.PROTOCOL_VERSION, "9.9")


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
    assert site.handle(ended()) == [m.Fetched("run-1")]
    assert fault(site, question(1)) == "the run is over for this site."
    assert site.answered == 1


def cannot(threads: int) -> int:
    raise UsageError(f"{threads} threads cannot be had here")


@pytest.mark.parametrize(
    ("site", "plan", "words"),
    [
        (make_site("z"), make_plan(), "the plan does not list z."),
        (make_site("a"), make_plan(form="landmarks", landmarks=1000), "landmarks=1000"),
        (Site("a", replace(private_data("a"), X=np.ones((4, 2)))), make_plan(bandwidth="paper"), "bandwidth"),
        (make_site("a", pin_threads=cannot), make_plan(), "1 threads cannot be had here"),
    ],
)
def test_a_plan_that_this_site_cannot_carry_out_is_refused_with_the_reason(site: Site, plan: Plan, words: str) -> None:
    assert words in refused(site, plan)


def test_the_acceptance_states_what_was_agreed_and_no_more() -> None:
    plan, site = make_plan(), make_site("a", pin_threads=lambda threads: 3)
    answer, y = accepted(site, plan), private_data("a").y
    assert (answer.run, answer.plan_digest, answer.threads) == (plan.run, plan.digest, 3)
    assert (answer.n_unlabelled, answer.ids_digest) == (UNLABELLED, IDS)
    assert site.expected == {"run-1": (UNLABELLED, 2)}, "so many rows and columns have its vectors"
    assert_allclose(answer.squared_norm, np.sum((y - y.mean()) ** 2))
    assert answer.bound == site.view.bound("tight")
    assert accepted(make_site("a"), make_plan(bound="a-priori")).bound >= answer.bound


@pytest.mark.parametrize("form", ["exact", "semi-parametric", "landmarks", "linear"])
@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "polynomial", "linear"])
def test_every_form_and_kernel_of_the_wire_can_be_asked_for(form: str, kernel: str) -> None:
    site = taking_part(make_plan(form=form, kernel=kernel))
    [answer] = site.handle(question())
    assert isinstance(answer, m.Prediction)
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


def test_a_plan_may_not_change_in_the_middle_of_its_run() -> None:
    site = taking_part()
    assert refused(site, make_plan(coupling=(5.0, 9.0))) == "the plan changed in the middle of the run."
    [answer] = site.handle(question())
    assert isinstance(answer, m.Prediction), "the plan that was accepted still holds"


def test_a_run_that_cannot_be_begun_does_not_keep_the_one_before_it_from_going_on() -> None:
    site = make_site("a")
    before = accepted(site)
    site.hello()
    assert "landmarks=1000" in refused(site, make_plan(run="run-2", form="landmarks", landmarks=1000))
    assert accepted(site) == before
    assert isinstance(site.handle(question())[0], m.Prediction)


def test_one_run_after_another_in_one_session() -> None:
    site = taking_part()
    site.handle(question())
    site.handle(ended())
    accepted(site, make_plan(run="run-2"))
    assert isinstance(site.handle(question(run="run-2"))[0], m.Prediction)
    assert site.handle(ended(run="run-2")) == [m.Fetched("run-2")]
    assert site.breach is None


# --- the digest of the data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ["X", "y", "Z"])
def test_the_digest_is_the_datas_and_changes_with_every_array(array: str) -> None:
    data, same = private_data("a"), accepted(make_site("a"))
    assert accepted(make_site("a")) == same
    changed = getattr(data, array).copy()
    changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf)
    assert accepted(Site("a", replace(data, **{array: changed}))).data_digest != same.data_digest


def test_the_digest_depends_on_shapes_and_is_salted_by_the_site_and_by_the_run() -> None:
    X, y, Z = np.arange(8.0).reshape(4, 2), np.arange(4.0), np.arange(6.0).reshape(3, 2)
    one, other = PrivateData(X, y, Z, "ids"), PrivateData(X.reshape(2, 4), y, Z, "ids")
    assert data_digest(one, "run-1") != data_digest(other, "run-1")
    digests = {
        accepted(Site("a", replace(private_data("a"), salt=salt)), make_plan(run=run)).data_digest
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
def test_an_answer_is_the_respond_of_the_factored_view(schedule: str, asked: m.Ask) -> None:
    site = taking_part(make_plan(schedule=schedule))
    assert isinstance(site.view, View)
    expected = site.view.respond(asked.targets.values, asked.weights, asked.part)
    assert site.handle(asked) == [m.Prediction("run-1", 0, 0, m.Vector(expected))]


def test_a_repeated_question_gets_the_same_object_and_is_not_computed_again() -> None:
    site = taking_part()
    [first], [second] = site.handle(question()), site.handle(question())
    assert second is first
    assert site.answered == 2, "it left the site twice"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": m.Vector(TARGETS.values + 1e-16)}, "came with another target"),
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


def test_an_older_question_is_refused_and_a_new_attempt_at_the_same_is_answered() -> None:
    site = taking_part()
    for attempt in (1, 2):
        assert isinstance(site.handle(question(3, attempt))[0], m.Prediction)
    for number, attempt in ((2, 2), (3, 0)):
        assert "older than the last answered" in fault(site, question(number, attempt))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": m.Vector(np.zeros((UNLABELLED - 1, 2)))}, "shape (5, 2)"),
        ({"targets": m.Vector(np.zeros((UNLABELLED, 3)))}, "shape (6, 3)"),
        ({"columns": ()}, "with 0 columns"),
        ({"columns": COLUMNS[:1]}, "with 1 columns"),
        ({"columns": (*COLUMNS, Column(3.0, 3.0))}, "with 3 columns"),
        ({"columns": COLUMNS[::-1]}, "columns of coupling 1, 0.1, where the plan has 0.1, 1"),
        ({"columns": (COLUMNS[0], Column(2.0, WEIGHTS[1]))}, "columns of coupling 0.1, 2"),
        ({"weights": (0.5, -2.0)}, "weights 0.5, -2"),
        ({"weights": (0.5, float("nan"))}, "weights 0.5, nan"),
        ({"targets": m.Vector(np.full((UNLABELLED, 2), np.inf))}, "not finite"),
        ({"run": "run-9"}, "no plan of this run"),
    ],
)
def test_a_question_of_another_form_is_refused(changes: dict[str, object], words: str) -> None:
    site = taking_part()
    assert words in fault(site, question(**changes))
    assert site.answered == 0


NOT_ASKED = {
    "no label but by respond(0)": ("conjugate-gradients", affine(), "another target than 0"),
    "a target that is nearly 0": ("conjugate-gradients", affine(targets=m.Vector(ZERO.values + 1e-300)), "than 0"),
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
    assert isinstance(site.handle(affine(0, targets=ZERO))[0], m.Prediction)
    assert "other weights than before in the same attempt" in fault(site, question(1, weights=weights_of(2)))
    assert isinstance(site.handle(affine(1, 1, targets=ZERO, weights=weights_of(2)))[0], m.Prediction)
    assert isinstance(site.handle(question(2, 1, weights=weights_of(2)))[0], m.Prediction)


def test_a_plan_for_one_site_may_ask_for_its_own_model() -> None:
    site = taking_part(make_plan(sites=("a",), min_sites=1))
    assert isinstance(site.handle(affine(targets=ZERO, weights=(0.0, 0.0)))[0], m.Prediction)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("attempts", [0, 1, 1000])
def test_no_more_is_answered_than_the_plan_allows_whatever_attempt_is_claimed(schedule: str, attempts: int) -> None:
    site = taking_part(make_plan(max_rounds=5, schedule=schedule))
    weights = weights_of(3, sweep_weight if schedule == "block-coordinate-descent" else consensus_weight)
    part = "linear" if schedule == "conjugate-gradients" else "affine"
    kinds = [type(site.handle(question(n, n * attempts, weights=weights, part=part))[0]) for n in range(40)]
    assert kinds.index(m.Fault) == max_questions(5) == 12
    assert set(kinds[12:]) == {m.Fault}
    assert "more than 12 questions" in fault(site, question(50, 50_000, weights=weights, part=part))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("max_rounds", [1, 3, 7])
def test_an_undisturbed_run_takes_half_of_what_may_be_asked(schedule: str, max_rounds: int) -> None:
    pump = undisturbed(make_plan(schedule=schedule, max_rounds=max_rounds, tolerance=0.0, prediction_tolerance=0.0))
    assert {site.answered for site in pump.sites.values()} == {max_rounds}
    assert max_rounds < max_questions(max_rounds) / 2


@pytest.mark.parametrize(
    "forbidden",
    [
        asked(0, part="linear"),
        asked(0, columns=(COLUMNS[0], replace(COLUMNS[1], weight=0.5))),
        asked(0, targets(rows=UNLABELLED + 1)),
        asked(0, m.Vector(np.full((UNLABELLED, 2), np.nan))),
    ],
    ids=["a linear question", "a weight of its own", "a shape of its own", "no number"],
)
def test_ten_forbidden_questions_end_the_session(forbidden: m.Ask) -> None:
    site = taking_part(CONSENSUS)
    for number in range(MOST_FAULTS):
        assert site.breach is None, f"{number} of them are borne"
        fault(site, replace(forbidden, question=number))
    assert f"asked {MOST_FAULTS} questions that the plan does not allow" in site.breach
    assert site.answered == 0


@pytest.fixture
def factored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that a site's data were factored for."""
    begun: list[str] = []
    begin = training.begin

    def watched(plan: Plan, *rest: Any) -> Any:
        begun.append(plan.run)
        return begin(plan, *rest)

    monkeypatch.setattr(training, "begin", watched)
    return begun


def test_a_second_plan_while_a_run_is_under_way_is_refused_and_not_factored(factored: list[str]) -> None:
    site = taking_part()
    for run in ("run-0", "run-2"):
        assert refused(site, make_plan(run=run)) == "this site takes part in run run-1, and in one run at a time."
    assert factored == ["run-1"]


def test_after_ten_unfinished_runs_a_plan_is_refused_and_not_factored(factored: list[str]) -> None:
    site, runs = make_site("a"), [f"run-{number}" for number in range(MOST_BEGUN)]
    for run in runs:
        site.hello()
        accepted(site, make_plan(run=run))
    site.hello()
    assert f"{MOST_BEGUN} runs were begun here and none was finished" in refused(site, make_plan(run="one-more"))
    assert factored == runs
    accepted(site, make_plan(run=runs[-1]))  # the one that is begun may go on
    site.handle(m.Finished(runs[-1], Outcome.STALLED, ""))
    accepted(site, make_plan(run="one-more"))  # and one that is finished clears the rest


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
    assert isinstance(site.handle(affine(columns=alone, targets=ZERO))[0], m.Prediction)
    assert site.handle(ended(ZERO, columns=alone)) == [m.Fetched("run-1")]
    result = site.result
    assert result.outcome is Outcome.CONVERGED
    for function in result.functions:
        assert_allclose(function.predict(far.X) * result.divisor + result.shift, far.y, rtol=1e-6)
    assert_allclose(result.alone.predict(far.X), result.functions[0].predict(far.X))


@given(shift=st.floats(-1e3, 1e3), scale=st.floats(0.01, 100.0))
def test_standardised_answers_do_not_depend_on_the_units(shift: float, scale: float) -> None:
    data = private_data("a")
    plan = make_plan(label_units="standardised", schedule="consensus")
    one, other = Site("a", data), Site("a", replace(data, y=shift + scale * data.y))
    assert_allclose(accepted(one, plan).squared_norm, accepted(other, plan).squared_norm, rtol=1e-6)
    [p], [q] = one.handle(affine()), other.handle(affine())
    assert_allclose(p.values.values, q.values.values, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n", [1, 3, 10])
@pytest.mark.parametrize("value", [0.0, 0.1, -7.3])
def test_constant_targets_stay_constant_when_standardised(value: float, n: int) -> None:
    data = private_data("a")
    site = Site("a", replace(data, X=np.resize(data.X, (n, 2)), y=np.full(n, value)))
    assert accepted(site, make_plan(label_units="standardised")).squared_norm <= 1e-20


def test_an_end_without_a_verified_round_leaves_no_model() -> None:
    site = taking_part()
    assert site.handle(m.Finished("run-1", Outcome.STALLED, "b did not come back")) == [m.Fetched("run-1")]
    assert site.result.functions == ()
    assert (site.result.outcome, site.result.reason) == (Outcome.STALLED, "b did not come back")
    assert site.runs["run-1"].over
    assert site.breach is None


def test_the_end_is_taken_once_and_confirmed_as_often_as_it_comes() -> None:
    site = taking_part()
    site.handle(question())
    assert site.handle(ended()) == [m.Fetched("run-1")]
    result = site.result
    assert site.handle(ended(ZERO, Outcome.STALLED)) == [m.Fetched("run-1")]
    assert site.result is result


@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.STALLED])
def test_the_end_of_another_run_is_not_ours(outcome: Outcome) -> None:
    site = taking_part()
    assert site.handle(m.Finished("run-9", outcome, "")) == []
    assert site.result is None
    assert isinstance(site.handle(question())[0], m.Prediction)


@pytest.mark.parametrize("message", [m.Rejected("no"), m.Dismissed("run-1", Outcome.REFUSED, "no")])
def test_a_rejection_is_heard_in_silence(message: m.Rejected | m.Dismissed) -> None:
    assert taking_part().handle(message) == []


def test_what_cannot_be_solved_is_a_fault_and_no_crash() -> None:
    """λ = 1e20 on repeated rows: rounding outweighs the identity in I + (μ/ν)Σ; the plan is as it is, the site goes on."""
    data = private_data("a")
    repeated = replace(data, Z=np.repeat(data.Z[:1], UNLABELLED, axis=0))
    site = Site("a", repeated)
    accepted(site, make_plan(coupling=(1e20, 1e20), form="exact", ridge=1e-8))
    asked = 2 * (Column(1e20, consensus_weight(1e20, 3)),)
    assert "lower the coupling" in fault(site, question(columns=asked))
    assert site.answered == 0


def test_a_path_whose_factors_do_not_fit_is_refused_with_what_would_fit() -> None:
    """500 bytes grant so many factors of 8 m² bytes; a single one is always granted."""
    site, fits = Site("a", private_data("a"), Terms(factor_memory=500 / 2**30)), 500 // (8 * UNLABELLED**2)
    reason = refused(site, make_plan(form="exact", coupling=(0.0, 0.1, 0.2, 0.3, 0.4)))
    assert f"{max(1, fits)} would fit" in reason
    assert "factor_memory" in reason
    accepted(site, make_plan(run="c", form="exact", coupling=(0.0, 0.1)))


# --- the end is held to the plan ----------------------------------------------------------------------------------


def in_breach(site: Site, end: m.Finished, words: str) -> None:
    assert site.handle(end) == [], "a site that has no model of a run does not say that it has"
    assert words in site.breach
    assert site.result is None


NEVER_ASKED = {
    "another target": {"targets": m.Vector(np.full((UNLABELLED, 2), 1e6)), "columns": 2 * (Column(0.1, 1e12),)},
    "another target at the right weights": {"targets": m.Vector(np.full((UNLABELLED, 2), 1e6))},
    "other weights": {"columns": (COLUMNS[0], replace(COLUMNS[1], weight=1e12))},
    "a weight that differs by a bit": {
        "columns": (COLUMNS[0], replace(COLUMNS[1], weight=float(np.nextafter(COLUMNS[1].weight, np.inf))))
    },
    "negative weights": {"columns": tuple(replace(c, weight=-c.weight) for c in COLUMNS)},
    "other couplings": {"columns": tuple(replace(c, coupling=2 * c.coupling) for c in COLUMNS)},
    "no columns": {"columns": ()},
    "one column for two couplings": {"columns": COLUMNS[:1]},
    "five columns for two couplings": {"columns": 5 * COLUMNS[:1]},
    "five columns and five targets": {"columns": 5 * COLUMNS[:1], "targets": targets(k=5)},
    "two columns and five targets": {"targets": targets(k=5)},
    "one row more": {"targets": targets(rows=UNLABELLED + 1)},
    "not finite": {"targets": m.Vector(np.full((UNLABELLED, 2), np.nan))},
}


@pytest.mark.parametrize("what", NEVER_ASKED)
@pytest.mark.parametrize("questions", [0, 3])
@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.MAX_ROUNDS])
def test_a_model_to_what_was_never_asked_is_a_breach(what: str, questions: int, outcome: Outcome) -> None:
    site = taking_part(CONSENSUS)
    for number in range(questions):
        site.handle(asked(number))
    words = "not those of the last verified question" if questions else "although no question was answered"
    in_breach(site, ended(targets(2), outcome, **NEVER_ASKED[what]), words)


@pytest.mark.parametrize("couplings", [1, 5])
@pytest.mark.parametrize("sent", [1, 2, 5])
def test_as_many_columns_as_the_plan_has_couplings_or_none(couplings: int, sent: int) -> None:
    coupling = tuple(0.1 * (j + 1) for j in range(couplings))
    columns = tuple(Column(lam, consensus_weight(lam, 3)) for lam in coupling)
    site = taking_part(make_plan(schedule="consensus", coupling=coupling))
    [answer] = site.handle(asked(0, targets(k=couplings), columns=columns))
    assert isinstance(answer, m.Prediction)
    told = (5 * columns)[:sent]
    if sent == couplings:
        assert site.handle(ended(targets(k=sent), columns=told)) == [m.Fetched("run-1")]
        assert len(site.result.solutions) == couplings
    else:
        in_breach(site, ended(targets(k=sent), columns=told), "not those of the last verified question")


def test_a_model_without_a_plan_and_convergence_without_a_model_are_breaches() -> None:
    converged = m.Finished("run-1", Outcome.CONVERGED, "")
    for end in (ended(), converged):
        in_breach(make_site("a"), end, "ended run run-1 with a model, whose plan was not accepted")
    site = taking_part(CONSENSUS)
    site.handle(asked(0))
    in_breach(site, converged, "converged without a model")


@pytest.mark.parametrize("outcome", Outcome)
def test_models_are_the_answers_to_the_last_verified_question(outcome: Outcome) -> None:
    site = taking_part(CONSENSUS)
    answers = [site.handle(asked(number))[0] for number in range(4)]
    assert site.handle(ended(targets(3), outcome)) == [m.Fetched("run-1")]
    assert site.breach is None
    for column, solution in zip(answers[3].values.values.T, site.result.solutions, strict=True):
        assert_allclose(solution.prediction, column, rtol=1e-12, atol=1e-14)
        assert_allclose(solution.predict(private_data("a").Z), column, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("number", "fits"), [(3, True), (2, True), (1, False), (0, False)])
def test_the_last_two_verified_questions_may_make_the_model_and_no_older_one(
    agent: Agent, number: int, fits: bool, restart: bool
) -> None:
    """The open one may never be complete. The ledger remembers which they are."""
    agent.handle(CONSENSUS, *(asked(n) for n in range(4)))
    if restart:
        agent.restart()
        assert agent.kinds(CONSENSUS) == [m.PlanAccepted]
    if fits:
        assert agent.handle(ended(targets(number), Outcome.STALLED)) == [m.Fetched("run-1")]
        assert len(agent.site.result.solutions) == 2
    else:
        in_breach(agent.site, ended(targets(number), Outcome.STALLED), "not those of the last verified question")


@pytest.mark.parametrize("restart", [False, True])
def test_a_question_that_is_repeated_is_one_question(agent: Agent, restart: bool) -> None:
    """It is repeated after a session broke, or the coordinator was killed: then the round before it may still be the last."""
    agent.handle(CONSENSUS, asked(0), asked(1))
    if restart:
        agent.restart()
    agent.site.hello()
    kinds = agent.kinds(CONSENSUS, asked(1), ended(targets(0), Outcome.STALLED))
    assert kinds == [m.PlanAccepted, m.Prediction, m.Fetched]
    assert agent.site.breach is None


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_question_has_the_weights_that_it_had(agent: Agent, restart: bool) -> None:
    fewer = tuple(Column(lam, consensus_weight(lam, 2)) for lam in COUPLING)
    agent.handle(CONSENSUS, asked(0), asked(1, attempt=1, columns=fewer))
    if restart:
        agent.restart()
        agent.handle(CONSENSUS)
    assert agent.kinds(asked(0, columns=fewer)) == [m.Fault]
    assert agent.kinds(asked(0)) == [m.Prediction]


@pytest.mark.parametrize("restart", [False, True])
def test_a_direction_is_no_model(agent: Agent, restart: bool) -> None:
    z, direction = targets(1), targets(2)
    agent.handle(make_plan(), asked(0, ZERO), asked(1, direction, part="linear", is_candidate=False))
    if restart:
        agent.restart()
        agent.handle(make_plan())
    in_breach(agent.site, ended(direction), "not those of the last verified question")
    agent.site.breach = None
    agent.handle(asked(2, z, part="linear"), asked(3, direction, part="linear", is_candidate=False))
    assert agent.handle(ended(z)) == [m.Fetched("run-1")]


def test_the_ledger_of_another_run_or_another_plan_vouches_for_nothing(agent: Agent) -> None:
    agent.handle(CONSENSUS, asked(0))
    for plan in (make_plan(schedule="consensus", run="run-2"), make_plan(schedule="consensus", max_rounds=7)):
        agent.restart()
        agent.handle(plan)
        in_breach(agent.site, ended(targets(0), run=plan.run), "although no question was answered")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("lost_at", [2, 5, 12])
def test_an_honest_end_is_never_a_breach_wherever_a_site_was_lost(schedule: str, lost_at: int) -> None:
    """The rounds that were complete count, and the open question does not: the others end on what they verified."""
    pump = Pump(make_plan(schedule=schedule, tolerance=0.0, prediction_tolerance=0.0), make_sites("abc")).join()
    pump.steps(lost_at)
    pump.sites["c"].handle = lambda message: []
    pump.events.append(SiteLost("c", "its stream ended"))
    pump.out_of_time().out_of_time().run()
    assert pump.outcome is Outcome.STALLED
    for name in "ab":
        assert pump.sites[name].breach is None
        assert pump.sites[name].result is not None


# --- how many answers a plan may have -----------------------------------------------------------------------------


def answered(agent: Agent, run: str, count: int) -> int:
    """How many of so many questions of a run are answered; the rest are refused for their number."""
    agent.site.hello()
    assert agent.kinds(make_plan(schedule="consensus", max_rounds=2, run=run)) == [m.PlanAccepted]
    answers = agent.handle(*(asked(number, run=run) for number in range(count)))
    given = sum(isinstance(answer, m.Prediction) for answer in answers)
    assert all("the most that this agent answers" in a.reason for a in answers[given:] if isinstance(a, m.Fault))
    return given


@pytest.mark.parametrize("restarts", [False, True])
def test_the_budget_belongs_to_the_plan_and_the_instances_and_survives_runs_and_restarts(
    agent: Agent, restarts: bool
) -> None:
    assert max_questions(2) == 6
    given = []
    for run in ("run-1", "run-2", "run-3", "run-4"):
        given.append(answered(agent, run, 4))
        if restarts:
            agent.restart()
    assert given == [4, 2, 0, 0]


def test_what_was_answered_before_a_restart_of_the_same_run_counts(agent: Agent) -> None:
    assert answered(agent, "run-1", 5) == 5
    agent.restart()
    agent.handle(make_plan(schedule="consensus", max_rounds=2))
    assert agent.site.answered == 5
    assert agent.kinds(*(asked(number) for number in range(5, 8))) == [m.Prediction, m.Fault, m.Fault]


def test_other_instances_and_another_plan_have_budgets_of_their_own(agent: Agent) -> None:
    assert answered(agent, "run-1", 6) == 6
    data = replace(private_data("a"), ids_digest="other instances")
    agent.site = Site("a", data, Terms(recall=lambda plan, ids_digest: recall(agent.path, plan, ids_digest)))
    assert answered(agent, "run-2", 8) == 6
    agent.restart()
    assert answered(agent, "run-3", 8) == 0
    agent.site.hello()
    agent.handle(make_plan(schedule="consensus", max_rounds=3, run="run-4"))
    assert agent.kinds(asked(0, run="run-4")) == [m.Prediction]


@pytest.mark.parametrize("most", [1, 3, 20])
def test_the_operator_may_set_the_budget(tmp_path: Path, most: int) -> None:
    agent = Agent(tmp_path / "ledger.jsonl", Policy(aggregation="plaintext", max_questions=most))
    assert answered(agent, "run-1", 9) == min(most, 9)
    agent.restart()
    assert answered(agent, "run-2", 30) == max(0, most - 9)


# --- numbers that overflow ----------------------------------------------------------------------------------------


def test_an_honest_sites_answer_that_is_not_finite_is_a_fault_at_once() -> None:
    """Finite targets that overflow on the way: over the wire, NaN would be refused as a breach, again and again."""
    site = taking_part(make_plan(schedule="consensus", form="linear"))
    assert "not finite" in fault(site, asked(0, m.Vector(np.full((UNLABELLED, 2), 1.7e308))))
    assert site.answered == 0
    assert isinstance(site.handle(asked(1))[0], m.Prediction), "and the site goes on"


@pytest.mark.parametrize("form", ["exact", "semi-parametric", "landmarks"])
@pytest.mark.parametrize("bound", ["tight", "a-priori"])
def test_a_kernel_that_overflows_is_a_refusal_in_words(form: str, bound: str) -> None:
    data = private_data("a")
    site = Site("a", replace(data, X=50.0 * data.X, Z=50.0 * data.Z))
    reason = refused(site, make_plan(form=form, kernel="polynomial", degree=400, bound=bound))
    # A kernel matrix of infinities is said to be singular, where the exact form meets it first.
    assert ("kernel matrix at ridge=1 is singular" if form == "exact" else "kernel='polynomial'") in reason
    assert reason.endswith(".")


@pytest.mark.parametrize("scale", [1e160, 1e200])
def test_targets_whose_squares_overflow_are_a_refusal_in_words(scale: float) -> None:
    data = private_data("a")
    assert "Scale" in refused(Site("a", replace(data, y=scale * data.y)), make_plan())


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
def test_no_question_is_asked_that_is_not_finite(schedule: str) -> None:
    heard = list[m.ToSite]()

    def huge(message: m.ToSite, answer: Any) -> Any:
        """Finite, and as large as numbers are."""
        heard.append(message)
        if not isinstance(answer, m.Prediction):
            return answer
        return replace(answer, values=m.Vector(np.full(answer.values.shape, 1.7e308)))

    sites = {name: altered(site, huge) for name, site in make_sites("abc").items()}
    pump = Pump(make_plan(schedule=schedule), sites).join().run()
    assert all(message.targets.finite for message in heard if isinstance(message, m.Ask))
    assert pump.outcome is Outcome.SITE_FAULT


# --- plans that cannot be carried out -----------------------------------------------------------------------------


IMPOSSIBLE = {
    "one site three times": (Membership(("a", "a", "a"), 2), ["lists a twice", "counts once"]),
    "more than there are": (Membership(("a", "b", "c"), 50), ["min_sites=50", "3 sites"]),
}


@pytest.mark.parametrize(("membership", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_plan_that_cannot_be_carried_out_is_refused_by_both_ends(
    tmp_path: Path, membership: Membership, words: list[str]
) -> None:
    plan = replace(make_plan(), membership=membership)
    fault = plan_fault(plan)
    assert fault is not None
    [answer] = make_site("a").handle(plan)
    assert isinstance(answer, m.PlanRefused)
    assert fault in answer.reason
    path = tmp_path / "federation.toml"
    sites = ", ".join(f'"{site}"' for site in membership.sites)
    path.write_text(
        f'[federation]\nname = "tiny"\nsites = [{sites}]\nmin_sites = {membership.min_sites}\n'
        '[privacy]\naggregation = "plaintext"\n'
    )
    with pytest.raises(UsageError) as error:
        read_configuration(path)
    for told in (fault, answer.reason, str(error.value)):
        assert all(word in told for word in words), told


def test_sites_that_are_not_in_site_order_are_refused_too() -> None:
    """Sums are taken in site order, and a site's position among the models is its position in the plan."""
    fault = plan_fault(replace(make_plan(), membership=Membership(("b", "a"), 2)))
    assert "site order" in fault
    assert plan_fault(make_plan()) is None
