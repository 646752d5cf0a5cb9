"""Does joining pay on my table?

Take a table that you have in one place, and divide its columns over the sites of the planned
federation. Each draw gives every site 15 labelled rows, and keeps 100 rows for the test. The script
compares the model of each site alone with the model that the site owns after training together.
Both need the site's own columns only.

How to read it: the sites gain if the whole interval of the change is below 0, and if the joined
models err less than the mean of the site's own labels. Otherwise the columns do not predict the
target, and a gain means little. For your own data, replace TABLE (a polars frame of numbers without
gaps), TARGET (NaN where a row has none: such a row is only shared) and SITES. From a CSV file,
`coreg-sim benefit --views` does the same. The bars in the picture are 95 % intervals over the
draws.

    python examples/does_joining_pay.py [--quick]
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import t as student
from sklearn.datasets import load_diabetes
from threadpoolctl import threadpool_limits

from coreg_federation import AdditiveRegressor
from examples.demo import svg

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

study = load_diabetes(scaled=False)
TABLE = pl.DataFrame(study.data, schema=study.feature_names)
TARGET = study.target
SITES = {
    "clinic": ["age", "sex", "bmi", "bp"],
    "laboratory-1": ["s1", "s2", "s3"],
    "laboratory-2": ["s4", "s5", "s6"],
}
LABELS = 15
TEST = 100
DRAWS = 6 if "--quick" in sys.argv else 30
known = np.flatnonzero(~np.isnan(TARGET))
if len(known) < TEST + LABELS * len(SITES):
    raise SystemExit(
        f"{len(known)} rows have a target, and {TEST + LABELS * len(SITES)} are needed: lower"
        " LABELS or TEST."
    )


def interval(draws):
    """The mean, and half the width of Student's 95 % interval."""
    return draws.mean(), student.ppf(0.975, len(draws) - 1) * draws.std(ddof=1) / np.sqrt(
        len(draws)
    )


threadpool_limits(1)  # the matrices are small: more threads are slower
errors = np.empty((DRAWS, 3, len(SITES)))
for draw in range(DRAWS):
    order = np.concatenate(
        [np.random.default_rng(draw).permutation(known), np.flatnonzero(np.isnan(TARGET))]
    )
    test = order[:TEST]
    train = order[TEST:]
    label_mask = np.zeros((len(train), len(SITES)), dtype=bool)
    for v in range(len(SITES)):
        label_mask[v * LABELS : (v + 1) * LABELS, v] = True  # each site has labels of its own
    y = np.where(
        label_mask.any(axis=1), TARGET[train], np.nan
    )  # the other rows are shared, without labels
    fitted = AdditiveRegressor(views=list(SITES.values())).fit(
        TABLE[train], y, label_mask=label_mask
    )
    for v, columns in enumerate(SITES.values()):
        X = TABLE[test].select(columns).to_numpy()
        for row, predicted in enumerate((fitted.predict_local(v, X), fitted.predict_view(v, X))):
            errors[draw, row, v] = np.sqrt(np.mean((predicted - TARGET[test]) ** 2))
        errors[draw, 2, v] = np.sqrt(
            np.mean((np.nanmean(np.where(label_mask[:, v], y, np.nan)) - TARGET[test]) ** 2)
        )

found = {}
for row, name in enumerate(("alone", "joined", "mean of labels")):
    found[name] = [interval(errors[:, row, v]) for v in range(len(SITES))]
    for site, (mean, half) in zip(SITES, found[name], strict=True):
        print(f"{f'{site}, {name}':<30} error {mean:.3g} ({mean - half:.3g} to {mean + half:.3g})")
mean, half = interval((errors[:, 1] / errors[:, 0]).mean(axis=1) - 1.0)
print(
    f"change by joining, mean over sites: {100 * mean:+.1f} % ({100 * (mean - half):+.1f} to"
    f" {100 * (mean + half):+.1f})"
)
lines = []
for name, ends in found.items():
    means, halves = zip(*ends, strict=True)
    lines.append(svg.Series(name, (1.0, 2.0, 3.0), means, spread=halves))
plot = svg.Plot(
    "joining", "Error on rows that no site has seen", ", ".join(SITES), "error", tuple(lines)
)
Path("does_joining_pay.svg").write_text(svg.draw(plot), encoding="utf-8")
