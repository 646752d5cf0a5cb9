"""Every solver against solutions of Definitions 3.1 and 3.2 in 60-digit arithmetic (tests/core/golden)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import EPS, GOLDEN, NARROW, golden, golden_problem, reference, value

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.schedules import Stop
from coreg_core.estimators import CoRLSR
from coreg_core.estimators.corlsr import SOLVERS

FORMS = ("exact", "semi-parametric")


def expected(name, form):
    return golden(name)[form.replace("-", "_")]


def fitted(name, form, solver, **changes):
    """The model of a golden case, fitted by a solver, and the case's views."""
    case = golden(name)
    views = case["views"]
    bandwidth, ridge = [v["sigma"] for v in views], [v["nu"] for v in views]
    given = {"form": form, "bandwidth": bandwidth, "ridge": ridge, "coupling": case["lam"], "solver": solver} | changes
    model = CoRLSR(preset="paper", **given)
    return model.fit([v["X"] for v in views], [v["y"] for v in views], [v["Z"] for v in views]), views


def cases():
    for name in GOLDEN:
        for form in FORMS:
            for solver in SOLVERS:
                yield name, form, solver
    for name in NARROW:  # the textbook squares K, and of these K float64 holds nothing: it refuses (below)
        for solver in SOLVERS:
            yield name, "exact", solver


@pytest.mark.parametrize(("name", "form", "solver"), list(cases()))
def test_solver(name, form, solver):
    truth, (model, views) = expected(name, form), fitted(name, form, solver, tol=1e-20)
    predictions = np.array(truth["predictions_unlabelled"])
    # 1e-9: condition numbers of the consensus system are below 1e4 here, so 1e4 · 64 eps · |ŷ| is far below it; the schedules'
    # tolerances (gap 1e-20 · Q(0), predictions 1e-9 · max|y|) are met with both.
    assert_allclose(model.predictions_unlabelled_, predictions, rtol=0, atol=1e-9)
    assert_allclose(model.predict_views([v["X_new"] for v in views]), truth["predictions_new"], rtol=0, atol=1e-9)
    assert_allclose(
        model.predict([v["X_new"] for v in views]), np.mean(truth["predictions_new"], axis=0), rtol=0, atol=1e-9
    )
    assert model.objective_ == pytest.approx(truth["objective"], rel=1e-10)
    # Σ‖ŷ_u − ŷ_v‖² moves by 2 ‖difference‖ · 1e-9 for each of M² pairs.
    M = len(views)
    assert model.disagreement_ == pytest.approx(truth["disagreement"], rel=1e-8, abs=1e-9 * M**2)
    assert model.stop_ is Stop.CONVERGED
    # The certificates are true statements about the 60-digit solution; the floor is the rounding of Q itself.
    assert model.objective_ - truth["objective"] <= model.gap_ + 64 * EPS * truth["objective"]
    errors = np.linalg.norm(model.predictions_unlabelled_ - predictions, axis=1)
    assert errors.max() <= model.prediction_bound_ + 64 * EPS * np.linalg.norm(predictions)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", NARROW)
def test_a_narrow_span_is_what_float64_resolves(name, solver):
    """Gram matrices with pivots down to 1e-42: the optimum in a part of the span cannot be below that in all of it."""
    truth, (model, views) = expected(name, "semi-parametric"), fitted(name, "semi-parametric", solver)
    assert model.stop_ is Stop.CONVERGED
    assert (model.rank_ < [len(v["X"]) for v in views]).any()
    assert truth["objective"] * (1 - 1e-9) <= model.objective_ <= 1.05 * truth["objective"]


@pytest.mark.parametrize(
    ("name", "form"), [*((name, form) for name in GOLDEN for form in FORMS), *((name, "exact") for name in NARROW)]
)
def test_local_objectives(name, form):
    problem, truth = golden_problem(name, form), expected(name, form)
    views = problem.views()
    z = consensus_closed_form(views, problem.coupling)
    solutions = [view.solve(z, consensus_weight(problem.coupling, len(views))) for view in views]
    assert_allclose([s.local_objective for s in solutions], truth["local_objectives"], rtol=1e-10)
    assert value(solutions, problem.coupling) == pytest.approx(truth["objective"], rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GOLDEN)
def test_the_oracle_of_the_other_tests(name, form):
    predictions, Q = reference(golden_problem(name, form))
    truth = expected(name, form)
    # Orthonormal to 1e-6 at the smallest kept eigenvalue is the worst case; these cases keep none below 1e-6.
    assert_allclose(predictions, truth["predictions_unlabelled"], rtol=0, atol=1e-10)
    assert pytest.approx(truth["objective"], rel=1e-12) == Q
