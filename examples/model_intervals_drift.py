"""Read a model: its predictions, its intervals and its drift.

A clinic and a laboratory train together, each with 80 labels and other columns. The clinic owns one
file at the end. The script reads this file, predicts 102 new patients with 90 % intervals, and
compares a table with the training ranges.

How to read it: about 90 of 100 intervals cross the diagonal. An interval is wider where the model
knows less. In the second table the clinic records bmi in another unit. The model still predicts,
but the drift sentence says that it extrapolates. On the command line, `coreg-agent predict
--interval 90` writes the same intervals.

    python examples/model_intervals_drift.py [--quick]
"""

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.datasets import load_diabetes

from coreg_core.objectives.additive import Additive
from coreg_federation import Problem, load_model, plan_for, simulate
from examples.demo.svg import Plot, Series, draw
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.models.store import ModelStore, RunFacts

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

study = load_diabetes(scaled=False)
patients = pl.DataFrame(study.data, schema=study.feature_names).with_columns(
    pl.Series("patient", [f"p{i}" for i in range(len(study.target))]),
    pl.Series("progression", study.target),
)[np.random.default_rng(0).permutation(len(study.target))]
held_out, shared = (
    patients[:102],
    patients[102:],
)  # both sites know the shared ones, and each has the labels of 80
sites = {"clinic": ["age", "sex", "bmi", "bp"], "laboratory": ["s1", "s2", "s3", "s4", "s5", "s6"]}

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    prepared = {}
    for v, (site, columns) in enumerate(sites.items()):
        shared[80 * v : 80 * v + 80].select("patient", *columns, "progression").write_csv(
            folder / f"{site}.csv"
        )
        shared.select("patient", *columns).write_csv(folder / f"{site}-shared.csv")
        tables = {"table": folder / f"{site}.csv", "unlabelled": folder / f"{site}-shared.csv"}
        prepared[site] = prepare(Inputs(**tables, target="progression", id="patient"))
    problem = Problem({site: p.data for site, p in prepared.items()}, (), np.empty(0))
    run = simulate(problem, plan_for(problem, Additive()))
    store = ModelStore("clinic", folder / "models")
    joined, *_ = store.put_models(
        run.plan, run.results[0], prepared["clinic"], RunFacts("progression", "patient"), print
    )

    model = load_model(joined)  # everything below needs this file alone

prediction = model.predict(held_out)  # a pandas frame works too
low, high = model.interval(held_out, 0.9)
drifts = []
for table in (
    held_out,
    held_out.with_columns(bmi=pl.col("bmi") * 0.2048),
):  # lb/ft² in place of kg/m²
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.predict(table)
    drifts.append([str(each.message) for each in told if "range of training" in str(each.message)])

y = held_out["progression"].to_numpy()
covered = (low <= y) & (y <= high)
print(f"intervals of 90 % cover {100 * covered.mean():.0f} % of {len(y)} new patients")
print(f"columns that drift: {len(drifts[0])} in the same unit, {len(drifts[1])} in another unit")
print(*drifts[1], sep="\n")
lines = [
    Series(name, tuple(y[rows]), tuple(prediction[rows]), "points", tuple((high - low)[rows] / 2))
    for name, rows in (("label inside", covered), ("label outside", ~covered))
]
plot = Plot(
    "intervals",
    "Predictions with 90 % intervals",
    "true label",
    "prediction",
    tuple(lines),
    diagonal=True,
)
Path("model_intervals_drift.svg").write_text(draw(plot), encoding="utf-8")
