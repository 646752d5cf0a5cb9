"""Two circles, two labels on each: the rows without a label show the circles.

This is the artificial set of figure 1 of de Ruijter and Tsivtsivadze (2012): "even though only a few points from each
circle are labelled, the structure becomes clear through the use of unlabelled information". RLSR (kernel ridge regression)
learns from the labelled rows alone. LaplacianRLS also asks for a function that changes little between neighbouring rows.

How to read it: each point is a row. Blue and brown are the signs of LaplacianRLS's predictions, green and violet the four
labelled rows. The printed shares are of the rows without a label, means over the draws.

    python examples/two_circles.py [--quick]
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import make_circles

from coreg_federation import RLSR, LaplacianRLS
from coreg_wire.terminal.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

LABELS = 2  # of each circle
draws = 3 if "--quick" in sys.argv else 20
# The neighbours decide here, so their weight is large, and the kernel narrower than the gap between the circles.
METHODS = {"RLSR": RLSR(), "LaplacianRLS": LaplacianRLS(bandwidth=0.2, manifold=1e4, ridge=1e-5)}


def circles(seed):
    X, circle = make_circles(300, noise=0.05, factor=0.5, random_state=seed)
    rng, y = np.random.default_rng(seed), np.full(300, np.nan)
    for value in (0, 1):
        y[rng.choice(np.flatnonzero(circle == value), LABELS, replace=False)] = 2 * value - 1
    return X, circle, y


right = {name: [] for name in METHODS}
for seed in range(draws):
    X, circle, y = circles(seed)
    for name, method in METHODS.items():
        predicted = method.fit(X, y).predict(X) > 0
        right[name].append(np.mean((predicted == (circle == 1))[np.isnan(y)]))
for name, shares in right.items():
    print(f"{name:13} {100 * np.mean(shares):.0f} % of the rows on the right circle, with {LABELS} labels on each")

X, _, y = circles(0)
inner, known = METHODS["LaplacianRLS"].fit(X, y).predict(X) > 0, ~np.isnan(y)
parts = {
    "predicted: outer": ~inner & ~known,
    "predicted: inner": inner & ~known,
    "label: outer": known & (y < 0),
    "label: inner": known & (y > 0),
}
series = tuple(Series(name, tuple(X[rows, 0]), tuple(X[rows, 1])) for name, rows in parts.items())
plot = Plot("circles", "Two labels on each circle", "first column", "second column", series)
Path("two_circles.svg").write_text(draw(plot), encoding="utf-8")
