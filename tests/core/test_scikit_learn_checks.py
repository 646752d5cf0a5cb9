"""scikit-learn's own checks, for every estimator with its defaults and for other choices; missing targets in each of them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coreg_core.estimators as estimators
import coreg_federation
from coreg_core.estimators import RLSR, CoRLS, CoRLSR, CoRLSRClassifier, LabelledFolds, OCAClassifier, OCARegressor

# Of several views these tests know nothing; `test_view_tables` has the warning.
pytestmark = pytest.mark.filterwarnings("ignore:views is not given")
CLASSES = [cls for name in estimators.__all__ if (cls := getattr(estimators, name)) is not LabelledFolds]
SEMI_SUPERVISED = [cls for cls in CLASSES if cls is not RLSR]
PAPERS = [CoRLS, CoRLSR, CoRLSRClassifier, OCAClassifier, OCARegressor]
QUICK = {"landmarks": 40, "n_epochs": 20, "n_steps": 300}
OTHERS = [
    RLSR(kernel="linear", ridge=1.0),
    CoRLSR(bandwidth=1.0, ridge=0.1, solver="block-coordinate-descent"),
    OCARegressor(fit_intercept=False, n_steps=300, random_state=0),
]


def quick(cls):
    """With its defaults, and fewer steps."""
    known = cls().get_params()
    model = cls(**{name: value for name, value in QUICK.items() if name in known})
    return model.set_params(random_state=0) if "random_state" in known else model


@parametrize_with_checks([*map(quick, CLASSES), *OTHERS])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def rows(cls, n=60, labelled=30):
    """X, targets, the same with missing ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    y = X @ [1.0, 0.5, -0.5, 1.0]
    y = (y > 0).astype(float) if is_classifier(quick(cls)) else y
    return X, y, np.where(np.arange(n) < labelled, y, np.nan)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_row_without_a_target_is_unlabelled(cls):
    X, y, missing = rows(cls)
    found = quick(cls).fit(X, missing).predict(X)
    if cls in PAPERS:  # the paper's form: a list of tables, labelled and unlabelled
        expected = quick(cls).fit([X[:30]], y[:30], [X[30:]]).predict([X])
        assert_allclose(found, expected, rtol=1e-9, atol=1e-12)  # the tables' strides can differ
    elif cls not in SEMI_SUPERVISED:
        assert_array_equal(found, quick(cls).fit(X[:30], y[:30]).predict(X))
    if is_classifier(quick(cls)):
        words = np.where(y > 0.5, "yes", "no").astype(object)
        words[30:] = None
        assert_array_equal(quick(cls).fit(X, words).predict(X), np.where(found > 0.5, "yes", "no"))
    with pytest.raises(ValueError, match="All targets are NaN"):
        quick(cls).fit(X, np.full(60, np.nan))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_tools_of_scikit_learn_keep_the_unlabelled_rows(cls):
    X, _, missing = rows(cls)
    model = make_pipeline(StandardScaler(), quick(cls))
    scores = cross_val_score(model, X, missing, cv=LabelledFolds(3))
    assert np.isfinite(scores).all()
    name = next(
        name
        for name in ("ridge", "n_latent", "n_eigenfunctions", "coupling", "rows_per_feature")
        if name in quick(cls).get_params()
    )
    values = [1, 2] if name.startswith(("n_", "rows")) else [0.1, 1.0]
    step = f"{cls.__name__.lower()}__{name}"
    search = GridSearchCV(model, {step: values}, cv=LabelledFolds(3)).fit(X, missing)
    assert search.best_params_[step] in values
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_frame_keeps_the_order_of_its_columns(cls, kind):
    frames = pytest.importorskip(kind)
    X, _, missing = rows(cls)
    frame = frames.DataFrame({name: X[:, j] for j, name in enumerate("abcd")})
    model = quick(cls).fit(frame, missing)
    assert model.feature_names_in_.tolist() == list("abcd")
    expected = quick(cls).fit(X, missing).predict(X)
    assert_allclose(model.predict(frame), expected, rtol=1e-9, atol=1e-12)  # the strides of a frame can differ
    with pytest.raises(ValueError, match="same order as they were in fit"):
        model.predict(frame[["b", "a", "c", "d"]])


@pytest.mark.parametrize("cls", [OCARegressor, OCAClassifier])
def test_a_stream_of_one_table_with_missing_targets(cls):
    X, _, missing = rows(cls)
    model = quick(cls).set_params(views=[slice(0, 2), slice(2, 4)])
    with pytest.raises(NotFittedError):
        model.predict(X)
    for start in range(0, 60, 10):  # the last batches have no label
        model.partial_fit(X[start : start + 10], missing[start : start + 10])
    assert (model.n_steps_, model.predict(X).shape) == (6, (60,))
    with pytest.raises(ValueError, match="X has 3 features"):
        model.partial_fit(X[:, :3], missing)


def test_the_default_step_cannot_diverge():
    rng = np.random.default_rng(0)
    X = 1e4 * rng.normal(size=(50, 3))
    y = X @ [1.0, 2.0, 3.0] + 7.0
    with_missing = np.where(np.arange(50) < 20, y, np.nan)
    views = [[0], [1, 2]]
    model = OCARegressor(views=views, n_steps=2000, random_state=0).fit(X, with_missing)
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(ValueError, match="diverge"):
        OCARegressor(views=views, eta0=None, n_steps=2000, random_state=0).fit(X, with_missing)


def test_every_estimator_is_importable_from_the_public_face():
    assert set(coreg_federation.ESTIMATORS) == set(estimators.__all__)
    assert all(getattr(coreg_federation, name) is getattr(estimators, name) for name in coreg_federation.ESTIMATORS)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_score_is_of_the_rows_with_a_target(cls):
    X, _, missing = rows(cls)
    model = quick(cls).fit(X, missing)
    assert model.score(X, missing) == pytest.approx(model.score(X[:30], missing[:30]))
    with pytest.warns(UndefinedMetricWarning, match="No row has a target"):
        assert np.isnan(model.score(X, np.full(60, np.nan)))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_parameter_that_does_not_fit_is_an_error_that_names_it(cls):
    X, _, missing = rows(cls)
    for name in quick(cls).get_params():
        for value in ("big", -1, float("nan"), [1, 2, 3]):
            if name == "cv" and value == [1, 2, 3]:
                continue  # a list of splits, which is not read before the fit
            model = quick(cls).set_params(**{name: value})
            try:
                model.fit(X, missing)
            except ValueError as error:
                told = str(error)
            else:
                continue  # the value has a meaning
            assert name in told or name in ("views", "cv", "random_state"), (name, value, told)
