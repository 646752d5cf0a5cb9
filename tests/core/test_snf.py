"""SNF and its linear relative: gradients, normal equations, limits; LS-SVM."""

import numpy as np
import pytest
from gaps import one_table
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from benchmarks.papers.rivals import LSSVM, LinearLatentReconstruction
from coreg_core.errors import UsageError
from coreg_core.estimators import SNF
from coreg_core.estimators.snf import _best, dual_with_bias
from coreg_core.kernels.functions import Polynomial, make_kernel


def rows(n=12, m=20, d=4, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n + m, 2))
    X = np.tanh(hidden @ rng.normal(size=(2, d))) + 0.05 * rng.normal(size=(n + m, d))
    y = hidden[:, 0] * hidden[:, 1]
    return X[:n], y[:n], X[n:]


@pytest.mark.parametrize("kernel", ["gaussian", "polynomial", "linear"])
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 50.0])
def test_the_dual_satisfies_its_normal_equations(kernel, ridge):
    X, y, _ = rows()
    K = make_kernel(kernel, bandwidth=2.0)(X, X)
    Y = np.column_stack([y, X[:, 0]])
    alpha, bias = dual_with_bias(K, Y, ridge)
    assert_allclose(alpha.sum(axis=0), 0, atol=1e-9 * np.abs(alpha).max())
    assert_allclose((K + ridge * np.eye(12)) @ alpha + bias, Y, atol=1e-9)
    model = LSSVM(kernel=kernel, bandwidth=2.0, ridge=ridge).fit(X, y)
    # The primal's stationarity: residual = λα, of mean 0, because the bias is free.
    residual = y - model.predict(X)
    assert_allclose(residual, ridge * alpha[:, 0], atol=1e-8)
    assert abs(residual.mean()) < 1e-9
    assert_allclose(model.predict(X[:3]) + 5.0, clone(model).fit(X, y + 5.0).predict(X[:3]), atol=1e-8)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_value_and_the_gradient_of_a_reconstruction(degree):
    rng = np.random.default_rng(degree)
    Z, targets, ridge = 0.6 * rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), 0.3
    value, gradient = _best(Z, targets, degree, ridge)
    K = Polynomial(degree)(Z, Z)
    alpha, bias = dual_with_bias(K, targets, ridge)
    residual = targets - K @ alpha - bias
    assert_allclose(value, (residual**2).sum() + ridge * np.trace(alpha.T @ K @ alpha), rtol=1e-9)
    h, numeric = 1e-5, np.empty_like(Z)
    for i in np.ndindex(*Z.shape):
        ends = []
        for sign in (1, -1):
            moved = Z.copy()
            moved[i] += sign * h
            ends.append(_best(moved, targets, degree, ridge)[0])
        numeric[i] = (ends[0] - ends[1]) / (2 * h)
    assert_allclose(gradient, numeric, atol=1e-6 * max(1.0, np.abs(numeric).max()))


def test_every_step_lowers_the_objective_however_large_the_rates():
    X, y, U = rows()
    for eta in (1e-4, 1e-1, 1e3):
        model = SNF(
            eta_predictors=eta, eta_target=eta, ridge_predictors=1e-4, n_epochs=30, start="random", random_state=0
        ).fit(*one_table(X, y, U))
        assert (np.diff(model.objective_) < 0).all()
        assert len(model.objective_) > 2
        assert np.isfinite(model.predictions_unlabelled_).all()


def test_without_the_target_s_rate_the_target_leaves_no_trace_in_the_latent():
    X, y, U = rows()
    blind = SNF(eta_target=0.0, n_epochs=10)
    assert_array_equal(blind.fit(*one_table(X, y, U)).latent_, clone(blind).fit(*one_table(X, -7 * y + 1, U)).latent_)
    seeing = SNF(eta_target=0.1, n_epochs=10)
    assert (
        np.abs(seeing.fit(*one_table(X, y, U)).latent_ - clone(seeing).fit(*one_table(X, y[::-1], U)).latent_).max()
        > 1e-3
    )


def test_without_steps_it_is_ls_svm_on_the_components():
    X, y, U = rows()
    model = SNF(n_epochs=0, start="pca", n_latent=3, degree=2, ridge_target=0.2).fit(*one_table(X, y, U))
    Z = model.latent_
    expected = LSSVM(kernel="polynomial", bandwidth=1.0, degree=2, ridge=0.2).fit(Z[:12], y).predict(Z[12:])
    assert_allclose(model.predictions_unlabelled_, expected, rtol=1e-10)
    centred = np.vstack([X, U]) - np.vstack([X, U]).mean(axis=0)
    back = Z @ np.linalg.lstsq(Z, centred, rcond=None)[0]
    s = np.linalg.svd(centred, compute_uv=False)
    assert_allclose(np.linalg.norm(centred - back), s[3], rtol=1e-9)  # the best of rank 3


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_new_rows_get_the_same_latent_in_any_unit(size):
    """Without a step the scores are scaled already, so that the regression alone could depend on the unit of X."""
    X, y, U = rows(n=40, m=60)
    model = SNF(n_latent=3, n_epochs=0)
    expected = model.fit(*one_table(X, y, U)).predict(U)
    assert_allclose(model.fit(*one_table(size * X, y, size * U)).predict(size * U), expected, rtol=1e-6, atol=1e-9)


def test_a_ridge_below_rounding_is_named():
    with pytest.raises(UsageError, match="below the rounding"):
        SNF(ridge_predictors=1e-300, degree=1, n_latent=1).fit(*one_table(*rows()))


# --- the linear relative ------------------------------------------------------------------------------------------


def test_alternating_least_squares_never_rise_and_end_where_nothing_moves():
    X, y, U = rows()
    model = LinearLatentReconstruction(n_latent=2, tolerance=0.0, n_epochs=3000).fit(*one_table(X, y, U))
    falls = np.diff(model.objective_)
    assert (falls <= 1e-10 * model.objective_[0]).all()
    # Stationary in Z: the objective's own gradient, from its definition.
    Z, V, v0, w, w0 = model.latent_, model._V, model._v0, model._w[0], model._w0[0]
    gradient = -2 * (np.vstack([X, U]) - v0 - Z @ V.T) @ V + 2 * 0.1 * Z
    gradient[:12] -= 2 * np.outer(y - w0 - Z[:12] @ w, w)
    assert np.abs(gradient).max() < 1e-3


def test_full_rank_and_hardly_a_ridge_is_ordinary_least_squares():
    X, y, U = rows(n=20)
    small = {"ridge_predictors": 1e-6, "ridge_target": 1e-9, "ridge_latent": 1e-6, "target_weight": 0.0}
    model = LinearLatentReconstruction(n_latent=4, **small).fit(*one_table(X, y, U))
    design = np.column_stack([np.ones(20), X])
    expected = np.column_stack([np.ones(20), U]) @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert_allclose(model.predictions_unlabelled_, expected, atol=1e-3)
    assert_allclose(model.predict(U), expected, atol=1e-3)
