"""The predictions of every estimator and of one federation of each objective, to 1e-8 of the labels' deviation.

A change of one of them is named in its commit. `python tests/core/test_predictions_stay.py` writes the file again.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import is_classifier

import coreg_core.estimators as estimators
from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_sim.problems import generated
from coreg_sim.simulate import plan_for, simulate

FILE = Path(__file__).parent / "predictions.json"
NAMES = [name for name in estimators.__all__ if name != "LabelledFolds"]
OBJECTIVES = [f"agreement, {name}" for name in SCHEDULE_NAMES]


def of_estimator(name):
    """Predictions of the first 12 rows (probabilities of a classifier that states them) after a fit to 40 labels of 80 rows."""
    rng = np.random.default_rng(7)
    X = rng.uniform(size=(80, 6))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    model = getattr(estimators, name)()
    model.set_params(views=[[0, 1], [2, 3], [4, 5]])
    labels = (y > np.median(y)).astype(float) if is_classifier(model) else y
    model.fit(X, np.where(np.arange(80) < 40, labels, np.nan))
    return model.predict_proba(X[-12:])[:, 1] if is_classifier(model) else model.predict(X[-12:])


def of_federation(name):
    """Every site's predictions of five held-out rows."""
    problem = generated(3, 15, 30, 2, seed=3)
    plan = plan_for(problem, Agreement(), Iteration(name.removeprefix("agreement, "), 1e-14))
    models = simulate(problem, plan).solutions
    return np.concatenate([model.predict(X[:5]) for model, X in zip(models, problem.held_out, strict=True)])


def found(name):
    return of_federation(name) if name in OBJECTIVES else of_estimator(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*NAMES, *OBJECTIVES])
def test_predictions_stay(name):
    expected = np.array(json.loads(FILE.read_text())[name])
    assert_allclose(found(name), expected, rtol=0, atol=1e-8 * max(float(np.std(expected)), 1e-300))


if __name__ == "__main__":
    lines = [f'"{name}": {json.dumps([float(f"{x:.12g}") for x in found(name)])}' for name in [*NAMES, *OBJECTIVES]]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.exit(0)
