"""What a coordinator of bad will, or a restart, could once get out of a site: each test is a hole that was there.

A run's end is held to the plan, vectors are not answered outside one, and what a site gives is counted whatever restarts.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import UNLABELLED, Pump, make_plan, make_site, make_sites, private_data

from coordinator.machine.events import SiteLost
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.question_rules import most_questions
from coreg_core.protocol.messages import (
    Ask,
    Fault,
    Fetched,
    Finished,
    FromSite,
    PlanAccepted,
    PlanRefused,
    Prediction,
    ToSite,
    Vector,
)
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger, recall
from site_agent.machine import training
from site_agent.machine.site import MOST_BEGUN, MOST_FAULTS, Site, Terms
from site_agent.policy.policy import Policy

COUPLING = (0.1, 1.0)
COLUMNS = tuple(Column(lam, consensus_weight(lam, 3)) for lam in COUPLING)
CONSENSUS = make_plan(schedule="consensus")


def targets(seed: int = 0, m: int = UNLABELLED, k: int = 2) -> Vector:
    return Vector(np.random.default_rng(seed).normal(size=(m, k)))


def asked(number: int, vector: Vector | None = None, *, verifies: bool = True, **changes: Any) -> Ask:
    """Question ``number`` of consensus, at a target of its own unless one is given."""
    ask = Ask("run-1", number, 0, "affine", COLUMNS, verifies, targets(number) if vector is None else vector)
    return replace(ask, **changes)


def ended(vector: Vector | None, outcome: Outcome = Outcome.CONVERGED, **changes: Any) -> Finished:
    return replace(Finished("run-1", outcome, "", COLUMNS, vector), **changes)


class Agent:
    """A site whose ledger is a file, as the real one's is; `restart` forgets everything but that file."""

    def __init__(self, path: Path, policy: Policy | None = None):
        self.path, self.policy = path, policy or Policy(answers="clear")
        self.restart()

    def restart(self) -> None:
        remember: Callable[..., Any] = lambda plan, ids_digest: recall(self.path, plan, ids_digest)  # noqa: E731
        terms = Terms(self.policy.objection, self.policy.questions, recall=remember)
        self.site = Site("a", private_data("a"), terms)

    def handle(self, *messages: ToSite) -> list[FromSite]:
        answers: list[FromSite] = []
        ledger = Ledger(self.path)
        for message in messages:
            for answer in self.site.handle(message):
                ledger.record(answer, message if isinstance(message, Ask) else None)
                answers.append(answer)
        ledger.close()
        return answers

    def kinds(self, *messages: ToSite) -> list[type]:
        return [type(answer) for answer in self.handle(*messages)]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path / "ledger.jsonl")


def in_breach(site: Site, end: Finished, words: str) -> None:
    assert site.handle(end) == [], "a site that has no model of a run does not say that it has"
    assert site.breach is not None
    assert words in site.breach
    assert site.result is None


# --- the end of a run is held to the plan --------------------------------------------------------------------------

NEVER_ASKED = {
    "another target": {"targets": Vector(np.full((UNLABELLED, 2), 1e6)), "columns": 2 * (Column(0.1, 1e12),)},
    "another target at the right weights": {"targets": Vector(np.full((UNLABELLED, 2), 1e6))},
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
    "one row more": {"targets": targets(m=UNLABELLED + 1)},
    "not finite": {"targets": Vector(np.full((UNLABELLED, 2), np.nan))},
}


@pytest.mark.parametrize("what", NEVER_ASKED)
@pytest.mark.parametrize("questions", [0, 3])
@pytest.mark.parametrize("outcome", [Outcome.CONVERGED, Outcome.MAX_ROUNDS])
def test_a_model_to_what_was_never_asked_is_a_breach(what: str, questions: int, outcome: Outcome) -> None:
    site = make_site("a")
    site.handle(CONSENSUS)
    for number in range(questions):
        site.handle(asked(number))
    words = "not those of the last verified question" if questions else "although no question was answered"
    in_breach(site, ended(targets(2), outcome, **NEVER_ASKED[what]), words)


@pytest.mark.parametrize("couplings", [1, 5])
@pytest.mark.parametrize("sent", [1, 2, 5])
def test_as_many_columns_as_the_plan_has_couplings_or_none(couplings: int, sent: int) -> None:
    coupling = tuple(0.1 * (j + 1) for j in range(couplings))
    columns = tuple(Column(lam, consensus_weight(lam, 3)) for lam in coupling)
    site = make_site("a")
    site.handle(make_plan(schedule="consensus", coupling=coupling))
    [answer] = site.handle(asked(0, targets(k=couplings), columns=columns))
    assert isinstance(answer, Prediction)
    told = (5 * columns)[:sent]
    if sent == couplings:
        assert site.handle(ended(targets(k=sent), columns=told)) == [Fetched("run-1")]
        assert site.result is not None
        assert len(site.result.solutions) == couplings
    else:
        in_breach(site, ended(targets(k=sent), columns=told), "not those of the last verified question")


def test_an_end_that_was_not_asked_for_at_all_is_a_breach() -> None:
    in_breach(make_site("a"), ended(targets()), "ended run run-1 with a model, whose plan was not accepted")
    in_breach(make_site("a"), Finished("run-1", Outcome.CONVERGED, ""), "ended run run-1 with a model")


def test_convergence_without_a_model_for_a_site_that_answered_is_a_breach() -> None:
    site = make_site("a")
    site.handle(CONSENSUS)
    site.handle(asked(0))
    in_breach(site, Finished("run-1", Outcome.CONVERGED, ""), "converged without a model")


@pytest.mark.parametrize("outcome", Outcome)
def test_the_last_verified_question_makes_the_model(outcome: Outcome) -> None:
    site = make_site("a")
    site.handle(CONSENSUS)
    answers = [site.handle(asked(number))[0] for number in range(4)]
    assert site.handle(ended(targets(3), outcome)) == [Fetched("run-1")]
    assert site.breach is None
    assert site.result is not None
    assert isinstance(answers[3], Prediction)
    for column, solution in zip(answers[3].values.values.T, site.result.solutions, strict=True):
        np.testing.assert_allclose(solution.prediction, column, rtol=1e-12, atol=1e-14)


def test_so_does_the_one_before_it_since_the_open_one_may_never_be_complete_and_no_older_one() -> None:
    for number, fits in ((3, True), (2, True), (1, False), (0, False)):
        site = make_site("a")
        site.handle(CONSENSUS)
        for n in range(4):
            site.handle(asked(n))
        if fits:
            assert site.handle(ended(targets(number), Outcome.STALLED)) == [Fetched("run-1")]
        else:
            in_breach(site, ended(targets(number), Outcome.STALLED), "not those of the last verified question")


@pytest.mark.parametrize("restart", [False, True])
def test_a_question_that_is_repeated_is_one_question(agent: Agent, restart: bool) -> None:
    """It is repeated after a session broke, or the coordinator was killed: then the round before it may still be the last."""
    agent.handle(CONSENSUS, asked(0), asked(1))
    if restart:
        agent.restart()
    agent.site.hello()
    assert agent.kinds(CONSENSUS, asked(1), ended(targets(0), Outcome.STALLED)) == [PlanAccepted, Prediction, Fetched]
    assert agent.site.breach is None


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_question_has_the_weights_that_it_had(agent: Agent, restart: bool) -> None:
    fewer = tuple(Column(lam, consensus_weight(lam, 2)) for lam in COUPLING)
    agent.handle(CONSENSUS, asked(0), asked(1, attempt=1, columns=fewer))
    if restart:
        agent.restart()
        agent.handle(CONSENSUS)
    assert agent.kinds(asked(0, columns=fewer)) == [Fault]
    assert agent.kinds(asked(0)) == [Prediction]


def test_a_direction_is_no_model() -> None:
    site = make_site("a")
    site.handle(make_plan())
    zero, z, direction = Vector(np.zeros((UNLABELLED, 2))), targets(1), targets(2)
    site.handle(asked(0, zero))
    site.handle(asked(1, direction, part="linear", verifies=False))
    in_breach(site, ended(direction), "not those of the last verified question")
    site.breach = None
    site.handle(asked(2, z, part="linear"))
    site.handle(asked(3, direction, part="linear", verifies=False))
    assert site.handle(ended(z)) == [Fetched("run-1")]


@pytest.mark.parametrize(("number", "fits"), [(3, True), (2, True), (1, False)])
def test_the_ledger_remembers_which_end_is_right(agent: Agent, number: int, fits: bool) -> None:
    agent.handle(CONSENSUS, *(asked(n) for n in range(4)))
    agent.restart()
    assert agent.kinds(CONSENSUS) == [PlanAccepted]
    if fits:
        assert agent.handle(ended(targets(number))) == [Fetched("run-1")]
        assert agent.site.result is not None
        assert len(agent.site.result.solutions) == 2
    else:
        in_breach(agent.site, ended(targets(number)), "not those of the last verified question")


def test_the_ledger_of_another_run_or_another_plan_vouches_for_nothing(agent: Agent) -> None:
    agent.handle(CONSENSUS, asked(0))
    for plan in (make_plan(schedule="consensus", run="run-2"), make_plan(schedule="consensus", max_rounds=7)):
        agent.restart()
        agent.handle(plan)
        in_breach(agent.site, ended(targets(0), run=plan.run), "although no question was answered")


def test_a_direction_stays_one_over_a_restart(agent: Agent) -> None:
    zero, direction = Vector(np.zeros((UNLABELLED, 2))), targets(2)
    agent.handle(make_plan(), asked(0, zero), asked(1, direction, part="linear", verifies=False))
    agent.restart()
    agent.handle(make_plan())
    in_breach(agent.site, ended(direction), "not those of the last verified question")


def test_a_line_that_a_crash_tore_and_lines_of_release_0_1_do_not_stop_a_site_from_remembering(agent: Agent) -> None:
    agent.path.write_bytes(
        b'{"kind": "PlanAccepted", "run": "run-1", "plan": "' + CONSENSUS.digest.encode() + b'"}\n'
        b'{"kind": "Prediction", "run": "run-1", "round": 0, "attempt": 0, "numbers": 12, "sha256": "00"}\n'
        b'{"kind": "Prediction", "run": "ru\n'
    )
    agent.handle(CONSENSUS, asked(0), asked(1))
    agent.restart()
    agent.handle(CONSENSUS)
    assert agent.site.answered == 2
    assert agent.handle(ended(targets(0))) == [Fetched("run-1")]


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus", "block-coordinate-descent"])
@pytest.mark.parametrize("lost_at", [2, 5, 12])
def test_an_honest_end_is_never_a_breach_wherever_a_site_was_lost(schedule: str, lost_at: int) -> None:
    """The rounds that were complete count, and the open question does not: the others end on what they verified."""
    pump = Pump(make_plan(schedule=schedule, tolerance=0.0, prediction_tolerance=0.0), make_sites("abc")).join()
    pump.steps(lost_at)
    sites, pump.sites = pump.sites, {**pump.sites, "c": _Silent(pump.sites["c"])}  # type: ignore[dict-item]
    pump.events.append(SiteLost("c", "its stream ended"))
    pump.out_of_time().out_of_time().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.STALLED
    for name in "ab":
        assert sites[name].breach is None
        assert sites[name].result is not None


class _Silent:
    """A site that is gone: what is sent to it does not arrive."""

    def __init__(self, site: Site):
        self.hello = site.hello

    def handle(self, message: ToSite) -> list[FromSite]:
        return []


# --- nothing outside a plan, and no end of questions ---------------------------------------------------------------


FORBIDDEN = {
    "a linear question": asked(0, part="linear"),
    "a weight of its own": asked(0, columns=(COLUMNS[0], replace(COLUMNS[1], weight=0.5))),
    "a shape of its own": asked(0, targets(m=UNLABELLED + 1)),
    "no number": asked(0, Vector(np.full((UNLABELLED, 2), np.nan))),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_ten_forbidden_questions_end_the_session(what: str) -> None:
    site = make_site("a")
    site.handle(CONSENSUS)
    for number in range(MOST_FAULTS):
        assert site.breach is None, f"{number} of them are borne"
        [answer] = site.handle(replace(FORBIDDEN[what], question=number))
        assert isinstance(answer, Fault)
    assert site.breach is not None
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
    site = make_site("a")
    site.handle(make_plan())
    for run in ("run-0", "run-2"):
        [answer] = site.handle(make_plan(run=run))
        assert answer == PlanRefused(run, "this site takes part in run run-1, and in one run at a time.")
    assert factored == ["run-1"]


def test_after_ten_unfinished_runs_a_plan_is_refused_and_not_factored(factored: list[str]) -> None:
    site = make_site("a")
    runs = [f"run-{number}" for number in range(MOST_BEGUN)]
    for run in runs:
        site.hello()
        assert isinstance(site.handle(make_plan(run=run))[0], PlanAccepted)
    site.hello()
    [answer] = site.handle(make_plan(run="one-more"))
    assert isinstance(answer, PlanRefused)
    assert f"{MOST_BEGUN} runs were begun here and none was finished" in answer.reason
    assert factored == runs
    assert isinstance(site.handle(make_plan(run=runs[-1]))[0], PlanAccepted), "the one that is begun may go on"
    site.handle(Finished(runs[-1], Outcome.STALLED, ""))
    assert isinstance(site.handle(make_plan(run="one-more"))[0], PlanAccepted), (
        "and one that is finished clears the rest"
    )


# --- the budget of answers -----------------------------------------------------------------------------------------


def answered(agent: Agent, run: str, count: int) -> int:
    """How many of so many questions of a run are answered; the rest are refused for their number."""
    agent.site.hello()
    assert agent.kinds(make_plan(schedule="consensus", max_rounds=2, run=run)) == [PlanAccepted]
    answers = agent.handle(*(asked(number, run=run) for number in range(count)))
    given = sum(isinstance(answer, Prediction) for answer in answers)
    assert all("the most that this agent answers" in a.reason for a in answers[given:] if isinstance(a, Fault))
    return given


@pytest.mark.parametrize("restarts", [False, True])
def test_the_budget_belongs_to_the_plan_and_the_instances_and_survives_runs_and_restarts(
    agent: Agent, restarts: bool
) -> None:
    assert most_questions(2) == 6
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
    assert agent.kinds(*(asked(number) for number in range(5, 8))) == [Prediction, Fault, Fault]


def test_other_instances_and_another_plan_have_budgets_of_their_own(agent: Agent) -> None:
    assert answered(agent, "run-1", 6) == 6
    data = replace(private_data("a"), ids_digest="other instances")
    agent.site = Site("a", data, Terms(recall=lambda plan, ids_digest: recall(agent.path, plan, ids_digest)))
    assert answered(agent, "run-2", 8) == 6
    agent.restart()
    assert answered(agent, "run-3", 8) == 0
    agent.site.hello()
    agent.handle(make_plan(schedule="consensus", max_rounds=3, run="run-4"))
    assert agent.kinds(asked(0, run="run-4")) == [Prediction]


@pytest.mark.parametrize("most", [1, 3, 20])
def test_the_operator_may_set_the_budget(tmp_path: Path, most: int) -> None:
    agent = Agent(tmp_path / "ledger.jsonl", Policy(answers="clear", most_questions=most))
    assert answered(agent, "run-1", 9) == min(most, 9)
    agent.restart()
    assert answered(agent, "run-2", 30) == max(0, most - 9)


# --- numbers that overflow -----------------------------------------------------------------------------------------


def test_an_honest_sites_answer_that_is_not_finite_is_a_fault_at_once() -> None:
    """Finite targets that overflow on the way: over the wire, NaN would be refused as a breach, again and again."""
    site = make_site("a")
    site.handle(make_plan(schedule="consensus", form="linear"))
    [answer] = site.handle(asked(0, Vector(np.full((UNLABELLED, 2), 1.7e308))))
    assert isinstance(answer, Fault)
    assert "not finite" in answer.reason
    assert site.answered == 0
    assert isinstance(site.handle(asked(1))[0], Prediction), "and the site goes on"


@pytest.mark.parametrize(
    ("form", "bound"),
    [
        ("exact", "tight"),
        *[("exact", "a-priori"), ("semi-parametric", "tight"), ("semi-parametric", "a-priori")],
        *[("landmarks", "tight"), ("landmarks", "a-priori")],
    ],
)
def test_a_kernel_that_overflows_is_a_refusal_in_words(form: str, bound: str) -> None:
    data = private_data("a")
    plan = make_plan(form=form, kernel="polynomial", degree=400, bound=bound)
    [answer] = Site("a", replace(data, X=50.0 * data.X, Z=50.0 * data.Z)).handle(plan)
    assert isinstance(answer, PlanRefused)
    # A kernel matrix of infinities is said to be singular, where the exact form meets it first.
    assert ("kernel matrix at ridge=1 is singular" if form == "exact" else "kernel='polynomial'") in answer.reason
    assert answer.reason.endswith(".")


@pytest.mark.parametrize("scale", [1e160, 1e200])
def test_targets_whose_squares_overflow_are_a_refusal_in_words(scale: float) -> None:
    data = private_data("a")
    [answer] = Site("a", replace(data, y=scale * data.y)).handle(make_plan())
    assert isinstance(answer, PlanRefused)
    assert "Scale" in answer.reason


class _Huge(Site):
    """A site whose answers are finite, and as large as numbers are."""

    def handle(self, message: ToSite) -> list[FromSite]:
        self.heard = [*getattr(self, "heard", []), message]
        return [
            replace(answer, values=Vector(np.full(answer.values.shape, 1.7e308)))
            if isinstance(answer, Prediction)
            else answer
            for answer in super().handle(message)
        ]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
def test_no_question_is_asked_that_is_not_finite(schedule: str) -> None:
    sites = {name: _Huge(name, private_data(name)) for name in "abc"}
    pump = Pump(make_plan(schedule=schedule), sites).join().run()
    heard = [message for site in sites.values() for message in site.heard]
    assert all(message.targets.finite for message in heard if isinstance(message, Ask))
    assert pump.end is not None
    assert pump.end.outcome is Outcome.SITE_FAULT
