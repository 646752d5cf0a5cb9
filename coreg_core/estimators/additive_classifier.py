"""Additive views for a target of two classes: least squares on 0 and 1, and probabilities by left-out labels."""

from typing import Any, Self

from coreg_core.estimators._inputs import all_or_nothing
from coreg_core.estimators._view_classes import ViewsClassifier
from coreg_core.estimators.additive import AdditiveViews


class AdditiveClassifier(ViewsClassifier, AdditiveViews):
    r"""`AdditiveRegressor` on labels of 0 and 1, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s.

    A and B are fitted to predictions of labelled rows that were left out in turn (Platt scaling), a pair for each view's own
    model. The joint score has one pair from all these rows, of own models too: in a federation no row has a joint score that is
    left out.

    Source: docs/research/mathematics.md, "The additive objective"; Platt (1999).

    Parameters
    ----------
    views, kernel, bandwidth, ridge, landmarks, rows, residuals, group_size, random_intercept, aim
        those of `AdditiveRegressor`, as are tuning_steps, probes, tol, tuning_tol, folds, max_rounds, forecast, random_state.

    Attributes
    ----------
    classes_
        the two classes, sorted; probabilities are of the second.
    probability_, probabilities_
        A and B of the joint score, and of each view's own model.
    models_, intercept_, noise_, prior_, r2_, gap_, score_bound_, n_rounds_, stop_
        those of `AdditiveRegressor`, of the labels 0 and 1.

    Raises
    ------
    BadData
        (a ValueError) other than two classes, or as `AdditiveRegressor`.

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

    @all_or_nothing
    def fit(
        self,
        X: Any,
        y: Any = None,
        Z_views: Any = None,
        *,
        label_mask: Any = None,
        positions: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """As `AdditiveRegressor.fit`. A missing target is NaN or None. The calibration counts all labels alike."""
        super().fit(
            X,
            self._numbered(y, Z_views),
            Z_views,
            label_mask=label_mask,
            positions=positions,
            sample_weight=sample_weight,
        )
        # A view with fewer labels than its model alone needs has none that were left out.
        self._calibrate(
            [
                (m.left_out[0], labels[: m.left_out.shape[1]])
                for m, labels in zip(self.models_, self.labels_, strict=True)
            ]
        )
        return self
