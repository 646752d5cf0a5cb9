"""Yes/no targets: AUC, log loss and calibration error of each way to predict, on the second group of sets of the benefit study.

    python benchmarks/yes_no.py --data DIR [--draws 2] [--write]

Each set's target is whether its number lies above the median. Means over sites, then over draws, then over sets. --write saves
them in docs/research/benefit/yes_no.json, for the table of docs/research/benefit.md.
"""

import zlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from harness import arguments, keep, show  # before numpy

# isort: split
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.dense_training import train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.evaluation.probability import auc, calibration_error, fit_probability, log_loss
from coreg_sim.benefit.partition import REGIMES, partition
from coreg_sim.benefit.study import JUDGED_ON, table_named

LABELS = ("n20", "n50", "n100")
METHODS = ("logistic regression alone", "local model", "joined model", "scored together", "pooled")


def trained(terms, columns, rows, labels, shared):
    """Sites with their models; pairs of left-out scores of own and local model come with them."""
    sites = [
        AdditiveSite(X[r], y, X[shared], terms, name=f"site{v}")
        for v, (X, r, y) in enumerate(zip(columns, rows, labels, strict=True))
    ]
    train_dense(terms, sites, len(shared))
    return [site.model for site in sites]


def federation(drawn, seed):
    """Probabilities of test rows by method, one row for each site."""
    terms, found = Additive(seed=seed, task="classification"), defaultdict(list)
    test, shared = drawn.test, drawn.shared
    models = trained(terms, drawn.columns, drawn.labelled, drawn.labels, shared)
    parts = sum(model.part.predict(X[test]) for model, X in zip(models, drawn.columns, strict=True))
    for model, X, rows, y in zip(models, drawn.columns, drawn.labelled, drawn.labels, strict=True):
        own, local = (fit_probability(left_out, y) for left_out in model.left_out)
        found["local model"].append(local.of(model.alone.predict(X[test])))
        found["joined model"].append(own.of(model.own.predict(X[test])))
        found["scored together"].append(own.of(model.intercept + parts))
        peer = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[rows], y) if 0.0 < y.mean() < 1.0 else None
        found["logistic regression alone"].append(
            np.full(len(test), y.mean()) if peer is None else peer.predict_proba(X[test])[:, 1]
        )
    everything, rows, y = (
        np.concatenate(drawn.columns, axis=1),
        np.concatenate(drawn.labelled),
        np.concatenate(drawn.labels),
    )
    [pooled] = trained(replace(terms, landmarks=150, tuning_steps=0), [everything], [rows], [y], shared)
    at = fit_probability(pooled.left_out[1], y).of(pooled.alone.predict(everything[test]))
    found["pooled"] = [at] * len(models)
    return found


def figures(folder, name, regime, draw):
    """(AUC, log loss, calibration error) by method; None if the table is too small."""
    seed = (draw, zlib.crc32(name.encode()), zlib.crc32(regime.encode()))
    numbers = table_named(folder, name)
    table = replace(numbers, y=(numbers.y > np.median(numbers.y)).astype(float))
    drawn = partition(table, REGIMES[regime], seed, 4000)
    if drawn is None:
        return None
    truth, found = table.y[drawn.test], federation(drawn, draw)
    return {
        method: np.mean(
            [(auc(p, truth), log_loss(p, truth), calibration_error(p, truth)) for p in found[method]], axis=0
        )
        for method in METHODS
    }


def main():
    options = arguments(__doc__, data=Path(), draws=2, write=False)
    table = []
    for regime in LABELS:
        by_method = defaultdict(list)
        for name in JUDGED_ON:
            drawn = [figures(options.data, name, regime, draw) for draw in range(options.draws)]
            told = [each for each in drawn if each is not None]
            for method in METHODS if told else ():
                by_method[method].append(np.mean([each[method] for each in told], axis=0))
        for method, told in by_method.items():
            area, loss, off = (float(x) for x in np.mean(told, axis=0))
            row = {"labels": regime[1:], "method": method, "auc": area, "log_loss": loss, "calibration_error": off}
            table.append(show(row | {"sets": len(told)}))
    if options.write:
        keep("docs/research/benefit/yes_no.json", draws=options.draws, table=table)


if __name__ == "__main__":
    main()
