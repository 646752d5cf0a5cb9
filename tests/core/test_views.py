"""A view's one primitive, respond(t, μ), against a brute-force minimiser; its spans against one another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import EPS, KERNELS, SPANS, Site, brute_force_response, gram, random_site

from coreg_core.agreement.views import View, make_view
from coreg_core.errors import UsageError
from coreg_core.kernels.bases import (
    EveryPoint,
    LabelledPoints,
    Landmarks,
    LinearFeatures,
    make_basis,
    orthonormal_basis,
)
from coreg_core.kernels.functions import Gaussian, Linear, Polynomial
from coreg_core.numerics import arrays


@st.composite
def sites(draw, *, spans=SPANS, unlabelled=(1, 12)):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_site(
        rng,
        draw(st.integers(1, 12)),
        draw(st.integers(*unlabelled)),
        kernel=draw(st.sampled_from(KERNELS)),
        span=draw(st.sampled_from(spans)),
    )


seeds = st.integers(0, 2**32 - 1)
weights = st.one_of(st.just(0.0), st.floats(1e-4, 1e3))


def tolerance(site: Site, view: View, weight: float) -> float:
    """Rounding of a solve of condition 1 + ‖K‖/ν + μ b, on numbers of order 10; and features that a cut at
    1e-10 leaves orthonormal to 1e-6 in the worst case, which well-spread rows keep far below."""
    points = np.concatenate([site.X, site.Z])
    return 1000 * EPS * (1 + np.trace(gram(site.kernel, points, points)) / site.ridge + weight * view.bound())


@settings(max_examples=150)
@given(sites(), seeds, weights)
def test_respond_is_the_minimiser(site, seed, weight):
    view, target = site.view(), np.random.default_rng(seed).normal(size=len(site.Z))
    prediction, local = brute_force_response(site, target, weight)
    atol = tolerance(site, view, weight)
    assert_allclose(view.respond(target[:, None], np.array([weight]))[:, 0], prediction, rtol=0, atol=atol)
    # ‖y − f(X)‖² + ν‖f‖² is not stationary in f: its error is that of f times its gradient, 2μ‖ŷ − t‖.
    pull = 1 + 2 * weight * np.linalg.norm(prediction - target)
    assert view.solve(target, weight).local_objective == pytest.approx(local, rel=atol, abs=atol * pull)


@given(sites(), seeds, st.lists(weights, min_size=1, max_size=4))
def test_several_columns_are_each_its_own(site, seed, mus):
    view, mus = site.view(), np.array([*mus, 0.0, mus[0]])
    targets = np.random.default_rng(seed).normal(size=(len(site.Z), len(mus)))
    for part in ("affine", "linear"):
        together = view.respond(targets, mus, part)
        for j, mu in enumerate(mus):
            alone = view.respond(targets[:, [j]], np.array([mu]), part)
            # gemm and gemv round differently; the same factor, so no condition number: m eps.
            assert_allclose(together[:, [j]], alone, rtol=1e-11, atol=1e-11)
    assert_array_equal(view.respond(targets, np.zeros(len(mus)), "linear"), np.zeros_like(targets))


@given(sites(), seeds, weights)
def test_affine_is_the_answer_to_nought_plus_linear(site, seed, weight):
    view, mu = site.view(), np.array([weight])
    t = np.random.default_rng(seed).normal(size=(len(site.Z), 1))
    assert_allclose(
        view.respond(t, mu, "affine"),
        view.respond(np.zeros_like(t), mu) + view.respond(t, mu, "linear"),
        rtol=0,
        atol=tolerance(site, view, weight),
    )


@given(sites(), seeds)
def test_no_label_appears_in_the_linear_part(site, seed):
    other = make_view(site.span, site.kernel, site.X, site.y * -3.0 + 1.0, site.Z, site.ridge)
    t = np.random.default_rng(seed).normal(size=(len(site.Z), 1))
    mu = np.array([0.3])
    assert_array_equal(site.view().respond(t, mu, "linear"), other.respond(t, mu, "linear"))


@given(sites(), st.floats(1e-3, 1e3))
def test_the_linear_part_is_symmetric_and_between_nought_and_one(site, weight):
    view, m = site.view(), len(site.Z)
    R = view.respond(np.eye(m), np.full(m, weight), "linear")
    atol = tolerance(site, view, weight)
    assert_allclose(R, R.T, rtol=0, atol=atol)
    eigenvalues = np.linalg.eigvalsh((R + R.T) / 2)
    assert eigenvalues.min() >= -atol
    # R ≺ I: strictly, by 1 − μb/(1 + μb), which is what every schedule's convergence rests on.
    assert eigenvalues.max() <= 1 - 1 / (1 + weight * view.bound()) + atol


@given(sites(), seeds, weights)
def test_the_solution_is_the_function_behind_the_response(site, seed, weight):
    view, t = site.view(), np.random.default_rng(seed).normal(size=len(site.Z))
    solution = view.solve(t, weight)
    atol = tolerance(site, view, weight)
    respond = view.respond(t[:, None], np.array([weight]))[:, 0]
    assert_allclose(solution.prediction, respond, rtol=0, atol=atol)
    assert_allclose(solution.predict(site.Z), solution.prediction, rtol=0, atol=atol)
    f = solution.function
    norm = f.coef @ gram(f.kernel, f.points, f.points) @ f.coef
    residual = site.y - solution.predict(site.X)
    direct = residual @ residual + site.ridge * norm
    assert solution.local_objective == pytest.approx(direct, rel=atol, abs=atol * (1 + weight * 100))
    assert solution.local_objective >= 0


@given(sites(spans=["exact"]), seeds)
def test_without_weight_no_unlabelled_point_is_in_the_model(site, seed):
    t = np.random.default_rng(seed).normal(size=len(site.Z))
    assert_array_equal(site.view().solve(t, 0.0).function.points, site.X)


@given(sites(spans=["exact"]), seeds, weights)
def test_landmarks_at_every_point_are_the_exact_span(site, seed, weight):
    t = np.random.default_rng(seed).normal(size=len(site.Z))
    n = len(site.X) + len(site.Z)
    kernel = Gaussian(1.0)
    exact = make_view(EveryPoint(), kernel, site.X, site.y, site.Z, site.ridge)
    landmarks = make_view(Landmarks(n), kernel, site.X, site.y, site.Z, site.ridge)
    # A cut at 1e-10 leaves at most 1e-10 n of K out; the response moves by that times (1 + μb)(1 + n)/ν.
    atol = 1e-9 * n * (1 + weight * exact.bound()) * (1 + n / site.ridge)
    assert_allclose(landmarks.solve(t, weight).prediction, exact.solve(t, weight).prediction, rtol=0, atol=atol)


@given(sites(spans=["linear"]), seeds, weights)
def test_linear_features_are_the_linear_kernel(site, seed, weight):
    t = np.random.default_rng(seed).normal(size=len(site.Z))
    features = make_view(LinearFeatures(), Linear(), site.X, site.y, site.Z, site.ridge)
    kernel = make_view(EveryPoint(), Linear(), site.X, site.y, site.Z, site.ridge)
    atol = tolerance(site, kernel, weight)
    assert features.rank == site.X.shape[1]
    assert_allclose(features.solve(t, weight).prediction, kernel.solve(t, weight).prediction, rtol=0, atol=atol)


def test_landmarks_are_drawn_by_the_seed_alone():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(5, 2)), rng.normal(size=(7, 2))
    draw = [make_basis(Landmarks(6, seed=3), Gaussian(1.0), X, Z).points for _ in range(2)]
    assert_array_equal(*draw)
    assert not np.array_equal(draw[0], make_basis(Landmarks(6, seed=4), Gaussian(1.0), X, Z).points)
    everyone = {tuple(row) for row in np.concatenate([X, Z])}
    assert len({tuple(row) for row in draw[0]} & everyone) == 6  # without replacement


def test_more_landmarks_than_instances_are_refused():
    with pytest.raises(UsageError, match="landmarks=4"):
        make_basis(Landmarks(4), Gaussian(1.0), np.zeros((1, 1)), np.zeros((2, 1)))


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan, np.inf])
def test_a_ridge_that_is_not_positive_is_refused(ridge):
    with pytest.raises(UsageError, match="ridge="):
        make_view(EveryPoint(), Linear(), np.ones((1, 1)), np.ones(1), np.ones((1, 1)), ridge)


def test_a_kernel_that_is_zero_everywhere_is_refused():
    with pytest.raises(UsageError, match="zero on every basis point"):
        make_view(LabelledPoints(), Linear(), np.zeros((3, 2)), np.ones(3), np.ones((2, 2)), 1.0)


@given(sites(spans=["semi-parametric", "landmarks"]))
def test_the_basis_is_orthonormal(site):
    basis = make_basis(site.span, site.kernel, site.X, site.Z)
    K = gram(site.kernel, basis.points, basis.points)
    # A kept eigenvalue s carries an error of n eps s_max, so Wᵀ K W − I is at most n eps s_max / s_min.
    s = np.linalg.eigvalsh(K)
    kept = s[s > 1e-10 * s[-1]]
    assert_allclose(
        basis.transform.T @ K @ basis.transform,
        np.eye(basis.rank),
        rtol=0,
        atol=100 * EPS * len(K) * kept[-1] / kept[0],
    )


def test_the_rank_counts_directions_and_repeated_rows_once():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 3))
    assert orthonormal_basis(Gaussian(1.0), X).rank == 6
    assert orthonormal_basis(Gaussian(1.0), np.concatenate([X, X[:4]])).rank == 6
    assert orthonormal_basis(Linear(), X).rank == 3
    # Monomials of degree at most 2 in 1 variable: 1, x, x².
    assert orthonormal_basis(Polynomial(2), rng.normal(size=(9, 1))).rank == 3


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints(), Landmarks(9, 1), LinearFeatures()])
def test_blocks_change_nothing(span, monkeypatch):
    rng = np.random.default_rng(5)
    X, y, Z = rng.normal(size=(8, 3)), rng.normal(size=8), rng.normal(size=(31, 3))
    kernel = Linear() if isinstance(span, LinearFeatures) else Gaussian(2.0)
    t, mu = rng.normal(size=(31, 2)), np.array([0.4, 3.0])
    whole = make_view(span, kernel, X, y, Z, 0.3)
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 500)  # two to seven rows a block
    assert arrays.block_rows(31) == 2
    blocks = make_view(span, kernel, X, y, Z, 0.3)
    # A shorter product rounds differently, and no worse: eps times a condition number of about 1 + 31 · 3 / 0.3.
    assert_allclose(blocks.respond(t, mu), whole.respond(t, mu), rtol=0, atol=1e-11)
    assert blocks.bound() == pytest.approx(whole.bound(), rel=1e-11)
    assert_allclose(blocks.solve(t[:, 0], 0.4).predict(Z), whole.solve(t[:, 0], 0.4).predict(Z), rtol=0, atol=1e-11)


def test_a_path_keeps_every_factor_and_a_column_that_has_stopped_costs_nothing():
    site = random_site(np.random.default_rng(0), 4, 6)
    mus = np.linspace(0.1, 0.9, 9)
    view = make_view(EveryPoint(), site.kernel, site.X, site.y, site.Z, site.ridge, n_weights=9)
    view._most_factors = 9  # as where m is large: no more than were asked for
    directions, solved, solve_B = np.random.default_rng(1).normal(size=(6, 9)), [], view.solve_B
    directions[:, :5] = 0.0  # those columns have stopped: nothing is asked along them
    view.solve_B = lambda weight, columns: solved.append(weight) or solve_B(weight, columns)
    assert not view.respond(directions, mus, "linear")[:, :5].any()
    assert solved == mus[5:].tolist()
    view.respond(directions, mus)
    assert len(view._factors) == 9


def test_the_cache_of_factors_is_bounded_and_gives_the_same_bits():
    site = random_site(np.random.default_rng(0), 4, 6)
    view, t = site.view(), np.ones((6, 1))
    view._most_factors = 2
    mus = [0.1, 0.2, 0.3, 0.1, 0.3, 0.2]
    answers = [view.respond(t, np.array([mu])) for mu in mus]
    assert len(view._factors) == 2
    fresh = [site.view().respond(t, np.array([mu])) for mu in mus]
    for a, b in zip(answers, fresh, strict=True):
        assert_array_equal(a, b)
