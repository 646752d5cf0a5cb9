r"""CoRLS: co-regularised least squares with either labelled loss, and the complexity of its function class."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.utils._param_validation import StrOptions

from coreg_core.agreement.complexity import CoRegularisedClass, kernel_blocks
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.estimators._tables import by_preset, fit_context, one_a_view, polynomial
from coreg_core.estimators._views import ExpansionViews
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.numerics.arrays import Arr


class CoRLS(ExpansionViews):
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
        columns of each view (slices, positions, booleans or names) of one table; None for a list of tables.
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper" is "paper", "paper" and
        False.
    bandwidth
        σ: "paper", "median", "loo" (leave-one-out of the view's kernel ridge regression), a positive number, or a
        sequence of these, one a view. None: by the preset.
    ridge
        γ: "paper" (the rule of Brefeld et al., inverse mean norm), "loo" (its ν over Mℓ, see above), a positive number, or
        a sequence. None: by the preset.
    fit_intercept
        subtract the mean of the targets, and add it back. None: by the preset.
    coupling
        λ ≥ 0.
    degree, offset
        of the polynomial kernel.

    Attributes
    ----------
    functions_
        the views' kernel expansions. predictions_unlabelled_: (M, m). intercept_: the mean of the targets, or 0.
    bandwidth_, ridge_
        the values in use, M each.
    complexity_bounds_
        of the empirical Rademacher complexity, Theorem 3.
    complexity_reduction_
        Δ(λ).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.normal(size=(20, 4)), rng.normal(size=(50, 4))
    >>> model = CoRLS(loss="mean", ridge=0.01).fit([X[:, :2], X[:, 2:]], X.sum(axis=1), [Z[:, :2], Z[:, 2:]])
    >>> low, high = model.complexity_bounds_
    >>> model.predict([Z[:, :2], Z[:, 2:]]).shape, bool(low < high)
    ((50,), True)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **CoRLSR._parameter_constraints, "loss": [StrOptions({"separate", "mean"})],
    }  # fmt: skip

    def __init__(
        self,
        *,
        views: Any = None,
        loss: str = "separate",
        kernel: str = "gaussian",
        preset: str = "loo",
        bandwidth: str | float | Sequence[str | float] | None = None,
        ridge: str | float | Sequence[str | float] | None = None,
        fit_intercept: bool | None = None,
        coupling: float = 1e-3,
        degree: int = 3,
        offset: float = 1.0,
    ):
        self.views = views
        self.loss, self.kernel, self.preset = loss, kernel, preset
        self.bandwidth, self.ridge, self.fit_intercept = bandwidth, ridge, fit_intercept
        self.coupling, self.degree, self.offset = coupling, degree, offset

    @fit_context
    def fit(self, X_views: Any, y: Any = None, Z_views: Sequence[Any] | None = None) -> Self:
        """Fit one table (N, p) with columns split by ``views``, and y (N,), NaN on the unlabelled rows.

        Or, as in the paper, X_views M tables (l, d_v), y (l,), Z_views M tables (m, d_v), the same instances in every view.
        """
        Xs, ys, Zs = self._split(X_views, y, Z_views)
        M, y = len(Xs), ys[0]
        if any(not np.array_equal(each, y) for each in ys):
            raise BadData("y: other targets in another view; every view has the same labelled instances.")
        _, ridge, with_intercept = by_preset(self)
        self.intercept_ = float(y.mean()) if with_intercept else 0.0
        y, scale = y - self.intercept_, M * len(y)
        kernels, ridges = self._rules(Xs, [y] * M)
        # γ is ν/(Mℓ) in these units; every other rule and number is γ itself.
        rules = one_a_view(ridge, M, "ridge")
        self.ridge_ = np.array([nu / scale if rule == "loo" else nu for nu, rule in zip(ridges, rules, strict=True)])
        blocks = [kernel_blocks(k, X, Z) for k, X, Z in zip(kernels, Xs, Zs, strict=True)]
        chosen_from = CoRegularisedClass(blocks, self.ridge_.tolist(), self.coupling)
        if self.loss == "mean":
            self.functions_ = _mean_loss(chosen_from, kernels, Xs, Zs, y)
        else:
            sigma, nu, coupling = self.bandwidth_.tolist(), (scale * self.ridge_).tolist(), 0.5 * scale * self.coupling
            model = CoRLSR(
                kernel=self.kernel,
                fit_intercept=False,
                bandwidth=sigma,
                ridge=nu,
                coupling=coupling,
                **polynomial(self),
            )
            self.functions_ = model.fit(Xs, y, Zs).functions_
        self.predictions_unlabelled_ = self.intercept_ + np.array(
            [f.predict(Z) for f, Z in zip(self.functions_, Zs, strict=True)]
        )
        self.complexity_bounds_, self.complexity_reduction_ = chosen_from.complexity_bounds, chosen_from.reduction
        return self


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
