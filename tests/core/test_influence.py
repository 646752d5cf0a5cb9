"""How much one label makes of an answer: the map itself, and the bounds that a policy's ranges rest on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreg_core.agreement.views import make_view
from coreg_core.kernels.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures
from coreg_core.kernels.functions import Linear, make_kernel

KERNELS = ("gaussian", "laplacian", "polynomial", "linear")
SPANS = (EveryPoint(), LabelledPoints(), Landmarks(4), LinearFeatures())


def label_influence(label, instance, ridge, weight=0.0):
    """The bound on |∂ respond_z / ∂y_i| from k(x_i, x_i), k(z, z), ν and μ: docs/research/mathematics.md, "Influence"."""
    return np.sqrt(label / (ridge + label) * instance / (ridge + weight * instance))


def coinciding_influence(label, ridge, weight=0.0):
    """The same where the instance z has the features of the row: k_ii / (ν + (1 + μ) k_ii)."""
    return label / (ridge + (1.0 + weight) * label)


def bare_kernel(size, ridge):
    """c with c K_ZZ ⪯ Σ ⪯ K_ZZ: ν / (ν + tr K_XX)."""
    return ridge / (ridge + size)


@st.composite
def problems(draw):
    n, m, d = draw(st.integers(2, 8)), draw(st.integers(2, 8)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X, Z = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    Z[0] = X[0]  # one instance is like a labelled row
    span = draw(st.sampled_from(SPANS))
    name = "linear" if isinstance(span, LinearFeatures) else draw(st.sampled_from(KERNELS))
    kernel = make_kernel(name, bandwidth=draw(st.sampled_from([0.05, 1.0, 20.0])), degree=2)
    ridge, weight = draw(st.sampled_from([1e-3, 0.1, 1.0, 50.0])), draw(st.sampled_from([0.0, 0.1, 3.0]))
    return kernel, span, X, rng.normal(size=n), Z, ridge, weight


@settings(max_examples=80, deadline=None)
@given(problems())
def test_no_label_moves_an_answer_by_more_than_the_bound(problem):
    kernel, span, X, y, Z, ridge, weight = problem
    H = make_view(span, kernel, X, y, Z, ridge).label_map(weight)
    of_X, of_Z = kernel.diagonal(X), kernel.diagonal(Z)
    most = np.array([[label_influence(a, b, ridge, weight) for a in of_X] for b in of_Z])
    assert (np.abs(H) <= most * (1 + 1e-7) + 1e-9).all()
    assert abs(H[0, 0]) <= coinciding_influence(of_X[0], ridge, weight) * (1 + 1e-7) + 1e-9


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_map_is_what_answers_change_by_when_labels_do_at_any_target(problem, seed):
    kernel, span, X, y, Z, ridge, weight = problem
    rng = np.random.default_rng(seed)
    other, target = y + rng.normal(size=len(y)), rng.normal(size=(len(Z), 1))
    one, two = (make_view(span, kernel, X, labels, Z, ridge) for labels in (y, other))
    mu, H = np.array([weight]), one.label_map(weight)
    moved = (two.respond(target, mu) - one.respond(target, mu))[:, 0]
    np.testing.assert_allclose(moved, H @ (other - y), rtol=1e-6, atol=1e-7)
    some = np.array([0, len(Z) - 1])
    np.testing.assert_allclose(one.label_map(weight, some), H[some], rtol=1e-7, atol=1e-9)


def test_where_nothing_is_like_the_row_the_bound_is_attained_and_the_answer_is_the_label():
    X, y = np.array([[0.0], [100.0]]), np.array([3.0, -2.0])
    view = make_view(EveryPoint(), make_kernel("gaussian", bandwidth=1e-6), X, y, X[:1], 1e-6)
    assert view.label_map(0.5)[0] == pytest.approx([coinciding_influence(1.0, 1e-6, 0.5), 0.0], rel=1e-9)
    assert view.respond(np.zeros((1, 1)), np.zeros(1))[0, 0] == pytest.approx(3.0, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.01, 1.0, 1e3]), st.integers(0, 2**32 - 1))
def test_a_large_ridge_leaves_the_kernel_as_it_is(n, d, ridge, seed):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, d)), rng.normal(size=(5, d))
    size, view = float(np.sum(X * X)), make_view(LinearFeatures(), Linear(), X, rng.normal(size=n), Z, ridge)
    answers = view.respond(np.eye(5), np.full(5, 1.0), "linear")
    S = np.linalg.inv(np.eye(5) - answers) - np.eye(5)  # answers are I − (I + μS)⁻¹
    least, most = (
        np.linalg.eigvalsh(ridge * S - bare_kernel(size, ridge) * (Z @ Z.T)),
        np.linalg.eigvalsh(Z @ Z.T - ridge * S),
    )
    rounding = 1e-9 * (1.0 + np.abs(Z @ Z.T).max()) * max(1.0, ridge)
    assert least.min() >= -rounding
    assert most.min() >= -rounding
