"""Left-out labels in closed form against functions that never saw them, and what is chosen by them:
λ on a path, width, ridge.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from coreg_core.agreement.left_out import FOLDS, SEED, LabelledFit, best_of, choose_on
from coreg_core.agreement.views import make_view
from coreg_core.arrays import evenly
from coreg_core.errors import UsageError
from coreg_core.estimators import CoRLSR
from coreg_core.kernels import make_kernel
from coreg_core.selection import MANY, kernel_rule, left_out, widths
from coreg_core.spans import EveryPoint, LabelledPoints, LinearFeatures

N = 14
M = 30


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    Z = rng.normal(size=(M, 3))
    return X, X.sum(axis=1) + 0.3 * rng.normal(size=N) + 5.0, Z, 0.7 * Z.sum(axis=1)


def fitted(span, X, y, Z, t, weight, ridge=0.5):
    """The view, trained on labels that their own mean centres, and the function there."""
    kernel = (
        make_kernel("linear")
        if isinstance(span, LinearFeatures)
        else make_kernel("gaussian", bandwidth=4.0)
    )
    view = make_view(span, kernel, X, y - y.mean(), Z, ridge)
    return view, view.solve(t, weight)


@pytest.mark.parametrize("weight", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("span", [EveryPoint(), LinearFeatures()], ids=["exact", "linear"])
@pytest.mark.parametrize("rows", [[3], [1, 5, 7]])
def test_rows_left_out_in_closed_form_are_rows_that_were_never_there(span, weight, rows):
    X, y, Z, t = drawn()
    view, _ = fitted(span, X, y, Z, t, weight)
    fit = LabelledFit(*view.on_labels(t, weight), y)
    out = np.array(rows)
    kept = np.setdiff1d(np.arange(N), out)
    _, without = fitted(span, X[kept], y[kept], Z, t, weight)
    (missed, found) = fit.without(out)
    shift = y[kept].mean()
    # 1e-9 is the floor that G's diagonal is given (left_out.py), and residuals are of size 1 to 5.
    assert_allclose(missed, y[out] - shift - without.predict(X[out]), atol=1e-7)
    assert_allclose(found.r, y[kept] - shift - without.predict(X[kept]), atol=1e-7)
    if len(rows) == 1:
        assert_allclose(fit.left_out[rows[0]], missed[0], atol=1e-7)
    # and of those that are kept, each left out in turn: the choice inside a fold.
    fewer = kept[1:]
    _, twice = fitted(span, X[fewer], y[fewer], Z, t, weight)
    assert_allclose(
        found.left_out[0], y[kept[0]] - y[fewer].mean() - twice.predict(X[kept[:1]])[0], atol=1e-7
    )


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_residuals_are_those_of_the_function_in_every_form(weight):
    X, y, Z, t = drawn(1)
    for span in (EveryPoint(), LabelledPoints(), LinearFeatures()):
        view, solution = fitted(span, X, y, Z, t, weight)
        r, G = view.on_labels(t, weight)
        assert_allclose(r, y - y.mean() - solution.predict(X), atol=1e-11)
        assert_allclose(G, G.T, atol=1e-13)
        assert np.linalg.eigvalsh(G).min() >= -1e-12
        assert np.linalg.eigvalsh(G).max() <= 1.0 + 1e-12
        some, block = view.on_labels(t, weight, rows := np.array([1, 4, 6]))
        assert_allclose(some, r[rows], atol=1e-13)
        assert_allclose(block, G[np.ix_(rows, rows)], atol=1e-13)


def path(seed, weights, y):
    X, _, Z, t = drawn(seed)
    fits = []
    for weight in weights:
        view, _ = fitted(EveryPoint(), X, y, Z, t, weight)
        fits.append(LabelledFit(*view.on_labels(t, weight), y))
    return fits


def test_the_nested_estimate_is_of_labels_that_neither_function_nor_choice_has_seen():
    """Another label changes nothing of what is chosen and predicted for it, and moves its own error
    one to one.
    """
    _, y, _, _ = drawn(2)
    before = choose_on(path(2, (0.0, 0.5, 8.0), y))
    other = y.copy()
    other[4] += 1.0
    after = choose_on(path(2, (0.0, 0.5, 8.0), other))
    assert before.folds is not None
    assert after.folds is not None
    assert_allclose(after.folds.choice[4] - before.folds.choice[4], 1.0, atol=1e-7)


def test_all_errors_of_the_folds_are_of_functions_without_their_rows():
    _, y, _, _ = drawn(2)
    fits = path(2, (0.0, 0.5), y)
    folds = choose_on(fits).folds
    assert folds is not None
    order = np.random.default_rng([SEED, len(y)]).permutation(len(y))
    for fold in range(FOLDS):
        rows = np.sort(order[fold::FOLDS])
        for fit, errors in zip(fits, folds.members, strict=True):
            assert_allclose(errors[rows], fit.without(rows)[0])
        assert_allclose(folds.mean[rows], y[rows] - np.delete(y, rows).mean())
    assert_allclose(choose_on(fits[:1]).folds.choice, folds.members[0])


def test_the_least_left_out_error_is_chosen_and_the_weakest_coupling_where_they_tie():
    assert best_of([np.array([2.0, 0.0]), np.array([0.0, 2.0]), np.array([1.0, 1.0])]) == 2
    assert best_of([np.array([1.0, 1.0]), np.array([1.0, 1.0])]) == 0
    X, y, Z, t = drawn(3)
    view, _ = fitted(EveryPoint(), X, y, Z, t, 0.0)
    few = LabelledFit(*view.on_labels(t, 0.0), y)
    assert choose_on([LabelledFit(few.r[:6], few.G[:6, :6], y[:6])]).folds is None, (
        "too few labels for five folds"
    )


def test_rules_that_compare_rows_look_at_some_of_many():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * MANY + 1, 2))
    y = np.sin(X[:, 0])
    some = evenly(len(X), MANY)
    assert len(some) == MANY
    assert some[0] == 0
    assert some[-1] == 2 * MANY
    assert kernel_rule(X, y, "gaussian", "median", 1.0) == kernel_rule(
        X[some], y[some], "gaussian", "median", 1.0
    )
    assert kernel_rule(X, y, "gaussian", "paper", 1.0) != kernel_rule(
        X[some], y[some], "gaussian", "paper", 1.0
    )


def test_leave_one_out_is_leaving_one_out():
    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(9, 4)) + 1.0
    y = rng.normal(size=9)
    ridges = np.array([0.01, 1.0, 30.0])
    squares, U = np.linalg.eigh(Phi @ Phi.T)
    found = left_out(U, np.maximum(squares, 0.0), y, ridges)
    for g, nu in enumerate(ridges):
        for i in range(9):
            A = Phi[np.arange(9) != i]
            w = np.linalg.solve(A.T @ A + nu * np.eye(4), A.T @ y[np.arange(9) != i])
            assert found[g, i] == pytest.approx(y[i] - Phi[i] @ w, rel=1e-8)


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
    assert widths(np.zeros((3, 2)), "gaussian") == (1.0, 6.0)
    model = CoRLSR(bandwidth="loo", ridge="loo", coupling=0.0).fit(X, y)
    assert model.bandwidth_[0] == sigma
    assert model.ridge_[0] == nu
    with pytest.raises(UsageError, match="1 labelled row"):
        kernel_rule(X[:1], y[:1], "gaussian", "loo", "loo")
