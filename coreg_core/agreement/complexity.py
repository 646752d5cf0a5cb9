r"""The Rademacher complexity of the co-regularised class, and its reduction by co-regularisation.

    H = { (f_v) :  Σ_v γ_v ‖f_v‖² + λ Σ_{u<v} ‖f_u(Z) − f_v(Z)‖² ≤ 1 },     J = { (1/M) Σ_v f_v : (f_v) ∈ H }

Rosenberg and Bartlett (2007) have two views; this is theirs for M = 2, and the same argument for any M (ours): the
pairs' sum is the quadratic form of the complete graph's Laplacian, M·I − 11ᵀ = DᵀD with an (M−1) x M matrix D, D = (1,
−1) for M = 2. With

    𝓜 = Σ_v γ_v⁻¹ (d_v d_vᵀ) ⊗ K_v(Z, Z)        J(x) = Σ_v γ_v⁻¹ d_v ⊗ k_v(Z, x)        d_v the v-th column of D

the Sherman-Morrison-Woodbury formula gives the class's own kernel (M² times that of its mean function),

    S(x, x') = Σ_v γ_v⁻¹ k_v(x, x') − λ J(x)ᵀ (I + λ𝓜)⁻¹ J(x'),

and U² = tr S(X, X). I + λ𝓜 is positive definite for any rows, repeated ones included. Its Cholesky factor needs
no jitter until λ‖𝓜‖ nears 1/eps; there rounding outweighs I, and the code refuses. Cost O((M−1)³ m³).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular

from coreg_core.errors import SingularSystem
from coreg_core.kernels.functions import Kernel
from coreg_core.numerics.arrays import Arr


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
    """H and J at one coupling λ ≥ 0, with γ_v > 0 for each view; SingularSystem where rounding outweighs the identity."""

    def __init__(self, views: Sequence[KernelBlocks], ridge: Sequence[float], coupling: float):
        self.views, self.ridge, self.coupling = list(views), [float(g) for g in ridge], float(coupling)

    @cached_property
    def pairs(self) -> Float64[Arr, "q M"]:
        """D, (M−1, M): DᵀD = M·I − 11ᵀ; (1, −1) for two views."""
        M = len(self.views)
        # Helmert's rows: each view against the mean of those before it. For M = 2 this is (1, −1).
        D = np.zeros((M - 1, M))
        for q in range(1, M):
            D[q - 1, :q], D[q - 1, q] = 1.0, -float(q)
            D[q - 1] *= np.sqrt(M / (q * (q + 1.0)))
        return D

    @cached_property
    def difference(self) -> Float64[Arr, "qm l"]:
        """J(X), ((M−1)m, l)."""
        blocks = [
            sum(d * v.cross / g for d, v, g in zip(row, self.views, self.ridge, strict=True)) for row in self.pairs
        ]
        return np.vstack(blocks) if blocks else np.zeros((0, self.views[0].labelled.shape[0]))

    @cached_property
    def _gram(self) -> Arr:
        D, m = self.pairs, len(self.views[0].unlabelled)
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
                f"coupling={self.coupling:g} with ridge={self.ridge}: I + λ𝓜 is singular in floating point (rows repeat, and "
                "λ/γ is near 1e16). Lower the coupling."
            ) from None

    def solve(self, right: Float64[Arr, "qm k"]) -> Float64[Arr, "qm k"]:
        """(I + λ𝓜)⁻¹ right."""
        return cho_solve(self._factor, right, check_finite=False) if len(right) else right

    @cached_property
    def gram(self) -> Float64[Arr, "l l"]:
        """S(X, X) = Σ_v γ_v⁻¹ K_v(X, X) − λ Jᵀ (I + λ𝓜)⁻¹ J."""
        plain: Arr = sum((v.labelled / g for v, g in zip(self.views, self.ridge, strict=True)), start=np.zeros(()))
        if self.coupling == 0.0 or not len(self.difference):
            return plain
        return plain - self.coupling * (self._half.T @ self._half)

    @cached_property
    def _half(self) -> Arr:
        """L⁻¹ J, where I + λ𝓜 = L Lᵀ."""
        return solve_triangular(self._factor[0], self.difference, lower=True, check_finite=False)

    @cached_property
    def reduction_by_row(self) -> Float64[Arr, " l"]:
        r"""$\lambda\,\|J_{\cdot i}\|^2$ in the norm of $(I+\lambda\mathcal M)^{-1}$, a labelled row each.

        It is the distance between the views' representations of the row.

        Source: Rosenberg and Bartlett (2007), section 4.2.
        """
        if self.coupling == 0.0 or not len(self.difference):
            return np.zeros(self.views[0].labelled.shape[0])
        found: Arr = self.coupling * np.einsum("ij,ij->j", self._half, self._half)
        return found

    @property
    def reduction(self) -> float:
        r"""$\Delta(\lambda) = \lambda\,\mathrm{tr}(J^\top(I+\lambda\mathcal M)^{-1}J)$: 0 at λ = 0, nondecreasing, bounded.

        Source: Rosenberg and Bartlett (2007), Theorem 3, section 4.1.
        """
        return float(self.reduction_by_row.sum())

    @property
    def scale(self) -> float:
        r"""$U = \sqrt{\mathrm{tr}\,S(X, X)}$, $U^2 = \sum_v \gamma_v^{-1}\mathrm{tr}\,K_v(X,X) - \Delta(\lambda)$."""
        plain = sum(float(np.trace(v.labelled)) / g for v, g in zip(self.views, self.ridge, strict=True))
        return float(np.sqrt(max(0.0, plain - self.reduction)))

    @property
    def complexity_bounds(self) -> tuple[float, float]:
        r"""$\frac{1}{\sqrt2}\frac{2U}{M\ell} \le \hat R_\ell(\mathcal J) \le \frac{2U}{M\ell}$; 2/M is 1 for two views.

        $\hat R_\ell(\mathcal J) = \frac{2}{M\ell} E\|T^{-1/2}W^\top\sigma\|$ with $WT^{-1}W^\top = S(X, X)$; the upper end is
        Jensen's inequality, the lower Kahane's and Khintchine's with the constant ½ on squares (Latała and Oleszkiewicz,
        1994; Lemma 2 as printed in our text has 1/√2 there, which its own use in Theorem 3 contradicts).

        Source: Rosenberg and Bartlett (2007), Theorem 3.
        """
        upper = 2.0 * self.scale / (len(self.views) * len(self.views[0].labelled))
        return upper / np.sqrt(2.0), upper
