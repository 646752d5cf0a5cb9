r"""Correlated Nyström views: the canonical correlations of two random views weight the directions.

Correlated kitchen sinks: XNV with random Fourier features for views.
"""

from typing import Any, ClassVar

import numpy as np

from coreg_core.estimators._canonical_ridge import CanonicalRidge, FeatureMap, Regression
from coreg_core.estimators._scores import TwoClasses
from coreg_core.estimators._tables import COUNT, KERNELS, NOT_NEGATIVE, polynomial
from coreg_core.kernels.bases import draw_fourier_basis, orthonormal_basis
from coreg_core.kernels.functions import make_kernel, resolve_bandwidth
from coreg_core.numerics.arrays import Arr


class _NystromViews(CanonicalRidge):
    """Two spans of landmarks; the labelled rows are drawn from as the unlabelled ones are."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **CanonicalRidge._parameter_constraints, "kernel": [KERNELS], "degree": [COUNT], "offset": [NOT_NEGATIVE],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_components: int | None = None,
        kernel: str = "gaussian",
        bandwidth: str | float = "paper",
        ridge: str | float = "loo",
        cca: str = "exact",
        cca_ridge: float = 1e-2,
        sketch: int | None = None,
        fit_intercept: bool = True,
        degree: int = 3,
        offset: float = 1.0,
        random_state: Any = None,
    ):
        self.n_components, self.kernel, self.bandwidth, self.ridge = n_components, kernel, bandwidth, ridge
        self.cca, self.cca_ridge, self.sketch, self.fit_intercept = cca, cca_ridge, sketch, fit_intercept
        self.degree, self.offset, self.random_state = degree, offset, random_state

    def _draw_views(self, sample: Arr, n_components: int, rng: np.random.Generator) -> tuple[FeatureMap, FeatureMap]:  # noqa: ARG002
        self.bandwidth_ = resolve_bandwidth(self.bandwidth, sample, self.kernel)
        kernel = make_kernel(self.kernel, bandwidth=self.bandwidth_, **polynomial(self))
        return (
            orthonormal_basis(kernel, np.ascontiguousarray(sample[:n_components])),
            orthonormal_basis(kernel, np.ascontiguousarray(sample[n_components:])),
        )


class XNV(Regression, _NystromViews):
    r"""$\min_\beta \frac1n \|\bar Z\beta - y\|^2 + \sum_j \frac{1-\lambda_j}{\lambda_j}\beta_j^2 + \gamma\|\beta\|^2$.

    Z̄ holds the labelled rows of the first of two Nyström views (M landmarks each, drawn from all rows) in the basis of
    their canonical correlation analysis over all rows, labelled or not; λ are the canonical correlations, and directions
    in which the views disagree are penalised. The cost is linear in N, and the memory is bounded by blocks of rows.

    Source: McWilliams, Balduzzi, Buhmann (2013), Algorithm 1, equation 9.

    Departures: a relative ridge in the correlation analysis (the features are nearly collinear, and without it directions
    of rounding error correlate perfectly); the target's labelled mean is subtracted and added back (``fit_intercept``).

    Parameters
    ----------
    n_components
        M, features a view; None: 200, at most an eighth of the rows.
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    bandwidth
        σ: "paper" (mean squared distance) or "median", over the 2M landmarks; or a positive number.
    ridge
        γ ≥ 0, or "loo" (leave-one-out).
    cca
        "exact" (QR and SVD of every row) or "randomised" (of a sketch of them).
    cca_ridge
        κ ≥ 0, relative to the mean second moment of a view's features.
    sketch
        rows of the sketch; None: 40 M. With no more rows than that the analysis is exact.
    fit_intercept
        False is the paper's equation as printed.
    degree, offset
        of the polynomial kernel.
    random_state
        of the landmarks, and of the sketch.

    Attributes
    ----------
    canonical_correlations_
        λ, descending. basis_: the `CanonicalBasis`.
    coef_
        β. intercept_: the constant term.
    views_
        the two feature maps. bandwidth_: σ in use. n_components_: M in use.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 3))
    >>> y = np.where(np.arange(500) < 30, np.sin(X[:, 0]), np.nan)
    >>> XNV(n_components=50, random_state=0).fit(X, y).predict(X).shape
    (500,)
    """


class XNVClassifier(TwoClasses, _NystromViews):
    """XNV for two classes: least squares on −1 and 1, the sign decides. Parameters and attributes: those of `XNV`.

    Attributes
    ----------
    classes_
        the two, sorted.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> labels = np.where(X[:, 0] > 0, "yes", "no")
    >>> model = XNVClassifier(n_components=40, random_state=0).fit(X, np.where(np.arange(200) < 60, labels, None))
    >>> bool(model.score(X, labels) > 0.9)
    True
    """


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
    n_components, ridge, cca, cca_ridge, sketch, fit_intercept
        those of `XNV`.
    bandwidth
        σ: "paper" or "median", over 2M rows drawn from all; or a positive number.
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
