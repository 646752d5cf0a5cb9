"""What the paper says of the borders of its problem, and what must never be silently wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.kernel_ridge import KernelRidge

from benchmarks.one_table import one_table
from coreg_core.agreement.objective import disagreement
from coreg_core.agreement.solver import Stop
from coreg_core.errors import SingularSystem
from coreg_core.estimators import CoRLSR
from coreg_core.estimators.corlsr import SOLVERS

FORMS = ("exact", "semi-parametric")
seeds = st.integers(0, 2**32 - 1)


def tables(seed, n=(6, 9), d=(3, 2), m=8):
    rng = default_rng(seed)
    Xs = [rng.normal(size=shape) for shape in zip(n, d, strict=True)]
    Zs = [rng.normal(size=(m, columns)) for columns in d]
    return Xs, [rng.normal(size=len(X)) for X in Xs], Zs


def fit(data, **parameters):
    views, table = one_table(*data)
    given = {"bandwidth": 2.0, "ridge": 0.3, "tol": 1e-20} | parameters
    return CoRLSR(preset="paper", views=views, **given).fit(**table)


NOBODY = {
    "no coupling": ({}, 0.0),
    "one view": ({"n": (7,), "d": (3,)}, 100.0),
    "one view, no unlabelled instance": ({"n": (7,), "d": (3,), "m": 0}, 1.0),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", NOBODY)
@settings(max_examples=5)
@given(seed=seeds)
def test_with_nobody_to_agree_with_views_are_kernel_ridge(form, solver, kind, seed):
    shape, coupling = NOBODY[kind]
    data = tables(seed, **shape)
    model = fit(data, form=form, coupling=coupling, solver=solver)
    new = [default_rng(v).normal(size=(5, X.shape[1])) for v, X in enumerate(data[0])]
    for v, (X, y, Z) in enumerate(zip(*data, strict=True)):
        theirs = KernelRidge(alpha=0.3, kernel="rbf", gamma=0.5).fit(X, y)
        # Condition number 1 + n/ν = 31 twice over, and a textbook solve that squares it.
        assert_allclose(
            model.functions_[v].predict(new[v]), theirs.predict(new[v]), rtol=0, atol=1e-9
        )
        assert_allclose(
            model.predictions_unlabelled_[v], theirs.predict(Z) if len(Z) else [], rtol=0, atol=1e-9
        )
    assert model.stop_ is Stop.CONVERGED
    assert (
        0.0 <= model.gap_ <= 1e-20 * sum(float(y @ y) for y in data[1])
    )  # the functions' rounding


# --- few rows, equal rows -------------------------------------------------------------------------


def repeated(seed, kind):
    Xs, ys, Zs = tables(seed, n=(6, 7), d=(3, 2), m=9)
    match kind:
        case "labelled rows repeat":
            Xs[0][3] = Xs[0][0]
            Xs[1][4:6] = Xs[1][0]
        case "unlabelled rows repeat":
            for Z in Zs:
                Z[5] = Z[0]
        case "unlabelled rows are labelled rows":
            Zs[0][:3] = Xs[0][:3]
            Zs[1][2:6] = Xs[1][:4]
        case "all rows are one":
            Xs[0][:] = Xs[0][0]
            Zs[0][:] = Xs[0][0]
    return Xs, ys, Zs


REPEATS = [
    "labelled rows repeat",
    "unlabelled rows repeat",
    "unlabelled rows are labelled rows",
    "all rows are one",
]


@pytest.mark.parametrize("kind", REPEATS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12)
@given(seeds, st.sampled_from([1e-3, 0.1, 3.0]))
def test_repeated_rows(form, kind, seed, coupling):
    data = repeated(seed, kind)
    direct = fit(data, form=form, coupling=coupling)
    gradients = fit(data, form=form, coupling=coupling, solver="conjugate-gradients")
    assert gradients.stop_ is Stop.CONVERGED
    # 1e-9 · max|y| is what the solver promised, in the 2-norm; the closed form states its own
    # bound.
    atol = gradients.prediction_bound_ + direct.prediction_bound_
    assert atol < 1e-8
    assert_allclose(
        direct.predictions_unlabelled_, gradients.predictions_unlabelled_, rtol=0, atol=atol
    )


@pytest.mark.parametrize("form", FORMS)
def test_repeating_a_labelled_row_is_weighing_it_twice(form):
    """An oracle for repeated rows with no singular matrix: a row twice is one of weight 2 at the
    mean target.
    """
    Xs, ys, Zs = tables(6, n=(5, 5), d=(2, 2), m=6)
    twice = [np.concatenate([X, X]) for X in Xs]
    ys_twice = [np.concatenate([y + 1.0, y - 1.0]) for y in ys]
    # Σ (y+1−f)² + (y−1−f)² = 2 (y−f)² + 2 each: the same minimiser as ν/2 and λ/2 on single rows.
    model = fit((twice, ys_twice, Zs), form=form, coupling=0.4, ridge=0.6)
    single = fit((Xs, ys, Zs), form=form, coupling=0.2, ridge=0.3)
    assert_allclose(
        model.predictions_unlabelled_, single.predictions_unlabelled_, rtol=0, atol=1e-9
    )
    assert model.objective_ == pytest.approx(2 * single.objective_ + 2 * 10, rel=1e-10)
    if form == "semi-parametric":
        assert_array_equal(model.rank_, [5, 5])


def test_rounding_that_outweighs_the_identity_is_said_and_not_a_bare_linalg_error():
    rng = default_rng(0)
    X = rng.normal(size=(5, 2))
    Z = np.repeat(rng.normal(size=(4, 2)), 3, axis=0)
    twice = np.repeat(X, 2, axis=0)
    with pytest.raises(SingularSystem, match="lower the coupling"):
        fit(([X, X + 1], X[:, 0], [Z, Z + 1]), coupling=1e18, bandwidth=1.0, ridge=1.0)
    with pytest.raises(SingularSystem, match=r"ridge=1e-300.*raise the ridge"):
        fit(([twice], twice[:, 0], [Z]), bandwidth=1.0, ridge=1e-300)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("power", [-120, 300])
def test_targets_in_any_unit_give_the_same_bits(solver, power):
    """Squares of targets below 1e-155 are 0: conjugate gradients converged with bound 0 and a
    relative error above 0.1.
    """
    rng = default_rng(0)
    X = [rng.normal(size=(12, 3)) for _ in range(2)]
    Z = [rng.normal(size=(20, 3)) for _ in range(2)]
    y = rng.normal(size=12)
    unit = 2.0**power
    rules = {"coupling": 0.1, "solver": solver, "bandwidth": "loo", "ridge": "loo", "tol": 1e-10}
    plain, scaled = (fit((X, labels, Z), **rules) for labels in (y, y * unit))
    assert (scaled.predict_views(np.hstack(Z)) == plain.predict_views(np.hstack(Z)) * unit).all()
    assert scaled.stop_ is plain.stop_
    assert (scaled.gap_ > 0.0) == (plain.gap_ > 0.0), "a bound that underflows is not 0"


@pytest.mark.parametrize(
    "wrong", [np.zeros(3), np.zeros((2, 3), dtype=np.float32)], ids=["dimensions", "numbers"]
)
def test_the_shapes_in_the_signatures_are_executed(wrong):
    with pytest.raises(TypeCheckError):
        disagreement(wrong)
