"""Strong baselines on the partitions of the study: what a site can do alone, and what others
propose for divided columns.

| name | predictor |
|---|---|
| six | the plain average of six learners on the site's own rows and columns, each as scikit-learn's
users fit it |
| cooperative | cooperative learning with the lasso (Ding, Li, Narasimhan, Tibshirani, PNAS 2022),
all pairs of views |
| assisted | gradient-assisted learning (Diao, Ding, Tarokh, NeurIPS 2022); its learner is the best
of five on nine sets |
| one holder | gradient boosting on all columns of the rows that one site labels, as in vertical
boosting (SecureBoost) |
| pooled trees, pooled boosting | extremely randomised trees, gradient boosting on all columns and
labelled rows |

Cooperative and assisted learning see the columns of all labelled rows, and all labels: both are
more than a federation opens.
"""

import itertools
import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar, nnls
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeCV, lasso_path
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.benefit.partition import Partition
from coreg_core.additive.features import LEAST_LABELS
from coreg_core.arrays import Arr, Ints
from coreg_sim.benefit.trial import pooled_rows

FOLDS = 5
AGREEMENT = (0.0, 0.1, 0.5, 1.0, 3.0)  # ρ of cooperative learning, chosen by cross-validation
ROUNDS = 10  # of assistance, as in the paper


def rivals(partition: Partition, seed: int) -> dict[str, Arr]:
    """Predictions of each method for the test rows of each site, of shape (M, t).

    Without labels: the federation's mean.
    """
    at = partition.test
    M = len(partition.columns)
    mean = float(np.concatenate(partition.labels).mean())
    X, rows, y = pooled_rows(partition)
    views = [columns[rows] for columns in partition.columns]
    tests = [columns[at] for columns in partition.columns]

    def each(fit: Callable[[int], Arr]) -> Arr:
        enough = [len(labels) >= LEAST_LABELS for labels in partition.labels]
        return np.array([fit(v) if enough[v] else np.full(len(at), mean) for v in range(M)])

    def own(v: int) -> tuple[Arr, Arr, Arr]:
        return partition.columns[v][partition.labelled[v]], partition.labels[v], tests[v]

    def everywhere(prediction: Arr) -> Arr:
        return np.tile(prediction, (M, 1))

    trees = ExtraTreesRegressor(random_state=seed).fit(X[rows], y)
    return {
        "six": each(lambda v: average_of_six(*own(v), seed)),
        "one holder": each(
            lambda v: (
                _boosting(partition.labelled[v], seed)
                .fit(X[partition.labelled[v]], partition.labels[v])
                .predict(X[at])
            )
        ),
        "cooperative": everywhere(cooperative(views, y, tests)),
        "assisted": everywhere(assisted(views, y, tests, seed)),
        "pooled trees": everywhere(trees.predict(X[at])),
        "pooled boosting": everywhere(_boosting(y, seed).fit(X[rows], y).predict(X[at])),
    }


def average_of_six(X: Arr, y: Arr, X_test: Arr, seed: int) -> Arr:
    """The mean prediction of ridge, kernel ridge, random forest, extremely randomised trees,
    boosting and neighbours.
    """
    grid = {
        "kernelridge__alpha": [1e-2, 1e-1, 1.0, 10.0],
        "kernelridge__gamma": [g / X.shape[1] for g in (0.05, 0.2, 0.5, 2.0)],
    }
    kernel = make_pipeline(StandardScaler(), KernelRidge(kernel="rbf"))
    learners = [
        make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2.0, 4.0, 13))),
        GridSearchCV(kernel, grid, cv=min(FOLDS, len(y)), scoring="neg_mean_squared_error"),
        RandomForestRegressor(random_state=seed),
        ExtraTreesRegressor(random_state=seed),
        _boosting(y, seed),
        make_pipeline(StandardScaler(), KNeighborsRegressor(min(5, len(y)), weights="distance")),
    ]
    centre = float(y.mean())  # kernel ridge has no intercept
    return np.asarray(
        centre
        + np.mean([learner.fit(X, y - centre).predict(X_test) for learner in learners], axis=0)
    )


def _boosting(rows: Arr | Ints, seed: int) -> HistGradientBoostingRegressor:
    """With the default of 20 rows a leaf, fewer than 40 labels give a constant."""
    return HistGradientBoostingRegressor(
        min_samples_leaf=max(2, min(20, len(rows) // 10)), random_state=seed
    )


def cooperative(views: list[Arr], y: Arr, tests: list[Arr]) -> Arr:
    r"""$\min \tfrac12\|y - \sum_v f_v\|^2 + \tfrac\rho2 \sum_{u<v} \|f_u - f_v\|^2 +
    \lambda\|\theta\|_1$, $f_v = X_v\theta_v$.

    Cross-validation chooses ρ and λ.
    """
    folds = list(KFold(min(FOLDS, len(y)), shuffle=True, random_state=0).split(y))
    found = []
    for rho in AGREEMENT:
        _, alphas, _ = _lasso(views, y, rho, None)
        errors = np.zeros(len(alphas))
        for fitted, left in folds:
            predict, _, _ = _lasso([X[fitted] for X in views], y[fitted], rho, alphas)
            errors += np.sum((y[left] - predict([X[left] for X in views])) ** 2, axis=1)
        best = int(np.argmin(errors))
        found.append((errors[best], rho, best))
    _, rho, best = min(found)
    return np.asarray(_lasso(views, y, rho, None)[0](tests)[best])


def _lasso(
    views: list[Arr], y: Arr, rho: float, alphas: Arr | None
) -> tuple[Callable[[list[Arr]], Arr], Arr, Arr]:
    """(predictions for each penalty, the penalties, coefficients) of the lasso on the augmented
    rows of the paper's eq. 7.
    """
    scalers = [StandardScaler().fit(X) for X in views]
    Z = [scaler.transform(X) for scaler, X in zip(scalers, views, strict=True)]
    blocks = [np.concatenate(Z, axis=1)]
    if rho:
        for u, v in itertools.combinations(range(len(Z)), 2):
            signs = [-1.0 if w == u else 1.0 if w == v else 0.0 for w in range(len(Z))]
            blocks.append(
                np.sqrt(rho)
                * np.concatenate([sign * X for sign, X in zip(signs, Z, strict=True)], axis=1)
            )
    A = np.concatenate(blocks)
    centre = float(y.mean())
    target = np.concatenate([y - centre, np.zeros(len(A) - len(y))])
    grid = 30 if alphas is None else alphas * len(y) / len(A)
    with warnings.catch_warnings():  # the end of the path, which cross-validation does not choose
        warnings.simplefilter("ignore", ConvergenceWarning)
        penalties, coef, _ = lasso_path(
            A, target, precompute=True, alphas=grid, max_iter=5000, tol=1e-3
        )

    def predict(rows: list[Arr]) -> Arr:
        return np.asarray(
            centre
            + (
                np.concatenate([s.transform(X) for s, X in zip(scalers, rows, strict=True)], axis=1)
                @ coef
            ).T
        )

    return predict, np.asarray(penalties * len(A) / len(y)), coef


def assisted(views: list[Arr], y: Arr, tests: list[Arr], seed: int) -> Arr:
    """Every round all sites fit the residual; their weights are on the simplex, and the rate is by
    line search.
    """
    fitted = np.full(len(y), y.mean())
    predicted = np.full(len(tests[0]), y.mean())
    stacked = [np.concatenate(rows) for rows in zip(views, tests, strict=True)]
    for _ in range(ROUNDS):
        residual = y - fitted
        spread = float(residual.std())
        if spread == 0.0:
            break
        models = [
            ExtraTreesRegressor(min_samples_leaf=5, random_state=seed).fit(X, residual / spread)
            for X in views
        ]
        each = [model.predict(rows) for model, rows in zip(models, stacked, strict=True)]
        inside, outside = np.split(spread * np.column_stack(each), [len(y)])
        heavy = 1e3 * float(
            np.abs(inside).max() + spread
        )  # a row that holds the sum of the weights at 1
        weights, _ = nnls(
            np.vstack([inside, np.full(len(views), heavy)]), np.append(residual, heavy)
        )
        step = inside @ weights
        rate = float(
            minimize_scalar(
                lambda eta, step=step, r=residual: float(np.sum((r - eta * step) ** 2))
            ).x
        )
        fitted = fitted + rate * step
        predicted = predicted + rate * (outside @ weights)
    return predicted
