"""Co-regularised least squares for a target of two classes: least squares on 0 and 1, and probabilities by left-out labels."""

from typing import Any

import numpy as np

from coreg_core.agreement.objective import sweep_weight
from coreg_core.agreement.views import View
from coreg_core.agreement.views.left_out import LabelledFit
from coreg_core.estimators._parameters import by_preset
from coreg_core.estimators._scores import ViewsClassifier
from coreg_core.estimators.corlsr import CoRLSR, Fitted
from coreg_core.numerics.arrays import Arr

_HALF = 0.5  # without an intercept, labels of ∓½ make "as likely as not" the prediction without any label


class CoRLSRClassifier(ViewsClassifier, CoRLSR):
    r"""`CoRLSR` on labels of −½ and ½, with $p = 1/(1 + e^{-(A s + B)})$ of its scores s.

    A and B are fitted to predictions of labelled rows that were left out in turn, while the other views' mean on the shared rows
    stays (Platt scaling). Each view has a pair, and the mean of the views has one from the rows of all.

    Source: Brefeld et al. (2006); docs/research/mathematics.md, "Leave-one-out on a site's own labels"; Platt (1999).

    Parameters
    ----------
    views, form, kernel, preset, bandwidth, ridge, fit_intercept, coupling, solver, tol, prediction_tol, max_rounds
        those of `CoRLSR`, as are degree, offset, rank_tolerance.

    Attributes
    ----------
    classes_
        the two classes, sorted; probabilities are of the second.
    probability_, probabilities_
        A and B of the mean of the views, and of each view.
    gap_, prediction_bound_, objective_, disagreement_, n_rounds_, stop_, rank_, functions_, bandwidth_, ridge_
        those of `CoRLSR`, of the labels −½ and ½.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(150, 4))
    >>> y = np.where(X[:, 0] + X[:, 2] > 0, "yes", "no").astype(object)
    >>> y[40:] = None  # missing targets: these rows are the shared ones
    >>> model = CoRLSRClassifier(views=[slice(0, 2), slice(2, 4)]).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape, model.predict_proba_views(X).shape
    (['no', 'yes'], (150, 2), (2, 150))
    """

    def _targets(self, y: Any, n_rows: int, least: int = 1) -> Arr:
        return _HALF * super()._targets(y, n_rows, least)

    def _solve(self, views: list[View], ys: list[Arr]) -> Fitted:
        fit, M = super()._solve(views, ys), len(views)
        predictions = np.array([s.prediction for s in fit.solutions])
        pairs, middle = [], self.intercept_ + _HALF
        # The intercept is left out with the label where it is the mean of this view's own labels.
        centred = by_preset(self)[2] and all(np.array_equal(y, ys[0]) for y in ys)
        for v, (view, y) in enumerate(zip(views, ys, strict=True)):
            others = (predictions.sum(axis=0) - predictions[v]) / max(M - 1, 1)
            residuals, G = view.on_labels(others, sweep_weight(self.coupling, M))
            errors = LabelledFit(residuals, G, y, centred=centred).left_out
            pairs.append((y - errors + middle, y + middle))
        self._calibrate(pairs)
        return fit

    def _joint(self, X: Any) -> Arr:
        return np.asarray(CoRLSR.predict(self, X) + _HALF)

    def _own(self, X: Any) -> Arr:
        return np.asarray(self.predict_views(X) + _HALF)
