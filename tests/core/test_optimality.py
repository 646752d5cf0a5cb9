"""The certificate without ρ: how far functions at a common target are from the optimum, whatever the functions are.

The optimum is the closed form, solved in float64; functions are moved from it by far more than its rounding.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from coreg_core.agreement.objective import consensus_weight, objective
from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.agreement.views import EveryPoint, make_view
from coreg_core.agreement.views.distance import local_objective, values_precisely
from coreg_core.agreement.views.optimality import optimality, optimality_certificate, optimality_in_span
from coreg_core.agreement.views.view import KernelExpansion
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.kernels.bases import LabelledPoints, Landmarks, LinearFeatures
from coreg_core.kernels.functions import Gaussian, Linear, Polynomial


def problem(seed, M=3, m=7):
    rng = np.random.default_rng(seed)
    kernel = Gaussian(float(rng.uniform(0.5, 8.0)))
    Xs = [rng.normal(size=(int(rng.integers(1, 8)), 2)) for _ in range(M)]
    Zs = [rng.normal(size=(m, 2)) for _ in range(M)]
    ys = [rng.normal(size=len(X)) * 10.0 ** rng.uniform(-3, 3) for X in Xs]
    ridges = [float(10.0 ** rng.uniform(-3, 1)) for _ in Xs]
    return kernel, Xs, ys, Zs, ridges


@given(st.integers(0, 10_000), st.sampled_from([1e-3, 0.1, 10.0]), st.sampled_from([0.0, 1e-6, 1e-2, 1.0]))
def test_the_bounds_hold_for_functions_that_are_moved_at_random(seed, coupling, moved):
    """A target that is off, coefficients that are off: Q and the predictions are within what is stated."""
    kernel, Xs, ys, Zs, ridges = problem(seed)
    fit = CoRLSR(
        preset="paper",
        form="exact",
        kernel="gaussian",
        bandwidth=kernel.bandwidth,
        ridge=ridges,
        coupling=coupling,
        solver="direct",
    ).fit(Xs, ys, Zs)
    M, rng = len(Xs), np.random.default_rng(seed)
    mu = consensus_weight(coupling, M)
    views = [make_view(EveryPoint(), kernel, X, y, Z, nu) for X, y, Z, nu in zip(Xs, ys, Zs, ridges, strict=True)]
    z = fit.predictions_unlabelled_.mean(axis=0)
    z = z + moved * rng.normal(size=len(z)) * np.abs(z).max()
    functions = [view.solve(z, mu).function for view in views]
    functions = [
        KernelExpansion(f.kernel, f.points, f.coef + moved * rng.normal(size=len(f.coef)) * np.abs(f.coef).max())
        for f in functions
    ]
    found = [optimality(f, X, y, Z, z, nu, mu) for f, X, y, Z, nu in zip(functions, Xs, ys, Zs, ridges, strict=True)]
    values = np.array([values_precisely(f, Z) for f, Z in zip(functions, Zs, strict=True)])
    assert all(np.array_equal(each.values, row) for each, row in zip(found, values, strict=True))
    e = [each.residual for each in found]
    bounds = np.array([view.bound() for view in views])
    off = float(np.linalg.norm(z - values.mean(axis=0))) + max(each.values_error for each in found)
    stated = optimality_certificate(sum(x * x for x in e), max(e), off, mu, bounds)
    Q = objective([local_objective(*each) for each in zip(functions, Xs, ys, ridges, strict=True)], values, coupling)
    known = fit.gap_ + 1e-13 * abs(Q)  # how well the reference is known
    assert Q - fit.objective_ <= stated.gap + known
    error = float(np.linalg.norm(values - fit.predictions_unlabelled_, axis=1).max())
    assert error <= stated.prediction_bound + fit.prediction_bound_ + 1e-13 * float(np.abs(values).max())
    if moved >= 1e-2:
        assert Q - fit.objective_ > 0.0, "the functions are off"


def test_a_residual_in_place_of_its_bound_would_be_false():
    """δ = 0 and e alone: functions that are off in opposite directions have a mean that is right."""
    b, mu, M = np.array([4.0, 4.0]), 1.0, 2
    both = optimality_certificate(2.0, 1.0, 0.0, mu, b)
    assert both.gap == pytest.approx(2.0 * M / (2 / 5)), "E M / S with S = 2/(1 + μ b)"


@pytest.mark.parametrize("ridge", [1e-3, 1e-6, 1e-9])
def test_hard_problems_are_certified_where_rho_says_nothing(ridge):
    """The bound by ρ alone is 20 to 130 times as high."""
    rng = np.random.default_rng(1)
    Xs, Zs = [rng.normal(size=(20, 3)) for _ in range(3)], [rng.normal(size=(40, 3)) for _ in range(3)]
    ys = [X[:, 0] + 0.1 * rng.normal(size=len(X)) for X in Xs]
    fit = CoRLSR(preset="paper", form="exact", bandwidth=20.0, ridge=ridge, coupling=0.1, solver="direct").fit(
        Xs, ys, Zs
    )
    views = [make_view(EveryPoint(), Gaussian(20.0), X, y, Z, ridge) for X, y, Z in zip(Xs, ys, Zs, strict=True)]
    mu = consensus_weight(0.1, 3)
    rho = max(view.response_error(mu) for view in views) * np.sqrt(
        sum(y @ y for y in ys) * max(v.bound() for v in views)
    )
    assert fit.prediction_bound_ < 0.1 * rho
    assert fit.stop_ is (
        Stop.CONVERGED if ridge == 1e-3 else Stop.CONVERGED_TO_ROUNDING if ridge == 1e-6 else Stop.STAGNATED
    )


def test_other_expansions_are_not_judged():
    """A function over other points, or with coefficients in pairs, has no such residual."""
    kernel, Xs, ys, Zs, ridges = problem(0)
    view = make_view(EveryPoint(), kernel, Xs[0], ys[0], Zs[0], ridges[0])
    z = np.zeros(len(Zs[0]))
    f = view.solve(z, 0.5).function
    assert optimality(f, Xs[0], ys[0], Zs[0], z, ridges[0], 0.5) is not None
    assert optimality(f, Xs[0] + 1.0, ys[0], Zs[0], z, ridges[0], 0.5) is None
    assert optimality(f, Xs[0], ys[0], Zs[0] + 1.0, z, ridges[0], 0.5) is None
    assert optimality(f, Xs[0], ys[0], Zs[0], z, ridges[0], 0.0) is None, "its shared rows have coefficients"
    alone = view.solve(z, 0.0).function
    found = optimality(alone, Xs[0], ys[0], Zs[0], z, ridges[0], 0.0)
    assert_allclose(found.residual, 0.0, atol=1e-13 * float(np.linalg.norm(ys[0])))


@given(
    st.integers(0, 10_000),
    st.sampled_from([LabelledPoints(), Landmarks(5), LinearFeatures()]),
    st.sampled_from([Gaussian(2.0), Polynomial(2, 1.0, 3.0), Linear()]),
    st.sampled_from([0.0, 0.3, 30.0]),
    st.sampled_from([1e-9, 1e-3, 1.0]),
    st.sampled_from([0.0, 1e-6, 1e-2, 1.0]),
)
def test_in_a_finite_span_e_squared_is_the_loss_above_the_least_one(seed, span, kernel, mu, ridge, moved):
    """L(f) − min L at a moved function, against the least loss: the normal equations in the coordinates, in float64."""
    _, Xs, ys, Zs, _ = problem(seed, M=1, m=9)
    X, y, Z, rng = (
        np.concatenate([Xs[0], np.eye(2)]),
        np.concatenate([ys[0], [1.0, 2.0]]),
        Zs[0],
        np.random.default_rng(seed),
    )
    view = make_view(span, kernel, X, y, Z, ridge)
    t = rng.normal(size=len(Z)) * np.abs(y).max()
    f = view.solve(t, mu).function
    low = None if f.coef_low is None else f.coef_low
    f = KernelExpansion(f.kernel, f.points, f.coef * (1.0 + moved * rng.normal(size=len(f.coef))), low)
    found = optimality_in_span(f, view.basis, X, y, Z, t, ridge, mu)
    assert (found is None) == view.basis.is_cut
    if found is None:
        return
    # In coordinates: f = φ·w, and L is a sum of squares of [Φ_X; √μ Φ_Z; √ν I] w − [y; √μ t; 0].
    phi, root = view.basis.features, np.sqrt(mu)
    design = np.concatenate([phi(X), root * phi(Z), np.sqrt(ridge) * np.eye(view.rank)])
    aim = np.concatenate([y, root * t, np.zeros(view.rank)])
    best = np.linalg.lstsq(design, aim, rcond=None)[0]
    least = float(np.sum((design @ best - aim) ** 2))
    loss = local_objective(f, X, y, ridge) + mu * float(np.sum((values_precisely(f, Z) - t) ** 2))
    known = 1e-11 * float(aim @ aim)  # the reference's own digits
    assert loss - least <= found.residual**2 + known
    if moved >= 1e-2:
        assert found.residual**2 <= 1.01 * (loss - least) + known + 1e-20 * float(aim @ aim), (
            "and it is no more than that"
        )
    assert np.array_equal(found.values, values_precisely(f, Z))


def test_a_linear_view_with_a_far_row_is_certified():
    """A labelled row of norm 6e4 leaves ρ seven digits short of the tolerance; the residual knows better."""
    rng = np.random.default_rng(2)
    Xs, Zs = [rng.normal(size=(15, 2)) for _ in range(2)], [rng.normal(size=(30, 2)) for _ in range(2)]
    Xs[0][0] *= 6e4
    ys = [X[:, 0] * 1e-3 + 1.0 for X in Xs]
    fit = CoRLSR(
        preset="paper", form="semi-parametric", kernel="linear", ridge=1e-5, coupling=0.1, solver="direct"
    ).fit(Xs, ys, Zs)
    views = [make_view(LabelledPoints(), Linear(), X, y, Z, 1e-5) for X, y, Z in zip(Xs, ys, Zs, strict=True)]
    mu = consensus_weight(0.1, 2)
    Q0 = sum(y @ y for y in ys)
    rho = max(view.response_error(mu) for view in views) * np.sqrt(Q0 * max(v.bound() for v in views))
    assert fit.stop_ is Stop.CONVERGED
    assert fit.prediction_bound_ < 1e-3 * rho


def test_another_basis_or_a_cut_one_is_not_judged():
    """A function over other points; a span whose directions were cut."""
    _, Xs, ys, Zs, _ = problem(4, M=1)
    view = make_view(Landmarks(3), Gaussian(1.0), Xs[0], ys[0], Zs[0], 0.1)
    other = make_view(Landmarks(3, seed=5), Gaussian(1.0), Xs[0], ys[0], Zs[0], 0.1)
    t = np.zeros(len(Zs[0]))
    f = view.solve(t, 0.5).function
    assert optimality_in_span(f, view.basis, Xs[0], ys[0], Zs[0], t, 0.1, 0.5) is not None
    assert optimality_in_span(f, other.basis, Xs[0], ys[0], Zs[0], t, 0.1, 0.5) is None
    cut = make_view(Landmarks(6), Gaussian(1e6), Xs[0], ys[0], Zs[0], 0.1, rank_tolerance=1e-6)
    f = cut.solve(t, 0.5).function
    assert cut.basis.is_cut
    assert optimality_in_span(f, cut.basis, Xs[0], ys[0], Zs[0], t, 0.1, 0.5) is None
