"""Tables of views: lists without Z_views, and the column names of data frames."""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, KFold
from threadpoolctl import threadpool_info, threadpool_limits

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import RLSR, AdditiveRegressor, CoRLS, CoRLSR, CoRLSRCV, LabelledFolds, OCARegressor
from coreg_core.estimators._tables import SMALL, fit_context

VIEWS = [slice(0, 2), slice(2, 4)]
MODELS = [CoRLSR(views=VIEWS), CoRLS(views=VIEWS), OCARegressor(views=VIEWS, n_steps=50, random_state=0)]


def rows(n=40, labelled=15):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, np.where(np.arange(n) < labelled, X.sum(axis=1), np.nan)


def frames(X, kind):
    names = ["a", "b"], ["c", "d"]
    if kind == "polars":
        return [pl.DataFrame(X[:, v], schema=each) for v, each in zip(VIEWS, names, strict=True)]
    pd = pytest.importorskip("pandas")
    return [pd.DataFrame(X[:, v], columns=each) for v, each in zip(VIEWS, names, strict=True)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_lists_of_the_paper_are_one_table(model):
    X, y = rows()
    lists = clone(model).set_params(views=None).fit([X[:15, v] for v in VIEWS], y[:15], [X[15:, v] for v in VIEWS])
    assert_array_equal(lists.predict([X[:, v] for v in VIEWS]), clone(model).fit(X, y).predict(X))
    if not isinstance(model, OCARegressor):
        with pytest.raises(UsageError, match="row is shared"):
            clone(model).fit(X, np.nan_to_num(y))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_columns_of_a_view_keep_their_names_and_their_order(model, kind):
    X, y = rows()
    one, other = frames(X, kind)
    labelled, shared = [one[:15], other[:15]], [one[15:], other[15:]]
    fitted = clone(model).set_params(views=None).fit(labelled, y[:15], shared)
    assert fitted.feature_names_in_views_ == [["a", "b"], ["c", "d"]]
    expected = clone(model).fit(X, y).predict(X)
    assert_array_equal(fitted.predict([one, other]), expected)
    assert_array_equal(fitted.predict([X[:, v] for v in VIEWS]), expected)
    with pytest.raises(BadData, match=r"X_views\[1\]: the columns \['d', 'c'\].* \['c', 'd'\] in this order"):
        fitted.predict([one, other[["d", "c"]]])
    with pytest.raises(BadData, match=r"X_views\[0\]: the columns \['c', 'd'\]"):
        fitted.predict([other, one])
    with pytest.raises(BadData, match=r"Z_views\[0\]: the columns \['b', 'a'\]"):
        clone(fitted).fit(labelled, y[:15], [one[["b", "a"]], other])


def test_the_default_is_a_good_start():
    """The paper's setting loses to the mean of the labels on diabetes; the default is near a cross-validated ridge."""
    X, y = load_diabetes(return_X_y=True)
    scores = {name: [] for name in ("default", "paper", "ridge")}
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(442)
        fit, test, targets = order[:260], order[260:], y.copy()
        targets[order[60:260]] = np.nan
        for name, model in (("default", CoRLSR()), ("paper", CoRLSR(preset="paper"))):
            model.set_params(views=[slice(0, 5), slice(5, 10)]).fit(X[fit], targets[fit])
            scores[name].append(model.score(X[test], y[test]))
        scores["ridge"].append(
            RidgeCV(np.logspace(-3, 3, 13)).fit(X[order[:60]], y[order[:60]]).score(X[test], y[test])
        )
    mean = {name: np.mean(each) for name, each in scores.items()}
    assert mean["paper"] < 0.0
    assert mean["default"] > mean["ridge"] - 0.1


def test_a_given_value_overrides_the_preset():
    X, y = rows()
    model = CoRLSR(views=VIEWS, preset="paper", bandwidth=2.0, fit_intercept=True).fit(X, y)
    assert (model.bandwidth_.tolist(), model.intercept_) == ([2.0, 2.0], pytest.approx(np.nanmean(y)))
    assert CoRLSR(views=VIEWS, preset="paper").fit(X, y).intercept_ == 0.0
    shifted = CoRLSR(views=VIEWS).fit(X, y + 100.0)
    assert np.allclose(shifted.predict(X), CoRLSR(views=VIEWS).fit(X, y).predict(X) + 100.0)
    search = GridSearchCV(CoRLSR(views=VIEWS), {"preset": ["loo", "paper"]}, cv=LabelledFolds(3)).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
def test_the_path_of_couplings_is_a_search_of_each(form):
    X, y = rows(60, 24)
    mask = np.random.default_rng(1).random((60, 2)) < 0.8
    mask[np.arange(60), np.arange(60) % 2] = True
    given, couplings = {"views": VIEWS, "form": form}, [0.0, 1e-3, 0.1]
    folds = LabelledFolds(4, shuffle=True, random_state=0)
    path = CoRLSRCV(couplings=couplings[::-1], cv=folds, **given).fit(X, y, label_mask=mask)
    search = GridSearchCV(CoRLSR(**given), {"coupling": couplings}, scoring="neg_mean_squared_error", cv=folds)
    found = search.fit(X, y, label_mask=mask).cv_results_
    each = np.array([found[f"split{k}_test_score"] for k in range(4)]).T
    np.testing.assert_allclose(path.errors_, -each, rtol=1e-6)
    assert path.coupling_ == search.best_params_["coupling"]
    np.testing.assert_allclose(path.predict(X), search.predict(X), rtol=1e-9)
    careful = clone(path).set_params(one_standard_error=True).fit(X, y, label_mask=mask)
    allowed = path.errors_.mean(axis=1).min() + path.errors_[path.errors_.mean(axis=1).argmin()].std(ddof=1) / 2.0
    assert careful.coupling_ == min(np.array(couplings)[path.errors_.mean(axis=1) <= allowed])


def test_what_a_path_refuses():
    X, y = rows()
    for couplings in ([-1.0], [], ["big"], [np.nan]):
        with pytest.raises(ValueError, match=r"at least 0|could not convert"):
            CoRLSRCV(views=VIEWS, couplings=couplings).fit(X, y)
    with pytest.raises(UsageError, match="Give one table"):
        CoRLSRCV().fit([X[:, v] for v in VIEWS], y)
    with pytest.raises(BadData, match="cross-validation needs two"):
        CoRLSRCV(views=VIEWS).fit(X, np.where(np.arange(40) < 1, y, np.nan))


def test_nothing_that_is_given_is_without_effect():
    X, y = rows()
    few, Z = [X[:15, v] for v in VIEWS], [X[15:, v] for v in VIEWS]
    for given in ({"label_mask": np.ones((15, 2), bool)}, {}):
        with pytest.raises(UsageError, match="views and label_mask are of one table"):
            CoRLSR(views=None if given else VIEWS).fit(few, [y[:15]] * 2, Z, **given)
    with pytest.raises(UsageError, match="Z_views needs X_views, a list"):
        CoRLSR().fit(X[:15], y[:15], Z)
    with pytest.raises(UsageError, match="Z_views is missing"):
        CoRLSR().fit(few, y[:15])
    one, several = CoRLSR(views=VIEWS).fit(X, y), CoRLSR().fit(few, y[:15], Z)
    for fitted in (one, AdditiveRegressor(views=VIEWS).fit(X, y)):
        with pytest.raises(UsageError, match=r"a list of tables\. Give one table"):
            fitted.predict(few)
    with pytest.raises(BadData, match="fitted with a list of 2 tables"):
        several.predict(X)
    with pytest.raises(BadData, match="view 1: no labelled row"):
        CoRLSR(views=VIEWS).fit(X, y, label_mask=np.array([[True, False]] * 40))
    with pytest.raises(UsageError, match="no row is shared: each target is known"):
        CoRLSR(views=VIEWS).fit(X, np.zeros(len(y)), label_mask=np.ones((40, 2), dtype=bool))
    with pytest.raises(UsageError, match=r"views\[0\]=\[0, 0\]: .*a column twice"):
        CoRLSR(views=[[0, 0], [1]]).fit(X, y)
    with pytest.raises(BadData, match="y: several target vectors"):
        OCARegressor().fit(few, [y[:15], y[:10]], Z)


def test_any_folds_serve_a_path_and_hidden_labels_do_not_choose():
    X, y = rows(60, 24)
    few = rows(60, 24)[1]
    for cv in (KFold(5, shuffle=True, random_state=0), None, np.int64(4)):
        assert np.isfinite(CoRLSRCV(views=VIEWS, cv=cv).fit(X, y).errors_).all()
    with pytest.raises(BadData, match="a test set without a labelled row"):
        CoRLSRCV(views=VIEWS, cv=KFold(5)).fit(X, y)
    one = [(np.arange(0, 60, 2), np.arange(1, 60, 2))]
    assert CoRLSRCV(views=VIEWS, cv=one, one_standard_error=True).fit(X, y).errors_.shape == (12, 1)
    mask = np.zeros((60, 2), bool)
    mask[:6, 0] = mask[6:20, 1] = True  # rows 20 to 23 are hidden from both views
    few[20:24] += 100.0
    with pytest.warns(UserWarning, match="no view sees the label of 4 rows,"):
        errors = [CoRLSRCV(views=VIEWS).fit(X, each, label_mask=mask).errors_ for each in (y, few)]
    assert_array_equal(*errors)


def test_targets_whose_squares_overflow_are_refused():
    X, y = rows()
    for model in (RLSR(), CoRLSR(views=VIEWS), AdditiveRegressor(views=VIEWS)):
        with pytest.raises(BadData, match="too large for their squares"):
            model.fit(X, 1e200 * y)


def test_a_small_fit_has_one_thread_and_a_large_one_keeps_what_the_process_has():
    seen = []

    class Watched(RLSR):
        @fit_context
        def fit(self, X, y):
            seen.append(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
            return self

    with threadpool_limits(2, "blas"):
        for n in (SMALL, SMALL + 1):
            Watched().fit(np.zeros((n, 1)), np.zeros(n))
        Watched().fit(X=[np.zeros((2, 1)), np.zeros((SMALL + 1, 1))], y=np.zeros(SMALL + 1))
    assert seen == [1, 2, 2]


def test_a_stream_that_diverges_keeps_its_weights():
    X, y = rows()
    with pytest.raises(BadData, match="other targets in another view"):
        CoRLS().fit([X[:15, v] for v in VIEWS], [y[:15], y[:15] + 1.0], [X[15:, v] for v in VIEWS])
    stream = OCARegressor(views=VIEWS, eta0=np.array([0.01, 0.01]), fit_intercept=False).partial_fit(X, y)
    before = stream.predict(X)
    with pytest.raises(UsageError, match="diverge"):
        stream.partial_fit(1e120 * X, y)
    assert_array_equal(stream.predict(X), before)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_misspelt_name_is_told_before_texts_that_no_view_has(kind):
    X, y = rows()
    left, right = frames(X, kind)
    frame = left.assign(c=right["c"], d=right["d"]) if kind == "pandas" else left.hstack(right)
    texts = frame.assign(e="text") if kind == "pandas" else frame.with_columns(e=pl.lit("text"))
    names = [["a", "b"], ["c", "d"]]
    model = AdditiveRegressor(views=names).fit(texts, y)
    for views in ([["a", "b"], ["c", "dd"]], {"x": ["a"], "y": ["b"]}, [slice(0, 2), slice(2, 9)]):
        with pytest.raises(ValueError, match=r"'dd' is not in list|'views' parameter|beyond the last|not numeric: 'e'"):
            AdditiveRegressor(views=views).fit(texts, y)
    with pytest.raises(BadData, match=r"not numeric: 'e'.*If `views` has names, columns in no view are not read"):
        AdditiveRegressor(views=VIEWS).fit(texts, y)
    arrays = AdditiveRegressor(views=[np.array(each) for each in names]).fit(texts, y)
    assert_array_equal(arrays.predict(frame), model.predict(frame))
    # Columns are found by name: another order is no other table.
    assert_array_equal(model.predict(frame[["d", "a", "c", "b"]]), model.predict(frame))
    by_position = AdditiveRegressor(views=VIEWS).fit(frame, y)
    with pytest.raises(ValueError, match="same order"):
        by_position.predict(frame[["d", "a", "c", "b"]])
