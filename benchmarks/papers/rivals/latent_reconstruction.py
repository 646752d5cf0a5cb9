r"""Linear latent reconstructions: a factorisation that reconstructs predictors and target together."""

from typing import Any, ClassVar, Self

import numpy as np

from coreg_core.estimators._scores import Regressor
from coreg_core.estimators._tables import COUNT, NOT_NEGATIVE, POSITIVE, fit_context, labelled_first, own_table
from coreg_core.estimators.snf import latent_dimension, principal_scores
from coreg_core.numerics.arrays import Arr


class LinearLatentReconstruction(Regressor):
    r"""$\|X - 1v_0^\top - ZV^\top\|^2 + \tau\|y - w_0 - Z_L w\|^2 + \lambda_V\|V\|^2 + \lambda_W\|w\|^2 + \lambda_Z\|Z\|^2$.

    X has all rows, labelled or not, and Z their latent ones; the target sees the labelled. Each step minimises over Z, or over
    (V, v₀) and (w, w₀), exactly: the objective falls in every step. It starts at the principal components, without randomness.
    A new row's latent is the ridge solution that reconstructs it.

    Source: Menon and Elkan (2010), as cited by Grabocka et al. (2014): the linear case of `SNF`, by alternating least squares.

    Parameters
    ----------
    n_latent
        columns of Z; None: three quarters of the features, at least 1.
    target_weight
        τ ≥ 0; 0 ignores the target while Z is found.
    ridge_predictors
        λ_V > 0.
    ridge_target
        λ_W > 0.
    ridge_latent
        λ_Z > 0.
    n_epochs
        most alternations.
    tolerance
        stop when the objective falls by less than this share of itself.

    Attributes
    ----------
    latent_
        Z, the labelled rows first. predictions_unlabelled_: (m,). objective_: after each alternation.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> y = np.where(np.arange(100) < 20, X[:, 0], np.nan)
    >>> LinearLatentReconstruction(n_latent=2).fit(X, y).predictions_unlabelled_.shape
    (80,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_latent": [COUNT, None], "target_weight": [NOT_NEGATIVE], "ridge_predictors": [POSITIVE],
        "ridge_target": [POSITIVE], "ridge_latent": [POSITIVE], "n_epochs": [COUNT], "tolerance": [NOT_NEGATIVE],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_latent: int | None = None,
        target_weight: float = 1.0,
        ridge_predictors: float = 0.1,
        ridge_target: float = 0.1,
        ridge_latent: float = 0.1,
        n_epochs: int = 200,
        tolerance: float = 1e-6,
    ):
        self.n_latent, self.target_weight = n_latent, target_weight
        self.ridge_predictors, self.ridge_target, self.ridge_latent = ridge_predictors, ridge_target, ridge_latent
        self.n_epochs, self.tolerance = n_epochs, tolerance

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y)
        rows = np.concatenate([X, more])
        Z = principal_scores(rows, latent_dimension(self.n_latent, rows.shape[1]))
        tau, n, self.objective_ = float(self.target_weight), len(y), []
        V, v0 = _ridge_with_bias(Z, rows, float(self.ridge_predictors))
        for _ in range(self.n_epochs):
            w, w0 = _ridge_with_bias(
                Z[:n], y[:, None], float(self.ridge_target) / tau if tau > 0 else self.ridge_target
            )
            H = V.T @ V + self.ridge_latent * np.eye(V.shape[1])
            Z = np.asarray(np.linalg.solve(H, V.T @ (rows - v0).T).T, dtype=np.float64)
            if tau > 0:
                of_labelled = H + tau * np.outer(w[0], w[0])
                Z[:n] = np.linalg.solve(of_labelled, V.T @ (X - v0).T + tau * np.outer(w[0], y - w0[0])).T
            V, v0 = _ridge_with_bias(Z, rows, float(self.ridge_predictors))
            self.objective_.append(self._objective(rows, y, Z, V, v0, w, w0))
            last = self.objective_[-2:]
            if len(last) == 2 and last[0] - last[1] <= self.tolerance * last[0]:
                break
        self.latent_, self._V, self._v0 = Z, V, v0
        self._w, self._w0 = _ridge_with_bias(Z[:n], y[:, None], float(self.ridge_target) / (tau or 1.0))
        self.predictions_unlabelled_ = Z[n:] @ self._w[0] + self._w0[0]
        return self

    def _objective(self, rows: Arr, y: Arr, Z: Arr, V: Arr, v0: Arr, w: Arr, w0: Arr) -> float:
        fit = float(((rows - v0 - Z @ V.T) ** 2).sum())
        fit += self.target_weight * float(((y - w0[0] - Z[: len(y)] @ w[0]) ** 2).sum())
        penalties = self.ridge_predictors * (V**2).sum() + self.ridge_target * (w**2).sum()
        return float(fit + penalties + self.ridge_latent * (Z**2).sum())

    def predict(self, X: Any) -> Any:
        """w₀ + z(X) w, (n,)."""
        X = own_table(self, X)
        H = self._V.T @ self._V + self.ridge_latent * np.eye(self._V.shape[1])
        return np.linalg.solve(H, self._V.T @ (X - self._v0).T).T @ self._w[0] + self._w0[0]


def _ridge_with_bias(Z: Arr, targets: Arr, ridge: float) -> tuple[Arr, Arr]:
    """min ‖targets − 1b − Z Vᵀ‖² + λ‖V‖²: V (k, D) and b (k,)."""
    mean_Z, mean = Z.mean(axis=0), targets.mean(axis=0)
    centred = Z - mean_Z
    H = centred.T @ centred + ridge * np.eye(Z.shape[1])
    V: Arr = np.linalg.solve(H, centred.T @ (targets - mean)).T
    return V, mean - V @ mean_Z
