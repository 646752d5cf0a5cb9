"""The baseline of every table: scikit-learn's kernel ridge, with width and ridge by cross-validation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from coreg_core.numerics.arrays import Arr

WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Of γ in exp(−γ‖x−x'‖²), times the inverse median squared distance of the standardised labelled rows."""
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)


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


def kernel_ridge(X: Arr, y: Arr, *, seed: int, folds: int = 5) -> Fitted:
    """Standardised inputs, centred target, and the best of 16 pairs of width and ridge on the labelled rows.

    The choice is that of GridSearchCV: the least squared error over the folds. KernelRidge fits the ridges of one width
    together, one for each copy of the target, which is many times faster on small tables.
    """
    scaler = StandardScaler().fit(X)
    scaled, centre = scaler.transform(X), float(y.mean())
    between: Any = pdist(scaled[:1000], "sqeuclidean") if len(X) > 1 else np.ones(1)
    median = float(np.median(between)) or 1.0
    targets = np.repeat((y - centre)[:, None], len(RIDGES), axis=1)
    splits = list(KFold(min(folds, len(X)), shuffle=True, random_state=seed).split(scaled))
    best = (np.inf, WIDTHS[0], RIDGES[0])
    for width in WIDTHS:
        squares = np.zeros(len(RIDGES))
        for inside, outside in splits:
            model = KernelRidge(kernel="rbf", gamma=width / median, alpha=RIDGES).fit(scaled[inside], targets[inside])
            squares += ((model.predict(scaled[outside]) - targets[outside]) ** 2).sum(axis=0)
        chosen = int(squares.argmin())
        best = min(best, (float(squares[chosen]), width, RIDGES[chosen]))
    _, width, ridge = best
    return Fitted(scaler, KernelRidge(kernel="rbf", gamma=width / median, alpha=ridge).fit(scaled, y - centre), centre)
