r"""`oca`: online co-regularisation against Pegasos on eight sets (de Ruijter, Tsivtsivadze, 2012,
section 4, tables 1 to 8).

The protocol: 70 % of a set trains, 30 % tests; 20 % of the training rows keep their label; features
are scaled to [−1, 1] and regression targets to [0, 100]; two views are a random split of the
attributes; the views' mean predicts; the error is the RMSE, or for two classes the area under the
ROC curve. Pegasos, Pegasos on both views, OCA-1-1 and OCA-1-5 choose their parameters by 10-fold
cross-validation over the labelled training rows, on one grid.

Our readings of details that the paper omits. Every method makes the same number of steps (2000), in
cross-validation too: an OCA step uses one labelled row, as a step of Pegasos does. Step sizes are
η₀/(1 + η₀λ(t−1)): the paper's tables print an η₀, its Algorithm 1 has 1/(λt). The cross-validation
uses the unlabelled rows without labels. "Literal" has no bias, as in the paper's model, which can
hardly reach targets in [0, 100]; targets are scaled by all training rows, and λ is at least 2⁻⁵,
the smallest in the paper's tables. "Labelled rows" scales the targets by the labelled rows, which
are all that a learner knows, and lets λ be as small as 0.001. "Constant" is the same with a column
of ones in every view. The paper has one run; we have ten, each with its own split, views and draws.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import rankdata, wilcoxon
from sklearn.model_selection import KFold

from benchmarks.papers.baselines import kernel_ridge
from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.methods.oca import Loss, slope
from benchmarks.papers.pool import NumericDataSet, Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.views import mean_of, random_views, scaled, with_deviation
from coreg_core.arrays import Arr

PRINTED = {  # test performance: Pegasos, Pegasos MV, OCA-1-1, OCA-1-5
    "abalone": (19.46, 15.52, 14.23, 13.50), "cal_housing": (26.00, 27.26, 25.76, 25.80),
    "housing": (16.34, 17.59, 18.54, 18.69), "mg": (46.71, 45.73, 45.57, 45.91),
    "space_ga": (58.17, 51.90, 36.60, 36.84),
    "german_numer": (0.74, 0.71, 0.75, 0.74), "svmguide3": (0.74, 0.75, 0.73, 0.76),
    "australian": (0.92, 0.92, 0.93, 0.93),
}  # fmt: skip
CROSS_VALIDATED = {  # the column "CV PERF" of the same tables
    "abalone": (14.40, 11.70, 11.63, 11.73), "cal_housing": (24.45, 24.29, 23.97, 23.30),
    "housing": (19.34, 17.07, 17.75, 16.13), "mg": (45.53, 45.88, 44.51, 44.93),
    "space_ga": (58.32, 50.42, 41.95, 42.80),
    "german_numer": (0.72, 0.76, 0.75, 0.75), "svmguide3": (0.85, 0.83, 0.77, 0.82),
    "australian": (0.95, 0.95, 0.93, 0.94),
}  # fmt: skip
METHODS = ("Pegasos", "Pegasos MV", "OCA-1-1", "OCA-1-5")
READINGS = ("literal", "labelled rows", "constant")
RUNS = 10
STEPS = 2000
FOLDS = 10
ETAS = (0.01, 0.0625, 0.25, 1.0)
RIDGES = {"literal": (0.03125, 0.25, 2.0, 16.0)}
SMALL_RIDGES = (0.001, 0.03125, 0.25, 2.0)  # of the other readings
COUPLINGS = (0.001, 0.01, 0.1, 0.5)
SPACES = {"Pegasos": (1, 0), "Pegasos MV": (2, 0), "OCA-1-1": (2, 1), "OCA-1-5": (2, 5)}
"""Of each method: its views, and l."""


@dataclass(frozen=True)
class Oca:
    """See the module's docstring."""

    name: str = "oca"
    title: str = "Online co-regularisation against Pegasos, on one split after another"
    source: str = "de Ruijter, Tsivtsivadze (2012), section 4, tables 1 to 8"
    sets: tuple[str, ...] = tuple(PRINTED)

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each set, reading and run; quick: one set of each kind, one run of 100 steps."""
        there = [name for name in self.sets if pool.has(name)]
        if quick:
            there = [name for name in ("housing", "australian") if name in there] or there[:1]
        return [
            Job(
                f"{n}/{reading}/{run}",
                {"set": n, "reading": reading, "run": run, "steps": 100 if quick else STEPS},
            )
            for run in range(1 if quick else RUNS)
            for n in there
            for reading in READINGS
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """Test performance of each method and of kernel ridge, the cross-validated one, and the
        chosen parameters.
        """
        a = job.arguments
        data = pool.load(a["set"])
        split = _OcaSplit.of(data, a["run"], a["reading"])
        ridges = RIDGES.get(a["reading"], SMALL_RIDGES)
        tests = {}
        folds = {}
        chosen = {}
        for method in METHODS:
            tests[method], folds[method], chosen[method] = _tuned(
                split, method, ridges, a["steps"], a["run"]
            )
        practitioner = kernel_ridge(split.X[0], split.y, seed=0)
        tests["kernel ridge"] = split.score(practitioner.predict(split.test[0]), split.y_test)
        return {"test": tests, "folds": folds, "chosen": chosen}

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """The paper's tables beside the means of our runs, under each reading."""
        tests: dict[str, dict[str, list[dict[str, float]]]] = {reading: {} for reading in READINGS}
        runs: dict[str, dict[str, list[dict[str, JSON]]]] = {reading: {} for reading in READINGS}
        for key, result in results.items():
            name, reading, _ = key.split("/")
            tests[reading].setdefault(name, []).append(result["test"])
            runs[reading].setdefault(name, []).append(result)
        return Report(
            findings=(
                *(f for reading in READINGS for f in _findings(reading, tests[reading])),
                *_bias(tests),
            ),
            tables=tuple(_table(reading, runs[reading]) for reading in READINGS),
        )


# --- one split ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _OcaSplit:
    """Tables of all attributes, of the first view and of the second: labelled, unlabelled, test."""

    X: tuple[Arr, Arr, Arr]
    y: Arr
    Z: tuple[Arr, Arr, Arr]
    test: tuple[Arr, Arr, Arr]
    y_test: Arr
    loss: Loss

    @classmethod
    def of(cls, data: NumericDataSet, run: int, reading: str) -> "_OcaSplit":
        rng = np.random.default_rng([run, *data.name.encode()])
        order = rng.permutation(len(data.y))
        train = order[: int(0.7 * len(order))]
        test = order[int(0.7 * len(order)) :]
        labelled = train[: int(0.2 * len(train))]
        unlabelled = train[int(0.2 * len(train)) :]
        X = scaled(data.X, data.X[train], -1.0, 1.0)
        loss: Loss = "hinge" if data.task == "binary" else "squared"
        known = train if reading == "literal" else labelled
        y = np.sign(data.y) if loss == "hinge" else scaled(data.y, data.y[known], 0.0, 100.0)
        constant = reading == "constant"
        columns = [np.arange(X.shape[1]), *random_views(data, rng)]
        tables = [
            np.hstack([X[:, c], np.ones((len(X), 1))]) if constant else X[:, c] for c in columns
        ]

        def of_rows(rows: Any) -> tuple[Arr, Arr, Arr]:
            first, second, third = (np.ascontiguousarray(t[rows]) for t in tables)
            return first, second, third

        return cls(
            of_rows(labelled), y[labelled], of_rows(unlabelled), of_rows(test), y[test], loss
        )

    def scores(self, predicted: Arr, y: Arr) -> Arr:
        """RMSE, or the area under the ROC curve, of every column of ``predicted`` (n, C)."""
        if self.loss == "squared":
            rmse: Arr = np.sqrt(np.mean((predicted - y[:, None]) ** 2, axis=0))
            return rmse
        positive = int((y > 0).sum())
        if positive in (0, len(y)):
            return np.full(predicted.shape[1], 0.5)
        ranks = rankdata(predicted, axis=0)[y > 0].sum(axis=0)
        area: Arr = (ranks - positive * (positive + 1) / 2) / (positive * (len(y) - positive))
        return area

    def score(self, predicted: Arr, y: Arr) -> float:
        """`scores` of one prediction (n,)."""
        return float(self.scores(predicted[:, None], y)[0])

    def tables(self, method: str) -> tuple[list[Arr], list[Arr], list[Arr]]:
        """The tables of a method: all attributes, or the two views."""
        which = [0] if SPACES[method][0] == 1 else [1, 2]
        return [self.X[v] for v in which], [self.Z[v] for v in which], [self.test[v] for v in which]


def _grid(method: str, ridges: tuple[float, ...]) -> tuple[Arr, Arr, Arr]:
    """Every candidate at once: λ (C, M), η₀ (C,), μ (C,)."""
    n_views, size = SPACES[method]
    points = list(product(ETAS, COUPLINGS if size else (0.0,), *[ridges] * n_views))
    table = np.array(points)
    return table[:, 2:], table[:, 0], table[:, 1]


def _tuned(
    split: _OcaSplit, method: str, ridges: tuple[float, ...], steps: int, seed: int
) -> tuple[float, float, list[float]]:
    """Test performance of the candidate that cross-validation chose, the mean one over the folds,
    and η₀, μ and each λ.
    """
    X, Z, test = split.tables(method)
    ridge, eta0, coupling = _grid(method, ridges)
    size = SPACES[method][1]
    scores = np.zeros(len(eta0))
    folds = KFold(min(FOLDS, len(split.y)), shuffle=True, random_state=seed)
    for inside, outside in folds.split(split.y):
        terms = (split.loss, ridge, eta0, coupling, size, steps, np.random.default_rng(seed))
        w = descend([t[inside] for t in X], split.y[inside], Z, *terms)
        predicted = np.mean([t[outside] @ v for t, v in zip(X, w, strict=True)], axis=0)
        sound = (
            np.abs(np.nan_to_num(predicted, nan=np.inf)).max(axis=0) < 1e12
        )  # the others diverged
        of_fold = split.scores(np.where(sound, predicted, 0.0), split.y[outside])
        scores += np.where(sound, of_fold, 1e12 if split.loss == "squared" else 0.0)
    best = int(scores.argmin()) if split.loss == "squared" else int(scores.argmax())
    one = slice(best, best + 1)
    terms = (
        split.loss,
        ridge[one],
        eta0[one],
        coupling[one],
        size,
        steps,
        np.random.default_rng(seed),
    )
    w = descend(X, split.y, Z, *terms)
    predicted = np.mean([t @ v for t, v in zip(test, w, strict=True)], axis=0)[:, 0]
    parameters = [float(eta0[best]), float(coupling[best]), *map(float, ridge[best])]
    return (
        split.score(predicted, split.y_test),
        float(scores[best]) / folds.get_n_splits(),
        parameters,
    )


def descend(
    X: list[Arr], y: Arr, Z: list[Arr], loss: Loss, ridge: Arr, eta0: Arr, coupling: Arr, size: int,
    steps: int,
    rng: np.random.Generator,
) -> list[Arr]:  # fmt: skip
    """`OCA` with k = 1 and l = ``size`` for many parameters at once, on the same draws.

    Returns
    -------
    For each view w (d_v, C), a column for each candidate.
    """
    M = len(X)
    w = [np.zeros((t.shape[1], len(eta0))) for t in X]
    rows = rng.integers(0, len(y), size=steps)
    more = rng.integers(0, len(Z[0]), size=(steps, size)) if size else None
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps):
            i = rows[t]
            eta = [eta0 / (1.0 + eta0 * ridge[:, v] * t) for v in range(M)]
            own = [X[v][i] @ w[v] for v in range(M)]
            others = [Z[v][more[t]] @ w[v] for v in range(M)] if more is not None else None
            total = sum(others) if others is not None else None
            for v in range(M):
                change = np.outer(X[v][i], eta[v] * slope(loss, own[v], np.full(len(eta0), y[i])))
                if others is not None and more is not None:
                    apart = M * others[v] - total
                    change += Z[v][more[t]].T @ (apart * (4.0 * eta[v] * coupling / size))
                w[v] *= 1.0 - eta[v] * ridge[:, v]
                w[v] -= change
    return w


# --- the report -----------------------------------------------------------------------------------

Tests = Mapping[str, list[dict[str, float]]]


def _better(name: str, a: float, b: float) -> bool:
    """Whether a is the better of two results on that set."""
    return a < b if PRINTED[name][0] > 1 else a > b


def _findings(reading: str, tests: Tests) -> Iterator[str]:
    for method, other in product(("OCA-1-1", "OCA-1-5"), ("Pegasos MV", "Pegasos")):
        won = []
        significant = []
        printed = []
        for name, runs in tests.items():
            a, b = (np.array([r[m] for r in runs]) for m in (method, other))
            if _better(name, float(a.mean()), float(b.mean())):
                won.append(name)
                if len(a) > 5 and np.abs(a - b).max() > 0 and wilcoxon(a, b).pvalue < 0.05:
                    significant.append(name)
            if _better(name, *(PRINTED[name][METHODS.index(m)] for m in (method, other))):
                printed.append(name)
        yield (
            f"{reading}: {method} is better than {other} on {len(won)} of {len(tests)} sets"
            f" ({', '.join(won) or 'none'}; at 5 % by signed ranks over the runs:"
            f" {', '.join(significant) or 'none'}); paper: {len(printed)}"
            f" ({', '.join(printed) or 'none'})."
        )
    worse = [
        name
        for name, runs in tests.items()
        if all(
            _better(name, mean_of(runs, "kernel ridge"), mean_of(runs, method))
            for method in METHODS
        )
    ]
    yield (
        f"{reading}: cross-validated kernel ridge on the same labels beats all four on {len(worse)}"
        f" of {len(tests)} sets."
    )


def _bias(tests: Mapping[str, Tests]) -> Iterator[str]:
    """The sets for which a bias at least halves the paper's error, so its models had none."""
    for name in tests["constant"]:  # the readings differ by the bias alone
        without, with_it = (
            mean_of(tests[reading][name], "Pegasos MV") for reading in ("labelled rows", "constant")
        )
        if PRINTED[name][0] > 1 and with_it < 0.5 * min(without, *PRINTED[name]):
            yield (
                f"{name}: Pegasos MV has an RMSE of {without:.1f} without a bias and {with_it:.1f}"
                f" with one; the paper's {min(PRINTED[name])} to {max(PRINTED[name])} are only"
                " possible without."
            )


def _table(reading: str, runs: Mapping[str, list[dict[str, JSON]]]) -> ReportTable:
    rows: list[tuple[Cell, ...]] = []
    for name, of_set in runs.items():
        measure = "AUC" if PRINTED[name][0] < 1 else "RMSE"
        for i, method in enumerate(METHODS):
            folds, test = ([run[key][method] for run in of_set] for key in ("folds", "test"))
            eta0, coupling, *ridge = np.median([run["chosen"][method] for run in of_set], axis=0)
            chosen = (
                eta0,
                *(ridge if len(ridge) == 2 else (ridge[0], None)),
                coupling if SPACES[method][1] else None,
            )
            cells = (
                CROSS_VALIDATED[name][i],
                with_deviation(folds),
                PRINTED[name][i],
                with_deviation(test),
            )
            rows.append(
                (
                    name,
                    measure,
                    method,
                    *cells,
                    *(None if c is None else f"{c:.3g}" for c in chosen),
                )
            )
        practitioner = with_deviation([run["test"]["kernel ridge"] for run in of_set])
        rows.append(
            (name, measure, "kernel ridge", None, None, None, practitioner, None, None, None, None)
        )
    n_runs = len(next(iter(runs.values())))
    about = {
        "literal": "No bias, and targets scaled by all training rows.",
        "labelled rows": "No bias, and targets scaled by the labelled rows.",
        "constant": "A column of ones in every view, and targets scaled by the labelled rows.",
    }
    return ReportTable(
        f"Performance, {reading}",
        (
            "set",
            "measure",
            "method",
            "folds, paper",
            "folds",
            "test, paper",
            "test",
            "η₀",
            "λ₁",
            "λ₂",
            "μ",
        ),
        tuple(rows),
        f"Mean ± standard deviation of {n_runs} runs, and medians of the chosen parameters; the"
        " paper has one run. RMSE of targets in [0, 100]: small is good; AUC: large."
        f" {about[reading]}",
    )


EXPERIMENT = Oca()
