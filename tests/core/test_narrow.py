"""The arithmetic of narrow views, against exact fractions and decimals; and what a view says of its own rounding."""

import re
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hard_problems import hard_problem
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.objective import consensus_certificate
from coreg_core.agreement.schedules.schedule import Stop, Terms
from coreg_core.agreement.views import (
    FunctionSpaceView,
    SpectralView,
    energy_distance,
    local_objective,
    make_view,
)
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.estimators import CoRLSR
from coreg_core.kernels.bases import EveryPoint, LabelledPoints, span_basis
from coreg_core.kernels.exact_ldl import fixed_factor
from coreg_core.kernels.functions import Gaussian, Laplacian, Linear, Polynomial, entry_rounding
from coreg_core.kernels.precise import precise_kernel
from coreg_core.numerics.double_double import DD_EPS, exp, matmul

KERNELS = [Gaussian(1.7), Laplacian(0.8), Polynomial(3, 1.0, 2.0), Linear()]


@given(st.integers(0, 2**32 - 1))
def test_a_product_of_pairs_has_their_digits(seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=s) * 10.0 ** rng.uniform(-9, 9, size=s) for s in ((2, 7), (7, 3)))
    low_a, low_b = a * 1e-17, b * -1e-17
    high, low = matmul((a, low_a), (b, low_b))
    for i in range(2):
        for j in range(3):
            exact = sum(
                (Fraction(a[i, k]) + Fraction(low_a[i, k])) * (Fraction(b[k, j]) + Fraction(low_b[k, j]))
                for k in range(7)
            )
            off = abs(float(Fraction(high[i, j]) + Fraction(low[i, j]) - exact))
            assert off <= 7 * DD_EPS * np.abs(a[i]).max() * np.abs(b[:, j]).max()


def test_exp_of_a_pair_has_31_digits():
    x = np.array([0.0, -1e-9, -0.3, -1.0, -20.5, -300.25, -2000.0])
    high, low = exp((x, np.zeros_like(x)))
    with localcontext() as context:
        context.prec = 60
        for value, h, r in zip(x.tolist(), high.tolist(), low.tolist(), strict=True):
            assert abs(Decimal(h) + Decimal(r) - Decimal(value).exp()) <= Decimal(DD_EPS)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [1, 3, 16, 17, 30])
def test_entries_are_within_what_they_say_of_themselves(kernel, d):
    rng = np.random.default_rng(d)
    for shift, outlier in ((0.0, 0.0), (1e6, 0.0), (0.0, 1e8), (-1e4, 1e4)):
        A, B = rng.normal(size=(40, d)) + shift, rng.normal(size=(30, d)) + shift
        A[3] += outlier
        B[5], B[6] = A[3], A[3] + 0.1
        B[15:] += outlier / 3
        high, low = precise_kernel(kernel, A, B)
        size = np.sqrt(np.outer(kernel.diagonal(A), kernel.diagonal(B)))
        assert (np.abs((kernel(A, B) - high) - low) <= entry_rounding(kernel, d) * size).all()


def test_a_factor_in_integers_is_orthonormal_where_float64_has_nothing():
    X = np.random.default_rng(0).normal(size=(22, 1))
    kernel = Gaussian(2.0)
    assert np.linalg.eigvalsh(kernel(X, X))[0] < 1e-15
    factor = fixed_factor(kernel, X, 1e-60)
    assert factor.exhausted
    assert factor.rank == 22
    phi, tail = factor.features(X)
    assert np.abs(phi @ phi.T - kernel(X, X)).max() <= 1e-14  # Φ Φᵀ = K on the basis points
    assert tail.max() <= 1e-60
    # The reproducing property beyond them: φ(z)·φ(x) = k(z, x), though φ(z) is up to 1e10 times as large as float64 knows W.
    Z = np.linspace(-3.5, 3.5, 9)[:, None]
    assert np.abs(factor.features(Z)[0] @ phi.T - kernel(Z, X)).max() <= 1e-14


def test_repeated_points_and_finite_kernels_cut_nothing():
    X = np.random.default_rng(1).normal(size=(9, 1))
    for kernel, rank in ((Polynomial(2), 3), (Linear(), 1), (Gaussian(1.0), 9)):
        basis = span_basis(kernel, np.concatenate([X, X]))
        assert basis.rank == rank
        assert not basis.is_cut


@pytest.mark.parametrize("tolerance", [1e-8, 1e-14])
def test_a_cut_is_in_the_open_and_its_cost_is_in_the_bound(tolerance):
    rng = np.random.default_rng(2)
    Xs, Zs = [rng.normal(size=(20, 1)) for _ in range(2)], [rng.normal(size=(15, 1)) * 1.5 for _ in range(2)]
    ys = [np.sin(X[:, 0]) for X in Xs]
    parameters = {"form": "semi-parametric", "bandwidth": 1.5, "ridge": 1.0, "coupling": 1.0}
    whole = CoRLSR(preset="paper", **parameters).fit(Xs, ys, Zs)
    cut = CoRLSR(preset="paper", **parameters, rank_tolerance=tolerance).fit(Xs, ys, Zs)
    assert (whole.rank_ == 20).all()
    assert (whole.n_basis_ == 20).all()
    assert (whole.cut_cost_ == 0.0).all()
    assert (cut.rank_ < 20).all()
    assert (cut.cut_cost_ > 0.0).all()
    apart = np.linalg.norm(whole.predictions_unlabelled_ - cut.predictions_unlabelled_, axis=1).max()
    assert 0.0 < apart <= cut.prediction_bound_ + whole.prediction_bound_


def test_the_linear_kernel_on_large_features_is_solved_in_them():
    rng = np.random.default_rng(3)
    X, Z, y = rng.normal(size=(12, 2)) * 1e6, rng.normal(size=(7, 2)) * 1e6, rng.normal(size=12)
    assert isinstance(make_view(EveryPoint(), Linear(), X, y, Z, 1e-2), SpectralView)
    assert isinstance(make_view(EveryPoint(), Linear(), X / 1e6, y, Z / 1e6, 1e-2), FunctionSpaceView)


def test_a_factor_that_leaves_the_ridge_no_digit_is_refused():
    X = np.random.default_rng(4).normal(size=(8, 2)) * 1e6
    with pytest.raises(SingularSystem, match="leaves the ridge no digit"):
        make_view(EveryPoint(), Polynomial(2), X, X[:, 0], X[:3], 1e-3)


@pytest.mark.parametrize("solver", ["direct", "conjugate-gradients"])
def test_a_closed_form_above_its_tolerances_does_not_say_converged(solver):
    rng = np.random.default_rng(5)
    Xs, Zs = [rng.normal(size=(9, 2)) for _ in range(2)], [rng.normal(size=(11, 2)) for _ in range(2)]
    model = CoRLSR(preset="paper", bandwidth=1.0, ridge=1e-8, coupling=10.0, solver=solver, prediction_tol=1e-15)
    assert model.fit(Xs, [X[:, 0] for X in Xs], Zs).stop_ is Stop.STAGNATED
    model.set_params(prediction_tol=2 * model.prediction_bound_, tol=1.0)  # what was reached, and true
    assert model.fit(Xs, [X[:, 0] for X in Xs], Zs).stop_ is Stop.CONVERGED


def test_roundings_are_one_a_column_and_raise_what_is_stated():
    terms = Terms((0.1, 10.0), (1.0, 2.0), 4.0, 1e-6, 1e-6, 5, roundings=(1e-9, 1e-8))
    assert [(terms.response_error(j), terms.shift(j)) for j in (0, 1)] == [(1e-9, 2e-9), (1e-8, 2e-8)]
    assert Terms((0.1,), (1.0,), 4.0, 1e-6, 1e-6, 5).response_error(0) == 0.0
    for wrong in ((1e-9,), (1e-9, np.nan), (-1e-9, 1e-9)):
        with pytest.raises(UsageError, match="roundings"):
            Terms((0.1, 10.0), (1.0, 2.0), 4.0, 1e-6, 1e-6, 5, roundings=wrong)
    bounds = np.array([1.0, 2.0])
    plain, rounded = (consensus_certificate(1e-7, 1.0, 0.4, bounds, rho, 2 * rho) for rho in (0.0, 1e-8))
    assert rounded.gap == pytest.approx((np.sqrt(plain.gap) * (1 + 4e-8) + 4e-8) ** 2, rel=1e-12)
    assert rounded.prediction_bound > plain.prediction_bound


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()])
def test_what_a_view_says_of_itself_rises_with_the_weight(span):
    rng = np.random.default_rng(6)
    X, Z = rng.normal(size=(8, 2)), rng.normal(size=(10, 2))
    view = make_view(span, Gaussian(1.0), X, X[:, 0], Z, 0.1)
    errors = [view.response_error(mu) for mu in (0.0, 0.1, 1.0, 100.0)]
    assert errors == sorted(errors)
    assert errors[0] > 0.0
    assert errors[-1] < 1e-10
    assert view.n_basis == view.rank
    assert view.cut_cost(100.0) == 0.0


def test_the_distance_of_functions_is_the_norm_that_q_is_a_square_in():
    rng = np.random.default_rng(7)
    X, y, Z = rng.normal(size=(8, 2)), rng.normal(size=8), rng.normal(size=(10, 2))
    view = make_view(LabelledPoints(), Gaussian(1.0), X, y, Z, 0.1)
    t, mu = rng.normal(size=10), 0.7
    best, other = view.solve(t, mu), view.solve(t + 1.0, mu)

    def cost(s):
        f = s.function
        return local_objective(f, X, y, 0.1) + mu * np.sum((f.predict(Z) - t) ** 2)

    apart = energy_distance(other.function, best.function, X, Z, 0.1, mu)
    assert apart**2 == pytest.approx(cost(other) - cost(best), rel=1e-9)
    assert energy_distance(best.function, best.function, X, Z, 0.1, mu) <= 1e-13


def test_an_answer_differs_from_its_target_by_what_it_should_though_the_labels_are_huge():
    """Seed 40142 of benchmarks/certify.py: answer − target is (m₀ − t)/(1 + μs²), 1e-8 of the rounding of C a through P V."""
    rng = np.random.default_rng(3)
    X, Z, y = 5e3 * rng.normal(size=(2, 8)), 5e3 * rng.normal(size=(1, 8)), 100.0 * rng.normal(size=2)
    kernel, ridge, weight, target = Linear(), 8e-5, np.array([0.06]), np.array([[-0.02]])
    exact = FunctionSpaceView(kernel, X, y, Z, ridge)
    finite = make_view(EveryPoint(), kernel, X, y, Z, ridge)
    assert isinstance(finite, SpectralView)
    moved = exact.respond(target, weight)[0, 0] - target[0, 0]
    m0, covariance = exact.posterior_mean[0], exact.posterior_covariance[0, 0]
    assert moved == pytest.approx((m0 - target[0, 0]) / (1 + weight[0] / ridge * covariance), rel=1e-6)
    assert finite.respond(target, weight)[0, 0] - target[0, 0] == pytest.approx(moved, rel=1e-6)


def test_a_closed_form_without_digits_is_refused_in_words():
    """Seed 61081 of benchmarks/certify.py: μb of 1e20 and more, so that rounding of CᵀC outweighs the identity.

    Rounding decides at which couplings the system is singular. Elsewhere the stated bound is no good end.
    """
    problem, refused = hard_problem(61081), []
    for larger in (1.0, 10.0, 100.0, 1e3, 1e4):
        parameters = {**problem.parameters, "coupling": larger * problem.parameters["coupling"]}
        try:
            fitted = CoRLSR(preset="paper", **parameters, solver="direct").fit(problem.Xs, problem.ys, problem.Zs)
        except SingularSystem as error:
            refused.append(str(error))
        else:
            assert fitted.stop_ is Stop.STAGNATED
    assert refused
    assert all(re.search(r"reduced stacked system.*conjugate-gradients", words) for words in refused)


def test_a_delivered_function_fits_labels_as_its_coordinates_do():
    """Seed 930291 of benchmarks/certify.py: one row of norm 6e4 and a ridge of 1.7e-5, so that the label is fitted to 2e-12.

    R⁻¹V a lost seven digits of it, and the stated gap was below the true one.
    """
    problem = hard_problem(930291)
    f = (
        CoRLSR(preset="paper", **problem.parameters, solver="direct")
        .fit(problem.Xs, problem.ys, problem.Zs)
        .functions_[1]
    )
    [x], [y] = problem.Xs[1].tolist(), problem.ys[1].tolist()
    features = [sum(Fraction(a) * Fraction(b) for a, b in zip(x, point, strict=True)) for point in f.points.tolist()]
    missed = Fraction(y) - sum(Fraction(c) * value for c, value in zip(f.coef.tolist(), features, strict=True))
    assert abs(missed) < 1e-10
