"""One federation of the study: what each site gains, in memory and with the noise of a federation's
default rules.

Changes are of the root mean squared error against the site's local model in memory.
"""

from typing import Any

import numpy as np

from benchmarks.benefit.partition import Partition
from benchmarks.benefit.rivals import rivals
from benchmarks.papers.jobs import JSON
from coreg_core.arrays import Arr
from coreg_core.evaluation import (
    Probability,
    auc,
    calibration_error,
    fit_probability,
    log_loss,
)
from coreg_core.objectives.additive import Additive
from coreg_core.threads import pin_threads
from coreg_sim.benefit.trial import TrainedPartition

RULES = Additive()  # of a federation
Z90 = 1.6449


def trial(partition: Partition, draw: int) -> list[dict[str, JSON]]:
    """A record for each site."""
    pin_threads(1)
    memory = TrainedPartition(partition, draw)
    private = TrainedPartition(partition, draw, private=True)
    M = len(partition.columns)
    found: dict[str, Arr] = {
        "score": memory.changes(memory.scores()),
        "score as it is": memory.changes(memory.scores(checked=False)),
        "joined": memory.changes(memory.joined),
        "private score": memory.changes(private.scores()),
        "private joined": memory.changes(private.joined),
        "pooled": memory.changes(np.tile(memory.pooled, (M, 1))),
    }
    found |= {name: memory.changes(each) for name, each in rivals(partition, draw).items()}
    if M > 2:
        found["score, one missing"] = memory.changes(memory.scores(missing=True))
    if len(np.unique(np.concatenate(partition.labelled))) >= RULES.least_rows:
        default = TrainedPartition(partition, draw, rules=RULES)
        found |= {
            "default score": memory.changes(default.scores()),
            "default joined": memory.changes(default.joined),
        }
        if M > 2:
            found["default score, one missing"] = memory.changes(default.scores(missing=True))
    records: list[dict[str, Any]] = []
    for v, (y, honest) in enumerate(zip(partition.labels, partition.honest, strict=True)):
        record: dict[str, Any] = {"labels": len(y), "honest": honest}
        record["change"] = {name: float(each[v]) for name, each in found.items()}
        verdict = memory.trained.sites[v].verdict
        record["recommended"] = verdict.recommended
        record["forecast"] = {name: each.change for name, each in verdict.gains.items()}
        record["slope"] = verdict.slope
        at = memory.trained.sites[v]
        stated = at.own.deviations(
            memory.trained.fits[0], at.model.features(memory.test[v]), at.private_noise
        )
        score, joined = (verdict.spread * each for each in stated)
        record["inside"] = {
            "score": float(
                np.mean(
                    np.abs(partition.y_test[v] - memory.scores(checked=False)[v]) <= Z90 * score
                )
            ),
            "joined": float(
                np.mean(np.abs(partition.y_test[v] - memory.joined[v]) <= Z90 * joined)
            ),
        }
        if partition.yes_no:
            record["yes_no"] = _yes_no(memory, v)
        records.append(record)
    return records


def _yes_no(federation: TrainedPartition, v: int) -> dict[str, list[float]]:
    """AUC, log loss and calibration error of each model; probabilities from own left-out
    predictions.
    """
    at = federation.trained.sites[v]
    y = federation.sites[v].y
    truth = federation.partition.y_test[v]
    predictions = {
        "local": federation.local[v],
        "joined": federation.joined[v],
        "score": federation.scores()[v],
    }
    out = {}
    for name, each in predictions.items():
        left = at.verdict.left_out.get(name)
        probability = (
            Probability()
            if left is None
            else fit_probability(y[: len(left)] - left, y[: len(left)])
        )
        p = probability.of(each)
        out[name] = [figure(p, truth) for figure in (auc, log_loss, calibration_error)]
    return out
