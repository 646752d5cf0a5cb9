"""Wrong calls of the estimators, and fits that end early: one line under the public name, and a warning."""

from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from test_view_tables import VIEWS, rows

from coreg_core import estimators
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators import RLSR, AdditiveRegressor, CoRLSR, LaplacianRLS


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda X, _: AdditiveRegressor(view=VIEWS),
            r"AdditiveRegressor\.__init__\(\) .*'view'\. Did you mean 'views'",
        ),
        (lambda X, y: CoRLSR(views=VIEWS).fit(X, y, label_mas=1), r"CoRLSR\.fit\(\) .* Did you mean 'label_mask'"),
        (lambda X, y: LaplacianRLS().fit(X, y, label_mask=1), r"LaplacianRLS\.fit\(\) .*'label_mask'$"),
        (
            lambda X, y: CoRLSR(views=VIEWS).fit(X, y)._of_view(X, 0),
            r"view: needs a number, not ndarray\. The view stands",
        ),
        (
            lambda X, y: CoRLSR(views=[[0], slice(2, 5)]).fit(X, y),
            r"slice\(2, 5, None\): .* of 4: the slice ends beyond",
        ),
        (lambda X, y: CoRLSR(views=[slice("a", "b"), [1]]).fit(X, y), r"a slice has positions; list the names instead"),
        (lambda X, y: AdditiveRegressor(views=VIEWS).fit(1e300 * X, y), r"X: values up to 2e\+300 are too large"),
        (lambda X, y: RLSR().fit(X, np.where(y > 0, "a", "b")), r"y: '[ab]' is no number\. For .* use a classifier"),
        (
            lambda X, y: AdditiveRegressor(views=VIEWS).fit(X, y.astype("M8[s]")),
            r"y: dates or durations\. Convert them",
        ),
        (lambda X, y: CoRLSR().fit(SimpleNamespace(columns=["a", "a"]), y), r"X: 2 columns have the name 'a'"),
    ],
)
def test_a_wrong_call_is_told_by_the_public_name_and_in_one_line(call, told):
    with pytest.raises((TypeError, BadData, UsageError), match=told) as error:
        call(*rows())
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", [n for n in estimators.__all__ if hasattr(getattr(estimators, n), "fit")])
def test_every_method_of_every_estimator_suggests_the_argument(name):
    made = getattr(estimators, name)
    parameter = list(signature(made).parameters)[-1]
    with pytest.raises(TypeError, match=rf"^{name}\.__init__\(\) .* Did you mean '{parameter}'\?$"):
        made(**{f"{parameter}s": 1})
    for method in ("fit", "partial_fit", "predict", "predict_views", "predict_proba", "score"):
        if hasattr(made, method):
            with pytest.raises(TypeError, match=rf"^{name}\.{method}\(\) .* Did you mean '\w+'\?$"):
                getattr(made(), method)(
                    [[1.0]], [1.0], **{list(signature(getattr(made(), method)).parameters)[-1] + "s": 1}
                )


@pytest.mark.parametrize("model", [CoRLSR(views=VIEWS, solver="conjugate-gradients")])
def test_a_fit_that_ends_at_its_limit_of_rounds_warns(model):
    with pytest.warns(ConvergenceWarning, match="ended at max_rounds=1 and has not converged"):
        clone(model).set_params(max_rounds=1).fit(*rows())


def test_two_views_of_the_same_columns_are_named():
    X, y = rows()
    with pytest.warns(UserWarning, match=r"views\[1\] and views\[2\] are the same columns"):
        model = CoRLSR(views=[3, 2, 2]).fit(X, y)
    assert model.predict(X).shape == (40,), "a prediction does not warn again: warnings are errors"
