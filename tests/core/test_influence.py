"""How much one label makes of an answer: the map itself, and the bounds that a policy's ranges rest on."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coreg_core.agreement.views import make_view
from coreg_core.kernels.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures
from coreg_core.kernels.functions import make_kernel

KERNELS = ("gaussian", "laplacian", "polynomial", "linear")
SPANS = (EveryPoint(), LabelledPoints(), Landmarks(4), LinearFeatures())


def label_influence(label, instance, ridge, weight=0.0):
    """The bound on |∂ respond_z / ∂y_i| from k(x_i, x_i), k(z, z), ν and μ: docs/research/mathematics.md, "Influence"."""
    return np.sqrt(label / (ridge + label) * instance / (ridge + weight * instance))


def coinciding_influence(label, ridge, weight=0.0):
    """The same where the instance z has the features of the row: k_ii / (ν + (1 + μ) k_ii)."""
    return label / (ridge + (1.0 + weight) * label)


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
