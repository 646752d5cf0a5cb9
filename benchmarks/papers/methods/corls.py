r"""CoRLS: co-regularised least squares with either labelled loss.

The Rademacher complexity of the co-regularised class, and its reduction by co-regularisation.

    H = { (f_v) :  Σ_v γ_v ‖f_v‖² + λ Σ_{u<v} ‖f_u(Z) − f_v(Z)‖² ≤ 1 },     J = { (1/M) Σ_v f_v :
    (f_v) ∈ H }

Rosenberg and Bartlett (2007) have two views; this is theirs for M = 2, and the same argument for
any M (ours): the pairs' sum is the quadratic form of the complete graph's Laplacian, M·I − 11ᵀ =
DᵀD with an (M−1) x M matrix D, D = (1, −1) for M = 2. With

    𝓜 = Σ_v γ_v⁻¹ (d_v d_vᵀ) ⊗ K_v(Z, Z)        J(x) = Σ_v γ_v⁻¹ d_v ⊗ k_v(Z, x)        d_v the v-th
    column of D

the Sherman-Morrison-Woodbury formula gives the class's own kernel (M² times that of its mean
function),

    S(x, x') = Σ_v γ_v⁻¹ k_v(x, x') − λ J(x)ᵀ (I + λ𝓜)⁻¹ J(x'),

and U² = tr S(X, X). I + λ𝓜 is positive definite for any rows, repeated ones included. Its Cholesky
factor needs no jitter until λ‖𝓜‖ nears 1/eps; there rounding outweighs I, and the code refuses.
Cost O((M−1)³ m³).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float64
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from sklearn.utils._param_validation import StrOptions

from benchmarks.one_table import one_table
from coreg_core.agreement.views import KernelExpansion
from coreg_core.arrays import Arr
from coreg_core.errors import SingularSystem
from coreg_core.estimators.corlsr import CoRLSR, by_preset
from coreg_core.estimators.parameters import fit_context, one_a_view
from coreg_core.kernels import Kernel


@dataclass(frozen=True, eq=False)
class KernelBlocks:
    """One view's kernel matrix by blocks: the paper's A, B, C (and D, E, F for the second view)."""

    unlabelled: Float64[Arr, "m m"]
    cross: Float64[Arr, "m l"]
    labelled: Float64[Arr, "l l"]


def kernel_blocks(kernel: Kernel, X: Float64[Arr, "l d"], Z: Float64[Arr, "m d"]) -> KernelBlocks:
    """The blocks of labelled rows X and unlabelled rows Z."""
    return KernelBlocks(kernel(Z, Z), kernel(Z, X), kernel(X, X))


class CoRegularisedClass:
    """H and J at one coupling λ ≥ 0, with γ_v > 0 for each view; SingularSystem where rounding
    outweighs the identity.
    """

    def __init__(self, views: Sequence[KernelBlocks], ridge: Sequence[float], coupling: float):
        self.views = list(views)
        self.ridge = [float(g) for g in ridge]
        self.coupling = float(coupling)

    @cached_property
    def pairs(self) -> Float64[Arr, "q M"]:
        """D, (M−1, M): DᵀD = M·I − 11ᵀ; (1, −1) for two views."""
        M = len(self.views)
        # Helmert's rows: each view against the mean of those before it. For M = 2 this is (1, −1).
        D = np.zeros((M - 1, M))
        for q in range(1, M):
            D[q - 1, :q] = 1.0
            D[q - 1, q] = -float(q)
            D[q - 1] *= np.sqrt(M / (q * (q + 1.0)))
        return D

    @cached_property
    def difference(self) -> Float64[Arr, "qm l"]:
        """J(X), ((M−1)m, l)."""
        blocks = [
            sum(d * v.cross / g for d, v, g in zip(row, self.views, self.ridge, strict=True))
            for row in self.pairs
        ]
        return np.vstack(blocks) if blocks else np.zeros((0, self.views[0].labelled.shape[0]))

    @cached_property
    def _gram(self) -> Arr:
        D = self.pairs
        m = len(self.views[0].unlabelled)
        out = np.zeros((len(D) * m, len(D) * m))
        for v, (view, g) in enumerate(zip(self.views, self.ridge, strict=True)):
            for p in range(len(D)):
                for q in range(len(D)):
                    if (weight := D[p, v] * D[q, v] / g) != 0.0:
                        out[p * m : (p + 1) * m, q * m : (q + 1) * m] += weight * view.unlabelled
        return out

    @cached_property
    def _factor(self) -> Any:
        system = self.coupling * self._gram
        system.flat[:: len(system) + 1] += 1.0
        try:
            return cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            raise SingularSystem(
                f"coupling={self.coupling:g} with ridge={self.ridge}: I + λ𝓜 is singular in"
                " floating point (rows repeat, and λ/γ is near 1e16). Lower the coupling."
            ) from None

    def solve(self, right: Float64[Arr, "qm k"]) -> Float64[Arr, "qm k"]:
        """(I + λ𝓜)⁻¹ right."""
        return cho_solve(self._factor, right, check_finite=False) if len(right) else right

    @cached_property
    def gram(self) -> Float64[Arr, "l l"]:
        """S(X, X) = Σ_v γ_v⁻¹ K_v(X, X) − λ Jᵀ (I + λ𝓜)⁻¹ J."""
        plain: Arr = sum(
            (v.labelled / g for v, g in zip(self.views, self.ridge, strict=True)),
            start=np.zeros(()),
        )
        if self.coupling == 0.0 or not len(self.difference):
            return plain
        return plain - self.coupling * (self._half.T @ self._half)

    @cached_property
    def _half(self) -> Arr:
        """L⁻¹ J, where I + λ𝓜 = L Lᵀ."""
        return solve_triangular(self._factor[0], self.difference, lower=True, check_finite=False)

    @cached_property
    def reduction_by_row(self) -> Float64[Arr, " l"]:
        r"""$\lambda\,\|J_{\cdot i}\|^2$ in the norm of $(I+\lambda\mathcal M)^{-1}$, a labelled row
        each.

        It is the distance between the views' representations of the row.

        Source: Rosenberg and Bartlett (2007), section 4.2.
        """
        if self.coupling == 0.0 or not len(self.difference):
            return np.zeros(self.views[0].labelled.shape[0])
        found: Arr = self.coupling * np.einsum("ij,ij->j", self._half, self._half)
        return found

    @property
    def reduction(self) -> float:
        r"""$\Delta(\lambda) = \lambda\,\mathrm{tr}(J^\top(I+\lambda\mathcal M)^{-1}J)$: 0 at λ = 0,
        nondecreasing, bounded.

        Source: Rosenberg and Bartlett (2007), Theorem 3, section 4.1.
        """
        return float(self.reduction_by_row.sum())

    @property
    def scale(self) -> float:
        r"""$U = \sqrt{\mathrm{tr}\,S(X, X)}$, $U^2 = \sum_v \gamma_v^{-1}\mathrm{tr}\,K_v(X,X) -
        \Delta(\lambda)$.
        """
        plain = sum(
            float(np.trace(v.labelled)) / g for v, g in zip(self.views, self.ridge, strict=True)
        )
        return float(np.sqrt(max(0.0, plain - self.reduction)))

    @property
    def complexity_bounds(self) -> tuple[float, float]:
        r"""$\frac{1}{\sqrt2}\frac{2U}{M\ell} \le \hat R_\ell(\mathcal J) \le \frac{2U}{M\ell}$; 2/M
        is 1 for two views.

        $\hat R_\ell(\mathcal J) = \frac{2}{M\ell} E\|T^{-1/2}W^\top\sigma\|$ with $WT^{-1}W^\top =
        S(X, X)$; the upper end is Jensen's inequality, the lower Kahane's and Khintchine's with the
        constant ½ on squares (Latała and Oleszkiewicz, 1994; Lemma 2 as printed in our text has
        1/√2 there, which its own use in Theorem 3 contradicts).

        Source: Rosenberg and Bartlett (2007), Theorem 3.
        """
        upper = 2.0 * self.scale / (len(self.views) * len(self.views[0].labelled))
        return upper / np.sqrt(2.0), upper


class CoRLS(CoRLSR):
    r"""$\hat L(f) + \sum_v \gamma_v \|f_v\|^2 + \lambda \sum_{u<v} \|f_u(Z) - f_v(Z)\|^2$, each
    pair of views counted once.

    $\hat L$ is $\frac{1}{M\ell} \sum_v \|f_v(X) - y\|^2$ (``loss="separate"``: 1/2ℓ for the paper's
    two views) or $\frac1\ell \|\frac1M \sum_v f_v(X) - y\|^2$ (``loss="mean"``: of the function
    that predicts).

    The separate loss is `CoRLSR`'s problem in other units, ν = Mℓγ and λ = Mℓλ/2 there, and is
    solved by it. With the loss of the mean, the mean is a kernel ridge regression in the class's
    own kernel S/M² (see `coreg_core.agreement.complexity`): $c = (S(X,X)/M^2 + \ell I)^{-1} y$,
    $f_v = \frac{1}{M\gamma_v}[k_v(\cdot, X) - \lambda\,(d_v^\top \otimes k_v(\cdot, Z))
    (I+\lambda\mathcal M)^{-1} J]\,c$.

    Source: Rosenberg and Bartlett (2007), section 2; M > 2 is ours.

    Parameters
    ----------
    loss
        "separate" or "mean".
    kernel
        "gaussian" (exp(−‖x−x'‖²/σ)) or "linear".
    views
        columns of each view (slices, positions, booleans or names) of one table; None: all columns
        are one view.
    preset
        the defaults of bandwidth, ridge and fit_intercept: "loo" is "loo", "loo" and True; "paper"
        is "paper", "paper" and False.
    bandwidth
        σ: "paper", "median", "loo" (leave-one-out of the view's kernel ridge regression), a
        positive number, or a sequence of these, one a view. None: by the preset.
    ridge
        γ: "paper" (the rule of Brefeld et al., inverse mean norm), "loo" (its ν over Mℓ, see
        above), a positive number, or a sequence. None: by the preset.
    fit_intercept
        subtract the mean of the targets, and add it back. None: by the preset.
    coupling
        λ ≥ 0.

    Attributes
    ----------
    functions_
        the views' kernel expansions. predictions_unlabelled_: (M, m). intercept_: the mean of the
        targets, or 0.
    bandwidth_, ridge_
        the values in use, M each.
    complexity_bounds_
        of the empirical Rademacher complexity, Theorem 3.
    complexity_reduction_
        Δ(λ).

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(70, 4))
    >>> y = np.where(np.arange(70) < 20, X.sum(axis=1), np.nan)
    >>> model = CoRLS(loss="mean", ridge=0.01, views=[slice(0, 2), slice(2, 4)]).fit(X, y)
    >>> low, high = model.complexity_bounds_
    >>> model.predict(X).shape, bool(low < high)
    ((70,), True)
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
    ):
        self.views = views
        self.loss = loss
        self.kernel = kernel
        self.preset = preset
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.coupling = coupling

    @fit_context
    def fit(self, X: Any, y: Any = None) -> Self:  # type: ignore[override]
        """Fit one table (N, p) with columns split by ``views``, and y (N,), NaN on the unlabelled
        rows.
        """
        Xs, ys, Zs = self._dealt(X, y)
        M = len(Xs)
        y = ys[0]
        _, ridge, with_intercept = by_preset(self)
        self.intercept_ = float(y.mean()) if with_intercept else 0.0
        y, scale = y - self.intercept_, M * len(y)
        kernels, ridges = self._rules(Xs, [y] * M)
        # γ is ν/(Mℓ) in these units; every other rule and number is γ itself.
        rules = one_a_view(ridge, M, "ridge")
        self.ridge_ = np.array(
            [nu / scale if rule == "loo" else nu for nu, rule in zip(ridges, rules, strict=True)]
        )
        blocks = [kernel_blocks(k, X, Z) for k, X, Z in zip(kernels, Xs, Zs, strict=True)]
        chosen_from = CoRegularisedClass(blocks, self.ridge_.tolist(), self.coupling)
        if self.loss == "mean":
            self.functions_ = _mean_loss(chosen_from, kernels, Xs, Zs, y)
        else:
            sigma = self.bandwidth_.tolist()
            nu = (scale * self.ridge_).tolist()
            coupling = 0.5 * scale * self.coupling
            views, table = one_table(Xs, y, Zs)
            model = CoRLSR(
                views=views,
                kernel=self.kernel,
                fit_intercept=False,
                bandwidth=sigma,
                ridge=nu,
                coupling=coupling,
            )
            self.functions_ = model.fit(**table).functions_
        self.predictions_unlabelled_ = self.intercept_ + np.array(
            [f.predict(Z) for f, Z in zip(self.functions_, Zs, strict=True)]
        )
        self.complexity_bounds_ = chosen_from.complexity_bounds
        self.complexity_reduction_ = chosen_from.reduction
        return self


def _mean_loss(
    chosen_from: CoRegularisedClass, kernels: list[Any], Xs: list[Arr], Zs: list[Arr], y: Arr
) -> list[KernelExpansion]:
    M = len(Xs)
    m = len(Zs[0])
    K = chosen_from.gram / M**2
    K.flat[:: len(K) + 1] += len(y)
    c = cho_solve(
        cho_factor(K, lower=True, overwrite_a=True, check_finite=False), y, check_finite=False
    )
    coupled = chosen_from.solve((chosen_from.difference @ c)[:, None])[:, 0].reshape(M - 1, m)
    out = []
    for v, (kernel, X, Z, gamma) in enumerate(zip(kernels, Xs, Zs, chosen_from.ridge, strict=True)):
        of_Z = -chosen_from.coupling * (chosen_from.pairs[:, v] @ coupled)
        out.append(
            KernelExpansion(kernel, np.vstack([X, Z]), np.concatenate([c, of_Z]) / (M * gamma))
        )
    return out
