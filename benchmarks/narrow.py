"""The figures behind "right to the digit that it states": error and stated bound of five kinds of problem, relative to ‖ŷ*‖.

    python benchmarks/narrow.py

Narrow views (semi-parametric, one and two features, the paper's rules); the linear kernel on features × 1e4; a Gaussian
kernel with an outlier, and far from the origin. Errors are against ball arithmetic (ball_reference.py).
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from ball_reference import Case, optimum

from coreg_core.errors import CoregError
from coreg_core.estimators.corlsr import CoRLSR
from coreg_core.kernels.functions import make_kernel


def views(seed, d, n, m, scale=1.0):
    rng = np.random.default_rng(seed)
    Xs, Zs = [], []
    for _ in range(2):
        Xs.append(rng.normal(size=(n, d)) * scale)
        Zs.append(rng.normal(size=(m, d)) * scale)
    return Xs, [np.sin(X.sum(axis=1) / scale) + 0.3 * rng.normal(size=n) for X in Xs], Zs


def outlier(seed, ridge):
    Xs, ys, Zs = views(seed, 20, 20, 30)
    Xs[0][3] += 1e8
    Zs[0][5] = Xs[0][3] + 0.5
    return {"form": "exact", "ridge": ridge, "bandwidth": 20.0, "coupling": 0.1}, Xs, ys, Zs


def far(seed, ridge):
    Xs, ys, Zs = views(seed, 20, 20, 30)
    Xs[0] += 1e7 * (np.arange(20) % 2)[:, None]  # two clusters, and neither at the mean
    return {"form": "exact", "ridge": ridge, "bandwidth": 20.0, "coupling": 0.1}, Xs, ys, Zs


FIGURES = {
    "semi-parametric, d=1, n=20, m=100, λ=10": lambda s: (
        {"form": "semi-parametric", "coupling": 10.0},
        *views(s, 1, 20, 100),
    ),
    "semi-parametric, d=2, n=60, m=100, λ=10": lambda s: (
        {"form": "semi-parametric", "coupling": 10.0},
        *views(s, 2, 60, 100),
    ),
    "semi-parametric, d=1, n=60, m=100, λ=10": lambda s: (
        {"form": "semi-parametric", "coupling": 10.0},
        *views(s, 1, 60, 100),
    ),
    "exact, linear kernel, features × 1e4": lambda s: (
        {"form": "exact", "kernel": "linear", "coupling": 0.1},
        *views(s, 4, 30, 40, 1e4),
    ),
    "exact, gaussian, an outlier of 1e8, ν=4e-8": lambda s: outlier(s, 4e-8),
    "exact, gaussian, two far clusters, ν=4e-8": lambda s: far(s, 4e-8),
}


def main():
    for name, make in FIGURES.items():
        for solver in ("direct", "conjugate-gradients"):
            worst = (0.0, 0.0, "", 0.0)
            for seed in range(5):
                parameters, Xs, ys, Zs = make(seed)
                try:
                    model = CoRLSR(**parameters, solver=solver).fit(Xs, ys, Zs)
                except CoregError as error:
                    worst = (np.nan, np.nan, str(error)[:60], np.nan)
                    continue
                cases = [
                    Case(make_kernel(parameters.get("kernel", "gaussian"), bandwidth=float(b)), X, y, Z, float(r))
                    for b, r, X, y, Z in zip(model.bandwidth_, model.ridge_, Xs, ys, Zs, strict=True)
                ]
                best = optimum(cases, parameters["coupling"], parameters["form"])
                size = max(best.sizes())
                found = [
                    model.predictions_unlabelled_,
                    [f.predict(Z) for f, Z in zip(model.functions_, Zs, strict=True)],
                ]
                error, function = (max(best.errors(np.array(p))) / size for p in found)
                if not error < worst[0]:
                    ranks = f"rank {model.rank_.tolist()}"
                    worst = (error, model.prediction_bound_ / size, f"{model.stop_.name} {ranks}", function)
            print(
                f"{name:44s} {solver:20s} error {worst[0]:.1e}  stated {worst[1]:.1e}  function {worst[3]:.1e}  {worst[2]}"
            )


if __name__ == "__main__":
    main()
