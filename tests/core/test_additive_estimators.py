"""`AdditiveRegressor` and `AdditiveClassifier`: masks of labels, views without rows, refusals."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose

from coreg_core.errors import BadData
from coreg_core.estimators import AdditiveClassifier, AdditiveRegressor

VIEWS = [[0, 1], [2, 3]]


@dataclass
class Table:
    X: np.ndarray
    y: np.ndarray  # NaN beyond the labelled rows
    mask: np.ndarray  # the first view has the first half of the labels, the second the rest
    truth: np.ndarray


@pytest.fixture
def table():
    """300 rows, of which 120 have labels, and four columns."""
    rng = default_rng(0)
    X = rng.normal(size=(300, 4))
    truth = np.sin(X[:, 0]) + X[:, 1] + np.cos(2 * X[:, 2])
    y = truth + 0.1 * rng.normal(size=300)
    y[120:] = np.nan
    mask = np.zeros((300, 2), dtype=bool)
    mask[:60, 0] = True
    mask[60:120, 1] = True
    return Table(X, y, mask, truth)


@pytest.fixture
def gaps(table):
    """The first view's labelled rows are its own."""
    X = table.X.copy()
    X[:60, 2:] = np.nan
    return X


def fitted(X, y, mask):
    return AdditiveRegressor(views=VIEWS).fit(X, y, label_mask=mask)


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def test_the_local_model_of_a_view_takes_a_frame(table, gaps):
    model = fitted(gaps, table.y, table.mask)
    own_columns = table.X[:, 2:]
    expected = model.trained_.sites[1].model.alone(own_columns)
    assert_allclose(model.predict_local(1, pl.DataFrame(own_columns)), expected)


def test_a_view_predicts_nothing_for_rows_that_it_does_not_have(table, gaps):
    predictions = fitted(gaps, table.y, table.mask).predict_views(gaps)
    assert predictions.shape == (2, 300)
    assert np.isnan(predictions[1, :60]).all()


def test_a_prediction_without_a_view_is_worse_than_with_it(table, gaps):
    model = fitted(gaps, table.y, table.mask)
    new = table.X[120:]
    without = new.copy()
    without[:, 2:] = np.nan
    truth = table.truth[120:]
    assert rmse(model.predict(new), truth) < rmse(model.predict(without), truth)


def test_a_row_that_no_view_has_is_refused(table, gaps):
    model = fitted(gaps, table.y, table.mask)
    with pytest.raises(BadData, match="no view has it"):
        model.predict(np.full((1, 4), np.nan))


def test_views_of_few_labels_are_named_in_a_warning(table):
    few = np.arange(300) % 60 < 9
    y = np.where(few, table.y, np.nan)
    with pytest.warns(UserWarning, match=r"fewer than 10 labels at view 0 and 1"):
        fitted(table.X, y, table.mask)


def test_a_view_that_has_a_part_of_a_row_is_refused(table):
    X = table.X.copy()
    X[:, 3] = np.nan
    place = r"view 1, row 1 \(counted from 1\): a part of its cells is NaN"
    with pytest.raises(BadData, match=place):
        fitted(X, table.y, table.mask)


def test_views_with_rows_of_their_own_need_a_label_mask(table, gaps):
    with pytest.raises(BadData, match="Give label_mask"):
        AdditiveRegressor(views=VIEWS).fit(gaps, table.y)


def test_a_label_that_no_view_sees_is_an_unlabelled_row(table):
    all_labels = np.where(np.isnan(table.y), table.truth, table.y)
    with pytest.warns(UserWarning, match="no view sees the label of 180 rows"):
        hidden = fitted(table.X, all_labels, table.mask)
    plain = fitted(table.X, table.y, table.mask)
    assert_allclose(hidden.predict(table.X), plain.predict(table.X))


def test_a_label_mask_of_another_shape_is_refused(table):
    with pytest.raises(BadData, match="needs booleans of shape"):
        fitted(table.X, table.y, table.mask[:, :1])


def test_a_single_label_is_refused(table):
    y = np.full(300, np.nan)
    y[0] = 1.0
    with pytest.raises(BadData, match="1 labels in all sites"):
        fitted(table.X, y, table.mask)


@pytest.fixture(scope="module")
def classes():
    """Rows, their classes, and a classifier of three views that was fitted to 120 of them."""
    rng = default_rng(0)
    X = rng.normal(size=(500, 6))
    scores = [X[:, 0] + X[:, 2], X[:, 1] + X[:, 4], X[:, 3] - X[:, 0]]
    truth = np.array(["a", "b", "c"])[np.argmax(scores, axis=0)]
    y = truth.astype(object)
    y[120:] = None
    labelled = np.arange(120)
    mask = np.zeros((500, 3), dtype=bool)
    mask[labelled, labelled % 3] = True
    views = [slice(0, 2), slice(2, 4), slice(4, 6)]
    model = AdditiveClassifier(views=views, random_state=0).fit(X, y, label_mask=mask)
    return X, truth, model


def test_a_classifier_of_several_classes_knows_more_together_than_each_view(classes):
    X, truth, model = classes
    new = X[120:]
    together = np.mean(model.predict(new) == truth[120:])
    most_probable = model.predict_proba_views(new).argmax(axis=2)
    alone = np.mean(model.classes_[most_probable] == truth[120:], axis=1)
    assert together > alone.max() + 0.1


def test_probabilities_of_several_classes_add_up_to_one(classes):
    X, _, model = classes
    assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.decision_function(X).shape == (500, 3)


def test_the_gains_are_of_the_scores_that_the_views_correct():
    """One view has labels in another unit: the sum is of no unit, and each score of its view's."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(700, 9))
    y = X[:, 0] + X[:, 3] + X[:, 6] + 0.3 * rng.normal(size=len(X))
    owner = np.repeat([0, 1, 2], 60)
    mask = np.zeros((len(X), 3), dtype=bool)
    mask[np.arange(180), owner] = True
    targets = np.full(len(X), np.nan)
    targets[:180] = y[:180] * np.where(owner == 2, 10.0, 1.0)
    views = [slice(0, 3), slice(3, 6), slice(6, 9)]
    with pytest.warns(UserWarning, match="may have another unit than those of other views"):
        model = AdditiveRegressor(views=views).fit(X, targets, label_mask=mask)
    new = X[400:]

    def change(predicted, view, truth):
        local = model.predict_local(view, new[:, views[view]])
        errors = [np.sqrt(np.mean((truth - each) ** 2)) for each in (predicted, local)]
        return errors[0] / errors[1] - 1.0

    scores = model.predict_scores(new)
    for view, unit in enumerate((1.0, 1.0, 10.0)):
        forecast = model.verdicts_[view].gains["score"]
        true_change = change(scores[view], view, unit * y[400:])
        assert true_change == pytest.approx(forecast.change, abs=4.0 * forecast.standard_error)
    assert change(model.predict(new), 0, y[400:]) > 0.5, "the sum is of no view's unit"


def test_a_marker_of_missing_labels_is_named_when_it_counts_as_a_class():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4))
    y = np.where(np.arange(90) < 60, (X[:, 0] > 0).astype(int), -1)
    model = AdditiveClassifier(views=[slice(0, 2), slice(2, 4)])
    with pytest.warns(UserWarning, match="'-1' counts as a class. If it marks rows without"):
        model.fit(X, y)
