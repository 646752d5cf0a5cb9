r"""Correlated kitchen sinks: XNV with random Fourier features for views."""

from typing import Any

import numpy as np

from coreg_core.estimators._canonical_ridge import CanonicalRidge, FeatureMap, Regression
from coreg_core.estimators._scores import TwoClasses
from coreg_core.kernels.bases import draw_fourier_basis
from coreg_core.kernels.functions import resolve_bandwidth
from coreg_core.numerics.arrays import Arr


class _FourierViews(CanonicalRidge):
    """Two draws of frequencies."""

    def __init__(
        self,
        *,
        n_components: int | None = None,
        bandwidth: str | float = "paper",
        ridge: str | float = "loo",
        cca: str = "exact",
        cca_ridge: float = 1e-2,
        sketch: int | None = None,
        fit_intercept: bool = True,
        random_state: Any = None,
    ):
        self.n_components, self.bandwidth, self.ridge = n_components, bandwidth, ridge
        self.cca, self.cca_ridge, self.sketch, self.fit_intercept = cca, cca_ridge, sketch, fit_intercept
        self.random_state = random_state

    def _draw_views(self, sample: Arr, n_components: int, rng: np.random.Generator) -> tuple[FeatureMap, FeatureMap]:
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, sample, "gaussian")
        d = sample.shape[1]
        first = draw_fourier_basis(d, n_components, self.bandwidth_, rng)
        return first, draw_fourier_basis(d, n_components, self.bandwidth_, rng)


class XKS(Regression, _FourierViews):
    r"""$\min_\beta \frac1n \|\bar Z\beta - y\|^2 + \sum_j \frac{1-\lambda_j}{\lambda_j}\beta_j^2 + \gamma\|\beta\|^2$.

    As `XNV`, with two views of M random Fourier features of the gaussian kernel each.

    Source: McWilliams, Balduzzi, Buhmann (2013), Algorithm 2, equation 11.

    Parameters
    ----------
    n_components
        M; None: 200, at most an eighth of the rows.
    bandwidth
        σ: "paper" or "median", over 2M rows drawn from all; or a positive number.
    ridge
        γ ≥ 0, or "loo" (leave-one-out).
    cca
        "exact" or "randomised".
    cca_ridge
        κ ≥ 0, relative to the mean second moment of a view's features.
    sketch
        rows of the sketch; None: 40 M.
    fit_intercept
        False is the paper's equation as printed.
    random_state
        of the frequencies, and of the sketch.

    Attributes
    ----------
    canonical_correlations_, basis_, coef_, intercept_, views_, bandwidth_, n_components_
        as of `XNV`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 3))
    >>> XKS(n_components=50, random_state=0).fit(X, np.where(np.arange(500) < 30, np.sin(X[:, 0]), np.nan)).predict(X).shape
    (500,)
    """


class XKSClassifier(TwoClasses, _FourierViews):
    """XKS for two classes: least squares on −1 and 1, the sign decides. Parameters and attributes: those of `XKS`.

    Attributes
    ----------
    classes_
        the two, sorted.
    """
