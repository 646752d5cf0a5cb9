"""The estimators of the five papers on one table, by the number of labels.

Ten columns are noisy measurements of two hidden numbers; the first five columns (one view) and the last five (the other)
each measure both. 400 rows have no label. CoRLSR (2006) lets the two views agree on these rows. OCARegressor (2012) learns
the same with linear views from one row after another. XNV (2013) finds correlated features of two random views. SNF
(2014) fits latent rows that explain columns and target. Kernel ridge regression (RLSR) and RidgeCV use the labels alone.

How to read it: below is better; the bars are two standard errors over the draws. With 10 labels SNF has the smallest
error, within the bars. From 40 on RLSR is best, which ignores the unlabelled rows: they do not help here. Linear methods
(RidgeCV, OCARegressor) stay above, since the target is curved. The printed lines are the paper of 2007: coupling the
views makes the class of functions smaller, and this is known before any label is.

    python examples/methods_of_the_papers.py [--quick]
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV
from threadpoolctl import threadpool_limits

from coreg_core.agreement.complexity import CoRegularisedClass, kernel_blocks
from coreg_core.kernels.functions import Gaussian
from coreg_federation import RLSR, SNF, XNV, CoRLSR, OCARegressor
from coreg_wire.terminal.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

threadpool_limits(1)  # the matrices are small: more threads are slower
VIEWS = [slice(0, 5), slice(5, 10)]
draws, sizes = (2, (10, 40)) if "--quick" in sys.argv else (10, (10, 20, 40, 80, 160))
METHODS = {
    "RidgeCV": lambda: RidgeCV(np.logspace(-3, 3, 13)),
    "RLSR": RLSR,
    "CoRLSR": lambda: CoRLSR(views=VIEWS, form="semi-parametric", coupling=0.01),
    "OCARegressor": lambda: OCARegressor(views=VIEWS, random_state=0),
    "XNV": lambda: XNV(n_components=100, random_state=0),
    "SNF": lambda: SNF(n_latent=4, random_state=0),
}


def table(seed):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(860, 2))
    X = np.hstack([hidden @ rng.normal(size=(2, 5)) + 0.3 * rng.normal(size=(860, 5)) for _ in VIEWS])
    return np.clip(X / X.std(axis=0) / 3, -1, 1), np.sin(hidden[:, 0]) + 0.5 * hidden[:, 1] ** 2


def error(make, seed, n):
    X, y = table(seed)
    targets, model = np.where(np.arange(560) < n, y[:560], np.nan), make()
    known = slice(0, n if isinstance(model, RidgeCV) else 560)  # it takes no row without a label
    predicted = model.fit(X[:560][known], targets[known]).predict(X[560:])
    return np.sqrt(np.mean((predicted - y[560:]) ** 2))


found = {name: np.array([[error(make, s, n) for n in sizes] for s in range(draws)]) for name, make in METHODS.items()}
for name, errors in found.items():
    print(f"{name:13}", *(f"{n} labels: {e:.3f}  " for n, e in zip(sizes, errors.mean(axis=0), strict=True)))
X, _ = table(0)
blocks = [kernel_blocks(Gaussian(5.0), X[:20, view], X[20:420, view]) for view in VIEWS]
for coupling in (0.0, 0.01, 0.1):
    _, bound = CoRegularisedClass(blocks, [0.1, 0.1], coupling).complexity_bounds
    print(f"coupling {coupling:g}: Rademacher complexity of 20 labelled rows at most {bound:.3f}")
lines = tuple(
    Series(name, tuple(map(float, sizes)), tuple(e.mean(axis=0)), "line", tuple(2 * e.std(axis=0) / np.sqrt(draws - 1)))
    for name, e in found.items()
)
plot = Plot("papers", "Error on new rows", "labelled rows", "root mean square error", lines, log_x=True)
Path("methods_of_the_papers.svg").write_text(draw(plot), encoding="utf-8")
