"""scikit-learn's own checks, for every estimator with its defaults and for other choices; missing
targets in each of them.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coreg_core.estimators as estimators
import coreg_federation
from coreg_core.estimators import CoRLSR, CoRLSRClassifier, LabelledFolds

# Of several views these tests know nothing; `test_view_tables` has the warning.
pytestmark = pytest.mark.filterwarnings("ignore:views is not given")
CLASSES = [
    cls for name in estimators.__all__ if (cls := getattr(estimators, name)) is not LabelledFolds
]
OTHERS = [CoRLSR(bandwidth=1.0, ridge=0.1, solver="block-coordinate-descent")]


@parametrize_with_checks([*(cls() for cls in CLASSES), *OTHERS])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def rows(cls, n=60, labelled=30):
    """X, targets, the same with missing ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    y = X @ [1.0, 0.5, -0.5, 1.0]
    if is_classifier(cls()):
        y = (y > 0).astype(float)
    return X, y, np.where(np.arange(n) < labelled, y, np.nan)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_row_without_a_target_is_unlabelled(cls):
    X, _, missing = rows(cls)
    whole = cls().fit(X, missing)
    if cls in (CoRLSR, CoRLSRClassifier):  # of one view, unlabelled rows change nothing
        assert_allclose(
            whole.predict(X), cls().fit(X[:30], missing[:30]).predict(X), rtol=1e-9, atol=1e-12
        )
    with pytest.raises(ValueError, match="All targets are NaN"):
        cls().fit(X, np.full(60, np.nan))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_tools_of_scikit_learn_keep_the_unlabelled_rows(cls):
    X, _, missing = rows(cls)
    model = make_pipeline(StandardScaler(), cls())
    scores = cross_val_score(model, X, missing, cv=LabelledFolds(3))
    assert np.isfinite(scores).all()
    name = "rows_per_feature"
    values = [1, 2]
    if "ridge" in cls().get_params():
        name = "ridge"
        values = [0.1, 1.0]
    step = f"{cls.__name__.lower()}__{name}"
    search = GridSearchCV(model, {step: values}, cv=LabelledFolds(3)).fit(X, missing)
    assert search.best_params_[step] in values
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_every_estimator_is_importable_from_the_public_face():
    assert set(coreg_federation.ESTIMATORS) == set(estimators.__all__)
    assert all(
        getattr(coreg_federation, name) is getattr(estimators, name)
        for name in coreg_federation.ESTIMATORS
    )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_score_is_of_the_rows_with_a_target(cls):
    X, _, missing = rows(cls)
    model = cls().fit(X, missing)
    assert model.score(X, missing) == pytest.approx(model.score(X[:30], missing[:30]))
    with pytest.warns(UndefinedMetricWarning, match="No row has a target"):
        assert np.isnan(model.score(X, np.full(60, np.nan)))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_parameter_that_does_not_fit_is_an_error_that_names_it(cls):
    X, _, missing = rows(cls)
    for name in cls().get_params():
        for value in ("big", -1, float("nan"), [1, 2, 3]):
            if name == "cv" and value == [1, 2, 3]:
                continue  # a list of splits, which is not read before the fit
            model = cls().set_params(**{name: value})
            try:
                model.fit(X, missing)
            except ValueError as error:
                told = str(error)
            else:
                continue  # the value has a meaning
            assert name in told or name in ("views", "cv", "random_state"), (name, value, told)
