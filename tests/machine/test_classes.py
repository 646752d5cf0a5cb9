"""A training of several classes through the real machines."""

import numpy as np
import pytest
from core.test_exchange import short  # noqa: F401 - the fixture: short secrets have the same sums
from machine.tiny import Pump, site_with

from coreg_core.objectives.additive import Additive
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, plan_fault
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.models import findings
from site_agent.site_data import PrivateData

CLASSES = ("none", "mild", "severe")
TERMS = Additive(task="classification", classes=CLASSES)


def plan_of(terms: Additive = TERMS) -> Plan:
    return Plan("run-1", "tiny", Membership(tuple("abc"), 3), terms, Iteration(), Privacy())


def rows_of(labelled: int = 80, unlabelled: int = 250) -> tuple[dict[str, PrivateData], np.ndarray]:
    """Each class is where the sum of the sites' parts of its score is largest."""
    rng = np.random.default_rng(0)
    N = 3 * labelled + unlabelled
    X = [rng.normal(size=(N, 3)) for _ in "abc"]
    parts = [np.stack([x[:, 0], -x[:, 0] + x[:, 1], 0.5 * x[:, 2]], axis=1) for x in X]
    y = np.sum(parts, axis=0).argmax(axis=1).astype(np.float64)
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
    return Pump(plan_of(terms), sites).join().run(), y


@pytest.mark.usefixtures("short")
def test_the_scores_of_a_training_tell_the_class_of_individuals_without_a_label() -> None:
    pump, y = trained()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    result = pump.sites["a"].result
    _, of_scores, _ = result.probabilities
    told = of_scores.of(result.scores.values)
    np.testing.assert_allclose(told.sum(axis=1), 1.0)
    right = np.mean(told.argmax(axis=1) == y[result.scores.places])
    alone = result.probabilities[2].of(result.model.alone(rows_of()[0]["a"].Z[240:]))
    assert right > 0.7 > np.mean(alone.argmax(axis=1) == y[240:])


@pytest.mark.usefixtures("short")
def test_the_report_has_the_area_under_the_curve_of_each_class() -> None:
    pump, _ = trained()
    found = findings.of(pump.sites["b"].result, None)
    assert set(found["score"]["auc_by_class"]) == set(CLASSES)
    assert min(found["score"]["auc_by_class"].values()) > 0.7
    assert found["score"]["log_loss"] < found["local"]["log_loss"]
    assert found["recommended"] == "score"
    assert "AUC of severe" in "\n".join(findings.sentences(found, "stage"))


def test_classes_that_cannot_be_trained_are_faults_of_the_plan() -> None:
    two = Additive(task="classification", classes=("yes", "no"))
    assert "three to 20 different ones" in plan_fault(plan_of(two))
    numbers = Additive(classes=CLASSES)
    assert 'the task is not "classification"' in plan_fault(plan_of(numbers))
