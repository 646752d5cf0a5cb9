"""Additive views for a target of two classes: least squares on 0 and 1, and probabilities by left-out labels."""

from typing import Any, Self

import numpy as np

from coreg_core.estimators._parameters import fit_context
from coreg_core.estimators._scores import ViewsClassifier
from coreg_core.estimators.additive import AdditiveViews
from coreg_core.evaluation.probability import Probability, fit_probability
from coreg_core.numerics.arrays import Arr


class AdditiveClassifier(ViewsClassifier, AdditiveViews):
    r"""`AdditiveRegressor` on labels of 0 and 1, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s.

    A and B are fitted to predictions of labelled rows that were left out in turn (Platt scaling): a pair for each view's joined
    model, and one for the score from the labels of all views.

    Source: docs/research/mathematics.md, "Second moments"; Platt (1999).

    Parameters
    ----------
    views, kernel, rows_per_feature, random_state
        those of `AdditiveRegressor`.

    Attributes
    ----------
    classes_
        the two classes, sorted; probabilities are of the second.
    probability_, probabilities_
        A and B of the score, and of each view's joined model.
    trained_, verdicts_, labels_
        those of `AdditiveRegressor`, of the labels 0 and 1.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.where(X[:, 0] + X[:, 3] > 0, "yes", "no").astype(object)
    >>> y[80:] = None  # missing targets: these rows are the shared ones
    >>> mask = np.zeros((150, 2), dtype=bool)
    >>> mask[:40, 0] = mask[40:80, 1] = True  # each view has forty labels of its own
    >>> model = AdditiveClassifier(views=[slice(0, 2), slice(2, 4)], random_state=0).fit(X, y, label_mask=mask)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.predict_proba_views(X).shape
    (['no', 'yes'], (150, 2), (2, 150))
    """

    def _targets(self, y: Any, n_rows: int, least: int = 1) -> Arr:
        return 0.5 + 0.5 * super()._targets(y, n_rows, least)

    @fit_context
    def fit(self, X: Any, y: Any = None, *, label_mask: Any = None) -> Self:
        """As `AdditiveRegressor.fit`. A missing target is NaN or None."""
        super().fit(X, y, label_mask=label_mask)
        self.probabilities_ = [
            _calibrated(labels, verdict.left_out.get("joined"))
            for labels, verdict in zip(self.labels_, self.verdicts_, strict=True)
        ]
        scored = [
            (labels[: len(left)], left)
            for labels, verdict in zip(self.labels_, self.verdicts_, strict=True)
            if (left := verdict.left_out.get("score", verdict.left_out.get("joined"))) is not None
        ]
        self.probability_ = _calibrated(*map(np.concatenate, zip(*scored, strict=True))) if scored else Probability()
        return self


def _calibrated(labels: Arr, left_out: Arr | None) -> Probability:
    """A and B from labels and left-out residuals; those of the prior without any."""
    return Probability() if left_out is None else fit_probability(labels - left_out, labels)
