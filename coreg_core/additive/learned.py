r"""The joined model, where a site has joint scores: its own columns learn what all columns say.

    t_i = score of i                                     individuals without a label
    t_i = label of i − left-out residual of its score    own labels in the sums
    f   = kernel ridge mixed with a forest, of own columns for t      (the rule of the local model)

A score knows the labels of its neighbours, and they know the score of theirs. So the left-out
residual of f at an own label still knows that label by h, the leverage of its row on the joint
score that own columns predict (`check.own_leverage`).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.features import FeatureSettings, LocalModel, SiteRows, fit_features
from coreg_core.arrays import Arr, evenly
from coreg_core.objectives.additive import KernelName

LEAST_SCORES = 100  # with fewer individuals the regression on moments predicts better
MOST_SCORES = 1_000


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Joint scores of individuals without a label, and this site's columns of them."""

    X: Float64[Arr, "u p"]
    scores: Float64[Arr, " u"]


@dataclass(frozen=True, eq=False)
class Learned:
    """The model f, and its left-out predictions of the own labels that it learned from."""

    model: LocalModel
    left_out: Float64[Arr, " c"]


def learn(
    scored: ScoredRows,
    X: Float64[Arr, "c p"],
    targets: Float64[Arr, " c"],
    *,
    seed: int,
    kernel: KernelName,
) -> Learned | None:
    """Learn from `MOST_SCORES` scores and the ``targets`` of own labels with columns ``X``.

    None: there are fewer than `LEAST_SCORES` scores, or all are equal.
    """
    if len(scored.scores) < LEAST_SCORES:
        return None
    kept = evenly(len(scored.scores), MOST_SCORES)
    rows = np.concatenate([X, scored.X[kept]])
    t = np.concatenate([targets, scored.scores[kept]])
    settings = FeatureSettings(len(rows), 1, seed, kernel)
    _, model, _ = fit_features(SiteRows(rows, np.arange(len(rows)), t), settings)
    if model is None:
        return None
    return Learned(model, targets - model.left_out[: len(targets)])
