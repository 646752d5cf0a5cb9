"""scikit-learn's conventions, and errors that say which view and what to do."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
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


def test_the_mean_of_the_views_is_the_prediction():
    data = tables()
    model = CoRLSR().fit(*data)
    assert_array_equal(model.predict(data[2]), model.predict_views(data[2]).mean(axis=0))
    assert_allclose(model.predict_views(data[2]), model.predictions_unlabelled_, atol=1e-11)
    assert model.predict_views([np.zeros((0, 2)), np.zeros((0, 3))]).shape == (2, 0)


def test_parameters_one_a_view():
    data = tables()
    model = CoRLSR(bandwidth=[0.5, "paper"], ridge=["paper", 2.0]).fit(*data)
    by_rule = CoRLSR(preset="paper").fit(*data)
    assert_array_equal(model.bandwidth_, [0.5, by_rule.bandwidth_[1]])
    assert_array_equal(model.ridge_, [by_rule.ridge_[0], 2.0])


def broken(what):
    Xs, ys, Zs = tables()
    match what:
        case "nan in X":
            Xs[1][2, 1] = np.nan
        case "nan in y":
            ys[0][4] = np.nan
        case "a vector for X":
            Xs[0] = Xs[0][:, 0]
        case "a short y":
            ys[1] = ys[1][:-1]
        case "no labelled row":
            Xs[0], ys[0] = Xs[0][:0], ys[0][:0]
        case "other rows in Z":
            Zs[1] = Zs[1][:3]
        case "one Z too few":
            Zs = Zs[:1]
        case "text in X":
            Xs[0] = [["a", "b"]] * 6
    return Xs, ys, Zs


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nan in X", r"X_views\[1\].*row 3, column 2"),
        ("nan in y", r"y: .* no target is missing"),
        ("a vector for X", "Z_views needs X_views, a list of tables"),
        ("a short y", "view 1: 5 labelled rows and 4 targets"),
        ("no labelled row", "each view needs a labelled row"),
        ("other rows in Z", r"Z_views: tables of \[4, 3\] rows"),
        ("one Z too few", "2 tables in X_views, 1 in Z_views"),
        ("text in X", "could not convert string"),
    ],
)
def test_bad_data_is_named(what, message):
    with pytest.raises(ValueError, match=message):
        CoRLSR(bandwidth=1.0, ridge=1.0).fit(*broken(what))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"form": "parametric"}, "'form' parameter of CoRLSR must be a str among .*'exact'"),
        ({"bandwidth": [1.0]}, "bandwidth: 1 values for 2 views"),
        ({"ridge": [1.0, 2.0, 3.0]}, "ridge: 3 values for 2 views"),
        ({"coupling": -0.1}, "'coupling' .* Got -0.1"),
        ({"solver": "conjugate-gradients", "max_rounds": 0}, "'max_rounds' .* Got 0"),
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


def test_large_finite_numbers_are_not_called_infinite():
    X = np.array([[1e308], [1e308]])
    with pytest.raises(BadData, match=r"X_views\[0\]: values up to 1e\+308 are too large"):
        CoRLSR(preset="paper").fit([X], [[1.0, 2.0]], [X])
