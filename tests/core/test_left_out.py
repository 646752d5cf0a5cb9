"""Left-out labels in closed form against functions that never saw them, and what is chosen by them:
λ on a path, width, ridge.
"""

import numpy as np
import pytest
from numpy.random import default_rng
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
    """(labelled rows, labels, unlabelled rows, target there)."""
    rng = default_rng(seed)
    X = rng.normal(size=(N, 3))
    Z = rng.normal(size=(M, 3))
    noise = 0.3 * rng.normal(size=N)
    y = X.sum(axis=1) + noise + 5.0
    t = 0.7 * Z.sum(axis=1)
    return X, y, Z, t


def fitted(span, rows, weight):
    """The view, trained on labels that their own mean centres, and the function there."""
    X, y, Z, t = rows
    if isinstance(span, LinearFeatures):
        kernel = make_kernel("linear")
    else:
        kernel = make_kernel("gaussian", bandwidth=4.0)
    centred = y - y.mean()
    view = make_view(span, kernel, X, centred, Z, 0.5)
    return view, view.solve(t, weight)


def residuals_elsewhere(span, rows, weight, kept, at):
    """Residuals of some rows, of a function that is fitted to the kept rows alone."""
    X, y, Z, t = rows
    kept_rows = X[kept], y[kept], Z, t
    _, function = fitted(span, kept_rows, weight)
    predictions = y[kept].mean() + function.predict(X[at])
    return y[at] - predictions


def labelled_fit(span, rows, weight):
    _, y, _, t = rows
    view, _ = fitted(span, rows, weight)
    return LabelledFit(*view.on_labels(t, weight), y)


WEIGHTS = [0.0, 0.3, 5.0]
SPANS = {"exact": EveryPoint(), "linear": LinearFeatures()}
# 1e-9 is the floor that G's diagonal is given (left_out.py), and residuals are of size 1 to 5.
FLOOR = 1e-7


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("out", [[3], [1, 5, 7]])
def test_rows_left_out_in_closed_form_are_rows_that_were_never_there(span, weight, out):
    rows = drawn()
    kept = np.setdiff1d(np.arange(N), out)
    fit = labelled_fit(span, rows, weight)
    missed, inside = fit.without(np.array(out))
    of_missed = residuals_elsewhere(span, rows, weight, kept, out)
    of_kept = residuals_elsewhere(span, rows, weight, kept, kept)
    assert_allclose(missed, of_missed, atol=FLOOR)
    assert_allclose(inside.r, of_kept, atol=FLOOR)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_a_left_out_residual_is_that_without_its_row(span, weight):
    rows = drawn()
    fit = labelled_fit(span, rows, weight)
    missed, _ = fit.without(np.array([3]))
    assert_allclose(fit.left_out[3], missed[0], atol=FLOOR)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_inside_a_fold_each_kept_row_is_left_out_in_turn(span, weight):
    rows = drawn()
    out = np.array([1, 5, 7])
    first, *fewer = np.setdiff1d(np.arange(N), out)
    fit = labelled_fit(span, rows, weight)
    _, inside = fit.without(out)
    [expected] = residuals_elsewhere(span, rows, weight, fewer, [first])
    assert_allclose(inside.left_out[0], expected, atol=FLOOR)


FORMS = [EveryPoint(), LabelledPoints(), LinearFeatures()]


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("span", FORMS, ids=repr)
def test_residuals_are_those_of_the_function_in_every_form(span, weight):
    rows = drawn(1)
    X, y, _, t = rows
    view, function = fitted(span, rows, weight)
    r, _ = view.on_labels(t, weight)
    predictions = y.mean() + function.predict(X)
    assert_allclose(r, y - predictions, atol=1e-11)


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("span", FORMS, ids=repr)
def test_the_map_of_labels_to_residuals_is_symmetric_and_between_zero_and_one(span, weight):
    rows = drawn(1)
    view, _ = fitted(span, rows, weight)
    _, G = view.on_labels(rows[3], weight)
    eigenvalues = np.linalg.eigvalsh(G)
    assert_allclose(G, G.T, atol=1e-13)
    assert eigenvalues.min() >= -1e-12
    assert eigenvalues.max() <= 1.0 + 1e-12


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("span", FORMS, ids=repr)
def test_some_labels_have_their_residuals_and_block_of_the_map(span, weight):
    rows = drawn(1)
    t = rows[3]
    view, _ = fitted(span, rows, weight)
    r, G = view.on_labels(t, weight)
    some = np.array([1, 4, 6])
    some_r, block = view.on_labels(t, weight, some)
    assert_allclose(some_r, r[some], atol=1e-13)
    assert_allclose(block, G[np.ix_(some, some)], atol=1e-13)


def path(seed, weights, y):
    X, _, Z, t = drawn(seed)
    rows = X, y, Z, t
    return [labelled_fit(EveryPoint(), rows, weight) for weight in weights]


def test_the_nested_estimate_is_of_labels_that_neither_function_nor_choice_has_seen():
    """Another label changes nothing of what is chosen and predicted for it, and moves its own error
    one to one.
    """
    weights = (0.0, 0.5, 8.0)
    _, y, _, _ = drawn(2)
    changed = y.copy()
    changed[4] += 1.0
    before = choose_on(path(2, weights, y)).folds
    after = choose_on(path(2, weights, changed)).folds
    assert before is not None
    assert after is not None
    moved = after.choice[4] - before.choice[4]
    assert moved == pytest.approx(1.0, abs=1e-7)


def rows_of_folds():
    order = default_rng([SEED, N]).permutation(N)
    return [np.sort(order[fold::FOLDS]) for fold in range(FOLDS)]


def test_all_errors_of_the_folds_are_of_functions_without_their_rows():
    _, y, _, _ = drawn(2)
    fits = path(2, (0.0, 0.5), y)
    folds = choose_on(fits).folds
    assert folds is not None
    for rows in rows_of_folds():
        for fit, errors in zip(fits, folds.members, strict=True):
            missed, _ = fit.without(rows)
            assert_allclose(errors[rows], missed)


def test_the_baseline_of_a_fold_is_the_mean_of_the_other_labels():
    _, y, _, _ = drawn(2)
    folds = choose_on(path(2, (0.0, 0.5), y)).folds
    assert folds is not None
    for rows in rows_of_folds():
        others = np.delete(y, rows)
        assert_allclose(folds.mean[rows], y[rows] - others.mean())


def test_the_choice_of_one_is_that_one():
    _, y, _, _ = drawn(2)
    folds = choose_on(path(2, (0.0,), y)).folds
    assert folds is not None
    assert_allclose(folds.choice, folds.members[0])


def test_the_least_left_out_error_is_chosen():
    largest_first = np.array([2.0, 0.0])
    largest_last = np.array([0.0, 2.0])
    errors = [largest_first, largest_last, np.ones(2)]
    assert best_of(errors) == 2


def test_the_weakest_coupling_is_chosen_where_errors_tie():
    errors = np.ones(2)
    assert best_of([errors, errors]) == 0


def test_six_labels_are_too_few_for_five_folds():
    rows = drawn(3)
    fit = labelled_fit(EveryPoint(), rows, 0.0)
    labels = rows[1][:6]
    few = LabelledFit(fit.r[:6], fit.G[:6, :6], labels)
    assert choose_on([few]).folds is None


def many_rows():
    rng = default_rng(0)
    X = rng.normal(size=(2 * MANY + 1, 2))
    y = np.sin(X[:, 0])
    some = evenly(len(X), MANY)
    return X, y, some


def test_some_of_many_rows_are_from_the_first_to_the_last():
    _, _, some = many_rows()
    assert len(some) == MANY
    assert some[0] == 0
    assert some[-1] == 2 * MANY


def test_the_median_looks_at_some_of_many_rows():
    X, y, some = many_rows()
    of_some = kernel_rule(X[some], y[some], "gaussian", "median", 1.0)
    assert kernel_rule(X, y, "gaussian", "median", 1.0) == of_some


def test_the_paper_s_rule_looks_at_all_rows():
    X, y, some = many_rows()
    of_some = kernel_rule(X[some], y[some], "gaussian", "paper", 1.0)
    assert kernel_rule(X, y, "gaussian", "paper", 1.0) != of_some


def test_leave_one_out_is_leaving_one_out():
    rng = default_rng(0)
    Phi = rng.normal(size=(9, 4)) + 1.0
    y = rng.normal(size=9)
    ridges = np.array([0.01, 1.0, 30.0])
    squares, U = np.linalg.eigh(Phi @ Phi.T)

    residuals = left_out(U, np.maximum(squares, 0.0), y, ridges)

    for i in range(9):
        A = np.delete(Phi, i, axis=0)
        b = A.T @ np.delete(y, i)
        for g, nu in enumerate(ridges):
            G = A.T @ A + nu * np.eye(4)
            w = np.linalg.solve(G, b)
            expected = y[i] - Phi[i] @ w
            assert residuals[g, i] == pytest.approx(expected, rel=1e-8)


@pytest.fixture
def one_view():
    rng = default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(2 * X[:, 0])
    return X, y


def test_a_given_width_or_ridge_is_kept(one_view):
    assert kernel_rule(*one_view, "gaussian", 2.0, 0.5) == (2.0, 0.5)
    assert kernel_rule(*one_view, "gaussian", 2.0, "loo")[0] == 2.0
    assert kernel_rule(*one_view, "gaussian", "loo", 0.5)[1] == 0.5
    assert kernel_rule(*one_view, "linear", "loo", "loo")[0] == 1.0


def test_widths_of_identical_rows_are_one_and_six():
    identical = np.zeros((3, 2))
    assert widths(identical, "gaussian") == (1.0, 6.0)


def test_an_estimator_chooses_the_width_and_the_ridge_of_the_rule(one_view):
    X, y = one_view
    sigma, nu = kernel_rule(X, y, "gaussian", "loo", "loo")
    model = CoRLSR(bandwidth="loo", ridge="loo", coupling=0.0).fit(X, y)
    assert sigma in widths(X, "gaussian")
    assert model.bandwidth_[0] == sigma
    assert model.ridge_[0] == nu


def test_one_label_chooses_no_width(one_view):
    X, y = one_view
    with pytest.raises(UsageError, match="1 labelled row"):
        kernel_rule(X[:1], y[:1], "gaussian", "loo", "loo")
