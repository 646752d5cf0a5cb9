"""CoRLSR for two classes: its probabilities are of labels that were left out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from coreg_core.errors import BadData
from coreg_core.estimators import CoRLSR, CoRLSRClassifier
from coreg_core.evaluation import fit_probability

VIEWS = [slice(0, 2), slice(2, 4)]


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X, all labels, labels with NaN): both views see the class, each with noise of its own."""
    rng = np.random.default_rng(1)
    latent = rng.normal(size=300)
    X = latent[:, None] + rng.normal(size=(300, 4))
    whole = (latent > 0).astype(float)
    return X, whole, np.where(np.arange(300) < 30, whole, np.nan)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
def test_without_coupling_the_curves_are_of_refits_without_each_label(form: str, intercept: bool) -> None:
    X, whole, y = table()
    given = {"form": form, "bandwidth": 4.0, "ridge": 1.0, "coupling": 0.0, "fit_intercept": intercept}
    model = CoRLSRClassifier(views=VIEWS, **given).fit(X, y)
    scores = np.zeros((2, 30))
    for i in range(30):
        without = np.where(np.arange(300) == i, np.nan, y - 0.5)
        one = CoRLSR(views=VIEWS, **given).fit(X, without)
        scores[:, i] = one.predict_views(X[i : i + 1])[:, 0] + 0.5
    for found, left_out in zip(model.probabilities_, scores, strict=True):
        expected = fit_probability(left_out, whole[:30])
        assert_allclose([found.slope, found.offset], [expected.slope, expected.offset], rtol=1e-4)


def test_agreement_helps_and_the_probabilities_are_of_the_second_class() -> None:
    X, whole, y = table()
    model = CoRLSRClassifier(views=VIEWS, bandwidth="loo", ridge="loo", coupling=0.01).fit(X, y)
    p, held = model.predict_proba(X), slice(30, None)
    assert_allclose(p.sum(axis=1), 1.0)
    assert roc_auc_score(whole[held], p[held, 1]) > 0.85
    assert_array_equal(model.predict(X), (p[:, 1] > 0.5).astype(float))
    regression = CoRLSR(views=VIEWS, bandwidth="loo", ridge="loo", coupling=0.01).fit(X, y - 0.5)
    assert_allclose(model.probability_.of(regression.predict(X) + 0.5), p[:, 1])
    named = np.where(whole > 0, "yes", "no").astype(object)
    named[30:] = None
    assert_array_equal(clone(model).fit(X, named).predict_proba(X), p)
    lists = clone(model).set_params(views=None).fit([X[:30, v] for v in VIEWS], whole[:30], [X[30:, v] for v in VIEWS])
    assert_allclose(lists.predict_proba_views([X[:, v] for v in VIEWS]), model.predict_proba_views(X))
    with pytest.raises(BadData, match="one class"):
        clone(model).fit(X[:30], np.zeros(30))
