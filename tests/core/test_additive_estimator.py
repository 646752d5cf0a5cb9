"""scikit-learn's conventions for the methods over views: one table is enough."""

import numpy as np
import polars as pl
import pytest
from additive_problems import truth
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import AdditiveRegressor, CoRLS, CoRLSR
from coreg_core.kernels.leave_one_out import MANY, choose, kernel_rule, leave_one_out, some_rows, widths


def table(n=60, labelled=40, seed=0):
    """(X, y with NaN, mask): rows of one table; each of two views may see half of the labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = truth(X) + 0.1 * rng.normal(size=n)
    y[labelled:] = np.nan
    mask = np.zeros((n, 2), dtype=bool)
    mask[: labelled // 2, 0] = mask[labelled // 2 : labelled, 1] = True
    return X, y, mask


VIEWS = [slice(0, 2), [2, 3]]
QUICK = AdditiveRegressor(views=VIEWS, landmarks=30, tuning_steps=2, probes=4)


@pytest.mark.parametrize("model", [QUICK, CoRLSR(views=VIEWS), CoRLSR(views=VIEWS, form="semi-parametric")], ids=str)
def test_one_table_is_the_list_of_views(model):
    X, y, mask = table()
    one = clone(model).fit(X, y, label_mask=mask)
    rows = [np.flatnonzero(mask[:, v]) for v in range(2)]
    columns = [[0, 1], [2, 3]]
    shared = np.isnan(y)
    other = clone(model).fit(
        [X[r][:, c] for r, c in zip(rows, columns, strict=True)],
        [y[r] for r in rows],
        [X[shared][:, c] for c in columns],
    )
    tables = [X[:, c] for c in columns]
    assert_allclose(one.predict(X), other.predict(tables), rtol=1e-9)
    assert_allclose(one.predict_views(X), other.predict_views(tables), rtol=1e-9)
    known = ~np.isnan(y)
    assert one.score(X, y) == pytest.approx(r2_score(y[known], one.predict(X)[known]))
    with pytest.warns(UndefinedMetricWarning, match="No row has a target"):
        assert np.isnan(one.score(X[~known], y[~known]))
    assert one.n_features_in_ == 4
    names = clone(model).set_params(views=[np.array([True, True, False, False]), (2, 3)])
    assert_array_equal(names.fit(X, y, label_mask=mask).predict(X), one.predict(X))


def test_corls_takes_one_table():
    X, y, _ = table()
    one = CoRLS(views=VIEWS, loss="mean", ridge=0.01).fit(X, y)
    shared = np.isnan(y)
    columns = [[0, 1], [2, 3]]
    other = CoRLS(loss="mean", ridge=0.01).fit(
        [X[~shared][:, c] for c in columns], y[~shared], [X[shared][:, c] for c in columns]
    )
    assert_allclose(one.predict(X), other.predict([X[:, c] for c in columns]), rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (QUICK, {"tuning_steps": [0, 1], "rows": ["private", "common"]}),
        (CoRLSR(views=VIEWS), {"coupling": [0.0, 0.1]}),
        (CoRLS(views=VIEWS, ridge=0.01), {"coupling": [0.0, 0.1]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_grid_search_and_pipeline(model, grid):
    X, y, mask = table()
    rng = np.random.default_rng(1)
    order = rng.permutation(len(X))  # labelled and shared rows in every fold
    X, y, mask = X[order], y[order], mask[order]
    name = type(model).__name__.lower()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), clone(model).set_params(folds=2) if model is QUICK else clone(model)),
        {f"{name}__{key}": values for key, values in grid.items()},
        cv=2,
        error_score="raise",
    )
    masked = {} if isinstance(model, CoRLS) else {f"{name}__label_mask": mask}
    search.fit(X, y, **masked)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert np.isfinite(search.predict(X)).all()
    assert search.best_score_ < 1.0


def test_one_view_of_complete_rows_is_as_good_as_kernel_ridge():
    """No target missing: every row is shared; nobody else's part is smoothed in."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 4))
    y = truth(X) + 0.1 * rng.normal(size=80)
    ours = cross_val_score(AdditiveRegressor(), X, y, cv=4).mean()
    grid = GridSearchCV(KernelRidge(kernel="rbf"), {"alpha": [1e-3, 1e-2, 0.1, 1.0], "gamma": [0.03, 0.1, 0.3]}, cv=4)
    assert ours > cross_val_score(grid, X, y, cv=4).mean() - 0.1


def test_what_the_model_shows():
    X, y, mask = table()
    model = clone(QUICK).set_params(forecast=True).fit(X, y, label_mask=mask)
    assert model.stop_ is Stop.CONVERGED
    assert model.score_unlabelled_.shape == (20,)
    # The coordinator's s and the sites' own parts differ by the residual, which the certificate bounds.
    apart = np.linalg.norm(model.score_unlabelled_ - model.predict(X[np.isnan(y)]))
    assert apart <= 2 * model.score_bound_ + 1e-2
    assert model.noise_.shape == model.prior_.shape == model.r2_.shape == (2,)
    assert 0 <= model.gap_ < 1
    assert model.n_rounds_ < model.n_exchanges_
    assert np.isfinite(model.forecast_)
    again = clone(QUICK).fit(X, y, label_mask=mask)
    assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(NotFittedError):
        clone(QUICK).predict(X)


@pytest.mark.parametrize("residuals", ["smoothed", "grouped", "open"])
def test_common_rows(residuals):
    X, y, mask = table()
    model = clone(QUICK).set_params(rows="common", residuals=residuals, folds=2).fit(X, y, label_mask=mask)
    assert model.score_unlabelled_.shape == (60,)
    known = np.flatnonzero(~np.isnan(y))
    where = [np.flatnonzero(mask[:, v]) for v in range(2)]
    other = clone(model).fit(
        [X[w][:, c] for w, c in zip(where, ([0, 1], [2, 3]), strict=True)],
        [y[w] for w in where],
        [X[:, c] for c in ([0, 1], [2, 3])],
        positions=where,
    )
    assert_allclose(other.predict([X[:, :2], X[:, 2:]]), model.predict(X), rtol=1e-9)
    assert model.score(X, y) > 0.1
    assert len(known) == 40


def test_open_residuals_are_additive_kernel_ridge_over_everything():
    """S = selection: K = Σ τ² k_v + N + c over the union of rows, at the noise and the priors in use."""
    X, y, mask = table()
    model = AdditiveRegressor(
        views=VIEWS, kernel="linear", ridge=1.0, rows="common", residuals="open", tuning_steps=0, tol=1e-12
    ).fit(X, y, label_mask=mask)
    known = ~np.isnan(y)
    mean, deviation = y[known].mean(), y[known].std()
    sites = [m.part.standardiser for m in model.models_]
    parts = [site(X[:, c]) - site(X[:, c]).mean(axis=0) for site, c in zip(sites, ([0, 1], [2, 3]), strict=True)]
    K = sum(tau * part[known] @ part[known].T for tau, part in zip(model.prior_, parts, strict=True))
    noise = np.where(mask[known, 0], model.noise_[0], model.noise_[1])
    offsets = 0.1 * np.equal.outer(mask[known, 0], mask[known, 0])
    alpha = np.linalg.solve(K + np.diag(noise) + offsets + 1.0, (y[known] - mean) / deviation)
    every = sum(tau * part @ part[known].T for tau, part in zip(model.prior_, parts, strict=True)) @ alpha + alpha.sum()
    assert_allclose(model.predict(X), mean + deviation * every, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"views": "all"}, "give a list with the columns"),
        ({"views": []}, "give a list with the columns"),
        ({"views": [[0], [9]]}, r"views\[1\]=\[9\]: not columns"),
        ({"views": [[0], []]}, r"views\[1\]=\[\]: no column"),
        ({"views": [["age"]]}, "no column names"),
        ({"bandwidth": "paper"}, "'bandwidth' .* Got 'paper'"),
        ({"ridge": -1.0}, "'ridge' .* Got -1.0"),
        ({"landmarks": 0}, "'landmarks' parameter .* Got 0"),
        ({"kernel": "sigmoid"}, "'kernel' parameter .* Got 'sigmoid'"),
        ({"rows": "public"}, "'rows' parameter .* Got 'public'"),
        ({"residuals": "open"}, 'needs rows="common"'),
        ({"tol": 0.0}, "'tol' parameter .* Got 0.0"),
    ],
    ids=str,
)
def test_parameters_out_of_range(change, reason):
    X, y, _ = table()
    with pytest.raises(UsageError, match=reason):
        clone(QUICK).set_params(**change).fit(X, y)


def test_tables_that_do_not_fit():
    X, y, mask = table()
    model = clone(QUICK)
    with pytest.raises(BadData, match=r"label_mask: .* needs booleans"):
        model.fit(X, y, label_mask=mask[:5])
    with pytest.raises(BadData, match="no view may see a label"):
        model.fit(X, y, label_mask=np.zeros_like(mask))
    with pytest.raises(BadData, match="All targets are NaN"):
        model.fit(X, np.full(60, np.nan))
    with pytest.raises(BadData, match="infinity"):
        model.fit(X, np.where(np.isnan(y), np.inf, y))
    Xs, ys, Zs = [X[:5, :2], X[5:9, 2:]], [y[:5], y[5:9]], [X[9:, :2], X[9:, 2:]]
    with pytest.raises(BadData, match="1 target vectors for 2 views"):
        model.fit(Xs, ys[:1], Zs)
    with pytest.raises(BadData, match="needs as many"):
        model.fit(Xs, [ys[0], y[:2]], Zs)
    with pytest.raises(BadData, match="features in X"):
        model.fit(Xs, ys, [Zs[0], Zs[1][:, :1]])
    with pytest.raises(BadData, match="all views share the same"):
        model.fit(Xs, ys, [Zs[0], Zs[1][:3]])
    common = clone(model).set_params(rows="common")
    with pytest.raises(UsageError, match="positions="):
        common.fit(Xs, ys, Zs)
    with pytest.raises(BadData, match=r"positions\[0\]: 5 different rows"):
        common.fit(Xs, ys, Zs, positions=[np.zeros(5, int), np.arange(4)])
    fitted = model.fit(Xs, ys, Zs)
    with pytest.raises(BadData, match="the view was fitted with 2"):
        fitted.predict([X[:, :2], X[:, 2:3]])
    with pytest.raises(BadData, match="every view needs the same"):
        fitted.predict([X[:, :2], X[:3, 2:]])


# --- the rule "loo" ---------------------------------------------------------------------------------------------------


def test_rules_that_compare_rows_look_at_some_of_many():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * MANY + 1, 2))
    y = np.sin(X[:, 0])
    some = some_rows(len(X))
    assert (len(some), some[0], some[-1]) == (MANY, 0, 2 * MANY)
    assert kernel_rule(X, y, "gaussian", "median", 1.0) == kernel_rule(X[some], y[some], "gaussian", "median", 1.0)
    assert kernel_rule(X, y, "gaussian", "paper", 1.0) != kernel_rule(X[some], y[some], "gaussian", "paper", 1.0)


@pytest.mark.parametrize("intercept", [True, False])
def test_leave_one_out_is_leaving_one_out(intercept):
    rng = np.random.default_rng(0)
    Phi, y = rng.normal(size=(9, 4)) + 1.0, rng.normal(size=9)
    ridges = np.array([0.01, 1.0, 30.0])
    found = leave_one_out(Phi, y, ridges, intercept=intercept)
    for g, nu in enumerate(ridges):
        for i in range(9):
            kept = np.arange(9) != i
            # With a free intercept: centred on the rows that are kept.
            shift = Phi[kept].mean(axis=0) if intercept else 0.0
            centre = y[kept].mean() if intercept else 0.0
            A = Phi[kept] - shift
            w = np.linalg.solve(A.T @ A + nu * np.eye(4), A.T @ (y[kept] - centre))
            assert found[g, i] == pytest.approx(y[i] - centre - (Phi[i] - shift) @ w, rel=1e-8)
    best = choose([Phi, Phi[:, :1]], y, ridges, intercept=intercept)
    assert best.error == pytest.approx(
        min(
            float(np.mean(leave_one_out(P, y, ridges, intercept=intercept) ** 2, axis=1).min())
            for P in (Phi, Phi[:, :1])
        )
    )


def test_the_rule_for_kernels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(2 * X[:, 0])
    sigma, nu = kernel_rule(X, y, "gaussian", "loo", "loo")
    assert sigma in widths(X, "gaussian")
    assert kernel_rule(X, y, "gaussian", 2.0, 0.5) == (2.0, 0.5)
    assert kernel_rule(X, y, "gaussian", 2.0, "loo")[0] == 2.0
    assert kernel_rule(X, y, "gaussian", "loo", 0.5)[1] == 0.5
    assert kernel_rule(X, y, "linear", "loo", "loo")[0] == 1.0
    assert widths(np.zeros((3, 2)), "laplacian") == (1.0, 6.0)
    model = CoRLSR(bandwidth="loo", ridge="loo", coupling=0.0).fit([X], [y], [X[:3]])
    assert (model.bandwidth_[0], model.ridge_[0]) == (sigma, nu)
    once = CoRLS(bandwidth="loo", ridge=["loo"], coupling=0.0).fit([X], y, [X[:3]])
    assert_allclose(once.predict([X]), model.predict([X]), rtol=1e-6)
    with pytest.raises(UsageError, match="1 labelled row"):
        kernel_rule(X[:1], y[:1], "gaussian", "loo", "loo")


def test_columns_of_a_data_frame_that_are_no_numbers_are_named_at_once():
    frame = pl.DataFrame(
        {"who": ["a", "b", "c"], "ward": ["x", "x", "y"], "age": [60.0, None, 72.0], "bmi": [1.0, 2.0, 3.0]}
    )
    model = AdditiveRegressor(views=[["who", "age"], ["ward", "bmi"]])
    with pytest.raises(BadData, match=r"not numeric: 'who', 'ward'\. Encode texts as 0/1 columns"):
        model.fit(frame, np.array([1.0, 2.0, np.nan]))
    with pytest.raises(BadData, match=r"empty cells: 'age'\. Fill them first"):
        clone(model).set_params(views=[["age"], ["bmi"]]).fit(frame, np.array([1.0, 2.0, np.nan]))


def test_columns_that_no_view_names_are_not_read():
    X, y, mask = table()
    frame = pl.DataFrame(X, schema=["a", "b", "c", "d"]).with_columns(who=pl.lit("text"))
    model = clone(QUICK).set_params(views=[["a", "b"], ["c", "d"]]).fit(frame, y, label_mask=mask)
    swapped = frame.select("who", "d", "c", "b", "a")
    expected = clone(QUICK).set_params(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=mask).predict_views(X)
    np.testing.assert_allclose(model.predict_views(frame), expected, rtol=1e-9)
    np.testing.assert_array_equal(model.predict_views(swapped), model.predict_views(frame))


def test_a_view_without_a_mask_is_warned_about_and_a_model_of_a_view_takes_no_frame():
    X, y, mask = table()
    for nothing_hidden in (None, np.ones_like(mask)):
        with pytest.warns(UserWarning, match="Every view sees all labels"):
            clone(QUICK).set_params(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=nothing_hidden)
    unseen = mask.copy()
    unseen[np.flatnonzero(~np.isnan(y))[0]] = False
    with pytest.warns(UserWarning, match="no view sees the label of 1 row,"):
        clone(QUICK).set_params(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=unseen)
    model = clone(QUICK).set_params(views=[[0, 1], [2, 3]]).fit(X, y, label_mask=mask.astype(int))
    with pytest.raises(BadData, match="a data frame: this model does not know"):
        model.models_[0].own.predict(pl.DataFrame(X[:, :2]))
    with pytest.raises(BadData, match="4 columns; the model has 2"):
        model.models_[0].own.predict(X)
    with pytest.raises(UsageError, match="several target vectors need Z_views"):
        clone(QUICK).fit([X[:, :2], X[:, 2:]], [y, y])


@pytest.mark.parametrize("make", [AdditiveRegressor, CoRLSR])
def test_one_view_predicts_from_its_own_columns_by_name(make):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    X = pandas.DataFrame(rng.normal(size=(60, 4)), columns=["a", "b", "c", "d"])
    y = X.sum(axis=1).where(np.arange(60) < 40)
    mask = np.zeros((60, 2), dtype=bool)
    mask[:20, 0] = mask[20:40, 1] = True
    model = make(views=[["c", "a"], ["b", "d"]]).fit(X, y, label_mask=mask)
    whole = model.predict_views(X)
    for v, names in enumerate((["c", "a"], ["b", "d"])):
        own = X[names[::-1]]  # in another order: names count
        np.testing.assert_array_equal(model.predict_view(v, own), whole[v])
        np.testing.assert_array_equal(model.predict_view(v, X[names].to_numpy()), whole[v])
    with pytest.raises(BadData, match=r"view 0: no column 'c'"):
        model.predict_view(0, X[["a", "b"]])
    with pytest.raises(BadData, match=r"views 0 to 1"):
        model.predict_view(2, X)
    with pytest.raises(BadData, match="X: 3 columns; view 1 was fitted with 2"):
        model.predict_view(1, rng.normal(size=(3, 3)))
