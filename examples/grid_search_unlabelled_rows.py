"""GridSearchCV with unlabelled rows, on pandas and polars frames.

In one table, rows without a target (NaN) are the unlabelled rows. The default folds of scikit-learn
ignore this: a test fold without a label has no score, and a training fold lacks the unlabelled
rows. `LabelledFolds` divides the labelled rows only, and keeps all unlabelled rows in each training
set.

How to read it: the default folds give NaN, these folds give a score for each choice. With the small
ridge, agreement on the unlabelled rows replaces the missing regularisation. With a good ridge,
coupling hardly helps, and a large one harms. The bars are two standard errors over the folds. Both
kinds of frame give the same scores.

    python examples/grid_search_unlabelled_rows.py [--quick]
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.model_selection import GridSearchCV, KFold
from threadpoolctl import threadpool_limits

from coreg_federation import CoRLSR, LabelledFolds
from examples.demo.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

rng = np.random.default_rng(0)
truth = rng.normal(size=240)
frame = pl.DataFrame({f"x{j}": truth + 0.5 * rng.normal(size=240) for j in range(6)})
y = np.where(
    np.arange(240) < 40, np.sin(1.5 * truth) + 0.3 * rng.normal(size=240), np.nan
)  # 40 labels

threadpool_limits(1)  # the matrices are small: more threads are slower
folds, couplings = (
    (3, [1e-4, 1e-2]) if "--quick" in sys.argv else (5, [1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3])
)
grid = {"coupling": couplings, "ridge": [0.003, 0.3]}
model = CoRLSR(
    views=[["x0", "x1"], ["x2", "x3"], ["x4", "x5"]], form="semi-parametric", bandwidth="median"
)


def search(table, cv):
    return GridSearchCV(model, grid, cv=cv).fit(table, y)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scikit-learn reports each fold without a score
    print("default folds:  R² =", search(frame, KFold(folds)).cv_results_["mean_test_score"])
labelled_folds = LabelledFolds(folds, shuffle=True, random_state=0)
found = {"polars": search(frame, labelled_folds)}
try:
    import pandas as pd
except ImportError:
    print("pandas is not installed: polars only")
else:
    found["pandas"] = search(pd.DataFrame(frame.to_dict(as_series=False)), labelled_folds)
for kind, result in found.items():
    print(
        f"labelled folds: R² = {result.cv_results_['mean_test_score']} ({kind}); best"
        f" {result.best_params_}"
    )

scores = found["polars"].cv_results_
shape = (len(couplings), len(grid["ridge"]))
means = scores["mean_test_score"].reshape(shape).T
halves = 2.0 / np.sqrt(folds) * scores["std_test_score"].reshape(shape).T
lines = tuple(
    Series(f"ridge {ridge:g}", tuple(couplings), tuple(mean), "line", tuple(half))
    for ridge, mean, half in zip(grid["ridge"], means, halves, strict=True)
)
plot = Plot("search", "Cross-validated R² on labelled rows", "coupling", "R²", lines, log_x=True)
Path("grid_search_unlabelled_rows.svg").write_text(draw(plot), encoding="utf-8")
