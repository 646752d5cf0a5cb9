"""What a practitioner would use on the labelled rows alone: four regressors of scikit-learn, beside
every method.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coreg_core.arrays import Arr

WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Of γ in exp(−γ‖x−x'‖²), times the inverse median squared distance of the standardised labelled
rows.
"""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
LINEAR_RIDGES = tuple(10.0**power for power in range(-3, 4))


@dataclass(frozen=True, eq=False)
class Fitted:
    """Predicts in the target's own units; for two classes of −1 and 1, the sign is the class."""

    scaler: StandardScaler
    model: KernelRidge
    centre: float

    def predict(self, X: Arr) -> Arr:
        """X (n, d) as it was fitted, not scaled; (n,)."""
        out: Arr = self.model.predict(self.scaler.transform(X)) + self.centre
        return out


def kernel_ridge(X: Arr, y: Arr, *, seed: int = 0, folds: int = 5) -> Fitted:
    """Standardised inputs, centred target, and the best of 16 pairs of width and ridge on the
    labelled rows.

    The choice is that of GridSearchCV: the least squared error over the folds. KernelRidge fits the
    ridges of one width together, one for each copy of the target, which is many times faster on
    small tables.
    """
    scaler = StandardScaler().fit(X)
    scaled = scaler.transform(X)
    centre = float(y.mean())
    between: Any = pdist(scaled[:1000], "sqeuclidean") if len(X) > 1 else np.ones(1)
    median = float(np.median(between)) or 1.0
    targets = np.repeat((y - centre)[:, None], len(RIDGES), axis=1)
    splits = list(KFold(min(folds, len(X)), shuffle=True, random_state=seed).split(scaled))
    best = (np.inf, WIDTHS[0], RIDGES[0])
    for width in WIDTHS:
        squares = np.zeros(len(RIDGES))
        for inside, outside in splits:
            model = KernelRidge(kernel="rbf", gamma=width / median, alpha=RIDGES).fit(
                scaled[inside], targets[inside]
            )
            squares += ((model.predict(scaled[outside]) - targets[outside]) ** 2).sum(axis=0)
        chosen = int(squares.argmin())
        best = min(best, (float(squares[chosen]), width, RIDGES[chosen]))
    _, width, ridge = best
    return Fitted(
        scaler,
        KernelRidge(kernel="rbf", gamma=width / median, alpha=ridge).fit(scaled, y - centre),
        centre,
    )


def _linear_ridge(X: Arr, y: Arr) -> Any:
    return make_pipeline(StandardScaler(), RidgeCV(alphas=LINEAR_RIDGES)).fit(X, y)


def _gaussian_process(X: Arr, y: Arr) -> Any:
    """One width, one noise level and one scale, by the marginal likelihood."""
    kernel = ConstantKernel() * RBF(np.sqrt(X.shape[1])) + WhiteKernel(0.1)
    model = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))
    with (
        warnings.catch_warnings()
    ):  # a parameter at the end of its range, which small samples often have
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def _extra_trees(X: Arr, y: Arr) -> Any:
    return ExtraTreesRegressor(random_state=0).fit(X, y)


PEERS: dict[str, Callable[[Arr, Arr], Any]] = {
    "kernel ridge": kernel_ridge, "RidgeCV": _linear_ridge, "Gaussian process": _gaussian_process,
    "ExtraTrees": _extra_trees,
}  # fmt: skip
"""Functions of X (n, d) and y (n,), for at least two labelled rows; each returns a model with
`predict`.
"""
