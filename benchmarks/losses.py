r"""coRLSR with Huber's loss and with an ε-insensitive one, against the squared loss, on the 32 sets
of `corlsr-uci`.

    python benchmarks/losses.py --data DIR [--quick]

Both losses are minimised around the squared one: a fit to the labels f(x) + ψ(y − f(x)) minimises a
quadratic upper bound of the loss whose derivative is ψ, so the objective falls in every iteration.
Huber: ψ(r) = r cut at ±δ; ε-insensitive: ψ(r) = sign(r) max(|r| − ε, 0), cut at ±δ. δ is 1.345
times the residuals' robust deviation (their median absolute value / 0.6745) and ε 0.1 deviations of
the labels, the customary values. 60 rows are labelled (a fifth of smaller sets), columns
standardised, two random views, widths and ridges by leave-one-out, λ = 0.1, ten draws. "10 %
wrong": to a tenth of the labels, noise of five deviations is added. Printed: the mean over the sets
of the error's ratio to that of the squared loss, its standard error, and the number of sets on
which the loss is better.
"""

from pathlib import Path

import numpy as np
from harness import arguments

from benchmarks.one_table import one_table
from benchmarks.papers.corlsr_uci import SETS
from benchmarks.papers.pool import Pool
from benchmarks.papers.views import random_views, rough, standardised
from coreg_core.estimators import CoRLSR
from coreg_core.threads import pin_threads

ITERATIONS = 20
LABELS = 60
HELD_OUT = 400


def fitted(tables, y, Z, loss):
    """The views' mean predictions on Z, after at most ITERATIONS fits to moved labels."""
    rules = {}
    moved = y
    unit = rough(y)
    for _ in range(1 if loss == "squared" else ITERATIONS):
        views, table = one_table(tables, list(np.broadcast_to(moved, (2, len(y)))), Z)
        model = CoRLSR(views=views, coupling=0.1, prediction_tol=unit, **rules).fit(**table)
        if not rules:  # chosen once, with the squared loss
            rules = {"bandwidth": list(model.bandwidth_), "ridge": list(model.ridge_)}
        own = model.predict_views(np.hstack(tables))
        residuals = y - own
        delta = 1.345 * np.median(np.abs(residuals), axis=1, keepdims=True) / 0.6745
        if loss == "epsilon":
            residuals = np.sign(residuals) * np.maximum(np.abs(residuals) - 0.1 * y.std(), 0.0)
        before = moved
        moved = own + np.clip(residuals, -delta, delta)
        if np.abs(moved - before).max() < 1e-3 * y.std():
            break
    return model.predict(np.hstack(Z))


def one(data, draw, wrong):
    rng = np.random.default_rng([draw, *data.name.encode()])
    order = rng.permutation(len(data.y))
    views = random_views(data, rng)
    n = min(LABELS, len(order) // 5)
    inside = order[:n]
    outside = order[n : n + HELD_OUT]
    X = standardised(data.X, inside)
    y = data.y[inside].copy()
    if wrong:
        chosen = rng.permutation(n)[: n // 10]
        y[chosen] += 5 * y.std() * rng.normal(size=len(chosen))
    tables = [X[inside][:, v] for v in views]
    Z = [X[outside][:, v] for v in views]
    errors = {
        loss: fitted(tables, y, Z, loss) - data.y[outside]
        for loss in ("squared", "huber", "epsilon")
    }
    return {loss: (np.sqrt(np.mean(e**2)), np.mean(np.abs(e))) for loss, e in errors.items()}


def main() -> None:
    given = arguments(__doc__, quick=False, data=Path("data"))
    pin_threads(1)
    pool = Pool(given.data)
    sets, draws = (
        ([n for n in SETS if pool.has(n)][:3], 2)
        if given.quick
        else ([n for n in SETS if pool.has(n)], 10)
    )
    print(
        f"{'labels':<12} {'loss':<8} {'rmse':>16} {'better':>8} {'mean abs. error':>16}"
        f" {'better':>8}"
    )
    for wrong in (False, True):
        means = {loss: [] for loss in ("squared", "huber", "epsilon")}
        for name in sets:
            data = pool.load(name)
            runs = [one(data, draw, wrong) for draw in range(draws)]
            for loss, of_sets in means.items():
                of_sets.append(np.mean([run[loss] for run in runs], axis=0))
        base = np.array(means["squared"])
        for loss in ("huber", "epsilon"):
            ratio = np.array(means[loss]) / base
            mean = ratio.mean(axis=0)
            error = ratio.std(axis=0, ddof=1) / np.sqrt(len(sets))
            better = (ratio < 1).sum(axis=0)
            cells = " ".join(
                f"{mean[j]:8.3f} ± {error[j]:.3f} {better[j]:5d}/{len(sets)}" for j in (0, 1)
            )
            print(f"{'10 % wrong' if wrong else 'as given':<12} {loss:<8} {cells}", flush=True)


if __name__ == "__main__":
    main()
