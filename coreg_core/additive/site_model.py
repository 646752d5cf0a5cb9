r"""What one site owns after an additive training: its models, in the labels' units.

It has no moments of labels.

joined(x) = c + W(x)·w        part(x) = φ(x)·β_S        deviation(x)² = z Q zᵀ + q,  z = (W(x), 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.additive.check import Conclusion, Correction
from coreg_core.additive.features import FeatureBasis, LocalModel, SiteFeatures
from coreg_core.additive.fit import Fit
from coreg_core.additive.missing_features import Completion, ScoreWeights
from coreg_core.arrays import Arr, Ints


def without_labels(local: LocalModel) -> LocalModel:
    """Without what it has of single labels, which no prediction needs."""
    return replace(local, left_out=np.zeros(0), out_of_bag=np.zeros(0))


@dataclass(frozen=True, eq=False)
class SiteModel:
    """The models of one site."""

    features: SiteFeatures
    local: LocalModel | None  # None below three labels
    learned: LocalModel | None  # the joined model, if it learned from scores
    joined: Float64[Arr, " k"]  # w, of a joined model that did not
    intercept: float  # c
    variance: Float64[Arr, "j j"]  # Q
    least_variance: float  # q
    weights: ScoreWeights
    block: Int64[Ints, "2"]  # where the site's own are in the weights
    score_intercept: float  # what the sum of all parts lacks for the labels of this site
    correct_joined: Correction  # by own left-out labels, as is the next
    correct_score: Correction
    spread: float  # factor of the stated deviations
    deviation_of_labels: float  # the unit of the noise on a score
    covariance: Float64[Arr, "d d"]  # of the own weights, in the labels' units
    noise: float  # deviation of a label from the score of all sites, in the labels' units

    @classmethod
    def of(
        cls,
        fit: Fit,
        own: Completion,
        features: SiteFeatures,
        local: LocalModel | None,
        conclusion: Conclusion,
        private_noise: float | None = None,
    ) -> "SiteModel":
        """From the fit and the conclusion; ``private_noise`` is that of `OwnLabels`."""
        m = fit.moments
        verdict = conclusion.verdict
        learned = conclusion.learned
        k = own.B.shape[1]
        unit = np.concatenate(
            [np.eye(k), np.zeros((1, k))]
        )  # one row a column of W, and the constant
        rows = own.design(unit)
        rows[:k] -= rows[k]
        weighed = m.deviation * (rows @ fit.beta)
        variance = m.deviation**2 * (rows @ fit.S @ rows.T)
        at_centre = own.deviations(fit, unit[-1:], private_noise)[1][0] ** 2
        score = ScoreWeights.of(fit)
        block = score.block(own.site)
        directions = tuple(map(without_labels, features.directions))
        features = replace(features, directions=directions)
        return cls(
            features,
            None if local is None else without_labels(local),
            None if learned is None else without_labels(learned),
            weighed[:k],
            m.mean + float(weighed[k]),
            variance,
            float(at_centre - variance[k, k]),
            score,
            np.array([block.start, block.stop], dtype=np.int64),
            fit.intercept(own.site),
            verdict.joined,
            verdict.score,
            verdict.spread,
            m.deviation,
            m.deviation**2 * fit.S[block, block],
            m.deviation * float(np.sqrt(fit.sigma[0])),
        )

    def slopes(self) -> tuple[Float64[Arr, " p"], Float64[Arr, " p"]] | None:
        """Slopes of the score in own columns, ∂score/∂x = Vᵀβ/deviation, and their deviations; None
        unless kernel = "linear".
        """
        basis = self.features.basis
        if basis.width or self.features.directions:
            return None
        start, stop = self.block.tolist()
        A = self.features.components[:, : stop - start] / basis.deviation[:, None]
        return A @ self.weights.coef[start:stop], np.sqrt(
            np.einsum("ij,jk,ik->i", A, self.covariance, A)
        )

    def predict(self, X: Float64[Arr, "n p"]) -> Float64[Arr, " n"]:
        """The joined model, corrected by the site's own labels."""
        if self.learned is None:
            predicted = self.intercept + self.features(X) @ self.joined
        else:
            predicted = self.learned.predict(X)
        return self.correct_joined(predicted, self.alone(X))

    def alone(self, X: Float64[Arr, "n p"]) -> Float64[Arr, " n"] | None:
        """The local model; None without one."""
        if self.local is None:
            return None
        return self.local.predict(X)

    def phi(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n d"]:
        """The features of the score."""
        start, stop = self.block.tolist()
        return np.asarray(self.features(X)[:, : stop - start])

    def part(self, phi: Float64[Arr, "n d"], present: Sequence[int]) -> Float64[Arr, " n"]:
        """The site's part of E[score | features of the present sites]."""
        start, stop = self.block.tolist()
        return np.asarray(phi @ self.weights.of_sites(present)[start:stop])

    def score(self, total: Float64[Arr, " n"], X: Float64[Arr, "n p"]) -> Float64[Arr, " n"]:
        """The corrected score from the sum of all parts, in simulations; a site has
        `ScoringJob.receive` and `Scored`.
        """
        return self.correct_score(self.score_intercept + total, self.alone(X), X)

    def deviations(self, X: Float64[Arr, "n p"]) -> Float64[Arr, " n"]:
        """Of a new label from the joined model."""
        z = np.concatenate([self.features(X), np.ones((len(X), 1))], axis=1)
        variance = np.einsum("ij,jk,ik->i", z, self.variance, z) + self.least_variance
        return np.asarray(self.spread * np.sqrt(np.maximum(variance, 0.0)))


@dataclass(frozen=True, eq=False)
class ClassModel:
    """The models of one site for several classes, one for each; values have a column for each."""

    models: tuple[SiteModel, ...]

    @property
    def features(self) -> SiteFeatures:
        """The classes share them."""
        return self.models[0].features

    @property
    def weights(self) -> ScoreWeights:
        """Of the first: all have its features and its noise."""
        return self.models[0].weights

    @property
    def score_intercept(self) -> Arr:
        """What the sum of all parts lacks for each score."""
        return np.array([model.score_intercept for model in self.models])

    @property
    def deviation_of_labels(self) -> Arr:
        """The unit of the noise on each score."""
        return np.array([model.deviation_of_labels for model in self.models])

    @property
    def local(self) -> "LocalClasses | None":
        """None if this site has too few labels, or none of some class."""
        models = [model.local for model in self.models if model.local is not None]
        if len(models) == len(self.models):
            return LocalClasses(tuple(models))
        return None

    def predict(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n t"]:
        """The joined models, corrected by the site's own labels."""
        return np.stack([model.predict(X) for model in self.models], axis=1)

    def alone(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n t"] | None:
        """The local models; None without them."""
        if self.local is None:
            return None
        return self.local.predict(X)

    def phi(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n d"]:
        """The features of the scores."""
        return self.models[0].phi(X)

    def part(self, phi: Float64[Arr, "n d"], present: Sequence[int]) -> Float64[Arr, "n t"]:
        """The site's part of each score, as `SiteModel.part`."""
        return np.stack([model.part(phi, present) for model in self.models], axis=1)

    def correct_score(
        self,
        scores: Float64[Arr, "n t"],
        local: Float64[Arr, "n t"] | None,
        X: Float64[Arr, "n p"] | None = None,
    ) -> Float64[Arr, "n t"]:
        """Scores with the site's verdicts; ``local``: `alone` of the same rows."""
        columns = [
            model.correct_score(scores[:, k], None if local is None else local[:, k], X)
            for k, model in enumerate(self.models)
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True, eq=False)
class LocalClasses:
    """Local models of several classes, one for each."""

    models: tuple[LocalModel, ...]

    @property
    def basis(self) -> FeatureBasis:
        """Of the first: all have its rows as landmarks."""
        return self.models[0].basis

    def predict(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n t"]:
        """A column for each class."""
        return np.stack([model.predict(X) for model in self.models], axis=1)


def model_of(models: tuple[SiteModel, ...]) -> SiteModel | ClassModel:
    """A site's model of its targets."""
    if len(models) == 1:
        return models[0]
    return ClassModel(models)
