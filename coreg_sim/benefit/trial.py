"""One federation: the error of each method on test rows at each site, against the site's local
model.

| method | predictor |
|---|---|
| local | kernel ridge, from 40 labels on mixed with a random forest, on the site's own labels and
columns: the baseline |
| joined | the site's joined model, with its verdict: needs its own columns |
| score | the score of all sites, with the site's verdict |
| ridge | scikit-learn's RidgeCV (linear) on the site's rows and standardised columns |
| mean | the mean of the site's own labels; of the federation's labels if it has none |
| pooled | the local model's rule on all labelled rows and columns in one place, for reference |

All sites know the shared rows and all labelled rows. A site without labels is compared with the
mean label of the federation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.features import LEAST_LABELS, FeatureSettings, SiteRows, fit_features
from coreg_core.additive.training import TrainedFederation, train
from coreg_core.arrays import Arr, Ints
from coreg_core.evaluation import auc
from coreg_core.objectives.additive import IN_MEMORY, Additive
from coreg_core.threads import pin_threads
from coreg_sim.benefit.partition import Partition

AtSites: TypeAlias = Float64[Arr, "M t"]  # predictions of the test rows at each site
_CUT = (-0.9, 2.0)  # of a relative change


@dataclass(frozen=True)
class SiteOutcome:
    """Of a site in a draw: changes of the error, ``areas`` under the curve by method, and the share
    of 1.
    """

    site: int
    draw: int
    labels: int
    shared: int
    change: dict[str, float]
    areas: dict[str, float] = field(default_factory=dict)
    positive: float = 0.5


def trial(partition: Partition, draw: int) -> list[SiteOutcome]:
    pin_threads(1)  # the same bits for every number of processes
    federation = TrainedPartition(partition, draw)
    predictions = federation.methods()
    changes = {method: federation.changes(values) for method, values in predictions.items()}
    ranked = {}
    if partition.yes_no:
        ranked = {"local": federation.local}
        for method in ("joined", "score", "pooled"):
            ranked[method] = predictions[method]
    positive = float(np.mean(partition.y_test))
    outcomes = []
    for v, y in enumerate(partition.labels):
        change = {method: float(values[v]) for method, values in changes.items()}
        areas = {method: auc(values[v], partition.y_test) for method, values in ranked.items()}
        shared = len(partition.shared)
        outcomes.append(SiteOutcome(v, draw, len(y), shared, change, areas, positive))
    return outcomes


class TrainedPartition:
    """The training of one federation; ``private``: only its own site knows a labelled row."""

    def __init__(
        self, partition: Partition, seed: int, *, rules: Additive = IN_MEMORY, private: bool = False
    ):
        self.partition = partition
        self.seed = seed
        self.rules = rules
        self.mean = float(np.concatenate(partition.labels).mean())
        labelled = np.unique(np.concatenate(partition.labelled))
        n_shared = len(partition.shared)
        n_common = n_shared
        if not private:
            n_common = n_shared + len(labelled)
        self.sites = []
        for X, rows, y in zip(partition.columns, partition.labelled, partition.labels, strict=True):
            beside = labelled
            at = np.searchsorted(labelled, rows)
            if private:
                beside = rows
                at = np.arange(len(rows))
            order = np.argsort(at)
            table = X[np.concatenate([partition.shared, beside])]
            self.sites.append(SiteRows(table, n_shared + at[order], y[order]))
        self.trained: TrainedFederation = train(self.sites, n_common, seed=seed, rules=rules)
        self.models = [site.model for site in self.trained.sites]
        self.test = [X[partition.test] for X in partition.columns]

    def _or_mean(self, rows: Sequence[Float64[Arr, " t"] | None]) -> AtSites:
        """Predictions of the sites; the mean label of the federation where a site has none."""
        mean = np.full(len(self.partition.test), self.mean)
        return np.array([mean if row is None else row for row in rows])

    @cached_property
    def local(self) -> AtSites:
        """The local models."""
        pairs = zip(self.models, self.test, strict=True)
        return self._or_mean([model.alone(X) for model, X in pairs])

    @cached_property
    def features(self) -> list[Float64[Arr, "t d"]]:
        """Each site's features of the test rows."""
        return [model.phi(X) for model, X in zip(self.models, self.test, strict=True)]

    @cached_property
    def joined(self) -> AtSites:
        """The joined models, with each site's verdict."""
        pairs = zip(self.models, self.test, strict=True)
        return self._or_mean([model.predict(X) for model, X in pairs])

    def scores(self, *, checked: bool = True, missing: bool = False) -> AtSites:
        """Each site's scores. ``checked``: with its verdict; ``missing``: without the next site."""
        scores = []
        for v, X in enumerate(self.test):
            features: list[Arr | None] = [*self.features]
            if missing:
                features[(v + 1) % len(features)] = None
            if checked:
                scores.append(self.trained.site_score(v, features, X))
            else:
                scores.append(self.trained.score(features, v))
        return np.array(scores)

    def changes(self, predictions: AtSites) -> Float64[Arr, " M"]:
        """Relative change of the root mean squared error at each site, against its local model."""
        y = self.partition.y_test
        errors = np.mean((y - predictions) ** 2, axis=1)
        local = np.mean((y - self.local) ** 2, axis=1)
        ratio = np.divide(errors, local, out=np.ones_like(local), where=local > 0.0)
        change = np.sqrt(ratio) - 1.0
        return np.asarray(np.clip(change, *_CUT))

    def methods(self) -> dict[str, AtSites]:
        means = list[Arr | None]()
        for y in self.partition.labels:
            mean = None
            if len(y):
                mean = np.full(len(self.partition.test), y.mean())
            means.append(mean)
        return {
            "joined": self.joined,
            "score": self.scores(),
            "ridge": self._or_mean(self._ridge()),
            "mean": self._or_mean(means),
            "pooled": np.array([self.pooled] * len(self.test)),
        }

    def _ridge(self) -> list[Float64[Arr, " t"] | None]:
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        predictions: list[Arr | None] = []
        for site, X in zip(self.sites, self.test, strict=True):
            if len(site.y) < LEAST_LABELS:
                predictions.append(None)
                continue
            model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2.0, 4.0, 13)))
            model.fit(site.X[site.own], site.y)
            predictions.append(model.predict(X))
        return predictions

    @cached_property
    def pooled(self) -> Float64[Arr, " t"]:
        """The local model's rule on all columns and labelled rows in one place."""
        X, rows, y = pooled_rows(self.partition)
        table = X[np.concatenate([self.partition.shared, rows])]
        own = len(self.partition.shared) + np.arange(len(rows))
        settings = FeatureSettings(len(table), 1, self.seed)
        _, local, _ = fit_features(SiteRows(table, own, y), settings)
        if local is None:
            return np.full(len(self.partition.test), self.mean)
        return local.predict(X[self.partition.test])


def pooled_rows(partition: Partition) -> tuple[Arr, Ints, Arr]:
    """(all columns, labelled rows, labels). A row or column of several sites counts once."""
    X = np.concatenate(partition.columns, axis=1)
    _, first = np.unique(X, axis=1, return_index=True)
    rows = np.concatenate(partition.labelled)
    labels = np.concatenate(partition.labels)
    kept = np.sort(np.unique(rows, return_index=True)[1])
    return X[:, np.sort(first)], rows[kept], labels[kept]
