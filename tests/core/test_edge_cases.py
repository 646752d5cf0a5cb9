"""What the paper says of the borders of its problem, and what must never be silently wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from numpy.testing import assert_allclose, assert_array_equal
from problems import EPS, Problem, problems, random_site
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from benchmarks.papers.rivals import LSSVM
from benchmarks.stacked_system import normal_matrix, textbook_view
from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import disagreement
from coreg_core.agreement.schedules import Stop
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.estimators import RLSR, CoRLSR
from coreg_core.estimators.corlsr import SOLVERS

FORMS = ("exact", "semi-parametric")
seeds = st.integers(0, 2**32 - 1)


def tables(seed, n=(6, 9), d=(3, 2), m=8):
    rng = np.random.default_rng(seed)
    Xs = [rng.normal(size=shape) for shape in zip(n, d, strict=True)]
    Zs = [rng.normal(size=(m, columns)) for columns in d]
    return Xs, [rng.normal(size=len(X)) for X in Xs], Zs


def fit(data, **parameters):
    return CoRLSR(preset="paper", **({"bandwidth": 2.0, "ridge": 0.3, "tol": 1e-20} | parameters)).fit(*data)


def kernel_ridge(X, y, *, bandwidth=2.0, ridge=0.3):
    return KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / bandwidth).fit(X, y)


# --- nobody to agree with, or nothing to agree on ---------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=8)
@given(seeds)
def test_without_coupling_views_are_kernel_ridge(form, solver, seed):
    data = tables(seed)
    model = fit(data, form=form, coupling=0.0, solver=solver)
    for v, (X, y, Z) in enumerate(zip(*data, strict=True)):
        # Condition number 1 + n/ν = 31 twice over, and a textbook solve that squares it.
        expected = kernel_ridge(X, y).predict(Z)
        assert_allclose(model.predictions_unlabelled_[v], expected, rtol=0, atol=1e-9)
        assert_allclose(model.functions_[v].predict(Z), expected, rtol=0, atol=1e-9)
    assert model.stop_ is Stop.CONVERGED
    assert 0.0 <= model.gap_ <= 1e-20 * sum(float(y @ y) for y in data[1])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("coupling", [0.0, 0.5, 100.0])
def test_one_view_is_one_kernel_ridge(form, solver, coupling):
    data = tables(1, n=(7,), d=(3,))
    model = fit(data, form=form, coupling=coupling, solver=solver)
    expected = kernel_ridge(data[0][0], data[1][0])
    rlsr = RLSR(preset="paper", bandwidth=2.0, ridge=0.3).fit(data[0][0], data[1][0])
    new = np.random.default_rng(2).normal(size=(5, 3))
    for points in (data[2][0], new):
        assert_allclose(rlsr.predict(points), expected.predict(points), rtol=0, atol=1e-12)
        # 1e-9: the textbook solver squares K; all others are at 1e-13.
        assert_allclose(model.predict([points]), expected.predict(points), rtol=0, atol=1e-9)
    assert model.disagreement_ == 0.0
    assert model.stop_ is Stop.CONVERGED


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("coupling", [0.0, 1.0])
def test_no_unlabelled_instance(form, solver, coupling):
    data = tables(3, m=0)
    model = fit(data, form=form, coupling=coupling, solver=solver)
    assert model.predictions_unlabelled_.shape == (2, 0)
    new = [np.random.default_rng(v).normal(size=(4, X.shape[1])) for v, X in enumerate(data[0])]
    expected = [kernel_ridge(X, y).predict(N) for X, y, N in zip(data[0], data[1], new, strict=True)]
    assert_allclose(model.predict_views(new), expected, rtol=0, atol=1e-9)
    assert model.gap_ <= 1e-20 * sum(float(y @ y) for y in data[1])  # the functions' rounding
    assert model.stop_ is Stop.CONVERGED


# --- the textbook ----------------------------------------------------------------------------------------------------


@given(problems(forms=["exact"]), st.integers(2, 5))
def test_the_normal_matrix_is_that_of_respond(problem, n_views):
    """G_v c = Lᵀy + 2λ(M−1) Uᵀt is respond(t, 2λ(M−1)): Proposition 4.1 in our primitive."""
    site = problem.sites[0]
    t = np.cos(np.arange(problem.n_unlabelled))
    v = textbook_view(site.kernel, site.X, site.y, site.Z, site.ridge, exact=True)
    G = normal_matrix(v.L, v.U, v.K, ridge=site.ridge, coupling=problem.coupling, n_views=n_views)
    mu = 2 * problem.coupling * (n_views - 1)
    c = site.view().solve(t, mu).function.coef
    # The primitive's coefficients satisfy the paper's normal equations, to the rounding of G c.
    size = np.abs(G).sum(axis=1).max() * max(1.0, np.abs(c).max())
    assert_allclose(G @ c, v.L.T @ site.y + mu * v.U.T @ t, rtol=0, atol=1000 * EPS * size)


@given(seeds, st.sampled_from(FORMS))
def test_a_linear_kernel_is_ridge_regression(seed, form):
    data = tables(seed, n=(9,), d=(3,))
    ours = fit(data, form=form, kernel="linear", coupling=1.0)
    theirs = Ridge(alpha=0.3, fit_intercept=False).fit(data[0][0], data[1][0])
    assert_allclose(ours.predict([data[2][0]]), theirs.predict(data[2][0]), rtol=0, atol=1e-10)
    alone = RLSR(preset="paper", kernel="linear", ridge=0.3).fit(data[0][0], data[1][0])
    assert_allclose(alone.predict(data[2][0]), theirs.predict(data[2][0]), rtol=0, atol=1e-10)


# --- few rows, equal rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", FORMS)
def test_one_labelled_row_with_explicit_values(form, solver):
    data = tables(4, n=(1, 1, 5), d=(2, 3, 1), m=4)
    parameters = {"bandwidth": [1.0, 2.0, 0.5], "ridge": [0.5, 1.0, 0.2], "coupling": 0.4}
    model = fit(data, form=form, solver=solver, **parameters)
    direct = fit(data, form=form, **parameters)
    assert_allclose(model.predictions_unlabelled_, direct.predictions_unlabelled_, rtol=0, atol=1e-8)
    assert model.prediction_bound_ < 1e-6


@pytest.mark.parametrize("X", [np.array([[1.0, 2.0]]), np.full((4, 2), 0.1)])
def test_the_papers_rules_refuse_and_name_the_parameter(X):
    y, Z = np.ones(len(X)), np.random.default_rng(0).normal(size=(3, 2))
    with pytest.raises(UsageError, match="bandwidth="):
        CoRLSR(preset="paper", ridge=1.0).fit([X], [y], [Z])
    with pytest.raises(UsageError, match="bandwidth="):
        RLSR(preset="paper", ridge=1.0).fit(X, y)
    with pytest.raises(UsageError, match="ridge="):
        CoRLSR(preset="paper", bandwidth=1.0).fit([X * 0.0], [y], [Z])
    with pytest.raises(UsageError, match="ridge="):
        RLSR(preset="paper", bandwidth=1.0).fit(X * 0.0, y)


@pytest.mark.parametrize("form", FORMS)
def test_constant_columns_change_nothing(form):
    Xs, ys, Zs = tables(5)
    plain = fit((Xs, ys, Zs), form=form, coupling=0.3)
    wide = [[np.column_stack([A, np.full(len(A), 7.0)]) for A in table] for table in (Xs, Zs)]
    more = fit((wide[0], ys, wide[1]), form=form, coupling=0.3)
    # The constant is subtracted from both sides before the product: nothing but its mean's rounding is left.
    assert_allclose(more.predictions_unlabelled_, plain.predictions_unlabelled_, rtol=0, atol=1e-10)


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


REPEATS = ["labelled rows repeat", "unlabelled rows repeat", "unlabelled rows are labelled rows", "all rows are one"]


@pytest.mark.parametrize("kind", REPEATS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12)
@given(seeds, st.sampled_from([1e-3, 0.1, 3.0]))
def test_repeated_rows(form, kind, seed, coupling):
    data = repeated(seed, kind)
    direct = fit(data, form=form, coupling=coupling)
    gradients = fit(data, form=form, coupling=coupling, solver="conjugate-gradients")
    assert gradients.stop_ is Stop.CONVERGED
    # 1e-9 · max|y| is what the schedule promised, in the 2-norm; the closed form states its own bound.
    atol = gradients.prediction_bound_ + direct.prediction_bound_
    assert atol < 1e-8
    assert_allclose(direct.predictions_unlabelled_, gradients.predictions_unlabelled_, rtol=0, atol=atol)


@pytest.mark.parametrize("form", FORMS)
def test_repeating_a_labelled_row_is_weighing_it_twice(form):
    """An oracle for repeated rows with no singular matrix: a row twice is one of weight 2 at the mean target."""
    Xs, ys, Zs = tables(6, n=(5, 5), d=(2, 2), m=6)
    twice = [np.concatenate([X, X]) for X in Xs]
    ys_twice = [np.concatenate([y + 1.0, y - 1.0]) for y in ys]
    # Σ (y+1−f)² + (y−1−f)² = 2 (y−f)² + 2 each: the same minimiser as ν/2 and λ/2 on single rows.
    model = fit((twice, ys_twice, Zs), form=form, coupling=0.4, ridge=0.6)
    single = fit((Xs, ys, Zs), form=form, coupling=0.2, ridge=0.3)
    assert_allclose(model.predictions_unlabelled_, single.predictions_unlabelled_, rtol=0, atol=1e-9)
    assert model.objective_ == pytest.approx(2 * single.objective_ + 2 * 10, rel=1e-10)
    if form == "semi-parametric":
        assert_array_equal(model.rank_, [5, 5])


def wide(seed, n=20, d=2, m=30):
    rng = np.random.default_rng(seed)
    X, Z = [rng.normal(size=(n, d)) for _ in range(2)], [rng.normal(size=(m, d)) for _ in range(2)]
    return (X, [x @ np.ones(d) + 0.1 * rng.normal(size=n) for x in X], Z)


@pytest.mark.parametrize("bandwidth", [10.0, 100.0, 1e3, 1e5])
@pytest.mark.parametrize("form", FORMS)
def test_wide_kernels(form, bandwidth):
    """The spectrum of K falls below eps: the paper's system must refuse or be right, ours agree."""
    for seed in range(3):
        data = wide(seed)
        parameters = {"form": form, "bandwidth": bandwidth, "ridge": 0.01, "coupling": 0.1}
        direct = fit(data, **parameters)
        gradients = fit(data, **parameters, solver="conjugate-gradients")
        apart = np.linalg.norm(direct.predictions_unlabelled_ - gradients.predictions_unlabelled_, axis=1)
        assert apart.max() <= direct.prediction_bound_ + gradients.prediction_bound_
        assert gradients.stop_ in (Stop.CONVERGED, Stop.STAGNATED)
        assert direct.prediction_bound_ < 1e-7


def test_a_mixture_of_forms_names_the_solver_that_can():
    rng = np.random.default_rng(0)
    mixture = Problem((random_site(rng, 4, 5), random_site(rng, 4, 5, span="semi-parametric")), 0.1)
    with pytest.raises(UsageError, match="conjugate-gradients"):
        consensus_closed_form(mixture.views(), 0.1)


def test_rounding_that_outweighs_the_identity_is_said_and_not_a_bare_linalg_error():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(5, 2)), np.repeat(rng.normal(size=(4, 2)), 3, axis=0)
    twice = np.repeat(X, 2, axis=0)
    for fit, says in [
        (
            lambda: CoRLSR(preset="paper", coupling=1e18, bandwidth=1.0, ridge=1.0).fit(
                [X, X + 1], X[:, 0], [Z, Z + 1]
            ),
            "lower the coupling",
        ),
        (
            lambda: CoRLSR(preset="paper", bandwidth=1.0, ridge=1e-300).fit([twice], twice[:, 0], [Z]),
            "ridge=1e-300.*raise the ridge",
        ),
        (
            lambda: RLSR(preset="paper", bandwidth=1.0, ridge=1e-300).fit(twice, twice[:, 0]),
            "ridge=1e-300.*raise the ridge",
        ),
        (lambda: LSSVM(bandwidth=1.0, ridge=1e-300).fit(twice, twice[:, 0]), "ridge=1e-300.*raise the ridge"),
    ]:
        with pytest.raises(SingularSystem, match=says):
            fit()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("power", [-120, 300])
def test_targets_in_any_unit_give_the_same_bits(solver, power):
    """Squares of targets below 1e-155 are 0: conjugate gradients converged with bound 0 and a relative error above 0.1."""
    rng = np.random.default_rng(0)
    X, Z = [rng.normal(size=(12, 3)) for _ in range(2)], [rng.normal(size=(20, 3)) for _ in range(2)]
    y, unit = rng.normal(size=12), 2.0**power
    model = CoRLSR(preset="paper", coupling=0.1, solver=solver, bandwidth="loo", ridge="loo")
    plain = model.fit(X, y, Z).predict_views(Z)
    stop, gap = model.stop_, model.gap_
    assert (model.fit(X, y * unit, Z).predict_views(Z) == plain * unit).all()
    assert model.stop_ is stop
    assert (model.gap_ > 0.0) == (gap > 0.0), "a bound that underflows is not 0"


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 3), dtype=np.float32)], ids=["dimensions", "numbers"])
def test_the_shapes_in_the_signatures_are_executed(wrong):
    with pytest.raises(TypeCheckError):
        disagreement(wrong)
