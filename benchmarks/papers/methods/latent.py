r"""Latent rows that explain predictors and target: SNF, and the linear factorisation that it is
compared with.
"""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from benchmarks.papers.methods.inputs import COUNT_OR_0, labelled_first
from benchmarks.papers.methods.kernel_ridge import Polynomial, dual_with_bias
from coreg_core.arrays import Arr
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.estimators.parameters import COUNT, NOT_NEGATIVE, POSITIVE, fit_context
from coreg_core.estimators.tables import own_table
from coreg_core.estimators.targets import Regressor

HALVINGS = 40  # of a step; 2^-40 of it is rounding


class Losses(NamedTuple):
    """The two reconstructions' objectives at their best weights, and their gradients with respect
    to Z.
    """

    predictors: float
    target: float
    of_predictors: Arr
    of_target: Arr


class SNF(Regressor):
    r"""$\|X - \hat X\|^2 + \lambda_V\|V\|^2 + \|y - \hat y\|^2 + \lambda_W\|W\|^2 +
    \lambda_Z\|Z\|^2$, over Z and all weights.

    $\hat X = \psi(Z)V + 1v_0^\top$ on all rows and $\hat y = \psi(Z_L)W + w_0$ on the labelled, ψ
    of the polynomial kernel $(\langle z, z'\rangle + 1)^p$. For a given Z the weights have closed
    dual forms (K + λI and a bias); by the envelope theorem

    $\nabla_Z = -2\lambda_V p\,(\alpha\alpha^\top \circ K_{p-1}) Z$  and  $-2\lambda_W
    p\,(\omega\omega^\top \circ K_{p-1}) Z_L$,

    which is equation 13 with the factor λ that it drops. A step goes against
    $\eta_X\nabla(\text{predictors}) + \eta_Y\nabla(\text{target})$ and the ridge, all pairs at once
    where the paper takes them one by one; it is halved until the objective, with its parts weighted
    as in the step, falls, so that no learning rate diverges (a large η_X with a small λ_V does in
    the paper's form). Only the start is random.

    Source: Grabocka, Bedalli, Schmidt-Thieme (2014), equations 5 to 13, Algorithm 1. The latent of
    a new row (ours: the paper is transductive) is a ridge regression of Z on X, scaled to mean
    square norm 1, in the kernel of the same degree; it is only as good as that regression, so for
    the unlabelled rows of the fit use `predictions_unlabelled_`.

    Parameters
    ----------
    n_latent
        D, columns of Z; None: three quarters of the features, at least 1.
    degree
        p of the kernel.
    ridge_predictors
        λ_V > 0.
    ridge_target
        λ_W > 0.
    ridge_latent
        λ_Z ≥ 0.
    eta_predictors
        η_X ≥ 0.
    eta_target
        η_Y ≥ 0; 0 is the unsupervised ablation: Z never sees a target.
    n_epochs
        most steps; 0 keeps the start.
    tolerance
        stop when the weighted objective falls by less than this share of itself.
    start
        "pca" (the principal components' scores) or "random", as in the paper.
    ridge_new_rows
        > 0, of the regression that gives new rows their latent.
    random_state
        of the random start.

    Attributes
    ----------
    latent_
        Z, the labelled rows first. predictions_unlabelled_: (m,).
    objective_
        the weighted objective before each step and at the end.
    dual_predictors_, bias_predictors_
        α (N, d) and v₀. dual_target_, bias_target_: ω (n,) and w₀.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> y = np.where(np.arange(60) < 20, X[:, 0], np.nan)
    >>> SNF(n_latent=2, n_epochs=5, random_state=0).fit(X, y).predictions_unlabelled_.shape
    (40,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_latent": [COUNT, None], "degree": [COUNT], "ridge_predictors": [POSITIVE],
        "ridge_target": [POSITIVE],
        "ridge_latent": [NOT_NEGATIVE], "eta_predictors": [NOT_NEGATIVE],
        "eta_target": [NOT_NEGATIVE],
        "n_epochs": [COUNT_OR_0], "tolerance": [NOT_NEGATIVE],
        "start": [StrOptions({"pca", "random"})],
        "ridge_new_rows": [POSITIVE], "random_state": ["random_state"],
    }  # fmt: skip

    def __init__(
        self,
        *,
        n_latent: int | None = None,
        degree: int = 2,
        ridge_predictors: float = 0.1,
        ridge_target: float = 0.1,
        ridge_latent: float = 1e-3,
        eta_predictors: float = 1e-3,
        eta_target: float = 1e-2,
        n_epochs: int = 200,
        tolerance: float = 1e-6,
        start: str = "pca",
        ridge_new_rows: float = 1e-3,
        random_state: Any = None,
    ):
        self.n_latent = n_latent
        self.degree = degree
        self.ridge_predictors = ridge_predictors
        self.ridge_target = ridge_target
        self.ridge_latent = ridge_latent
        self.eta_predictors = eta_predictors
        self.eta_target = eta_target
        self.n_epochs = n_epochs
        self.tolerance = tolerance
        self.start = start
        self.ridge_new_rows = ridge_new_rows
        self.random_state = random_state

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows. Scale X, for example to [−1, 1]."""
        X, y, more = labelled_first(self, X, y)
        rows = np.concatenate([X, more])
        Z = self._first(rows)
        try:
            losses = self._losses(Z, rows, y)
        except SingularSystem:
            raise UsageError(
                f"ridge_predictors={self.ridge_predictors}, ridge_target={self.ridge_target}: below"
                f" the rounding of a kernel of degree={self.degree} here; raise them, or lower the"
                " degree."
            ) from None
        # A step of η_X and η_Y on the two losses minimises them weighted so; the ridge goes with
        # both.
        wx = float(self.eta_predictors)
        wy = float(self.eta_target)
        value = self._weighted(losses, Z, wx, wy)
        step = 1.0
        self.objective_ = []
        for _ in range(self.n_epochs if wx + wy > 0 else 0):
            self.objective_.append(value)
            direction = wx * losses.of_predictors + 2 * (wx + wy) * self.ridge_latent * Z
            direction[: len(y)] += wy * losses.of_target
            step = min(1.0, 2.0 * step)
            for _ in range(HALVINGS):
                moved = Z - step * direction
                after = losses
                try:
                    with np.errstate(over="ignore", invalid="ignore"):
                        after = self._losses(moved, rows, y)
                        lower = self._weighted(after, moved, wx, wy)
                except SingularSystem:  # the step is too long: λ is below K's rounding
                    lower = np.inf
                if lower < value:
                    break
                step *= 0.5
            else:
                break  # no step along the gradient lowers it: rounding
            fell = value - lower
            Z = moved
            losses = after
            value = lower
            if fell <= self.tolerance * abs(value):
                break
        self.objective_.append(value)
        return self._finish(Z, rows, y)

    def _first(self, rows: Arr) -> Arr:
        D = latent_dimension(self.n_latent, rows.shape[1])
        if self.start == "pca":
            return principal_scores(rows, D)
        return np.asarray(
            check_random_state(self.random_state).normal(
                scale=1.0 / np.sqrt(D), size=(len(rows), D)
            )
        )

    def _losses(self, Z: Arr, rows: Arr, y: Arr) -> Losses:
        of_predictors = _best(Z, rows, self.degree, float(self.ridge_predictors))
        of_target = _best(Z[: len(y)], y[:, None], self.degree, float(self.ridge_target))
        return Losses(of_predictors[0], of_target[0], of_predictors[1], of_target[1])

    def _weighted(self, losses: Losses, Z: Arr, wx: float, wy: float) -> float:
        ridge = (wx + wy) * self.ridge_latent * float(np.einsum("ij,ij->", Z, Z))
        return wx * losses.predictors + wy * losses.target + ridge

    def _finish(self, Z: Arr, rows: Arr, y: Arr) -> Self:
        kernel = Polynomial(self.degree)
        n = len(y)
        alpha, self.bias_predictors_ = dual_with_bias(
            kernel(Z, Z), rows, float(self.ridge_predictors)
        )
        omega, bias = dual_with_bias(kernel(Z[:n], Z[:n]), y[:, None], float(self.ridge_target))
        self.latent_ = Z
        self.dual_predictors_ = alpha
        self.dual_target_ = omega[:, 0]
        self.bias_target_ = float(bias[0])
        self.predictions_unlabelled_ = self._from_latent(Z[n:])
        # Rows that are new get their latent from a regression of Z on X, in the kernel of the same
        # degree.
        self._rows = rows
        self._scale = float(np.sqrt(np.mean(np.einsum("ij,ij->i", rows, rows)))) or 1.0
        scaled = rows / self._scale
        self._to_latent = dual_with_bias(kernel(scaled, scaled), Z, float(self.ridge_new_rows))
        return self

    def _from_latent(self, Z: Arr) -> Arr:
        kernel = Polynomial(self.degree)
        n = len(self.dual_target_)
        out: Arr = kernel(Z, self.latent_[:n]) @ self.dual_target_ + self.bias_target_
        return out

    def predict(self, X: Any) -> Any:
        """ŷ of any rows, through the latent rows of the regression, (n,)."""
        X = own_table(self, X)
        alpha, bias = self._to_latent
        Z = Polynomial(self.degree)(X / self._scale, self._rows / self._scale) @ alpha + bias
        return self._from_latent(Z)


def _best(Z: Arr, targets: Arr, degree: int, ridge: float) -> tuple[float, Arr]:
    r"""$\min_{V,b}\|T - \psi(Z)V - 1b^\top\|^2 + \lambda\|V\|^2 = \lambda\,\mathrm{tr}\,\alpha^\top
    T$, and its gradient in Z.

    At the optimum the residual is λα and V = ψᵀα, so the value is λ²‖α‖² + λ tr αᵀKα = λ tr αᵀ(T −
    1bᵀ) = λ tr αᵀT.
    """
    if degree == 1:  # ψ(z) = (z, 1), and V has D rows
        V, bias = _ridge_with_bias(Z, targets, ridge)
        residual = targets - bias - Z @ V.T
        return float(np.einsum("ij,ij->", residual, targets)), -2.0 * residual @ V
    inner = Z @ Z.T
    inner += 1.0
    lower = inner ** (degree - 1)
    alpha, _ = dual_with_bias(lower * inner, targets, ridge)
    value = ridge * float(np.einsum("ij,ij->", alpha, targets))
    return value, (-2.0 * ridge * degree) * ((alpha @ alpha.T) * lower) @ Z


def latent_dimension(n_latent: int | None, d: int) -> int:
    """The columns of Z."""
    return max(1, round(0.75 * d)) if n_latent is None else n_latent


def principal_scores(rows: Arr, count: int) -> Arr:
    """The first principal components' scores, scaled to mean square 1 together; zeros where there
    are no more.
    """
    U, s, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    out = np.zeros((len(rows), count))
    used = min(count, len(s))
    out[:, :used] = U[:, :used] * s[:used]
    size = float(np.sqrt((out**2).sum() / len(rows)))
    return out / size if size > 0 else out


class LinearLatentReconstruction(Regressor):
    r"""$\|X - 1v_0^\top - ZV^\top\|^2 + \tau\|y - w_0 - Z_L w\|^2 + \lambda_V\|V\|^2 +
    \lambda_W\|w\|^2 + \lambda_Z\|Z\|^2$.

    X has all rows, labelled or not, and Z their latent ones; the target sees the labelled. Each
    step minimises over Z, or over (V, v₀) and (w, w₀), exactly: the objective falls in every step.
    It starts at the principal components, without randomness. A new row's latent is the ridge
    solution that reconstructs it.

    Source: Menon and Elkan (2010), as cited by Grabocka et al. (2014): the linear case of `SNF`, by
    alternating least squares.

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
        Z, the labelled rows first. predictions_unlabelled_: (m,). objective_: after each
        alternation.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> y = np.where(np.arange(100) < 20, X[:, 0], np.nan)
    >>> LinearLatentReconstruction(n_latent=2).fit(X, y).predictions_unlabelled_.shape
    (80,)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_latent": [COUNT, None], "target_weight": [NOT_NEGATIVE], "ridge_predictors": [POSITIVE],
        "ridge_target": [POSITIVE], "ridge_latent": [POSITIVE], "n_epochs": [COUNT],
        "tolerance": [NOT_NEGATIVE],
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
        self.n_latent = n_latent
        self.target_weight = target_weight
        self.ridge_predictors = ridge_predictors
        self.ridge_target = ridge_target
        self.ridge_latent = ridge_latent
        self.n_epochs = n_epochs
        self.tolerance = tolerance

    @fit_context
    def fit(self, X: Any, y: Any) -> Self:
        """X (N, d), y (N,), NaN on unlabelled rows."""
        X, y, more = labelled_first(self, X, y)
        rows = np.concatenate([X, more])
        Z = principal_scores(rows, latent_dimension(self.n_latent, rows.shape[1]))
        tau = float(self.target_weight)
        n = len(y)
        self.objective_ = []
        V, v0 = _ridge_with_bias(Z, rows, float(self.ridge_predictors))
        for _ in range(self.n_epochs):
            w, w0 = _ridge_with_bias(
                Z[:n], y[:, None], float(self.ridge_target) / tau if tau > 0 else self.ridge_target
            )
            H = V.T @ V + self.ridge_latent * np.eye(V.shape[1])
            Z = np.asarray(np.linalg.solve(H, V.T @ (rows - v0).T).T, dtype=np.float64)
            if tau > 0:
                of_labelled = H + tau * np.outer(w[0], w[0])
                Z[:n] = np.linalg.solve(
                    of_labelled, V.T @ (X - v0).T + tau * np.outer(w[0], y - w0[0])
                ).T
            V, v0 = _ridge_with_bias(Z, rows, float(self.ridge_predictors))
            self.objective_.append(self._objective(rows, y, Z, V, v0, w, w0))
            last = self.objective_[-2:]
            if len(last) == 2 and last[0] - last[1] <= self.tolerance * last[0]:
                break
        self.latent_ = Z
        self._V = V
        self._v0 = v0
        self._w, self._w0 = _ridge_with_bias(
            Z[:n], y[:, None], float(self.ridge_target) / (tau or 1.0)
        )
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
    mean_Z = Z.mean(axis=0)
    mean = targets.mean(axis=0)
    centred = Z - mean_Z
    H = centred.T @ centred + ridge * np.eye(Z.shape[1])
    V: Arr = np.linalg.solve(H, centred.T @ (targets - mean)).T
    return V, mean - V @ mean_Z
