r"""What a site has before the first step of a training: labels as it sends them, and features.

| | made from | leaves the site |
|---|---|---|
| local models | true labels | never |
| sent labels | true labels with noise, or randomised ones | in sums, scaled |
| features W | columns, and local models of the sent labels | in sums: the first d of them |

A feature that learned from true labels would carry them into every sum, past their noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.features import (
    FeatureSettings,
    LocalModel,
    SiteFeatures,
    SiteRows,
    fit_features_of,
)
from coreg_core.additive.label_privacy import columns_of, noise_variance, unbiased
from coreg_core.additive.terms import Flags, SiteSummary
from coreg_core.arrays import Arr
from coreg_core.objectives.additive import Additive


@dataclass(frozen=True, eq=False)
class SiteStart:
    """Labels and features of one site. A target has a column of ``y``, ``told`` and ``error``."""

    rows: SiteRows
    n_common: int
    y: Float64[Arr, "l t"]  # true labels
    told: Float64[Arr, "l t"]  # as the site sends them
    error: Float64[Arr, "l t"]  # the difference
    error_variance: float
    sent: Flags  # of the labels, those that the site sends
    local_models: tuple[LocalModel | None, ...]  # of true labels, one for each target
    told_left_out: tuple[Arr, ...]  # residuals of local models of sent labels, for each target
    features: SiteFeatures
    W: Float64[Arr, "n k"]

    @property
    def inner(self) -> Flags:
        """Of the labels, those of common rows."""
        return self.rows.own < self.n_common

    def centred(self, used: Flags) -> "SiteStart":
        """With features centred over these common rows."""
        centre = self.W[: self.n_common][used].mean(axis=0)
        features = replace(self.features, centre=self.features.centre + centre)
        return replace(self, features=features, W=self.W - centre)

    def summary(self, *, scores: bool = True) -> SiteSummary:
        """The exact numbers of a summary; see `SiteSummary.rounded`."""
        flags = np.zeros(self.n_common, dtype=bool)
        flags[self.rows.own[self.sent & self.inner]] = True
        sent_labels = self.told[self.sent]
        several = len(sent_labels) > 1
        levels = (
            tuple(sent_labels.mean(axis=0).tolist())
            if len(sent_labels)
            else (0.0,) * sent_labels.shape[1]
        )
        deviations = (
            tuple(sent_labels.std(axis=0, ddof=1).tolist()) if several else (0.0,) * len(levels)
        )
        norms = np.linalg.norm(self.W[: self.n_common], axis=1)
        return SiteSummary(
            labelled=flags,
            width=self.W.shape[1],
            norm=float(norms.max(initial=0.0)) or 1.0,
            levels=levels,
            deviations=deviations,
            private=int((self.sent & ~self.inner).sum()),
            scores=scores,
        )


def started(
    rows: SiteRows,
    settings: FeatureSettings,
    rules: Additive,
    *,
    label_normals: Callable[[float], Arr],
    randomised: Float64[Arr, " l"] | None = None,
    sent: Flags | None = None,
) -> SiteStart:
    """The labels and features of a site.

    Parameters
    ----------
    rows
        with numbers for labels, or places among the plan's classes
    label_normals
        standard normal numbers for noise of this size: the same ones whenever a label is released
        with it, and independent ones for another size
    randomised
        labels, if the plan has label_epsilon
    sent
        which labels the site sends. None: those of common rows, and of private ones, if there are
        `least_labels` of them.
    """

    y = columns_of(rows.y, rules.classes)
    of_true_labels = fit_features_of(rows, y, settings)
    local_models = of_true_labels[1]
    if randomised is not None:
        told = unbiased(randomised, rules)
        error_variance = noise_variance(rules)
    else:
        size = on_a_grid(rules.label_noise * _spread(rows, local_models[0]))
        told = y + (size * label_normals(size))[:, None]
        error_variance = size**2
    learned_from = np.ones(len(y), dtype=bool)
    if sent is None:
        sent = _enough(rows, settings.n_common, rules.least_labels)
        learned_from = sent
    of_sent_labels = of_true_labels
    if error_variance or not learned_from.all():
        sent_rows = replace(rows, own=rows.own[learned_from], y=rows.y[learned_from])
        of_sent_labels = fit_features_of(sent_rows, told[learned_from], settings)
    features, told_models, W = of_sent_labels
    no_label = np.zeros(0)
    return SiteStart(
        rows=rows,
        n_common=settings.n_common,
        y=y,
        told=told,
        error=told - y,
        error_variance=error_variance,
        sent=sent,
        local_models=local_models,
        told_left_out=tuple(no_label if m is None else m.left_out for m in told_models),
        features=features,
        W=W,
    )


def _spread(rows: SiteRows, local: LocalModel | None) -> float:
    """The error of the local model; without one the deviation of the labels."""
    if local is not None:
        return float(np.sqrt(np.mean(local.left_out**2)))
    if len(rows.y):
        return float(np.std(rows.y))
    return 0.0


def on_a_grid(size: float) -> float:
    """The nearest power of 2^(1/4).

    The size depends on the local model, so on its kernel and columns. Two trainings whose sizes
    differ have independent noise. One number times two sizes would tell the label.
    """
    if size > 0.0:
        return float(2.0 ** (round(4.0 * log2(size)) / 4.0))
    return 0.0


def _enough(rows: SiteRows, n_common: int, least_labels: int) -> Flags:
    """Labels of common rows, and of private ones, where there are ``least_labels`` of the kind."""
    inner = rows.own < n_common
    common_enough = inner.sum() >= least_labels
    private_enough = (~inner).sum() >= least_labels
    return np.asarray(np.where(inner, common_enough, private_enough))
