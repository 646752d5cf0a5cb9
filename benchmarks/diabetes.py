"""The demonstration's deals over many draws: the figures beside the live draw of `make demo`, and the plot over labels.

    python benchmarks/diabetes.py [--draws 100] [--jobs 2] [--write]

A clinic and two laboratories of scikit-learn's diabetes study (coreg_sim/tables.py): 342 patients that all sites
know, and 100 held-out ones; two deals: 50 labels each, and 80 / 10 / 0; and a curve over the number of labels. Trained in
memory by the same sites (`benchmarks.benefit`), with the same numbers as over messages; coRLSR goes through both
machines, on the demonstration's path. *Checked*: the score where the site's own folds prefer it, else its local model. Root
mean square errors in the study's units, means over draws. --write puts them into
examples/demo/diabetes_draws.json; `make docs` draws them. A few minutes on two cores.
"""

from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
from harness import arguments, keep
from sklearn.datasets import load_diabetes

from benchmarks.benefit.partition import Partition
from benchmarks.benefit.trial import trial
from coreg_core.evaluation.losses import Paired
from coreg_core.evaluation.recommendation import Choice, own_choice, score_choice
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Agreement, Iteration
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import plan_for, simulate
from coreg_sim.tables import HELD_OUT, SITES, UNLABELLED
from site_agent.machine.site_data import PrivateData

DEALS = {"50 each": (50, 50, 50), "80 / 10 / 0": (80, 10, 0)}
CURVE = (10, 20, 30, 40, 50)
# A method of `trial`; None where it is none: the mean of the labels, the site alone, the path of `agreement`, a site's choice.
COLUMNS = {
    "mean": None,
    "alone": None,
    "agreement": None,
    "joined": "additive-common",
    "checked": None,
    "pooled": "pooled",
}


def partition(seed: int, labels: tuple[int, ...]) -> tuple[Partition, float]:
    """One draw, and the deviation of the target, its unit."""
    study = load_diabetes(scaled=False)
    names, deviation = list(study.feature_names), float(study.target.std())
    order = np.random.default_rng(seed).permutation(len(study.target))
    rest = order[UNLABELLED:]
    test, known = rest[:HELD_OUT], np.concatenate([rest[HELD_OUT:], order[:UNLABELLED]])  # as the demonstration's
    shared, left = known[sum(labels) :], known
    y = (study.target - study.target.mean()) / deviation
    rows = [left[start:end] for start, end in pairwise(np.cumsum([0, *labels]))]
    columns = [study.data[:, [names.index(c) for c in of]] for of in SITES.values()]
    y_test, honest = np.tile(y[test], (len(SITES), 1)), (True,) * len(SITES)
    return Partition(columns, rows, [y[r] for r in rows], shared, test, y_test, honest=honest), deviation


def agreement(deal: Partition, alone: list[float]) -> list[float]:
    """Mean squared errors of coRLSR on the demonstration's path, each site at its own λ; without labels it stays alone."""
    data, means = {}, {}
    for v, (X, rows, y) in enumerate(zip(deal.columns, deal.labelled, deal.labels, strict=True)):
        if len(rows) > 1:
            mean, scale = X[rows].mean(axis=0), X[rows].std(axis=0)
            scaled = (X - mean) / np.where(scale > 0.0, scale, 1.0)
            data[f"site-{v}"] = PrivateData(scaled[rows], y, scaled[deal.shared], "shared")
            means[f"site-{v}"] = scaled[deal.test]
    problem = Problem(data, (), np.empty(0))
    weight = sum(map(len, deal.labelled)) / (2 * len(deal.columns) ** 2 * len(deal.shared))  # of a label, on average
    path = tuple(weight * share for share in (0.0, 0.1, 0.3, 1.0, 3.0))
    terms = Agreement(bandwidth="loo", ridge="loo", coupling=path)
    run = simulate(problem, plan_for(problem, terms, Iteration(tolerance=1e-8, prediction_tolerance=1e-4)))
    errors = list(alone)
    for name, result in zip(sorted(data), run.results, strict=True):
        chosen = 0 if result.choice is None else result.choice.chosen
        predicted = result.solutions[chosen].predict(means[name]) + result.shift
        site = int(name.removeprefix("site-"))
        errors[site] = float(np.mean((deal.y_test[site] - predicted) ** 2))
    return errors


def one(job: tuple[tuple[int, ...], int]) -> dict[str, list[float]]:
    """One draw: each column's errors and the forecasts, a number a site."""
    labels, seed = job
    pin_threads(1)
    deal, deviation = partition(seed, labels)
    came = trial(deal, seed, trees=False)
    found = {}
    for name, method in COLUMNS.items():
        match name:
            case "mean":  # of the site's own labels; without labels, of all sites' labels
                known = np.concatenate(deal.labels)
                own = [y.mean() if len(y) else known.mean() for y in deal.labels]
                mse = [float(np.mean((deal.y_test - mean) ** 2)) for mean in own]
            case "alone":
                mse = came["alone"]
            case "checked":
                mse = [
                    came["methods"]["together"][v] if uses_scores(site) else came["alone"][v]
                    for v, site in enumerate(came["sites"])
                ]
            case "agreement":
                mse = agreement(deal, came["alone"])
            case _:
                mse = came["methods"][method]
        found[name] = (deviation * np.sqrt(mse)).tolist()
    found["forecast"] = [np.nan if s["common"] is None else s["common"]["change"] for s in came["sites"]]
    return found


def uses_scores(site: dict) -> bool:
    """Whether the site's own folds prefer the joint score, as `coreg-agent report` recommends."""
    own, scores = (None if site[key] is None else Paired(**site[key]) for key in ("common", "together"))
    return score_choice(own_choice(own), scores) is Choice.TOGETHER


def errors(labels: tuple[int, ...], draws: int, pool: ProcessPoolExecutor) -> dict[str, np.ndarray]:
    """(draws, sites) of each column, and each site's forecast where it has one."""
    found = list(pool.map(one, [(labels, seed) for seed in range(draws)]))
    return {name: np.array([each[name] for each in found], dtype=float) for name in found[0]}


def summed(found: dict[str, np.ndarray]) -> dict[str, dict]:
    """Means and standard errors by site, and in how many of 100 draws the joined model errs less than the one alone."""
    out = {}
    for v, site in enumerate(SITES):
        means = {name: round(float(found[name][:, v].mean()), 3) for name in COLUMNS}
        better = float(np.mean(found["joined"][:, v] < found["alone"][:, v]))
        own = found["forecast"][:, v]
        out[site] = {
            **means,
            "joined_better": round(better, 3),
            "forecast": None if np.isnan(own).all() else round(float(np.nanmean(own)), 4),
        }
    return out


def main() -> None:
    options = arguments(__doc__, draws=100, jobs=2, write=False)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        deals = {name: summed(errors(labels, options.draws, pool)) for name, labels in DEALS.items()}
        curve = {str(n): deals["50 each"] if n == 50 else summed(errors((n, n, n), options.draws, pool)) for n in CURVE}
    if options.write:
        keep("examples/demo/diabetes_draws.json", draws=options.draws, deals=deals, curve=curve)
    for name, sites in deals.items():
        print(name)
        for site, row in sites.items():
            changes = ", ".join(
                f"{c} {row[c]:.1f} ({100 * (row[c] / row['alone'] - 1):+.1f} %)" for c in COLUMNS if c != "alone"
            )
            print(
                f"  {site:<14} alone {row['alone']:.1f}, {changes}; joined better in {100 * row['joined_better']:.0f} %"
            )


if __name__ == "__main__":
    main()
