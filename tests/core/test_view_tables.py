"""One table of views: names of columns, presets, paths of couplings, wrong calls."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info, threadpool_limits

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import AdditiveRegressor, CoRLSR, LabelledFolds
from coreg_core.estimators.parameters import SMALL, fit_context

VIEWS = [slice(0, 2), slice(2, 4)]


def rows(n=40, labelled=15):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, np.where(np.arange(n) < labelled, X.sum(axis=1), np.nan)


def test_a_given_value_overrides_the_preset():
    X, y = rows()
    model = CoRLSR(views=VIEWS, preset="paper", bandwidth=2.0, fit_intercept=True).fit(X, y)
    assert model.bandwidth_.tolist() == [2.0, 2.0]
    assert model.intercept_ == pytest.approx(np.nanmean(y))
    assert CoRLSR(views=VIEWS, preset="paper").fit(X, y).intercept_ == 0.0
    shifted = CoRLSR(views=VIEWS).fit(X, y + 100.0)
    assert np.allclose(shifted.predict(X), CoRLSR(views=VIEWS).fit(X, y).predict(X) + 100.0)
    mixed, by_rule = (
        CoRLSR(views=VIEWS, preset="paper", **rules).fit(X, y)
        for rules in ({"bandwidth": [0.5, "paper"], "ridge": ["paper", 2.0]}, {})
    )
    assert_array_equal(
        [mixed.bandwidth_, mixed.ridge_], [[0.5, by_rule.bandwidth_[1]], [by_rule.ridge_[0], 2.0]]
    )
    search = GridSearchCV(
        CoRLSR(views=VIEWS), {"preset": ["loo", "paper"]}, cv=LabelledFolds(3)
    ).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_a_small_fit_has_one_thread_and_a_large_one_keeps_what_the_process_has():
    seen = []

    class Watched(CoRLSR):
        @fit_context
        def fit(self, X, y):
            seen.append(
                max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
            )
            return self

    with threadpool_limits(2, "blas"):
        for n in (SMALL, SMALL + 1):
            Watched().fit(np.zeros((n, 1)), np.zeros(n))
        Watched().fit(X=np.zeros((SMALL + 1, 1)), y=np.zeros(SMALL + 1))
    assert seen == [1, 2, 2]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_are_found_by_name_and_texts_that_no_view_has_are_not_read(kind):
    X, y = rows()
    texts = pl.DataFrame(X, schema=list("abcd")).with_columns(e=pl.lit("text"))
    if kind == "pandas":
        texts = pytest.importorskip("pandas").DataFrame(texts.to_dict(as_series=False))
    frame = texts[["a", "b", "c", "d"]]
    for views in ([["a", "b"], ["c", "dd"]], [slice(0, 2), slice(2, 9)], VIEWS):
        with pytest.raises(ValueError, match=r"'dd' is no column|beyond the last|not numeric: 'e'"):
            AdditiveRegressor(views=views).fit(texts, y)
    model = AdditiveRegressor(views=[["a", "b"], np.array(["c", "d"])]).fit(texts, y)
    assert_array_equal(model.predict(frame[["d", "a", "c", "b"]]), model.predict(frame))


MASK = np.ones((40, 2), dtype=bool)


# --- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y).predict_local(2, X),
            r"view: needs a number from 0 to 1",
        ),
        (
            lambda X, y: CoRLSR(views=[[0], slice(2, 5)]).fit(X, y),
            r"slice\(2, 5, None\): .* of 4 \(the slice ends",
        ),
        (lambda X, y: CoRLSR(views=[slice("a", "b"), [1]]).fit(X, y), r"views\[0\]=slice"),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(1e300 * X, y),
            r"X: values up to 2e\+300 are too large",
        ),
        (
            lambda X, y: AdditiveRegressor().fit(X, np.where(y > 0, "a", "b")),
            r"y: .*'[ab]'.* For .* use a classifier",
        ),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y.astype("M8[s]")),
            r"^y: dates or durations\. Convert .* to days\.$",
        ),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y, sample_weight=y),
            "sample_weight: AdditiveRegressor cannot weight rows.* Leave sample_weight out of fit",
        ),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, 1e200 * y),
            "too large for their squares",
        ),
        (
            lambda X, y: CoRLSR().fit(SimpleNamespace(columns=["a", "a"]), y),
            r"X: 2 columns have the name 'a'",
        ),
        (
            lambda X, y: AdditiveRegressor().fit(X, 1e-200 * y),
            r"y: values up to .* are too small .* Multiply",
        ),
        (
            lambda X, y: CoRLSR().fit([X[:, v] for v in VIEWS], y),
            r"a list of tables\. Give one table",
        ),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y).predict([X, X]),
            r"a list of tables\. Give one table",
        ),
        (
            lambda X, y: CoRLSR(views=VIEWS).fit(X, y, label_mask=MASK & [True, False]),
            "view 1: no labelled row",
        ),
        (
            lambda X, y: CoRLSR(views=VIEWS).fit(X, 0 * X[:, 0], label_mask=MASK),
            "no row is shared: each target",
        ),
        (
            lambda X, y: CoRLSR(views=VIEWS, bandwidth=[1.0]).fit(X, y),
            "bandwidth: 1 values for 2 views",
        ),
        (
            lambda X, y: CoRLSR(views=[[0, 0], [1]]).fit(X, y),
            r"views\[0\]=\[0, 0\]: .*a column twice",
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
