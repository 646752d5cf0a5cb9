"""Fits of the estimators against the same formulas in plain numpy, and against scikit-learn's
kernel ridge regression.

    python benchmarks/fits.py [--quick] [--write]      --write saves the figures in
    benchmarks/results/performance.json, for
    docs/research/performance.md

Seconds are of CPU time on one thread: the least of several repetitions of both sides, in turn, in
one process. The data are scikit-learn's make_friedman1, whose ten columns are three views.
"""

import sys
import time
from collections.abc import Callable

import harness
from harness import PERFORMANCE, arguments, keep, show  # before numpy

# isort: split
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.kernel_ridge import KernelRidge

from coreg_core.agreement.views import make_view
from coreg_core.estimators.additive import AdditiveRegressor
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.kernels import Gaussian
from coreg_core.spans import EveryPoint, LabelledPoints

VIEWS = [slice(0, 4), slice(4, 7), slice(7, 10)]
WIDTH = 2.0
RIDGE = 0.1
COUPLING = 0.01


def tables(n: int, m: int) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """The views' labelled rows, their labels, and the views' unlabelled rows."""
    X, y = make_friedman1(n + m, noise=1.0, random_state=0)
    return [X[:n, view] for view in VIEWS], y[:n] - y[:n].mean(), [X[n:, view] for view in VIEWS]


def one_table(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """The same rows as an estimator takes them."""
    X, y = make_friedman1(n + m, noise=1.0, random_state=0)
    return X, np.where(np.arange(n + m) < n, y - y[:n].mean(), np.nan)


def gaussian(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """exp(−‖a − b‖²/σ)."""
    K = A @ B.T
    K *= 2.0
    K -= (A * A).sum(1)[:, None]
    K -= (B * B).sum(1)
    K /= WIDTH
    return np.exp(K, out=K)


def plain_exact(Xs: list[np.ndarray], y: np.ndarray, Zs: list[np.ndarray]) -> np.ndarray:
    """The mean prediction: the precision-weighted mean of the views' posteriors."""
    mu = 2 * len(Xs) * COUPLING
    total = 0.0
    right = 0.0
    for X, Z in zip(Xs, Zs, strict=True):
        H = np.linalg.solve(
            np.linalg.cholesky(gaussian(X, X) + RIDGE * np.eye(len(X))), np.c_[gaussian(X, Z), y]
        )
        N = np.linalg.inv(np.eye(len(Z)) + mu / RIDGE * (gaussian(Z, Z) - H[:, :-1].T @ H[:, :-1]))
        total = total + N
        right = right + N @ (H[:, :-1].T @ H[:, -1])
    return np.asarray(np.linalg.solve(total, right))


def plain_semi_parametric(Xs: list[np.ndarray], y: np.ndarray, Zs: list[np.ndarray]) -> np.ndarray:
    """The mean prediction: the stacked system in orthonormal features of the kernels at the
    labelled rows.
    """
    M = len(Xs)
    Phis = []
    Us = []
    right = []
    for X, Z in zip(Xs, Zs, strict=True):
        s, E = np.linalg.eigh(gaussian(X, X))
        W = E[:, s > 1e-10 * s[-1]] / np.sqrt(s[s > 1e-10 * s[-1]])
        Phis.append(gaussian(X, X) @ W)
        Us.append(gaussian(Z, X) @ W)
        right.append(Phis[-1].T @ y)
    rows = [[-2 * COUPLING * U.T @ other for other in Us] for U in Us]
    for v, (Phi, U) in enumerate(zip(Phis, Us, strict=True)):
        rows[v][v] = Phi.T @ Phi + RIDGE * np.eye(Phi.shape[1]) + 2 * COUPLING * (M - 1) * U.T @ U
    w = np.linalg.solve(np.block(rows), np.concatenate(right))
    parts = np.split(w, np.cumsum([U.shape[1] for U in Us])[:-1])
    return np.asarray(sum(U @ part for U, part in zip(Us, parts, strict=True)) / M)


def ridges(Xs: list[np.ndarray], y: np.ndarray, Zs: list[np.ndarray]) -> np.ndarray:
    """A kernel ridge regression of each view, and its predictions of the unlabelled rows."""
    model = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=1 / WIDTH)
    return np.array([model.fit(X, y).predict(Z) for X, Z in zip(Xs, Zs, strict=True)])


def ours(form: str, solver: str = "closed-form") -> CoRLSR:
    """With the parameters of the plain formulas."""
    return CoRLSR(
        views=VIEWS,
        form=form,
        solver=solver,
        bandwidth=WIDTH,
        ridge=RIDGE,
        coupling=COUPLING,
        fit_intercept=False,
        tol=1e-8,
    )


def in_turn(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> tuple[float, float, object, object]:
    """The least seconds of each, and their results."""
    one = float("inf")
    other = float("inf")
    for _ in range(repeats):
        seconds, a = harness.least(first, 1, time.process_time)
        one = min(one, seconds)
        seconds, b = harness.least(second, 1, time.process_time)
        other = min(other, seconds)
    return one, other, a, b


def against_formulas(quick: bool) -> list[dict]:
    """Each form in closed form."""
    found = []
    for form, plain in (("exact", plain_exact), ("semi-parametric", plain_semi_parametric)):
        for n, m in ((150, 292), (200, 1000)) if quick else ((150, 292), (200, 1000), (200, 3000)):
            data = tables(n, m)
            table = one_table(n, m)
            mine, formula, model, z = in_turn(
                lambda: ours(form).fit(*table),
                lambda: plain(*data),
                3 if m > 2000 else 9,
            )
            off = float(np.abs(model.predictions_unlabelled_.mean(axis=0) - z).max())
            row = {
                "form": form,
                "n": n,
                "m": m,
                "seconds": mine,
                "limit": formula,
                "ratio": mine / formula,
                "apart": off,
            }
            found.append(show(row))
    return found


def against_ridges(quick: bool) -> list[dict]:
    """Semi-parametric coRLSR, linear in the unlabelled rows."""
    found = []
    for m in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
        data = tables(200, m)
        table = one_table(200, m)
        mine, limit, model, _ = in_turn(
            lambda: ours("semi-parametric").fit(*table),
            lambda: ridges(*data),
            5 if m < 100_000 else 2,
        )
        row = {
            "n": 200,
            "m": m,
            "rank": model.rank_.tolist(),
            "seconds": mine,
            "limit": limit,
            "ratio": mine / limit,
        }
        found.append(show(row))
    return found


def grows(quick: bool) -> list[dict]:
    """Labelled rows around 200: the same stop, and times that grow smoothly."""
    found = []
    for n in (199, 200, 201, 300):
        table = one_table(n, 1000)
        seconds, model = harness.least(
            lambda: ours("semi-parametric").fit(*table),
            3 if quick else 9,
            time.process_time,
        )
        found.append(
            show(
                {
                    "n": n,
                    "seconds": seconds,
                    "stop": model.stop_.name,
                    "bound": model.prediction_bound_,
                }
            )
        )
    return found


def solvers() -> list[dict]:
    """The iterative solvers against the work of their rounds: the views once, and every view's
    answer in each round.
    """
    found = []
    for form, span in (("exact", EveryPoint()), ("semi-parametric", LabelledPoints())):
        (Xs, y, Zs) = tables(200, 1000)
        table = one_table(200, 1000)
        for solver in ("conjugate-gradients", "block-coordinate-descent"):
            rounds = ours(form, solver).fit(*table).n_rounds_

            def work(span=span, rounds=rounds) -> None:  # one factor a view, then products
                views = [
                    make_view(span, Gaussian(WIDTH), X, y, Z, RIDGE)
                    for X, Z in zip(Xs, Zs, strict=True)
                ]
                target = np.ones((1000, 1))
                weight = np.array([2 * len(Xs) * COUPLING])
                for _ in range(rounds):
                    for view in views:
                        view.respond(target, weight)

            mine, limit, _, _ = in_turn(lambda: ours(form, solver).fit(*table), work, 5)
            row = {
                "form": form,
                "solver": solver,
                "rounds": rounds,
                "seconds": mine,
                "limit": limit,
                "ratio": mine / limit,
            }
            found.append(show(row))
    return found


def additive(quick: bool) -> list[dict]:
    """Three views of 50 labels each."""
    found = []
    for m in (1000, 10_000) if quick else (1000, 100_000):
        X, y = make_friedman1(150 + m, noise=1.0, random_state=0)
        y[150:] = np.nan
        mask = np.zeros((150 + m, 3), dtype=bool)
        mask[np.arange(150), np.arange(150) % 3] = True
        model = AdditiveRegressor(views=VIEWS, random_state=0)
        seconds, _ = harness.least(
            lambda: model.fit(X, y, label_mask=mask),
            5 if m < 100_000 else 2,
            time.process_time,
        )
        found.append(show({"m": m, "seconds": seconds}))
    return found


def main() -> int:
    asked = arguments(__doc__, quick=False, write=False)
    found = {
        "formulas": against_formulas(asked.quick),
        "ridges": against_ridges(asked.quick),
        "grows": grows(asked.quick),
        "solvers": solvers(),
        "additive": additive(asked.quick),
    }
    if asked.write:
        keep(PERFORMANCE, fits=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
