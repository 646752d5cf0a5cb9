"""A view's one primitive, respond(t, μ), against a brute-force minimiser; its spans against one
another.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from problems import EPS, KERNELS, SPANS, Site, brute_force_response, gram, random_site

from coreg_core import arrays
from coreg_core.agreement import views
from coreg_core.agreement.views import View, make_view
from coreg_core.errors import UsageError
from coreg_core.kernels import Gaussian, Linear
from coreg_core.spans import (
    EveryPoint,
    LabelledPoints,
    Landmarks,
    LinearFeatures,
    make_basis,
    orthonormal_basis,
)


@st.composite
def sites(draw, *, spans=SPANS, unlabelled=(1, 12)):
    seed = draw(st.integers(0, 2**32 - 1))
    n = draw(st.integers(1, 12))
    m = draw(st.integers(*unlabelled))
    kernel = draw(st.sampled_from(KERNELS))
    span = draw(st.sampled_from(spans))
    return random_site(default_rng(seed), n, m, kernel=kernel, span=span)


seeds = st.integers(0, 2**32 - 1)
weights = st.one_of(st.just(0.0), st.floats(1e-4, 1e3))


def tolerance(site: Site, view: View, weight: float) -> float:
    """Rounding of a solve of condition 1 + ‖K‖/ν + μ b, on numbers of order 10; and features that a
    cut at 1e-10 leaves orthonormal to 1e-6 in the worst case, which well-spread rows keep far
    below.
    """
    points = np.concatenate([site.X, site.Z])
    norm = np.trace(gram(site.kernel, points, points))
    of_question = weight * view.bound()
    condition = 1 + norm / site.ridge + of_question
    return 1000 * EPS * condition


def answer(view, target, weight):
    """The view's response to one target."""
    [response] = view.respond(target[:, None], np.array([weight])).T
    return response


@settings(max_examples=150)
@given(sites(), seeds, weights)
def test_respond_is_the_minimiser(site, seed, weight):
    view = site.view()
    target = default_rng(seed).normal(size=len(site.Z))
    prediction, local = brute_force_response(site, target, weight)
    atol = tolerance(site, view, weight)
    assert_allclose(answer(view, target, weight), prediction, rtol=0, atol=atol)
    # ‖y − f(X)‖² + ν‖f‖² is not stationary in f: its error is that of f times its gradient, 2μ‖ŷ −
    # t‖.
    distance = np.linalg.norm(prediction - target)
    pull = 1 + 2 * weight * distance
    objective = view.solve(target, weight).local_objective
    assert objective == pytest.approx(local, rel=atol, abs=atol * pull)


@given(sites(), st.floats(1e-3, 1e3))
def test_the_linear_part_is_symmetric_and_between_nought_and_one(site, weight):
    view = site.view()
    m = len(site.Z)
    weights_of_columns = np.full(m, weight)
    R = view.respond(np.eye(m), weights_of_columns, "linear")
    atol = tolerance(site, view, weight)
    assert_allclose(R, R.T, rtol=0, atol=atol)
    eigenvalues = np.linalg.eigvalsh((R + R.T) / 2)
    assert eigenvalues.min() >= -atol
    # R ≺ I: strictly, by 1 − μb/(1 + μb), which is what every solver's convergence rests on.
    strictly = 1 / (1 + weight * view.bound())
    assert eigenvalues.max() <= 1 - strictly + atol


@given(sites(), seeds, weights)
def test_the_solution_is_the_function_behind_the_response(site, seed, weight):
    view = site.view()
    t = default_rng(seed).normal(size=len(site.Z))
    solution = view.solve(t, weight)
    atol = tolerance(site, view, weight)
    assert_allclose(solution.prediction, answer(view, t, weight), rtol=0, atol=atol)
    assert_allclose(solution.predict(site.Z), solution.prediction, rtol=0, atol=atol)
    f = solution.function
    K = gram(f.kernel, f.points, f.points)
    norm = f.coef @ K @ f.coef
    residual = site.y - solution.predict(site.X)
    direct = residual @ residual + site.ridge * norm
    most = atol * (1 + weight * 100)
    assert solution.local_objective == pytest.approx(direct, rel=atol, abs=most)
    assert solution.local_objective >= 0


@given(sites(spans=["exact"]), seeds)
def test_without_weight_no_unlabelled_point_is_in_the_model(site, seed):
    t = default_rng(seed).normal(size=len(site.Z))
    solution = site.view().solve(t, 0.0)
    assert_array_equal(solution.function.points, site.X)


@pytest.mark.parametrize(
    ("span", "X", "ridge", "words"),
    [
        (Landmarks(4), np.ones((1, 1)), 1.0, "landmarks=4"),
        (EveryPoint(), np.ones((1, 1)), 0.0, "ridge="),
        (EveryPoint(), np.ones((1, 1)), np.nan, "ridge="),
        (LabelledPoints(), np.zeros((1, 1)), 1.0, "zero on every basis point"),
    ],
)
def test_what_has_no_solution_is_refused(span, X, ridge, words):
    y = np.ones(1)
    Z = np.ones((2, 1))
    with pytest.raises(UsageError, match=words):
        make_view(span, Linear(), X, y, Z, ridge)


def landmarks(X, Z, seed):
    basis = make_basis(Landmarks(6, seed=seed), Gaussian(1.0), X, Z)
    return basis.points


def test_landmarks_are_drawn_by_the_seed_alone():
    rng = default_rng(0)
    X = rng.normal(size=(5, 2))
    Z = rng.normal(size=(7, 2))
    drawn = landmarks(X, Z, seed=3)
    assert_array_equal(landmarks(X, Z, seed=3), drawn)
    assert not np.array_equal(landmarks(X, Z, seed=4), drawn)


def test_landmarks_are_rows_without_replacement():
    rng = default_rng(0)
    X = rng.normal(size=(5, 2))
    Z = rng.normal(size=(7, 2))
    everyone = {tuple(row) for row in np.concatenate([X, Z])}
    drawn = {tuple(row) for row in landmarks(X, Z, seed=3)}
    assert len(drawn) == 6
    assert drawn <= everyone


def test_the_rank_counts_directions_and_repeated_rows_once():
    rng = default_rng(0)
    X = rng.normal(size=(6, 3))
    assert orthonormal_basis(Gaussian(1.0), X).rank == 6
    repeated = np.concatenate([X, X[:4]])
    assert orthonormal_basis(Gaussian(1.0), repeated).rank == 6
    assert orthonormal_basis(Linear(), X).rank == 3


@pytest.mark.parametrize(("block_bytes", "step"), [(100, 1), (500, 2)])
@pytest.mark.parametrize(
    "span", [EveryPoint(), LabelledPoints(), Landmarks(9, 1), LinearFeatures()]
)
def test_blocks_change_nothing(span, block_bytes, step, monkeypatch):
    """A shorter product rounds differently, and no worse: eps times a condition number of about 1 +
    31 · 3 / 0.3.
    """
    rng = default_rng(5)
    X = rng.normal(size=(8, 3))
    y = rng.normal(size=8)
    Z = rng.normal(size=(31, 3))
    kernel = Gaussian(2.0)
    if isinstance(span, LinearFeatures):
        kernel = Linear()
    t = rng.normal(size=(31, 2))
    mu = np.array([0.4, 3.0])

    whole = make_view(span, kernel, X, y, Z, 0.3)
    answers = whole.respond(t, mu)
    solution = whole.solve(t[:, 0], 0.4)
    predictions = solution.predict(Z)
    monkeypatch.setattr(arrays, "BLOCK_BYTES", block_bytes)  # up to seven rows a block
    blocks = make_view(span, kernel, X, y, Z, 0.3)

    assert arrays.block_rows(31) == step
    assert_allclose(blocks.respond(t, mu), answers, rtol=0, atol=1e-11)
    assert blocks.bound() == pytest.approx(whole.bound(), rel=1e-11)
    solution = blocks.solve(t[:, 0], 0.4)
    assert_allclose(solution.predict(Z), predictions, rtol=0, atol=1e-11)


@pytest.fixture
def factored(monkeypatch):
    """The matrices that are factored, in order."""
    matrices = []
    factor = views.positive_factor

    def counted(matrix, what, remedy):
        matrices.append(what)
        return factor(matrix, what, remedy)

    monkeypatch.setattr(views, "positive_factor", counted)
    return matrices


def test_factors_are_kept_up_to_a_limit(factored):
    view = random_site(default_rng(0), 4, 6).view()
    view.most_factors = 2
    factored.clear()
    direction = np.ones((6, 1))
    for weight in (0.1, 0.2, 0.2, 0.1, 0.3, 0.1):
        view.respond(direction, np.array([weight]), "linear")
    assert len(factored) == 3
    view.respond(direction, np.array([0.2]), "linear")
    assert len(factored) == 4, "the least recently used was dropped"


def test_a_column_that_has_stopped_costs_nothing(factored):
    view = random_site(default_rng(0), 4, 6).view()
    weights = np.array([0.7, 0.2])
    directions = np.ones((6, 2))
    directions[:, 0] = 0.0
    factored.clear()
    answers = view.respond(directions, weights, "linear")
    assert not answers[:, 0].any()
    assert len(factored) == 1


def test_columns_of_several_weights_are_answered_as_each_by_itself():
    site = random_site(default_rng(0), 4, 6)
    weights = np.array([0.7, 0.2, 0.3, 0.1, 0.3, 0.2])
    directions = np.ones((6, 6))
    answers = site.view().respond(directions, weights, "linear")
    for j in range(6):
        direction = directions[:, [j]]
        alone = site.view().respond(direction, weights[[j]], "linear")
        assert_allclose(answers[:, [j]], alone, rtol=1e-12)


@pytest.mark.parametrize("mu", [0.1, 3.0])
@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()], ids=["exact", "semi-parametric"])
def test_every_answer_is_a_function_of_m0_and_S(span, mu):
    """The bound on what any number of questions can reveal (privacy.md, "Agreement"), and the two
    ways to ask for it.
    """
    rng = default_rng(0)
    X = rng.normal(size=(12, 2))
    y = rng.normal(size=12)
    Z = rng.normal(size=(7, 2))
    t = rng.normal(size=(7, 1))
    weight = np.array([mu])
    view = make_view(span, Gaussian(3.0), X, y, Z, 0.5)
    identity = np.eye(7)
    zero = np.zeros((7, 1))
    m0 = view.respond(zero, np.array([0.0]))
    linear_part = view.respond(identity, np.ones(7), "linear")  # m linear columns at μ = 1
    S = np.linalg.inv(identity - linear_part) - identity
    B = identity + mu * S

    affine = view.respond(t, weight)
    linear = view.respond(t, weight, "linear")

    shrunk = np.linalg.solve(B, t)
    shrunk_affine = np.linalg.solve(B, t - m0)
    assert_allclose(affine, t - shrunk_affine, rtol=1e-9, atol=1e-9)
    assert_allclose(linear, t - shrunk, rtol=1e-9, atol=1e-9)


def label_influence(label, instance, ridge, weight):
    """The bound on |∂ respond_z / ∂y_i| from k(x_i, x_i), k(z, z), ν and μ:
    docs/research/mathematics.md, "Influence".
    """
    of_label = label / (ridge + label)
    of_instance = instance / (ridge + weight * instance)
    return np.sqrt(of_label * of_instance)


class OfLabels:
    """A view, and the same with other labels; one instance is like a labelled row."""

    def __init__(self, site, seed, ridge):
        rng = default_rng(seed)
        d = min(site.X.shape[1], site.Z.shape[1])
        site.Z[0, :d] = site.X[0, :d]
        self.change = rng.normal(size=len(site.y))
        self.target = rng.normal(size=(len(site.Z), 1))
        changed = site.y + self.change
        self.view = make_view(site.span, site.kernel, site.X, site.y, site.Z, ridge)
        self.changed = make_view(site.span, site.kernel, site.X, changed, site.Z, ridge)


label_weights = st.sampled_from([0.0, 0.1, 3.0])
ridges = st.sampled_from([1e-3, 1.0, 50.0])


@settings(max_examples=80)
@given(sites(), seeds, label_weights, ridges)
def test_the_map_is_what_answers_change_by_when_labels_do(site, seed, weight, ridge):
    given_labels = OfLabels(site, seed, ridge)
    mu = np.array([weight])
    before = given_labels.view.respond(given_labels.target, mu)[:, 0]
    after = given_labels.changed.respond(given_labels.target, mu)[:, 0]
    H = given_labels.view.label_map(weight)
    assert_allclose(after - before, H @ given_labels.change, rtol=1e-6, atol=1e-7)


@settings(max_examples=80)
@given(sites(), seeds, label_weights, ridges)
def test_the_linear_part_of_an_answer_depends_on_no_label(site, seed, weight, ridge):
    given_labels = OfLabels(site, seed, ridge)
    mu = np.array([weight])
    before = given_labels.view.respond(given_labels.target, mu, "linear")
    after = given_labels.changed.respond(given_labels.target, mu, "linear")
    assert_array_equal(after, before)


@settings(max_examples=80)
@given(sites(), seeds, label_weights, ridges)
def test_the_map_of_some_instances_is_those_rows_of_it(site, seed, weight, ridge):
    view = OfLabels(site, seed, ridge).view
    some = np.array([0, len(site.Z) - 1])
    H = view.label_map(weight)
    H_of_some = view.label_map(weight, some)
    assert_allclose(H_of_some, H[some], rtol=1e-7, atol=1e-9)


@settings(max_examples=80)
@given(sites(), seeds, label_weights, ridges)
def test_the_map_is_within_the_bound(site, seed, weight, ridge):
    H = OfLabels(site, seed, ridge).view.label_map(weight)
    of_X = site.kernel.diagonal(site.X)
    of_Z = site.kernel.diagonal(site.Z)
    most = label_influence(of_X[None, :], of_Z[:, None], ridge, weight)
    beyond = np.abs(H) - most * (1 + 1e-7)
    assert beyond.max() <= 1e-9
    # Where the instance has the features of the row: k_ii / (ν + (1 + μ) k_ii).
    k = of_X[0]
    own = k / (ridge + (1.0 + weight) * k)
    assert abs(H[0, 0]) <= own * (1 + 1e-7) + 1e-9
