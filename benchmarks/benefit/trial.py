"""One federation of the study: what each site gains, in memory and with the noise of a federation's default rules.

Changes are of the root mean squared error against the site's local model; of the local model, against that of release 0.3
(Gaussian kernel ridge, width and ridge by leave-one-out).
"""

from typing import Any

import numpy as np

from benchmarks.benefit.partition import Partition
from benchmarks.papers.jobs import JSON
from coreg_core.additive.model.features import Standardiser, candidates
from coreg_core.additive.model.local_fit import fit_alone
from coreg_core.additive.moments import Rules
from coreg_core.evaluation.probability import Probability, fit_probability, quality
from coreg_core.kernels.leave_one_out import RIDGES
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_sim.benefit.trial import Federation

RULES = Rules()  # of a federation
Z90 = 1.6449


def trial(partition: Partition, draw: int) -> list[dict[str, JSON]]:
    """A record for each site."""
    pin_threads(1)
    memory = Federation(partition, draw)
    private = Federation(partition, draw, private=True)
    M = len(partition.columns)
    found: dict[str, Arr] = {
        "score": memory.changes(memory.scores()),
        "score as it is": memory.changes(memory.scores(checked=False)),
        "joined": memory.changes(memory.joined),
        "private score": _against(memory, private.scores()),
        "private joined": _against(memory, private.joined),
        "pooled": memory.changes(np.tile(memory.pooled, (M, 1))),
    }
    if M > 2:
        found["score, one missing"] = memory.changes(memory.scores(missing=True))
    if len(np.unique(np.concatenate(partition.labelled))) >= RULES.least_rows:
        default = Federation(partition, draw, rules=RULES)
        found |= {
            "default score": _against(memory, default.scores()),
            "default joined": _against(memory, default.joined),
        }
        if M > 2:
            found["default score, one missing"] = _against(memory, default.scores(missing=True))
    before = release_0_3(partition, draw)
    records: list[dict[str, Any]] = []
    for v, (y, honest) in enumerate(zip(partition.labels, partition.honest, strict=True)):
        record: dict[str, Any] = {"labels": len(y), "honest": honest}
        record["change"] = {name: float(each[v]) for name, each in found.items()}
        record["change"]["local"] = _change(memory.local[v], before[v], partition.y_test[v])
        verdict = memory.trained.sites[v].verdict
        record["recommended"] = verdict.recommended
        record["forecast"] = {name: each.change for name, each in verdict.gains.items()}
        record["slope"] = verdict.slope
        score, joined = (memory.trained.deviations(v, memory.test[v])[j] for j in (0, 1))
        record["inside"] = {
            "score": float(np.mean(np.abs(partition.y_test[v] - memory.scores(checked=False)[v]) <= Z90 * score)),
            "joined": float(np.mean(np.abs(partition.y_test[v] - memory.joined[v]) <= Z90 * joined)),
        }
        if partition.yes_no:
            record["yes_no"] = _yes_no(memory, v)
        records.append(record)
    return records


def _against(memory: Federation, predictions: Arr) -> Arr:
    """Against the local model in memory, so that all columns of the report have one baseline."""
    return memory.changes(predictions)


def _change(predicted: Arr, baseline: Arr, truth: Arr) -> float:
    own, other = (float(np.mean((truth - each) ** 2)) for each in (predicted, baseline))
    return float(np.clip(np.sqrt(own / other) - 1.0, -0.9, 2.0)) if other > 0.0 else 0.0


def release_0_3(partition: Partition, seed: int) -> list[Arr]:
    """The local models of release 0.3 on the test rows; the mean label at a site with fewer than three."""
    out = []
    for X, rows, y in zip(partition.columns, partition.labelled, partition.labels, strict=True):
        standard = Standardiser.of(X[rows], X[partition.shared])
        made = candidates(standard(X[rows]), standard(X[partition.shared]), seed=seed)
        fit = fit_alone([each.labelled for each in made], y, RIDGES)
        if fit is None:
            out.append(np.full(len(partition.test), float(np.concatenate(partition.labels).mean())))
        else:
            out.append(fit.intercept + made[fit.candidate].features(standard(X[partition.test])) @ fit.w)
    return out


def _yes_no(federation: Federation, v: int) -> dict[str, list[float]]:
    """AUC, log loss and calibration error of each model; probabilities from own left-out predictions."""
    at, y, truth = federation.trained.sites[v], federation.partition.labels[v], federation.partition.y_test[v]
    predictions = {"local": federation.local[v], "joined": federation.joined[v], "score": federation.scores()[v]}
    out = {}
    for name, each in predictions.items():
        left = at.verdict.left_out.get(name)
        probability = Probability() if left is None else fit_probability(y[: len(left)] - left, y[: len(left)])
        out[name] = list(quality(probability.of(each), truth))
    return out
