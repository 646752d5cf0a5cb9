"""scikit-learn's conventions, and errors that say which view and what to do."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from coreg_core.errors import BadData
from coreg_core.estimators import CoRLSR


def tables():
    rng = np.random.default_rng(0)
    return (
        [rng.normal(size=(6, 2)), rng.normal(size=(5, 3))],
        [rng.normal(size=6), rng.normal(size=5)],
        [rng.normal(size=(4, 2)), rng.normal(size=(4, 3))],
    )


def test_fit_does_not_change_its_arguments():
    data = tables()
    before = [[a.copy() for a in table] for table in data]
    for form in ("exact", "semi-parametric"):
        for solver in ("closed-form", "conjugate-gradients", "block-coordinate-descent"):
            CoRLSR(form=form, solver=solver).fit(*data)
    for table, kept in zip(data, before, strict=True):
        for a, b in zip(table, kept, strict=True):
            assert_array_equal(a, b)


def test_parameters_one_a_view():
    data = tables()
    model = CoRLSR(bandwidth=[0.5, "paper"], ridge=["paper", 2.0]).fit(*data)
    by_rule = CoRLSR(preset="paper").fit(*data)
    assert_array_equal(model.bandwidth_, [0.5, by_rule.bandwidth_[1]])
    assert_array_equal(model.ridge_, [by_rule.ridge_[0], 2.0])


def spoilt(which, view, change):
    """The tables with one of them changed."""
    data = tables()
    data[which][view] = change(data[which][view])
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            spoilt(0, 1, lambda X: np.where(np.arange(15).reshape(5, 3) == 7, np.nan, X)),
            r"X_views\[1\].*row 3, column 2",
        ),
        (spoilt(1, 0, lambda y: np.where(np.arange(6) == 4, np.nan, y)), r"y: .* no target is missing"),
        (spoilt(0, 0, lambda X: X[:, 0]), "Z_views needs X_views, a list of tables"),
        (spoilt(1, 1, lambda y: y[:-1]), "view 1: 5 labelled rows and 4 targets"),
        (spoilt(2, 1, lambda Z: Z[:3]), r"Z_views: tables of \[4, 3\] rows"),
        ((*tables()[:2], tables()[2][:1]), "2 tables in X_views, 1 in Z_views"),
        (([np.ones((2, 2)), np.ones((0, 3))], [np.ones(2), np.ones(0)], tables()[2]), "each view needs a labelled row"),
        (spoilt(0, 0, lambda X: [["a", "b"]] * 6), "could not convert string"),
        (spoilt(0, 0, lambda X: 1e308 * np.ones((6, 2))), r"X_views\[0\]: values up to 1e\+308 are too large"),
    ],
)
def test_bad_data_is_named(data, message):
    with pytest.raises(ValueError, match=message):
        CoRLSR(bandwidth=1.0, ridge=1.0).fit(*data)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"form": "parametric"}, "'form' parameter of CoRLSR must be a str among .*'exact'"),
        ({"bandwidth": [1.0]}, "bandwidth: 1 values for 2 views"),
        ({"ridge": [1.0, 2.0, 3.0]}, "ridge: 3 values for 2 views"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        CoRLSR(**parameters).fit(*tables())


def test_prediction_checks_its_tables():
    data = tables()
    with pytest.raises(NotFittedError):
        CoRLSR().predict(data[2])
    model = CoRLSR().fit(*data)
    with pytest.raises(BadData, match="a list of 2 tables"):
        model.predict(data[2][:1])
    with pytest.raises(BadData, match=r"tables of \[2, 2\] columns; the views have \[2, 3\]"):
        model.predict([data[2][0], data[2][1][:, :2]])
    with pytest.raises(BadData, match=r"\[4, 2\]"):
        model.predict([data[2][0], data[2][1][:2]])
