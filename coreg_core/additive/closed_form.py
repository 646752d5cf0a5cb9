r"""The dense solution of the additive objective, and J itself: the reference for messages. Needs every site's arrays.

    J(w, a) = Σ_v r_vᵀ N_v⁻¹ r_v + Σ_v τ_v⁻² ‖w_v‖² + a²/c,   r_v = y_v − a − Ψ_v w_v − S_v s,   s = Σ_v Z_v w_v
    K α = y,   K = diag N_v + c 11ᵀ + Σ_u τ_u² B_u B_uᵀ,   w_u = τ_u² B_uᵀ α,   a = c 1ᵀα,   N_v = σ_v²I + κ11ᵀ

With weighted rows 1 is √ω (`AdditiveView.level`).

B_u holds the rows Φ_u (its own) and S_v Z_u (the others'), with Ψ_v w_v + S_v s = Φ_v w_v + Σ_{u≠v} S_v Z_u w_u. Source:
design, 7.1 and 7.2. O(N³), N all labels; for tests, estimators and benchmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import block_diag, cho_factor, cho_solve

from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True, eq=False)
class Dense:
    """Every site's w, the intercept a, and α over all labelled rows in site order."""

    w: list[Arr]
    intercept: float
    alpha: Float64[Arr, " N"]


def blocks(views: Sequence[AdditiveView]) -> list[Arr]:
    """B_u (N, d_u), one a site."""
    return [
        np.concatenate([view.labelled if v == u else view.coupling.forward(own.shared) for v, view in enumerate(views)])
        for u, own in enumerate(views)
    ]


def noise_of(views: Sequence[AdditiveView], hypers: Sequence[Hyper]) -> Float64[Arr, "N N"]:
    """diag N_v."""
    return block_diag(
        *(
            np.eye(v.n_labelled) * h.noise + v.random_intercept * np.outer(v.level, v.level)
            for v, h in zip(views, hypers, strict=True)
        )
    )


def covariance(
    views: Sequence[AdditiveView], hypers: Sequence[Hyper], intercept_prior: float = 1.0
) -> Float64[Arr, "N N"]:
    """K, the covariance of all labels under the model."""
    level = np.concatenate([v.level for v in views])
    K = noise_of(views, hypers) + intercept_prior * np.outer(level, level)
    for B, hyper in zip(blocks(views), hypers, strict=True):
        K += hyper.prior * (B @ B.T)
    return K


def solve_dense(views: Sequence[AdditiveView], hypers: Sequence[Hyper], intercept_prior: float = 1.0) -> Dense:
    """The minimiser of J by one Cholesky factor of K."""
    y = np.concatenate([v.y for v in views])
    factor = cho_factor(covariance(views, hypers, intercept_prior), lower=True, check_finite=False)
    alpha: Arr = cho_solve(factor, y, check_finite=False)
    w = [h.prior * (B.T @ alpha) for B, h in zip(blocks(views), hypers, strict=True)]
    return Dense(w, intercept_prior * float(np.concatenate([v.level for v in views]) @ alpha), alpha)


def objective(
    views: Sequence[AdditiveView],
    hypers: Sequence[Hyper],
    w: Sequence[Arr],
    intercept: float,
    intercept_prior: float = 1.0,
) -> float:
    """J(w, a)."""
    s = np.sum([v.shared @ part for v, part in zip(views, w, strict=True)], axis=0)
    total = intercept**2 / intercept_prior
    for view, hyper, part in zip(views, hypers, w, strict=True):
        residual = view.y - intercept * view.level - view.psi @ part - view.coupling.forward(s[:, None])[:, 0]
        if len(residual):
            total += float(residual @ np.linalg.solve(noise_of([view], [hyper]), residual))
        total += float(part @ part) / hyper.prior
    return total
