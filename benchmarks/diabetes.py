"""The demonstration's deals over many draws: the figures beside the live draw of `make demo`, and
the plot over labels.

    python benchmarks/diabetes.py [--draws 100] [--jobs 2] [--write]

A clinic and two laboratories of scikit-learn's diabetes study (examples/demo/tables.py): patients that
all sites know, and held-out ones; two deals: 60 labels each, and 120 / 60 / 0; and a curve over the
number of labels. Trained in memory with the noise of a federation's default rules; coRLSR goes
through both machines. Joined models and scores are with each site's own verdict. Root mean square
errors in the study's units, means over draws. --write puts them into
examples/demo/diabetes_draws.json; `make docs` draws them. A few minutes on two cores. Then the same
labels are trained ten times in eight draws: how much the noise, landmarks and forests of a training
change its gains.
"""

from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
from harness import arguments, keep
from sklearn.datasets import load_diabetes

from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.terms import Iteration
from coreg_core.threads import pin_threads
from coreg_sim.benefit.partition import Partition
from coreg_sim.benefit.trial import TrainedPartition
from coreg_sim.problems import Problem
from coreg_sim.simulate import plan_for, simulate
from examples.demo.tables import HELD_OUT, SITES, UNLABELLED
from site_agent.site_data import PrivateData

DEALS = {"60 each": (60, 60, 60), "120 / 60 / 0": (120, 60, 0)}
CURVE = (20, 30, 40, 50, 60)
COLUMNS = ("mean", "local", "agreement", "joined", "score", "pooled")


def partition(seed: int, labels: tuple[int, ...]) -> Partition:
    """One draw, dealt as the demonstration's."""
    study = load_diabetes(scaled=False)
    names = list(study.feature_names)
    y = study.target
    order = np.random.default_rng(seed).permutation(len(y))
    rest = order[UNLABELLED:]
    test = rest[:HELD_OUT]
    known = np.concatenate([rest[HELD_OUT:], order[:UNLABELLED]])
    rows = [known[start:end] for start, end in pairwise(np.cumsum([0, *labels]))]
    columns = [study.data[:, [names.index(c) for c in of]] for of in SITES.values()]
    return Partition(columns, rows, [y[r] for r in rows], known[sum(labels) :], test, y[test])


def agreement(deal: Partition, alone: np.ndarray) -> np.ndarray:
    """Predictions of coRLSR, each site at its own λ; without labels it stays alone."""
    data = {}
    tests = {}
    for v, (X, rows, y) in enumerate(zip(deal.columns, deal.labelled, deal.labels, strict=True)):
        if len(rows) > 1:
            mean = X[rows].mean(axis=0)
            scale = X[rows].std(axis=0)
            scaled = (X - mean) / np.where(scale > 0.0, scale, 1.0)
            data[f"site-{v}"] = PrivateData(scaled[rows], y, scaled[deal.shared], "shared")
            tests[f"site-{v}"] = scaled[deal.test]
    problem = Problem(data, (), np.empty(0))
    weight = sum(map(len, deal.labelled)) / (
        2 * len(deal.columns) ** 2 * len(deal.shared)
    )  # of a label, on average
    path = tuple(weight * share for share in (0.0, 0.1, 0.3, 1.0, 3.0))
    terms = Agreement(bandwidth="loo", ridge="loo", coupling=path)
    run = simulate(
        problem, plan_for(problem, terms, Iteration(tolerance=1e-8, prediction_tolerance=1e-4))
    )
    predicted = alone.copy()
    for name, result in zip(sorted(data), run.results, strict=True):
        chosen = 0 if result.choice is None else result.choice.chosen
        predicted[int(name.removeprefix("site-"))] = (
            result.solutions[chosen].predict(tests[name]) + result.shift
        )
    return predicted


def one(job: tuple[tuple[int, ...], int]) -> dict[str, list[float]]:
    """One draw: each column's errors and the forecasts, a number a site."""
    labels, seed = job
    pin_threads(1)
    deal = partition(seed, labels)
    trained = TrainedPartition(deal, seed, rules=Additive())
    predicted = trained.methods() | {
        "local": trained.local,
        "agreement": agreement(deal, trained.local),
    }
    found = {
        name: np.sqrt(np.mean((deal.y_test - predicted[name]) ** 2, axis=1)).tolist()
        for name in COLUMNS
    }
    gains = [site.verdict.gains.get("joined") for site in trained.trained.sites]
    return found | {"forecast": [np.nan if gain is None else gain.change for gain in gains]}


def errors(labels: tuple[int, ...], draws: int, pool: ProcessPoolExecutor) -> dict[str, np.ndarray]:
    """(draws, sites) of each column, and each site's forecast where it has one."""
    found = list(pool.map(one, [(labels, seed) for seed in range(draws)]))
    return {name: np.array([each[name] for each in found], dtype=float) for name in found[0]}


def summed(found: dict[str, np.ndarray]) -> dict[str, dict]:
    """Means by site, the standard errors of their changes from the local model's, and in how many
    of 100 draws the joined model errs less than the local one.
    """
    out = {}
    for v, site in enumerate(SITES):
        means = {name: round(float(found[name][:, v].mean()), 3) for name in COLUMNS}
        local = found["local"][:, v]
        better = float(np.mean(found["joined"][:, v] < local))
        own = found["forecast"][:, v]
        out[site] = {
            **means,
            "joined_better": round(better, 3),
            "forecast": None if np.isnan(own).all() else round(float(np.nanmean(own)), 4),
            "standard_errors": {
                name: round(change_error(found[name][:, v], local), 5)
                for name in ("joined", "score")
            },
        }
    return out


def change_error(other: np.ndarray, local: np.ndarray) -> float:
    """Standard error of mean(other)/mean(local) − 1 over the draws, by the delta method."""
    rest = other - other.mean() / local.mean() * local
    return float(rest.std(ddof=1) / local.mean() / np.sqrt(len(local)))


def repeated(draw: int) -> list[float]:
    """Deviation, over ten trainings on the same labels, of the changes of joined models and of
    scores, in points.
    """
    pin_threads(1)
    deal = partition(draw, DEALS["60 each"])
    found = []
    for again in range(10):
        trained = TrainedPartition(deal, 1000 * draw + again, rules=Additive())
        found.append([trained.changes(each) for each in (trained.joined, trained.scores())])
    return [100.0 * float(np.std(each, axis=0, ddof=1).mean()) for each in np.swapaxes(found, 0, 1)]


def main() -> None:
    options = arguments(__doc__, draws=100, jobs=2, write=False)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        deals = {
            name: summed(errors(labels, options.draws, pool)) for name, labels in DEALS.items()
        }
        joined, score = np.mean(list(pool.map(repeated, range(8))), axis=0)
        curve = {
            str(n): deals["60 each"] if n == 60 else summed(errors((n, n, n), options.draws, pool))
            for n in CURVE
        }
    if options.write:
        keep("examples/demo/diabetes_draws.json", draws=options.draws, deals=deals, curve=curve)
    print(
        f"trained again on the same labels, changes deviate by {joined:.1f} (joined) and"
        f" {score:.1f} points (scores)"
    )
    for name, sites in deals.items():
        print(name)
        for site, row in sites.items():
            changes = ", ".join(
                f"{c} {row[c]:.1f} ({100 * (row[c] / row['local'] - 1):+.1f} %)"
                for c in COLUMNS
                if c != "local"
            )
            print(
                f"  {site:<14} local {row['local']:.1f}, {changes}; joined better in"
                f" {100 * row['joined_better']:.0f} %"
            )


if __name__ == "__main__":
    main()
