"""The estimator of yes/no targets: classes, missing targets, probabilities."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV

from coreg_core.estimators import AdditiveClassifier, LabelledFolds

QUICK = AdditiveClassifier(views=[slice(0, 2), slice(2, 4)], random_state=0)


def table(n: int = 300, labelled: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(X, all labels as 0 and 1, labels with NaN, mask)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    whole = (X[:, 0] + np.sin(2 * X[:, 2]) + 0.5 * rng.normal(size=n) > 0).astype(float)
    y = np.where(np.arange(n) < labelled, whole, np.nan)
    mask = np.zeros((n, 2), dtype=bool)
    mask[: labelled // 2, 0] = mask[labelled // 2 : labelled, 1] = True
    return X, whole, y, mask


def test_joint_scores_know_more_than_each_view() -> None:
    X, whole, y, mask = table()
    model = clone(QUICK).fit(X, y, label_mask=mask)
    held = slice(120, None)
    joint = model.predict_proba(X[held])
    own = model.predict_proba_views(X[held])
    assert_allclose(joint.sum(axis=1), 1.0)
    assert ((joint > 0) & (joint < 1)).all()
    assert roc_auc_score(whole[held], joint[:, 1]) > 0.88
    assert roc_auc_score(whole[held], joint[:, 1]) > max(roc_auc_score(whole[held], p) for p in own) + 0.03
    assert model.score(X, y) == np.mean(model.predict(X)[:120] == y[:120])
    with pytest.warns(UndefinedMetricWarning, match="No row has a target"):
        assert np.isnan(model.score(X[held], y[held]))
    assert len({p.slope for p in model.probabilities_}) == 2, "each view has its own curve"


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1), (-1, 1), (False, True)])
def test_any_two_classes_are_the_same_model(classes: tuple) -> None:
    X, whole, y, mask = table()
    expected = clone(QUICK).fit(X, y, label_mask=mask)
    named = np.array(classes, dtype=object)[whole.astype(int)]
    named[120:] = None
    model = clone(QUICK).fit(X, named, label_mask=mask)
    assert_array_equal(model.classes_, classes)
    assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    assert_array_equal(model.predict(X), np.array(classes)[expected.predict(X).astype(int)])


def test_views_of_one_class_or_hardly_a_label() -> None:
    """They take part: the curve of one has little to go by."""
    X, whole, _, _ = table()
    no = np.flatnonzero(whole[:60] == 0)
    for first in (no, no[:2], no[:0]):
        mask = np.zeros((300, 2), dtype=bool)
        mask[first, 0] = mask[60:120, 1] = True
        y = np.where(mask.any(axis=1), whole, np.nan)
        model = clone(QUICK).fit(X, y, label_mask=mask)
        assert_array_equal(model.classes_, [0, 1])
        assert np.isfinite(model.predict_proba_views(X)).all()


def test_a_search_over_texts_with_missing_targets() -> None:
    X, whole, _, mask = table()
    named = np.array(["no", "yes"], dtype=object)[whole.astype(int)]
    named[120:] = None
    search = GridSearchCV(clone(QUICK), {"kernel": ["gaussian", "linear"]}, cv=LabelledFolds(3)).fit(
        X, named, label_mask=mask
    )
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_score_ > 0.7
    order = np.argsort(whole[:120], kind="stable")  # by class, as files often are
    for _, test in LabelledFolds(3).split(X, named[[*order, *range(120, 300)]]):
        assert len(set(whole[order[test]])) == 2
