"""A training of several classes through the real machines, and a scoring with its models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core.test_exchange import short  # noqa: F401 - the fixture: short secrets have the same sums
from machine.tiny import Pump, allowing, site_with
from numpy.random import default_rng
from numpy.testing import assert_allclose

from coreg_core.additive.terms import SCORE_NOISE
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, plan_fault
from coreg_core.secure import cross_products
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.machine.results import AdditiveResult
from site_agent.machine.scoring import Batch
from site_agent.models import findings, report
from site_agent.site_data import PrivateData

CLASSES = ("none", "mild", "severe")
TERMS = Additive(task="classification", classes=CLASSES)
SCORING = Scoring("run-1", columns=3)
NEW = 400  # individuals whom no training has seen


def plan_of(terms: Additive = TERMS) -> Plan:
    membership = Membership(tuple("abc"), 3)
    return Plan("run-1", "tiny", membership, terms, Iteration(), Privacy())


def scores_of(x: np.ndarray) -> np.ndarray:
    """One site's part of the score of each class."""
    none = x[:, 0]
    mild = x[:, 1] - none
    severe = 0.5 * x[:, 2]
    return np.stack([none, mild, severe], axis=1)


def classes_of(X: list[np.ndarray]) -> np.ndarray:
    parts = [scores_of(x) for x in X]
    return np.sum(parts, axis=0).argmax(axis=1)


def rows_of(labelled: int = 80, unlabelled: int = 250) -> tuple[dict[str, PrivateData], np.ndarray]:
    """Each class is where the sum of the sites' parts of its score is largest."""
    rng = default_rng(0)
    N = 3 * labelled + unlabelled
    X = [rng.normal(size=(N, 3)) for _ in "abc"]
    y = classes_of(X).astype(np.float64)
    ids = tuple(f"p{i}" for i in range(N))
    data = {}
    for v, name in enumerate("abc"):
        at = np.arange(v * labelled, (v + 1) * labelled)
        data[name] = PrivateData(
            X[v][at], y[at], X[v], "digest", name.encode(), at, ids=ids, classes=CLASSES
        )
    return data, y


def trained(terms: Additive = TERMS) -> tuple[Pump, np.ndarray]:
    data, y = rows_of()
    sites = {name: site_with(name, rows) for name, rows in data.items()}
    pump = Pump(plan_of(terms), sites).join().run()
    return pump, y


@pytest.mark.usefixtures("short")
def test_the_scores_of_a_training_tell_the_class_of_individuals_without_a_label() -> None:
    pump, y = trained()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    result = pump.sites["a"].result
    _, of_scores, of_local = result.probabilities
    probabilities = of_scores.of(result.scores.values)
    assert_allclose(probabilities.sum(axis=1), 1.0)
    right = probabilities.argmax(axis=1) == y[result.scores.places]
    data, _ = rows_of()
    local_scores = result.model.alone(data["a"].Z[240:])
    right_alone = of_local.of(local_scores).argmax(axis=1) == y[240:]
    assert right.mean() > 0.7 > right_alone.mean()


@pytest.mark.usefixtures("short")
def test_the_report_has_the_area_under_the_curve_of_each_class() -> None:
    pump, _ = trained()
    summary = findings.of(pump.sites["b"].result, None)
    score = summary.models["score"]
    local = summary.models["local"]
    assert set(score["auc_by_class"]) == set(CLASSES)
    assert min(score["auc_by_class"].values()) > 0.7
    assert score["log_loss"] < local["log_loss"]
    assert summary.recommended == "score"
    assert "AUC of severe" in "\n".join(report.sentences(summary, "stage"))


def test_classes_that_cannot_be_trained_are_faults_of_the_plan() -> None:
    two = Additive(task="classification", classes=("yes", "no"))
    assert "three to 20 different ones" in plan_fault(plan_of(two))
    numbers = Additive(classes=CLASSES)
    assert 'the task is not "classification"' in plan_fault(plan_of(numbers))


# --- a scoring of other individuals ---------------------------------------------------------------


@pytest.fixture(scope="module")
def models() -> dict[str, AdditiveResult]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_products, "SECRET_ROWS", 64)
        patch.setattr(cross_products, "RANDOM_ROWS", 320)
        pump, _ = trained()
    return {name: site.result for name, site in pump.sites.items()}


def new_individuals() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = default_rng(7)
    X = [rng.normal(size=(NEW, 3)) for _ in "abc"]
    return dict(zip("abc", X, strict=True)), classes_of(X)


def batch(name: str, trained_there: AdditiveResult, *absent: int, **changes: Any) -> Batch:
    model = trained_there.model
    X, _ = new_individuals()
    fields = Batch(
        model.phi(X[name]),
        np.isin(np.arange(NEW), absent),
        model,
        model.score_intercept,
        "run-1",
        "additive",
        trained_there.name,
        trained_there.sites,
        "digest",
        name.encode(),
        columns=3,
    )
    return replace(fields, **changes)


def scoring(
    models: dict[str, AdditiveResult], terms: Scoring = SCORING, **absent: tuple[int, ...]
) -> Pump:
    policy = allowing(aggregation="secure")
    sites = {}
    for name in "abc":
        rows = batch(name, models[name], *absent.get(name, ()))
        sites[name] = site_with(name, rows, policy)
    plan = Plan("score-1", "tiny", Membership(tuple("abc"), 2), terms)
    return Pump(plan, sites).join().run()


def sum_of_parts(models: dict[str, AdditiveResult], present: str) -> np.ndarray:
    """Without noise."""
    X, _ = new_individuals()
    places = ["abc".index(name) for name in present]
    total = models["a"].model.score_intercept
    for name in present:
        model = models[name].model
        phi = model.phi(X[name])
        total = total + model.part(phi, places)
    return total


def noise_of(models: dict[str, AdditiveResult]) -> np.ndarray:
    """On one part of each class."""
    deviations = [model.deviation_of_labels for model in models["a"].model.models]
    return SCORE_NOISE * np.array(deviations)


def test_a_scoring_sums_the_parts_of_each_class_with_its_own_noise(models) -> None:
    pump = scoring(models)
    assert pump.outcome is Outcome.CONVERGED, pump.end
    noise = pump.sites["a"].result.scores - sum_of_parts(models, "abc")
    of_two_others = np.sqrt(2.0) * noise_of(models)
    assert noise.shape == (NEW, 3)
    assert_allclose(noise.std(axis=0), of_two_others, rtol=0.15)
    between = np.corrcoef(noise.T)[np.triu_indices(3, 1)]
    assert np.abs(between).max() < 0.2, "each class has its own draws"


def test_joint_scores_tell_the_class_of_new_individuals_better_than_one_site(models) -> None:
    result = scoring(models).sites["a"].result
    X, y = new_individuals()
    model = models["a"].model
    alone = model.alone(X["a"])
    _, of_scores, of_local = models["a"].probabilities
    score = model.correct_score(result.scores, alone, X["a"])
    right = of_scores.of(score).argmax(axis=1) == y
    right_alone = of_local.of(alone).argmax(axis=1) == y
    assert right.mean() > 0.75 > right_alone.mean()
    assert np.isnan(result.missing).all()
    assert result.contributions == {}


def test_classes_of_an_individual_are_scored_by_the_sites_that_have_a_record(models) -> None:
    pump = scoring(models, b=(1,), c=(0, 1))
    result = pump.sites["a"].result
    assert result.present[:3] == (("a", "b"), ("a",), ("a", "b", "c"))
    assert np.isnan(result.scores[1]).all()
    others = np.delete(result.scores, 1, axis=0)
    assert not np.isnan(others).any()
    noise = result.scores[0] - sum_of_parts(models, "ab")[0]
    away = np.abs(noise) / noise_of(models)
    assert away.max() < 5.0
    assert "no score for 1 of 400 individuals" in result.findings[1]


def test_one_site_asks_for_the_classes_of_single_individuals(models) -> None:
    sites = {name: site_with(name, batch(name, models[name])) for name in "bc"}
    sites["a"] = site_with("a", batch("a", models["a"], wanted=(2, 5)))
    membership = Membership(tuple("abc"), 3)
    terms = replace(SCORING, standing=True)
    plan = Plan("score-1", "tiny", membership, terms, study="now")
    pump = Pump(plan, sites).join().run()
    scores = pump.sites["a"].result.scores
    scored = ~np.isnan(scores).any(axis=1)
    assert np.flatnonzero(scored).tolist() == [2, 5]
    noise = scores - sum_of_parts(models, "abc")
    away = noise[[2, 5]] / noise_of(models)
    assert np.abs(away).max() < 6.0


def test_a_plan_with_another_number_of_classes_is_refused(models) -> None:
    pump = scoring(models, replace(SCORING, columns=1))
    assert pump.outcome is Outcome.REFUSED
    assert "the plan has 1 scores of each individual, and this site's model" in pump.end.reason


def test_classes_have_sums_only_and_one_objective() -> None:
    def fault(**terms: Any) -> str:
        membership = Membership(tuple("abc"), 3)
        plan = Plan("score-1", "tiny", membership, replace(SCORING, **terms))
        return plan_fault(plan) or ""

    assert fault() == ""
    assert "scored by sums only" in fault(contributions=True)
    assert "classes are of an additive training" in fault(trained="agreement")
