"""Means over many draws of labels: one draw of 60 labels says little about a method.

coRLSR is trained in memory on 20 draws of two problems. Two hospitals measure the same condition
(`coreg_sim.problems.same_condition`): there coRLSR helps, because each site's columns describe the
whole individual. The patients' columns are divided among the sites: there it does not. The means of
the additive method are of 100 draws by benchmarks/diabetes.py, as in README.md.
"""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from coreg_core.arrays import Arr
from coreg_core.objectives.agreement import Agreement
from coreg_sim.problems import Problem, SiteViews, ViewsFile, partitioned, same_condition
from coreg_sim.simulate import plan_for, rmse, simulate
from examples.demo.tables import COUPLINGS, LABELLED, SITES, TARGET, UNLABELLED

DRAWS = 20
HOSPITALS = 2
HOSPITAL_LABELS = 20
RECORDED = Path(__file__).with_name("diabetes_draws.json")


@dataclass(frozen=True)
class Means:
    """A site's mean errors: alone by kernel ridge, and by coRLSR; ``better``: in so many draws."""

    ridge: float
    corlsr: float
    better: int


def hospitals() -> dict[str, Means]:
    """Two hospitals that measure the same condition by different columns."""
    return _means(lambda seed: same_condition(HOSPITALS, HOSPITAL_LABELS, 300, 5, seed))


def patients(folder: Path) -> dict[str, Means]:
    """The demonstration's sites: other columns of the same patients, and 60 labels each."""
    study = load_diabetes(scaled=False)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*study.feature_names, TARGET])
    writer.writerows(np.column_stack([study.data, study.target]).tolist())
    table = folder / "all-patients.csv"
    table.write_text(text.getvalue(), encoding="utf-8")
    sites = {site: SiteViews(columns=columns) for site, columns in SITES.items()}
    views = ViewsFile(data=table, target=TARGET, sites=sites)
    return _means(lambda seed: partitioned(views, LABELLED, UNLABELLED, seed, common=True))


def recorded() -> tuple[int, dict[str, dict[str, float]]]:
    """The number of draws, and each site's mean errors by the additive method."""
    found = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found["draws"], found["deals"][f"{LABELLED} each"]


def _means(draw: Callable[[int], Problem]) -> dict[str, Means]:
    problems = [draw(seed) for seed in range(DRAWS)]
    errors = np.array([_errors(problem) for problem in problems])  # (draws, sites, 2)
    return {
        site: Means(*errors[:, v].mean(axis=0), int((errors[:, v, 1] < errors[:, v, 0]).sum()))
        for v, site in enumerate(sorted(problems[0].sites))
    }


def _errors(problem: Problem) -> Arr:
    """Of each site: the error at λ = 0, and at the λ that its own labels choose."""
    run = simulate(problem, plan_for(problem, Agreement(coupling=COUPLINGS)))
    names = sorted(problem.sites)
    rows = []
    for name, result, X in zip(names, run.agreements, problem.held_out, strict=True):
        mean = problem.sites[name].y.mean()
        chosen = 0 if result.choice is None else result.choice.chosen
        models = (result.solutions[0], result.solutions[chosen])
        rows.append([rmse(model.predict(X) + mean, problem.held_out_y) for model in models])
    return np.array(rows)
