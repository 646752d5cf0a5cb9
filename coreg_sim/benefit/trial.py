"""One federation: the error of each method on test rows at each site, against the site's own model.

| method | predictor |
|---|---|
| alone | the site's own Gaussian kernel ridge, width and ridge by leave-one-out: the baseline |
| joined | the site's own model after training with private rows, blended; the model alone if the site's own folds prefer it |
| scored | the score of all sites, private rows |
| checked | the score of all sites, common rows, if the site's own folds prefer it; else the model alone |
| ridge | scikit-learn's RidgeCV (linear) on the site's rows and standardised columns |
| mean | the mean of the site's own labels; of the federation's labels if it has none |
| pooled | kernel ridge on all labelled rows and columns in one place, for reference |

A site without labels is compared with the mean label of the federation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.local_fit import LEAST_LABELS
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.dense_training import DenseRun, forecast_dense, train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.evaluation.probability import auc
from coreg_core.evaluation.recommendation import Choice, judge
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.numerics.threads import pin_threads
from coreg_sim.benefit.partition import Partition

# The pooled data has more rows and columns than a site, so it gets more landmarks.
POOLED_LANDMARKS = 150
_EVERYTHING = ResidualPolicy(grouped_at_least=3, open_residuals=True)
_CUT = (-0.9, 2.0)  # of a relative change


@dataclass(frozen=True)
class SiteOutcome:
    """One site of one draw: the relative change of the root mean squared error by each method, against the site alone.

    ``areas``: of a yes/no target, the area under the ROC curve by method. ``positive``: its share of 1 among the test rows.
    """

    site: int
    draw: int
    labels: int
    shared: int
    change: dict[str, float]
    areas: dict[str, float] = field(default_factory=dict)
    positive: float = 0.5


def trial(partition: Partition, draw: int) -> list[SiteOutcome]:
    """All sites of one federation."""
    pin_threads(1)  # the same bits for every number of processes
    federation = Federation(partition, draw)
    errors, areas = federation.methods(), federation.areas() if partition.yes_no else {}
    alone = np.array(federation.alone)
    changes = {
        method: np.clip(np.sqrt(np.divide(found, alone, out=np.ones_like(alone), where=alone > 0.0)) - 1.0, *_CUT)
        for method, found in errors.items()
    }
    return [
        SiteOutcome(
            v,
            draw,
            len(y),
            len(partition.shared),
            {method: float(each[v]) for method, each in changes.items()},
            {method: each[v] for method, each in areas.items()},
            float(np.mean(partition.y_test)),
        )
        for v, y in enumerate(partition.labels)
    ]


class Federation:
    """The trainings of one federation. The seed is for landmarks, probes and folds."""

    def __init__(self, partition: Partition, seed: int):
        self.partition, self.seed = partition, seed
        self.mean = float(np.concatenate(partition.labels).mean())
        self.private, self.private_run = self.train(Additive(seed=seed))
        self.alone_predictions = [
            site.model.alone.predict(X[partition.test])
            if site.model and site.model.alone
            else np.full(len(partition.test), self.mean)
            for site, X in zip(self.private, partition.columns, strict=True)
        ]
        self.alone = self.errors(self.alone_predictions)

    def errors(self, predictions: Sequence[Float64[Arr, " t"]] | Float64[Arr, "M t"]) -> list[float]:
        """The mean squared error of each site's predictions."""
        found: list[float] = np.mean((self.partition.y_test - np.asarray(predictions)) ** 2, axis=1).tolist()
        return found

    def train(self, terms: Additive) -> tuple[list[AdditiveSite], DenseRun]:
        """All sites, trained with these terms."""
        partition, shared, where = self.partition, self.partition.shared, None
        if terms.rows == "common":
            shared, where = common_rows(partition)
        sites = [
            AdditiveSite(
                X[rows], y, X[shared], terms, name=f"site{v}", positions=None if where is None else where[v],
                policy=_EVERYTHING,
            )
            for v, (X, rows, y) in enumerate(zip(partition.columns, partition.labelled, partition.labels, strict=True))
        ]  # fmt: skip
        return sites, train_dense(terms, sites, len(shared))

    def joint(self, sites: list[AdditiveSite]) -> Float64[Arr, "M t"]:
        """The score of each site: all parts, and its own intercept."""
        test = self.partition.test
        parts = [s.model.part.predict(X[test]) for s, X in zip(sites, self.partition.columns, strict=True) if s.model]
        intercepts = np.array([s.model.intercept for s in sites if s.model])
        joint: Arr = intercepts[:, None] + np.sum(parts, axis=0)
        return joint

    def own(self, sites: list[AdditiveSite]) -> list[Float64[Arr, " t"]]:
        """The predictions of each site's own model."""
        test = self.partition.test
        return [s.model.own.predict(X[test]) for s, X in zip(sites, self.partition.columns, strict=True) if s.model]

    @cached_property
    def common(self) -> list[AdditiveSite]:
        """The sites, trained on common rows, with their own folds."""
        terms = Additive(rows="common", seed=self.seed)
        sites, run = self.train(terms)
        forecast_dense(terms, sites, run)
        return sites

    @cached_property
    def checked(self) -> list[bool]:
        """Whether each site uses the scores of common rows, by its own folds."""
        return [judge(site.left_out, site.n_labelled).score is Choice.TOGETHER for site in self.common]

    def methods(self) -> dict[str, list[float]]:
        """Mean squared errors of each method, one for each site."""
        partition, alone = self.partition, self.alone
        forecast_dense(self.private[0].terms, self.private, self.private_run)
        blended, common = self.errors(self.own(self.private)), self.errors(self.joint(self.common))
        joins = [judge(site.left_out, site.n_labelled).own is Choice.JOINED for site in self.private]
        means = [float(y.mean()) if len(y) else self.mean for y in partition.labels]
        return {
            "joined": [b if joined else a for b, a, joined in zip(blended, alone, joins, strict=True)],
            "scored": self.errors(self.joint(self.private)),
            "checked": [c if checked else a for c, a, checked in zip(common, alone, self.checked, strict=True)],
            "ridge": self.errors(self._ridge()),
            "mean": self.errors(np.tile(np.array(means)[:, None], len(partition.test))),
            "pooled": self.errors([self.pooled] * len(alone)),
        }

    def _ridge(self) -> list[Float64[Arr, " t"]]:
        """The mean label for a site without labels."""
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        partition, out = self.partition, []
        for X, rows, y in zip(partition.columns, partition.labelled, partition.labels, strict=True):
            model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2.0, 4.0, 13)))
            enough = len(y) >= LEAST_LABELS
            out.append(
                model.fit(X[rows], y).predict(X[partition.test]) if enough else np.full(len(partition.test), self.mean)
            )
        return out

    def areas(self) -> dict[str, list[float]]:
        """Areas under the ROC curve of each method, one for each site."""
        common = self.joint(self.common)
        predictions: dict[str, Sequence[Float64[Arr, " t"]]] = {
            "local model": self.alone_predictions,
            "joined model": self.own(self.private),
            "scored together": list(self.joint(self.private)),
            "checked scores": [
                score if checked else alone
                for score, alone, checked in zip(common, self.alone_predictions, self.checked, strict=True)
            ],
            "pooled": [self.pooled] * len(self.alone),
        }
        return {method: [auc(each, self.partition.y_test) for each in found] for method, found in predictions.items()}

    @property
    def pooled(self) -> Float64[Arr, " t"]:
        """Kernel ridge on all columns and rows in one place, by the same rule as each site alone."""
        model = self.pooled_site.model
        assert model is not None
        assert model.alone is not None
        return model.alone.predict(pooled_rows(self.partition)[0][self.partition.test])

    @cached_property
    def pooled_site(self) -> AdditiveSite:
        """A site with all columns and labelled rows."""
        X, rows, y = pooled_rows(self.partition)
        terms = Additive(seed=self.seed, landmarks=POOLED_LANDMARKS, tuning_steps=0)
        site = AdditiveSite(X[rows], y, X[self.partition.shared], terms, name="pooled", policy=_EVERYTHING)
        train_dense(terms, [site], len(self.partition.shared))
        return site


def common_rows(partition: Partition) -> tuple[Ints, list[Ints]]:
    """The shared instances and all labelled rows, each once, with the positions of each site's labelled rows. Every site knows
    the labelled rows of the others."""
    labelled, before = np.unique(np.concatenate(partition.labelled)), len(partition.shared)
    positions = [before + np.searchsorted(labelled, rows) for rows in partition.labelled]
    return np.concatenate([partition.shared, labelled]), positions


def pooled_rows(partition: Partition) -> tuple[Arr, Ints, Arr]:
    """(all columns, labelled rows, labels). A row or column of several sites counts once."""
    X = np.concatenate(partition.columns, axis=1)
    _, first = np.unique(X, axis=1, return_index=True)
    rows, labels = np.concatenate(partition.labelled), np.concatenate(partition.labels)
    kept = np.sort(np.unique(rows, return_index=True)[1])
    return X[:, np.sort(first)], rows[kept], labels[kept]
