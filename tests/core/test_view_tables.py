"""One table of views: names of columns, presets, paths of couplings, wrong calls."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold
from threadpoolctl import threadpool_info, threadpool_limits

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import AdditiveRegressor, CoRLSR, CoRLSRCV, LabelledFolds
from coreg_core.estimators.inputs import SMALL, fit_context

VIEWS = [slice(0, 2), slice(2, 4)]


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


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_of_a_view_keep_their_names_and_their_order(kind):
    (X, y), model = rows(), CoRLSR(views=VIEWS)
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


def test_any_folds_serve_a_path_and_hidden_labels_do_not_choose():
    X, y = rows(60, 24)
    one = [(np.arange(0, 60, 2), np.arange(1, 60, 2))]
    for cv, shape in ((KFold(5, shuffle=True, random_state=0), (12, 5)), (np.int64(4), (12, 4)), (one, (12, 1))):
        assert CoRLSRCV(views=VIEWS, cv=cv, one_standard_error=True).fit(X, y).errors_.shape == shape
    mask, other = np.zeros((60, 2), bool), y.copy()
    mask[:6, 0] = mask[6:20, 1] = True  # rows 20 to 23 are hidden from both views
    other[20:24] += 100.0
    with pytest.warns(UserWarning, match="no view sees the label of 4 rows,"):
        errors = [CoRLSRCV(views=VIEWS).fit(X, each, label_mask=mask).errors_ for each in (y, other)]
    assert_array_equal(*errors)


def test_a_small_fit_has_one_thread_and_a_large_one_keeps_what_the_process_has():
    seen = []

    class Watched(CoRLSR):
        @fit_context
        def fit(self, X, y):
            seen.append(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
            return self

    with threadpool_limits(2, "blas"):
        for n in (SMALL, SMALL + 1):
            Watched().fit(np.zeros((n, 1)), np.zeros(n))
        Watched().fit(X=[np.zeros((2, 1)), np.zeros((SMALL + 1, 1))], y=np.zeros(SMALL + 1))
    assert seen == [1, 2, 2]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_are_found_by_name_and_texts_that_no_view_has_are_not_read(kind):
    X, y = rows()
    left, right = frames(X, kind)
    frame = left.assign(c=right["c"], d=right["d"]) if kind == "pandas" else left.hstack(right)
    texts = frame.assign(e="text") if kind == "pandas" else frame.with_columns(e=pl.lit("text"))
    for views in ([["a", "b"], ["c", "dd"]], [slice(0, 2), slice(2, 9)], VIEWS):
        with pytest.raises(
            ValueError, match=r"'dd' is not in list|beyond the last|not numeric: 'e'.*If `views` has names"
        ):
            AdditiveRegressor(views=views).fit(texts, y)
    model = AdditiveRegressor(views=[["a", "b"], np.array(["c", "d"])]).fit(texts, y)
    assert_array_equal(model.predict(frame[["d", "a", "c", "b"]]), model.predict(frame))


MASK = np.ones((40, 2), dtype=bool)


def lists(X):
    """The labelled rows as a list of tables."""
    return [X[:15, v] for v in VIEWS]


# --- wrong calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda X, y: CoRLSR(views=VIEWS).fit(X, y).predict_view(2, X), r"view: needs a number from 0 to 1"),
        (
            lambda X, y: CoRLSR(views=[[0], slice(2, 5)]).fit(X, y),
            r"slice\(2, 5, None\): .* of 4 \(the slice ends beyond",
        ),
        (lambda X, y: CoRLSR(views=[slice("a", "b"), [1]]).fit(X, y), r"views\[0\]=slice"),
        (lambda X, y: AdditiveRegressor(views=VIEWS).fit(1e300 * X, y), r"X: values up to 2e\+300 are too large"),
        (lambda X, y: AdditiveRegressor().fit(X, np.where(y > 0, "a", "b")), r"y: .*'[ab]'.* For .* use a classifier"),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y.astype("M8[s]")),
            r"y: dates or durations\. Convert them",
        ),
        (lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, 1e200 * y), "too large for their squares"),
        (lambda X, y: CoRLSR().fit(SimpleNamespace(columns=["a", "a"]), y), r"X: 2 columns have the name 'a'"),
        (lambda X, y: AdditiveRegressor().fit(X, 1e-200 * y), r"y: values up to .* are too small .* Multiply"),
        (
            lambda X, y: CoRLSR(views=VIEWS).fit(lists(X), [y[:15]] * 2, lists(X)),
            "views and label_mask are of one table",
        ),
        (lambda X, y: CoRLSR().fit(lists(X), [y[:15]] * 2, lists(X), label_mask=MASK), "label_mask are of one table"),
        (lambda X, y: CoRLSR().fit(X[:15], y[:15], lists(X)), "Z_views needs X_views, a list"),
        (lambda X, y: CoRLSR().fit(lists(X), y[:15]), "Z_views is missing"),
        (lambda X, y: CoRLSR(views=VIEWS).fit(X, y).predict(lists(X)), r"a list of tables\. Give one table"),
        (lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y).predict(lists(X)), r"a list of tables\. Give one table"),
        (lambda X, y: CoRLSR().fit(lists(X), y[:15], lists(X)).predict(X), "fitted with a list of 2 tables"),
        (lambda X, y: CoRLSR(views=VIEWS).fit(X, y, label_mask=MASK & [True, False]), "view 1: no labelled row"),
        (
            lambda X, y: CoRLSR(views=VIEWS).fit(X, 0 * X[:, 0], label_mask=MASK),
            "no row is shared: each target is known",
        ),
        (lambda X, y: CoRLSR(views=[[0, 0], [1]]).fit(X, y), r"views\[0\]=\[0, 0\]: .*a column twice"),
        (lambda X, y: CoRLSRCV(views=VIEWS, cv=KFold(5)).fit(X, y), "a test set without a labelled row"),
        (lambda X, y: CoRLSRCV(views=VIEWS, couplings=[-1.0]).fit(X, y), "at least 0"),
        (lambda X, y: CoRLSRCV(views=VIEWS, couplings=[]).fit(X, y), "at least 0"),
        (lambda X, y: CoRLSRCV().fit([X[:, v] for v in VIEWS], y), "Give one table"),
        (
            lambda X, y: CoRLSRCV(views=VIEWS).fit(X, np.where(np.arange(40) < 1, y, np.nan)),
            "cross-validation needs two",
        ),
    ],
)
def test_a_wrong_call_names_what_is_wrong(call, told):
    with pytest.raises((BadData, UsageError), match=told) as error:
        call(*rows())
    assert len(str(error.value)) < 300


def test_a_fit_that_ends_at_its_limit_of_rounds_warns():
    with pytest.warns(ConvergenceWarning, match="ended at max_rounds=1 and has not converged"):
        CoRLSR(views=VIEWS, solver="conjugate-gradients", max_rounds=1).fit(*rows())


def test_two_views_of_the_same_columns_are_named():
    X, y = rows()
    with pytest.warns(UserWarning, match=r"views=\[3, 2, 2\]: two views have the same columns"):
        model = CoRLSR(views=[3, 2, 2]).fit(X, y)
    assert model.predict(X).shape == (40,), "a prediction does not warn again: warnings are errors"
