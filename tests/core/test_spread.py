"""Mean, deviation and constant columns: the unit of a column changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.estimators.additive import AdditiveRegressor
from coreg_core.spread import constant, mean_and_deviation

COLUMN = default_rng(0).normal(size=(40, 1))


@given(st.integers(-480, 480))
def test_another_unit_is_the_same_column(exponent):
    unit = 2.0**exponent
    mean, deviation = mean_and_deviation(COLUMN)
    other_mean, other_deviation = mean_and_deviation(unit * COLUMN)
    assert_array_equal((other_mean, other_deviation), (unit * mean, unit * deviation))
    assert not constant(unit * COLUMN).any()


def test_the_deviation_is_numpys():
    X = 3.0 + default_rng(1).normal(size=(50, 3))
    mean, deviation = mean_and_deviation(X)
    assert_array_equal(mean, X.mean(axis=0))
    assert_allclose(deviation, X.std(axis=0), rtol=1e-14)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e-300, 1e300, 5e-324])
def test_a_column_of_one_value_is_constant_at_every_size(value):
    X = np.full((7, 1), value)
    assert constant(X).all()
    assert mean_and_deviation(X)[1] == 1.0


def test_differences_that_are_roundings_are_constant_and_larger_ones_are_not():
    eps = np.finfo(np.float64).eps
    X = np.full((10, 2), 1e9)
    X[0] *= 1 + np.array([4 * eps, 1e3 * eps])
    assert_array_equal(constant(X), [True, False])


@pytest.mark.parametrize("unit", [1e-30, 1e-12, 1e12, 1e100])
@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
def test_the_unit_of_a_column_does_not_change_the_additive_score(unit, kernel):
    rng = default_rng(0)
    X = rng.normal(size=(150, 4))
    y = 2 * X[:, 0] + X[:, 2] + 0.3 * rng.normal(size=150)
    y[60:] = np.nan
    other = X * [unit, unit, 1.0, 1.0]
    model = AdditiveRegressor(views=[[0, 1], [2, 3]], kernel=kernel, random_state=0)
    expected = model.fit(X, y).predict(X)
    # A decimal unit changes the last digits of the columns.
    assert_allclose(model.fit(other, y).predict(other), expected, rtol=1e-6, atol=1e-6)
