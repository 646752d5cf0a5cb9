"""Wrong calls of the estimators, and fits that end early."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from test_view_tables import VIEWS, rows

from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import RLSR, AdditiveRegressor, CoRLSR


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
        (lambda X, y: RLSR().fit(X, np.where(y > 0, "a", "b")), r"y: .*'[ab]'.* For .* use a classifier"),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y.astype("M8[s]")),
            r"y: dates or durations\. Convert them",
        ),
        (lambda X, y: CoRLSR().fit(SimpleNamespace(columns=["a", "a"]), y), r"X: 2 columns have the name 'a'"),
        (lambda X, y: RLSR().fit(X, 1e-200 * y), r"y: values up to .* are too small .* Multiply"),
    ],
)
def test_a_wrong_call_names_what_is_wrong(call, told):
    with pytest.raises((BadData, UsageError), match=told) as error:
        call(*rows())
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("model", [CoRLSR(views=VIEWS, solver="conjugate-gradients")])
def test_a_fit_that_ends_at_its_limit_of_rounds_warns(model):
    with pytest.warns(ConvergenceWarning, match="ended at max_rounds=1 and has not converged"):
        clone(model).set_params(max_rounds=1).fit(*rows())


def test_two_views_of_the_same_columns_are_named():
    X, y = rows()
    with pytest.warns(UserWarning, match=r"views=\[3, 2, 2\]: two views have the same columns"):
        model = CoRLSR(views=[3, 2, 2]).fit(X, y)
    assert model.predict(X).shape == (40,), "a prediction does not warn again: warnings are errors"
