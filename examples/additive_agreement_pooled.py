"""Additive against agreement against pooled.

Three sites have 40 labels each. Each site has one column of its own and one noisy copy of a common
column. The share of the target that the common column explains goes from 0 to 1. At 0 the target is
a sum of parts, one for each site. At 1 all sites measure the same thing.

How to read it: "alone", "agreement" (coRLSR) and "additive" are models for a site's own columns.
The others need the columns of all sites; "pooled" also needs all labels in one place. Agreement
helps little where the target is a sum. Its coupling was chosen on the test rows, which favours it.

    python examples/additive_agreement_pooled.py [--quick]
"""

import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from coreg_core.estimators import AdditiveRegressor, CoRLSR
from examples.demo.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

VIEWS = [[0, 1], [2, 3], [4, 5]]
LABELS = 40
SHARED = 200
TEST = 400
NAMES = ("alone", "agreement", "additive", "mean of sites alone", "additive score", "pooled")
shares, draws = ((0.0, 1.0), 3) if "--quick" in sys.argv else ((0.0, 0.25, 0.5, 0.75, 1.0), 10)


def table(share, rng):
    rows = 3 * LABELS + SHARED + TEST
    own = rng.normal(size=(rows, 3))
    common = rng.normal(size=(rows, 1))
    X = np.stack([own, common + 0.8 * rng.normal(size=(rows, 3))], axis=2).reshape(rows, 6)
    parts = np.sin(1.5 * own).sum(axis=1)
    same = np.sqrt(3) * np.sin(1.5 * common[:, 0])
    return X, np.sqrt(1 - share) * parts + np.sqrt(share) * same + 0.2 * rng.normal(size=rows)


def errors(share, seed):
    X, y = table(share, np.random.default_rng(seed))
    train = slice(None, -TEST)
    test = slice(-TEST, None)
    label_mask = np.arange(len(X) - TEST)[:, None] // LABELS == np.arange(
        3
    )  # 40 rows for each site, then shared rows
    known = np.where(label_mask.any(axis=1), y[train], np.nan)
    additive = AdditiveRegressor(views=VIEWS).fit(X[train], known, label_mask=label_mask)
    agreement = CoRLSR(views=VIEWS, bandwidth="loo", ridge="loo", coupling=0.01)
    agreement.fit(X[train], known, label_mask=label_mask)
    pooled = AdditiveRegressor(views=[slice(None)]).fit(X[train], known)
    alone = np.array(
        [additive.predict_local(v, X[test][:, columns]) for v, columns in enumerate(VIEWS)]
    )
    own = (alone, agreement.predict_views(X[test]), additive.predict_views(X[test]))
    joint = (
        alone.mean(axis=0),
        additive.predict(X[test]),
        pooled.predict_local(0, X[test]),
    )
    return [
        np.sqrt(np.mean((y[test] - predicted) ** 2, axis=-1)).mean() for predicted in (*own, *joint)
    ]


threadpool_limits(1)  # the matrices are small: more threads are slower
means = np.array(
    [np.mean([errors(share, seed) for seed in range(draws)], axis=0) for share in shares]
)
print("common share  " + "  ".join(NAMES))
for share, row in zip(shares, means, strict=True):
    print(
        f"{share:<12g}  "
        + "  ".join(f"{error:<{len(name)}.3f}" for name, error in zip(NAMES, row, strict=True))
    )
lines = tuple(
    Series(name, shares, tuple(column), "line") for name, column in zip(NAMES, means.T, strict=True)
)
plot = Plot(
    "objectives",
    "Root mean square error on test rows",
    "share of the common column",
    "error",
    lines,
)
Path("additive_agreement_pooled.svg").write_text(draw(plot), encoding="utf-8")
