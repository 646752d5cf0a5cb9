"""The rule "loo": leave-one-out in closed form, and the width and ridge that it chooses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from coreg_core.errors import UsageError
from coreg_core.estimators import CoRLS, CoRLSR
from coreg_core.kernels.leave_one_out import MANY, kernel_rule, leave_one_out, some_rows, widths


def test_rules_that_compare_rows_look_at_some_of_many():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * MANY + 1, 2))
    y = np.sin(X[:, 0])
    some = some_rows(len(X))
    assert (len(some), some[0], some[-1]) == (MANY, 0, 2 * MANY)
    assert kernel_rule(X, y, "gaussian", "median", 1.0) == kernel_rule(X[some], y[some], "gaussian", "median", 1.0)
    assert kernel_rule(X, y, "gaussian", "paper", 1.0) != kernel_rule(X[some], y[some], "gaussian", "paper", 1.0)


@pytest.mark.parametrize("intercept", [True, False])
def test_leave_one_out_is_leaving_one_out(intercept):
    rng = np.random.default_rng(0)
    Phi, y = rng.normal(size=(9, 4)) + 1.0, rng.normal(size=9)
    ridges = np.array([0.01, 1.0, 30.0])
    found = leave_one_out(Phi, y, ridges, intercept=intercept)
    for g, nu in enumerate(ridges):
        for i in range(9):
            kept = np.arange(9) != i
            # With a free intercept: centred on the rows that are kept.
            shift = Phi[kept].mean(axis=0) if intercept else 0.0
            centre = y[kept].mean() if intercept else 0.0
            A = Phi[kept] - shift
            w = np.linalg.solve(A.T @ A + nu * np.eye(4), A.T @ (y[kept] - centre))
            assert found[g, i] == pytest.approx(y[i] - centre - (Phi[i] - shift) @ w, rel=1e-8)


def test_the_rule_for_kernels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(2 * X[:, 0])
    sigma, nu = kernel_rule(X, y, "gaussian", "loo", "loo")
    assert sigma in widths(X, "gaussian")
    assert kernel_rule(X, y, "gaussian", 2.0, 0.5) == (2.0, 0.5)
    assert kernel_rule(X, y, "gaussian", 2.0, "loo")[0] == 2.0
    assert kernel_rule(X, y, "gaussian", "loo", 0.5)[1] == 0.5
    assert kernel_rule(X, y, "linear", "loo", "loo")[0] == 1.0
    assert widths(np.zeros((3, 2)), "laplacian") == (1.0, 6.0)
    model = CoRLSR(bandwidth="loo", ridge="loo", coupling=0.0).fit([X], [y], [X[:3]])
    assert (model.bandwidth_[0], model.ridge_[0]) == (sigma, nu)
    once = CoRLS(bandwidth="loo", ridge=["loo"], coupling=0.0).fit([X], y, [X[:3]])
    assert_allclose(once.predict([X]), model.predict([X]), rtol=1e-6)
    with pytest.raises(UsageError, match="1 labelled row"):
        kernel_rule(X[:1], y[:1], "gaussian", "loo", "loo")
