"""A fixed sample of the hard property test: a stated bound is above the true error, and CONVERGED is never wrong.

The optima (tests/core/certify_sample.json, written by ``benchmarks/certify.py --sample``) are ball arithmetic's, rounded to
float64; `make certify` runs the property test itself on fresh problems.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from hard_problems import hard_problem
from problems import EPS

from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import SingularSystem
from coreg_core.estimators import CoRLSR
from coreg_core.estimators._parameters import SOLVERS

SAMPLE = json.loads((Path(__file__).parent / "certify_sample.json").read_text())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a bound is true at any round
@pytest.mark.parametrize("seed", SAMPLE)
def test_what_is_stated_is_true(seed):
    problem, best = hard_problem(int(seed), largest_m=24), SAMPLE[seed]
    assert problem.digest() == best["digest"], "numpy draws other numbers: run benchmarks/certify.py --sample again"
    parameters = problem.parameters | {"bandwidth": best["bandwidth"], "ridge": best["ridge"], "max_rounds": 100}
    truth = np.array(best["predictions"])
    said = set()
    for solver in SOLVERS:
        try:
            with np.errstate(under="ignore"):
                model = CoRLSR(preset="paper", **parameters, solver=solver).fit(problem.Xs, problem.ys, problem.Zs)
        except SingularSystem:
            assert solver == "stacked"
            continue
        # The file's numbers are rounded to float64; everything else is the statement's.
        rounded = EPS * np.linalg.norm(truth, axis=1).max()
        error = np.linalg.norm(model.predictions_unlabelled_ - truth, axis=1).max()
        assert error <= model.prediction_bound_ + rounded
        scale = sum(float(y @ y) for y in problem.ys)
        assert model.objective_ - best["objective"] <= model.gap_ + 64 * EPS * (scale + model.objective_)
        if model.stop_ is Stop.CONVERGED:
            largest = max(float(np.abs(y).max()) for y in problem.ys)
            tolerance = parameters["prediction_tol"]
            assert model.prediction_bound_ <= (1e-9 * largest if tolerance is None else tolerance)
            assert model.gap_ <= parameters["tol"] * scale
        said.add(model.stop_)
    assert said


def test_the_sample_holds_both_outcomes_and_every_kernel():
    problems = [hard_problem(int(seed), largest_m=24) for seed in SAMPLE]
    assert {p.parameters["kernel"] for p in problems} == {"gaussian", "laplacian", "linear", "polynomial"}
    assert {t for p in problems for t in p.traits} >= {"repeated", "outlier", "far", "grid", "shared", "constant y"}
