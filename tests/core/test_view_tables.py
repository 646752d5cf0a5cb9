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
from coreg_core.estimators import (
    RLSR,
    AdditiveClassifier,
    AdditiveRegressor,
    CoRLS,
    CoRLSR,
    CoRLSRClassifier,
    CoRLSRCV,
    LabelledFolds,
    OCARegressor,
)
from coreg_core.estimators._inputs import SMALL, all_or_nothing

VIEWS = [slice(0, 2), slice(2, 4)]
MODELS = [CoRLSR(views=VIEWS), CoRLS(views=VIEWS), AdditiveRegressor(views=VIEWS)]
MODELS.append(OCARegressor(views=VIEWS, n_steps=50, random_state=0))


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
def test_a_list_of_tables_of_the_same_rows_is_one_table(model):
    X, y = rows()
    lists = clone(model).set_params(views=None).fit([X[:, v] for v in VIEWS], y)
    assert_array_equal(lists.predict([X[:, v] for v in VIEWS]), clone(model).fit(X, y).predict(X))
    for wrong, told in (([X[:9, :2], X[:, 2:]], r"tables of \[9, 40\] rows"), ([X[:, :2], X[:, 2:]], "row is shared")):
        if told != "row is shared" or not isinstance(model, AdditiveRegressor | OCARegressor):
            with pytest.raises((BadData, UsageError), match=told):
                clone(model).fit(wrong, np.nan_to_num(y))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_columns_of_a_view_keep_their_names_and_their_order(model, kind):
    X, y = rows()
    one, other = frames(X, kind)
    fitted = clone(model).set_params(views=None).fit([one, other], y)
    assert fitted.feature_names_in_views_ == [["a", "b"], ["c", "d"]]
    expected = clone(model).set_params(views=None).fit([X[:, v] for v in VIEWS], y).predict([X[:, v] for v in VIEWS])
    assert_array_equal(fitted.predict([one, other]), expected)
    assert_array_equal(fitted.predict([X[:, v] for v in VIEWS]), expected)
    with pytest.raises(BadData, match=r"X_views\[1\]: the columns \['d', 'c'\].* \['c', 'd'\] in this order"):
        fitted.predict([one, other[["d", "c"]]])
    with pytest.raises(BadData, match=r"X_views\[0\]: the columns \['c', 'd'\]"):
        fitted.predict([other, one])
    if not isinstance(model, AdditiveRegressor):
        with pytest.raises(BadData, match=r"Z_views\[0\]: the columns \['b', 'a'\]"):
            clone(fitted).fit([one[:5], other[:5]], np.zeros(5), [one[["b", "a"]], other])
    assert not hasattr(fitted.fit([X[:, v] for v in VIEWS], y), "feature_names_in_views_")


def test_labels_of_two_classes_in_lists_with_missing_ones():
    X, y = rows()
    words = np.where(y > 0, "yes", "no").astype(object)
    words[np.isnan(y)] = None
    for model in (CoRLSRClassifier(), AdditiveClassifier()):
        lists = model.fit([X[:, v] for v in VIEWS], words).predict_proba([X[:, v] for v in VIEWS])
        assert_array_equal(lists, clone(model).set_params(views=VIEWS).fit(X, words).predict_proba(X))


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
    lists = clone(path).set_params(views=None).fit([X[:, v] for v in VIEWS], y, label_mask=mask)
    assert_array_equal(lists.errors_, path.errors_)


def test_what_a_path_refuses():
    X, y = rows()
    for couplings in ([-1.0], [], ["big"], "7", [np.nan]):
        with pytest.raises(UsageError, match="at least 0"):
            CoRLSRCV(views=VIEWS, couplings=couplings).fit(X, y)
    with pytest.raises(UsageError, match="tables of the same rows"):
        CoRLSRCV().fit([X[:15, v] for v in VIEWS], y[:15], [X[15:, v] for v in VIEWS])
    with pytest.raises(BadData, match="cross-validation needs two"):
        CoRLSRCV(views=VIEWS).fit(X, np.where(np.arange(40) < 1, y, np.nan))


def test_nothing_that_is_given_is_without_effect():
    X, y = rows()
    lists, few, Z = [X[:, v] for v in VIEWS], [X[:15, v] for v in VIEWS], [X[15:, v] for v in VIEWS]
    with pytest.raises(UsageError, match="no label_mask"):
        CoRLSR().fit(few, [y[:15]] * 2, Z, label_mask=np.ones((15, 2), bool))
    with pytest.raises(UsageError, match="Z_views needs a list of tables"):
        CoRLSR().fit(X[:15], y[:15], Z)
    for given in (X, lists):
        with pytest.raises(UsageError, match="no row is shared"):
            CoRLSR(views=VIEWS).fit(given, np.nan_to_num(y))
    one, several = CoRLSR(views=VIEWS).fit(X, y), CoRLSR().fit(lists, y)
    with pytest.raises(BadData, match="a list of tables; the model was fitted with one table"):
        one.predict(lists)
    with pytest.raises(BadData, match="one table; the model was fitted with a list of 2 tables"):
        several.predict(X)
    with pytest.raises(BadData, match="view 1: no labelled row"):
        CoRLSR(views=VIEWS).fit(X, y, label_mask=np.array([[True, False]] * 40))
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


def test_views_that_do_not_describe_the_tables_are_refused():
    X, y = rows()
    tables = [X[:, :1], X[:, 1:]]
    names = [["a"], ["b", "c", "d"]]  # an array has none
    for views in (VIEWS, [*VIEWS, [0]], [slice(1, 4), slice(0, 1)], [["a"], ["b"], ["c"]], names):
        with pytest.raises(UsageError, match="does not describe the 2 tables"):
            CoRLSR(views=views).fit(tables, y)
    frames = [pl.DataFrame(table, schema=of_view) for table, of_view in zip(tables, names, strict=True)]
    with pytest.raises(UsageError, match="does not describe the 2 tables"):
        CoRLSR(views=[["foo"], ["b", "c", "d"]]).fit(frames, y)
    agreed = [CoRLSR(views=views).fit(tables, y).predict(tables) for views in (None, [[0], slice(1, 4)])]
    assert_array_equal(agreed[0], agreed[1])
    assert_array_equal(agreed[0], CoRLSR(views=names).fit(frames, y).predict(frames))
    mask = np.ones((len(y), 2), dtype=bool)
    with pytest.raises(UsageError, match="no row is shared: each target is known"):
        CoRLSR(views=VIEWS).fit(X, np.zeros(len(y)), label_mask=mask)
    with pytest.raises(UsageError, match=r"views\[0\]=\[0, 0\]: a column twice"):
        CoRLSR(views=[[0, 0], [1]]).fit(X, y)
    with pytest.raises(BadData, match="a dictionary of tables"):
        CoRLSR().fit({"left": X}, y)


def test_targets_whose_squares_overflow_are_refused():
    X, y = rows()
    for model in (RLSR(), CoRLSR(views=VIEWS), AdditiveRegressor(views=VIEWS)):
        with pytest.raises(BadData, match="too large for squares of their differences"):
            model.fit(X, 1e200 * y)


def test_a_small_fit_has_one_thread_and_a_large_one_keeps_what_the_process_has():
    seen = []

    class Watched(RLSR):
        @all_or_nothing
        def fit(self, X, y):
            seen.append(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
            return self

    with threadpool_limits(2, "blas"):
        for n in (SMALL, SMALL + 1):
            Watched().fit(np.zeros((n, 1)), np.zeros(n))
        Watched().fit(y=np.zeros(SMALL + 1), X=[np.zeros((2, 1)), np.zeros((SMALL + 1, 1))])
    assert seen == [1, 2, 2]


def test_a_fit_that_fails_keeps_the_old_model():
    X, y = rows()
    for model in (RLSR(), CoRLSR(views=VIEWS), CoRLS(views=VIEWS)):
        before = model.fit(X, y).predict(X)
        with pytest.raises(UsageError, match="1 sample"):
            model.fit(X, np.where(np.arange(40) < 1, 1000.0, np.nan))
        assert_array_equal(model.predict(X), before)
    with pytest.raises(BadData, match="other targets in another view"):
        CoRLS().fit([X[:15, v] for v in VIEWS], [y[:15], y[:15] + 1.0], [X[15:, v] for v in VIEWS])
    stream = OCARegressor(views=VIEWS, eta0=np.array([0.01, 0.01])).partial_fit(X, y)
    before = stream.predict(X)
    with pytest.raises(UsageError, match="diverge"):
        stream.partial_fit(1e200 * X, y)
    assert_array_equal(stream.predict(X), before)


def test_infinity_names_its_cell_or_its_column():
    pandas = pytest.importorskip("pandas")
    X, y = rows()
    X = X.copy()
    X[3, 1] = np.inf
    with pytest.raises(BadData, match=r"infinity at row 4 column 2 \(counted from 1\)"):
        CoRLSR(views=VIEWS).fit(X, y)
    with pytest.raises(BadData, match=r"infinity: 'b'"):
        CoRLSR(views=[["a"], ["b", "c"]]).fit(pandas.DataFrame(X[:, :3], columns=list("abc")), y)


@pytest.mark.parametrize("cls", [CoRLSR, OCARegressor])
def test_rows_without_a_target_beside_one_view_are_told_to_have_no_effect(cls):
    X, y = rows()
    with pytest.warns(
        UserWarning, match=rf"the {int(np.isnan(y).sum())} rows without a target have no effect"
    ) as heard:
        cls().fit(X, y)
    assert [warning.filename for warning in heard] == [__file__]
    cls(views=[slice(None)]).fit(X, y)  # one view on purpose


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_misspelt_name_is_told_before_texts_that_no_view_has(kind):
    X, y = rows()
    left, right = frames(X, kind)
    frame = left.assign(c=right["c"], d=right["d"]) if kind == "pandas" else left.hstack(right)
    texts = frame.assign(e="text") if kind == "pandas" else frame.with_columns(e=pl.lit("text"))
    names = [["a", "b"], ["c", "d"]]
    model = AdditiveRegressor(views=names).fit(texts, y)
    for views in ([["a", "b"], ["c", "dd"]], {"x": ["a"], "y": ["b"]}, [slice(0, 2), slice(2, 9)]):
        with pytest.raises(UsageError, match=r"no column 'dd'. Did you mean 'd'|give a list|beyond the last"):
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
