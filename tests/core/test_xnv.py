"""XNV, XKS, SSSL and its Nyström form: scikit-learn's conventions, and what they equal."""

import numpy as np
import pytest
from gaps import one_table
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import RLSR, SSSL, XKS, XNV, NystromSSSL, XKSClassifier, XNVClassifier
from coreg_core.estimators._canonical_ridge import GAMMAS, canonical_ridge
from coreg_core.kernels.bases import draw_fourier_basis
from coreg_core.kernels.functions import Gaussian
from coreg_core.numerics import arrays


# An explicit bandwidth: the rules have no value for the constant tables of some checks.
def rows(n=40, more=160, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + more, d))
    return X[:n], np.sin(2 * X[:n, 0]) + X[:n, 1], X[n:]


@pytest.mark.parametrize("method", [XNV, XKS])
def test_the_model_is_the_canonical_ridge_of_its_canonical_features(method):
    X, y, U = rows()
    model = method(n_components=15, ridge=0.02, random_state=0).fit(*one_table(X, y, U))
    everything = model.canonical_features(np.vstack([X, U]))
    moments = everything.T @ everything / len(everything)
    assert np.abs(moments - np.eye(len(moments))).max() < 0.6  # whitened, but for the relative ridge
    beta = canonical_ridge(model.canonical_features(X), y - y.mean(), model.canonical_correlations_, 0.02)
    assert_allclose(model.predict(U), model.canonical_features(U) @ beta + y.mean(), atol=1e-10)
    literal = method(n_components=15, ridge=0.02, random_state=0, fit_intercept=False).fit(*one_table(X, y, U))
    assert literal.intercept_ == 0.0
    assert_allclose(
        literal.coef_, canonical_ridge(literal.canonical_features(X), y, literal.canonical_correlations_, 0.02)
    )


@pytest.mark.parametrize("cca", ["exact", "randomised"])
def test_the_blocks_of_rows_change_nothing_but_rounding(monkeypatch, cca):
    X, y, U = rows(more=500)
    # The sketch draws block by block, so another block size is another draw: there only the prediction is close.
    model = XNV(n_components=10, cca=cca, sketch=400, random_state=0)
    expected = clone(model).fit(*one_table(X, y, U)).predict(U)
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 8 * 20 * 33)
    assert_allclose(clone(model).fit(*one_table(X, y, U)).predict(U), expected, atol=1e-9 if cca == "exact" else 0.3)


def test_a_sketch_of_as_many_rows_is_exact():
    X, y, U = rows()
    exact = XNV(n_components=10, random_state=0).fit(*one_table(X, y, U))
    sketched = XNV(n_components=10, cca="randomised", sketch=200, random_state=0).fit(*one_table(X, y, U))
    assert_array_equal(exact.predict(U), sketched.predict(U))
    assert (
        XNV(n_components=10, cca="randomised", sketch=100, random_state=0)
        .fit(*one_table(X, y, U))
        .canonical_correlations_[0]
        != exact.canonical_correlations_[0]
    )


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian", "polynomial", "linear"])
def test_nystrom_with_every_row_a_landmark_is_kernel_ridge(kernel):
    X, y, _ = rows()
    model = NystromSSSL(n_components=40, kernel=kernel, bandwidth=2.0, ridge=0.05, fit_intercept=False)
    expected = RLSR(preset="paper", kernel=kernel, bandwidth=2.0, ridge=40 * 0.05).fit(X, y)
    new = rows(seed=9)[0]
    assert_allclose(model.fit(X, y).predict(new), expected.predict(new), rtol=1e-8, atol=1e-9)


def test_both_sides_of_the_ridge_regression_agree():
    X, y, U = rows(n=30)
    wide = NystromSSSL(n_components=29, ridge=0.1, random_state=0).fit(*one_table(X, y, U))
    more = NystromSSSL(n_components=31, ridge=0.1, random_state=0).fit(*one_table(X, y, U))
    for model in (wide, more):
        features = model.basis_.features(X)
        gradient = features.T @ (features @ model.coef_ - (y - y.mean())) / 30 + 0.1 * model.coef_
        assert_allclose(gradient, 0, atol=1e-12)


def test_linear_sssl_with_every_eigenfunction_is_linear_regression():
    X, y, U = rows()
    model = SSSL(n_eigenfunctions=200, kernel="linear", fit_intercept=False).fit(*one_table(X, y, U))
    assert len(model.coef_) == 3  # the others have eigenvalue zero
    expected = LinearRegression(fit_intercept=False).fit(X, y)
    assert_allclose(model.predict(U), expected.predict(U), rtol=1e-9, atol=1e-10)


def test_fourier_features_are_the_gaussian_kernel_in_the_mean():
    A = rows()[0][:10]
    basis = draw_fourier_basis(3, 40_000, 2.5, np.random.default_rng(0))
    features = basis.features(A)
    # 100 averages of 40 000 numbers of variance at most 1/2 · (2)²: five deviations.
    assert np.abs(features @ features.T - Gaussian(2.5)(A, A)).max() < 5 * np.sqrt(2 / 40_000)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (XNV(n_components=101), "n_components=101.*200.*at most 100"),
        (XNV(n_components=10, cca="randomised", sketch=19), "sketch=19.*20"),
        (SSSL(n_eigenfunctions=201), "n_eigenfunctions=201"),
        (NystromSSSL(n_components=201), "n_components=201"),
    ],
    ids=repr,
)
def test_parameters_out_of_range_are_named(model, says):
    with pytest.raises(UsageError, match=says):
        model.fit(*one_table(*rows()))


@pytest.mark.parametrize("method", [XNVClassifier, XKSClassifier])
def test_classes(method):
    X, y, U = rows()
    names = np.where(y > 0, "high", "low")
    model = method(n_components=30, random_state=0).fit(*one_table(X, names, U))
    assert set(model.predict(U)) == {"high", "low"}
    assert model.score(X, names) > 0.8
    with pytest.raises(BadData, match="one class"):
        method().fit(*one_table(X, np.zeros(40, dtype=int), U))
    with pytest.raises(BadData, match="3 classes"):
        method().fit(*one_table(X, np.arange(40) % 3, U))


def test_the_defaults_leave_each_label_out_in_turn():
    X, y, U = rows()
    model = SSSL().fit(*one_table(X, y, U))
    errors = []
    for s in range(1, len(model.eigenvalues_) + 3):
        whole = SSSL(n_eigenfunctions=s).fit(*one_table(X, y, U))
        Phi = whole.basis_.features(X)
        left_out = []
        for i in range(len(y)):
            keep = np.arange(len(y)) != i
            w = np.linalg.lstsq(Phi[keep], (y - y.mean())[keep], rcond=None)[0]
            left_out.append(y[i] - y.mean() - Phi[i] @ w)
        errors.append(np.mean(np.square(left_out)))
    assert len(model.eigenvalues_) == int(np.argmin(errors)) + 1
    chosen = NystromSSSL(n_components=20, random_state=0).fit(*one_table(X, y, U))
    given = NystromSSSL(n_components=20, ridge=chosen.ridge_, random_state=0).fit(*one_table(X, y, U))
    assert_array_equal(chosen.predict(U), given.predict(U))
    views = XNV(n_components=20, random_state=0).fit(*one_table(X, y, U))
    Z, lam, centred = views.canonical_features(X), views.canonical_correlations_, y - y.mean()

    def error(gamma):
        return np.mean(
            [
                (centred[i] - Z[i] @ canonical_ridge(np.delete(Z, i, 0) * f, np.delete(centred, i) * f, lam, gamma))
                ** 2
                for i in range(len(y))
                for f in [np.sqrt((len(y) - 1) / len(y))]  # the mean of a loss over one row less
            ]
        )

    assert views.ridge_ == min(GAMMAS, key=error)
