r"""CoRLS: co-regularised least squares with either labelled loss, and the complexity of its function class."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from coreg_core.agreement.complexity import CoRegularisedClass, kernel_blocks
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.estimators._inputs import one_a_view
from coreg_core.estimators._views import ViewsRegressor, deal
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.kernels.functions import make_kernel
from coreg_core.kernels.leave_one_out import kernel_rule
from coreg_core.numerics.arrays import Arr, as_matrix, as_vector

LOSSES = ("separate", "mean")


class CoRLS(ViewsRegressor, BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    r"""$\hat L(f) + \sum_v \gamma_v \|f_v\|^2 + \lambda \sum_{u<v} \|f_u(Z) - f_v(Z)\|^2$, each pair of views counted once.

    $\hat L$ is $\frac{1}{M\ell} \sum_v \|f_v(X) - y\|^2$ (``loss="separate"``: 1/2ℓ for the paper's two views) or
    $\frac1\ell \|\frac1M \sum_v f_v(X) - y\|^2$ (``loss="mean"``: of the function that predicts).

    The separate loss is `CoRLSR`'s problem in other units, ν = Mℓγ and λ = Mℓλ/2 there, and is solved by it. With the loss of
    the mean, the mean is a kernel ridge regression in the class's own kernel S/M² (see `coreg_core.agreement.complexity`):
    $c = (S(X,X)/M^2 + \ell I)^{-1} y$, $f_v = \frac{1}{M\gamma_v}[k_v(\cdot, X) - \lambda\,(d_v^\top \otimes k_v(\cdot, Z))
    (I+\lambda\mathcal M)^{-1} J]\,c$.

    Source: Rosenberg and Bartlett (2007), section 2; M > 2 is ours.

    Parameters
    ----------
    loss
        "separate" or "mean".
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)), "laplacian", "polynomial" or "linear".
    views
        columns of each view (slices, positions, booleans or names) of one table; for a list of views it is not needed.
    bandwidth
        σ: "paper", "median", "loo" (leave-one-out of the view's kernel ridge regression), a positive number, or a
        sequence of these, one a view.
    ridge
        γ: "paper" (the rule of Brefeld et al., inverse mean norm), "loo" (its ν over Mℓ, see above), a positive number, or
        a sequence.
    coupling
        λ ≥ 0.
    degree
        of the polynomial kernel.
    offset
        of the polynomial kernel.

    Attributes
    ----------
    functions_
        the views' kernel expansions. predictions_unlabelled_: (M, m).
    bandwidth_, ridge_
        the values in use, M each.
    complexity_bounds_
        of the empirical Rademacher complexity, Theorem 3.
    complexity_reduction_
        Δ(λ).

    Raises
    ------
    BadData
        (a ValueError) tables of inconsistent shapes, or values that are not finite.
    UsageError
        (a ValueError) a parameter out of range.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.normal(size=(20, 4)), rng.normal(size=(50, 4))
    >>> model = CoRLS(loss="mean", ridge=0.01).fit([X[:, :2], X[:, 2:]], X.sum(axis=1), [Z[:, :2], Z[:, 2:]])
    >>> low, high = model.complexity_bounds_
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape, bool(low < high)
    ((50,), True)
    """

    def __init__(
        self,
        *,
        views: Any = None,
        loss: str = "separate",
        kernel: str = "gaussian",
        bandwidth: str | float | Sequence[str | float] = "paper",
        ridge: str | float | Sequence[str | float] = "paper",
        coupling: float = 0.1,
        degree: int = 3,
        offset: float = 1.0,
    ):
        self.views = views
        self.loss, self.kernel, self.bandwidth, self.ridge = loss, kernel, bandwidth, ridge
        self.coupling, self.degree, self.offset = coupling, degree, offset

    def fit(self, X_views: Any, y: Any = None, Z_views: Sequence[Any] | None = None) -> Self:
        """X_views M tables (l, d_v), y (l,), Z_views M tables (m, d_v): the same instances, in the same order, in every view.

        Without ``Z_views``, X_views is one table (N, p) with columns split by ``views``, and y (N,) is NaN on the
        unlabelled rows.
        """
        if self.loss not in LOSSES:
            raise UsageError(f"loss={self.loss!r}: choose 'separate' or 'mean'.")
        self.one_table_ = Z_views is None
        if Z_views is None:
            dealt = deal(self, X_views, y, self.views)
            X_views, y, Z_views = dealt.X, dealt.y[0], dealt.Z
        M = len(X_views)
        if M == 0 or len(Z_views) != M:
            raise BadData(f"{M} labelled and {len(Z_views)} unlabelled tables: one of each a view, at least one.")
        Xs = [as_matrix(X, f"X_views[{v}]") for v, X in enumerate(X_views)]
        Zs = [as_matrix(Z, f"Z_views[{v}]") for v, Z in enumerate(Z_views)]
        y = as_vector(y, "y")
        for v, (X, Z) in enumerate(zip(Xs, Zs, strict=True)):
            if len(X) != len(y) or len(y) == 0:
                raise BadData(f"view {v}: {len(X)} labelled rows and {len(y)} targets; needs as many, at least 1.")
            if len(Z) != len(Zs[0]) or Z.shape[1] != X.shape[1] or X.shape[1] == 0:
                raise BadData(
                    f"view {v}: {X.shape} labelled and {Z.shape} unlabelled; the features have to be the same, and "
                    f"{len(Zs[0])} unlabelled rows as in view 0."
                )
        bandwidths, ridges = one_a_view(self.bandwidth, M, "bandwidth"), one_a_view(self.ridge, M, "ridge")
        rules = [
            kernel_rule(X, y, self.kernel, b, r, degree=self.degree, offset=self.offset)
            for X, b, r in zip(Xs, bandwidths, ridges, strict=True)
        ]
        self.bandwidth_ = np.array([sigma for sigma, _ in rules])
        # γ is ν/(Mℓ) in these units; every other rule and number is γ itself.
        units = [1.0 / (M * len(y)) if rule == "loo" else 1.0 for rule in ridges]
        self.ridge_ = np.array([nu * unit for (_, nu), unit in zip(rules, units, strict=True)])
        kernels = [
            make_kernel(self.kernel, bandwidth=b, degree=self.degree, offset=self.offset)
            for b in self.bandwidth_.tolist()
        ]
        blocks = [kernel_blocks(k, X, Z) for k, X, Z in zip(kernels, Xs, Zs, strict=True)]
        chosen_from = CoRegularisedClass(blocks, self.ridge_.tolist(), self.coupling)
        if self.loss == "mean":
            self.functions_ = _mean_loss(chosen_from, kernels, Xs, Zs, y)
        else:
            scale = M * len(y)
            model = CoRLSR(
                kernel=self.kernel,
                bandwidth=self.bandwidth_.tolist(),
                ridge=(scale * self.ridge_).tolist(),
                coupling=0.5 * scale * self.coupling,
                degree=self.degree,
                offset=self.offset,
            )
            self.functions_ = model.fit(Xs, y, Zs).functions_
        self.predictions_unlabelled_ = np.array([f.predict(Z) for f, Z in zip(self.functions_, Zs, strict=True)])
        self.complexity_bounds_, self.complexity_reduction_ = chosen_from.complexity_bounds, chosen_from.reduction
        self.n_views_, self.n_features_in_views_ = M, [X.shape[1] for X in Xs]
        return self

    def predict_views(self, X_views: Any) -> Any:
        """Every view's prediction, (M, n)."""
        check_is_fitted(self)
        tables = [as_matrix(X, f"X_views[{v}]") for v, X in enumerate(self._tables(X_views))]
        if [X.shape[1] for X in tables] != self.n_features_in_views_:
            raise BadData(
                f"X_views: views of {[X.shape[1] for X in tables]} features, the model has {self.n_features_in_views_}."
            )
        if len({len(X) for X in tables}) > 1:
            raise BadData(f"X_views: views of {[len(X) for X in tables]} instances; every view needs the same.")
        return np.array([f.predict(X) for f, X in zip(self.functions_, tables, strict=True)])

    def predict(self, X_views: Any) -> Any:
        """The mean of the views' predictions, (n,)."""
        return self.predict_views(X_views).mean(axis=0)


def _mean_loss(
    chosen_from: CoRegularisedClass, kernels: list[Any], Xs: list[Arr], Zs: list[Arr], y: Arr
) -> list[KernelExpansion]:
    M, m = len(Xs), len(Zs[0])
    K = chosen_from.gram / M**2
    K.flat[:: len(K) + 1] += len(y)
    c = cho_solve(cho_factor(K, lower=True, overwrite_a=True, check_finite=False), y, check_finite=False)
    coupled = chosen_from.solve((chosen_from.difference @ c)[:, None])[:, 0].reshape(M - 1, m)
    out = []
    for v, (kernel, X, Z, gamma) in enumerate(zip(kernels, Xs, Zs, chosen_from.ridge, strict=True)):
        of_Z = -chosen_from.coupling * (chosen_from.pairs[:, v] @ coupled)
        out.append(KernelExpansion(kernel, np.vstack([X, Z]), np.concatenate([c, of_Z]) / (M * gamma)))
    return out
