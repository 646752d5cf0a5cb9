"""A folder of data sets with the papers' names and made-up rows, so that experiments run where the
real ones are not.
"""

import csv
import json

import numpy as np

from benchmarks.papers.runner import NAMES, find

BINARY = ("adult", "german_numer", "svmguide3", "svmguide3_test", "australian")


def stand_in(folder, names=None, rows=None):
    """The sets of those names (every experiment's when none are given)."""
    names = names or sorted({name for experiment in NAMES for name in find(experiment).sets})
    folder.mkdir(exist_ok=True)
    datasets = []
    for seed, name in enumerate(names):
        rng = np.random.default_rng(seed)
        n = rows
        if not rows:
            n = 80
            if name in ("sarcos_test", "house_16H", "ailerons"):
                n = 900
        X = rng.normal(size=(n, 6))
        signal = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
        y = [f"{2 + value:.6g}" for value in signal]
        if name in BINARY:
            y = np.where(signal > 0, "1", "-1")
        if name == "svmguide3_test":
            y = ["1"] * n  # as it is in truth: one class
        colour = rng.choice(["red", "green", "blue"], size=n)
        header = (
            [f"x{j}" for j in range(6)]
            + (["torque5", "torque7"] if name == "sarcos_test" else ["colour"])
            + ["y"]
        )
        extra = (
            [[f"{v:.6g}" for v in row] for row in X[:, 1:3] + signal[:, None]]
            if name == "sarcos_test"
            else colour[:, None]
        )
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(
                [*(f"{v:.6g}" for v in x), *e, t] for x, e, t in zip(X, extra, y, strict=True)
            )
        datasets.append({
            "name": name, "file": f"{name}.csv", "target": "y",
            "task": "binary" if name in BINARY else "regression",
            "categorical": [] if name == "sarcos_test" else ["colour"],
        })  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps({"datasets": datasets}))
    return folder
