r"""`corlsr-uci`: exact and semi-parametric coRLSR against RLSR on 32 sets (Brefeld et al., 2006,
section 5.1, figure 1).

The protocol: tenfold *inverse* cross-validation, one fold labelled and the other nine unlabelled
and held out; 20 runs, each with its own folds and its own random split of the attributes into two
views; λ = 1/10, Gaussian kernel, the paper's rules for σ and ν in each view; RLSR on all attributes
is the baseline, the views' mean the prediction; rmse / max y.

Our readings of details that the paper omits. *Literal*: attributes unchanged (nominal ones as 0/1
columns, as in the paper's other experiment; missing values as means), targets unchanged. *Level
numbers*: the same, with a nominal attribute as the number of its level in alphabetical order, as
many file readers return it. *Standardised*: attributes scaled to variance 1 and targets centred,
both by the labelled fold alone. An attribute's columns stay in one view, and the views' numbers of
attributes differ by at most one. max y is taken over the whole set. If a view's labelled rows are
all equal, the rules have no value, and σ and ν are computed over all rows of the view.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import wilcoxon
from sklearn.model_selection import KFold

from benchmarks.one_table import one_table
from benchmarks.papers.baselines import PEERS
from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.methods import RLSR
from benchmarks.papers.pool import NumericDataSet, Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.views import level_numbers, paper_rules, random_views, rough
from coreg_core.arrays import Arr
from coreg_core.estimators import CoRLSR

SETS = (
    "auto93", "autoHorse", "autoMpg", "autoPrice", "baskball", "bodyfat", "breastTumor",
    "cholesterol", "cleveland",
    "cloud", "cpu", "echoMonths", "fishcatch", "fruitfly", "housing", "hungarian", "lowbwt",
    "machine_cpu", "meta",
    "pbc", "pharynx", "pollution", "pwLinear", "pyrim", "sensory", "servo", "sleep", "stock",
    "strike", "triazines",
    "veteran", "wisconsin",
)  # fmt: skip
"""The 32 of Brefeld et al.

(2006), section 5.1; inferred: of the WEKA pool those of at least 50 rows and 4 attributes and at
most 4176 rows, which are 32.
"""
COUPLING = 0.1
FOLDS = 10
RUNS = 20
READINGS = ("literal", "level numbers", "standardised")
METHODS = ("rlsr", "exact", "semi-parametric", "average")
PAIRS = (("exact", "rlsr", 54), ("semi-parametric", "rlsr", 66), ("exact", "semi-parametric", 63))
CRITICAL = 128
"""Of the one-sided signed-ranks test for 32 sets at 0.5 %, as the paper prints it."""


@dataclass(frozen=True)
class CorlsrUci:
    """See the module's docstring."""

    name: str = "corlsr-uci"
    title: str = "coRLSR against RLSR on 32 sets, inverse cross-validation"
    source: str = "Brefeld, Gärtner, Scheffer, Wrobel (ICML 2006), section 5.1, figure 1"
    sets: tuple[str, ...] = SETS

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each set, reading and five of the runs; quick: the five smallest sets, one run.

        The practitioner's regressors use no views, and are evaluated on the first five runs' folds.
        """
        there = [name for name in self.sets if pool.has(name)]
        if quick:
            there = sorted(there, key=lambda name: len(pool.load(name).y))[:5]
        blocks = [[0]] if quick else [list(range(first, first + 5)) for first in range(0, RUNS, 5)]
        return [
            Job(f"{name}/{reading}/{runs[0]}", {"set": name, "reading": reading, "runs": runs})
            for name in there
            for reading in (*READINGS, "practitioner")
            for runs in (blocks[:1] if reading == "practitioner" else blocks)
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """The scaled rmse of every method: one number for each run (the mean of its ten folds)."""
        data = pool.load(job.arguments["set"])
        if job.arguments["reading"] == "level numbers":
            data = level_numbers(data)
        errors: dict[str, list[float]] = {}
        for run in job.arguments["runs"]:
            for method, value in _one_run(data, job.arguments["reading"], run).items():
                errors.setdefault(method, []).append(value)
        return {"errors": errors}

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """W of the three comparisons beside the paper's, a table of all sets."""
        errors: dict[str, dict[str, dict[str, list[float]]]] = {
            reading: {} for reading in (*READINGS, "practitioner")
        }
        for key, result in results.items():
            name, reading, _ = key.split("/")
            of_set = errors[reading].setdefault(name, {})
            for method, values in result["errors"].items():
                of_set.setdefault(method, []).extend(values)
        statistics = {reading: _wilcoxon(errors[reading]) for reading in READINGS}
        n_sets = len(errors["literal"])
        n_runs = len(next(iter(errors["literal"].values()))["rlsr"])
        return Report(
            findings=(
                *(
                    f
                    for reading in READINGS
                    for f in _findings(reading, statistics[reading], n_sets)
                ),
                *(_against_practitioner(r, errors[r], errors["practitioner"]) for r in READINGS),
            ),
            tables=(
                _statistics_table(statistics, n_sets),
                *(
                    _sets_table(reading, errors[reading], errors["practitioner"], n_runs)
                    for reading in READINGS
                ),
            ),
        )


def _one_run(data: NumericDataSet, reading: str, run: int) -> dict[str, float]:
    rng = np.random.default_rng(
        [run, *data.name.encode()]
    )  # the same folds and splits for both readings
    columns = random_views(data, rng)
    squares: dict[str, list[float]] = {}
    for rest, labelled in KFold(FOLDS, shuffle=True, random_state=run).split(data.X):
        for method, predicted in _predictions(data, reading, columns, labelled, rest).items():
            squares.setdefault(method, []).append(
                float(np.sqrt(np.mean((predicted - data.y[rest]) ** 2)))
            )
    scale = float(data.y.max()) if data.y.max() > 0 else float(np.abs(data.y).max())
    return {method: float(np.mean(values)) / scale for method, values in squares.items()}


def _predictions(
    data: NumericDataSet, reading: str, columns: list[Any], labelled: Any, rest: Any
) -> dict[str, Arr]:
    """Each method's predictions for the nine unlabelled folds."""
    X = data.X[labelled]
    Z = data.X[rest]
    y = data.y[labelled]
    offset = 0.0
    if reading == "practitioner":
        return {name: np.asarray(fit(X, y).predict(Z)) for name, fit in PEERS.items()}
    if reading == "standardised":
        mean = X.mean(axis=0)
        deviation = X.std(axis=0)
        deviation[deviation <= 1e-12 * np.abs(X).max(axis=0)] = 1.0
        X = (X - mean) / deviation
        Z = (Z - mean) / deviation
        offset = float(y.mean())
        y = y - offset
    X_views = [X[:, c] for c in columns]
    Z_views = [Z[:, c] for c in columns]
    rules = [paper_rules(V, W) for V, W in zip(X_views, Z_views, strict=True)]
    bandwidth = [r[0] for r in rules]
    ridge = [r[1] for r in rules]
    alone = [
        RLSR(preset="paper", bandwidth=b, ridge=r).fit(V, y)
        for V, b, r in zip(X_views, bandwidth, ridge, strict=True)
    ]
    of_all = paper_rules(X, Z)
    whole = RLSR(preset="paper", bandwidth=of_all[0], ridge=of_all[1]).fit(X, y)
    out = {
        "rlsr": whole.predict(Z),
        "average": np.mean([f.predict(V) for f, V in zip(alone, Z_views, strict=True)], axis=0),
    }
    views, table = one_table(X_views, y, Z_views)
    for form in ("exact", "semi-parametric"):
        model = CoRLSR(
            preset="paper", views=views, form=form, bandwidth=bandwidth, ridge=ridge,
            coupling=COUPLING,
            prediction_tol=rough(y),
        ).fit(**table)  # fmt: skip
        out[form] = model.predictions_unlabelled_.mean(axis=0)
    return {method: predicted + offset for method, predicted in out.items()}


# --- the report -----------------------------------------------------------------------------------

Errors = Mapping[str, Mapping[str, list[float]]]
Statistics = dict[tuple[str, str], tuple[float, float, int]]


def _wilcoxon(errors: Errors) -> Statistics:
    """For each pair (a, b): W, the ranks' sum of the sets where a is worse; p of "a is better";
    sets where it is better.
    """
    out: Statistics = {}
    for a, b, _ in PAIRS:
        difference = np.array(
            [np.mean(of_set[a]) - np.mean(of_set[b]) for of_set in errors.values()]
        )
        test = wilcoxon(difference, alternative="less")
        out[a, b] = float(test.statistic), float(test.pvalue), int((difference < 0).sum())
    return out


def _findings(reading: str, statistics: Statistics, n_sets: int) -> list[str]:
    out = []
    for a, b, paper in PAIRS:
        W, p, better = statistics[a, b]
        verdict = (
            "better"
            if p < 0.005
            else "worse"
            if p > 0.995
            else "neither better nor worse (at 0.5 %)"
        )
        out.append(
            f"{reading}: {a} against {b}: W = {W:g} (paper {paper}), better on {better} of {n_sets}"
            f" sets, p = {p:.2g}: {verdict}."
        )
    return out


def _against_practitioner(reading: str, errors: Errors, practitioner: Errors) -> str:
    better = {
        peer: sum(
            np.mean(of_set["exact"]) < np.mean(practitioner[name][peer])
            for name, of_set in errors.items()
        )
        for peer in PEERS
    }
    each = ", ".join(f"{count} ({peer})" for peer, count in better.items())
    return (
        f"{reading}: exact coRLSR with the paper's rules is better than scikit-learn's regressors"
        f" on one table without unlabelled rows on this many of {len(errors)} sets: {each}."
    )


def _statistics_table(statistics: Mapping[str, Statistics], n_sets: int) -> ReportTable:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            f"{a} against {b}",
            paper,
            *(f"{statistics[r][a, b][0]:g}" for r in READINGS),
            *(statistics[r][a, b][2] for r in READINGS),
        )
        for a, b, paper in PAIRS
    )
    return ReportTable(
        f"Wilcoxon's signed ranks over {n_sets} sets: W (small: the first is better)",
        (
            "comparison",
            "paper",
            *(f"W, {r}" for r in READINGS),
            *(f"better on, {r}" for r in READINGS),
        ),
        rows,
        f"The critical value for 32 sets at 0.5 %, one-sided, is {CRITICAL}. W sums the ranks of"
        " the sets on which the first method is worse; all of them together are"
        f" {n_sets * (n_sets + 1) // 2}.",
    )


def _sets_table(reading: str, errors: Errors, practitioner: Errors, n_runs: int) -> ReportTable:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            *(f"{np.mean(of_set[m]):.4g} ± {_standard_error(of_set[m]):.2g}" for m in METHODS),
            *(float(np.mean(practitioner[name][peer])) for peer in PEERS),
        )
        for name, of_set in errors.items()
    )
    return ReportTable(
        f"rmse / max y, {reading}",
        ("set", "RLSR", "exact", "semi-parametric", "mean of two views' RLSR, λ = 0", *PEERS),
        rows,
        f"Means ± standard errors of {n_runs} runs of tenfold inverse cross-validation. The last"
        f" {len(PEERS)}: means of {len(next(iter(practitioner.values()))['kernel ridge'])} runs;"
        " all but ExtraTrees standardise their inputs.",
    )


def _standard_error(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


EXPERIMENT = CorlsrUci()
