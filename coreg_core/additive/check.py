r"""A site's check of what joining brings, by its own labels, each left out; nothing of it leaves
the site.

If labels were told with noise e, `left_out_score` takes the noisy labels:
subtract e from what it returns.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.features import LocalModel
from coreg_core.additive.fit import Fit
from coreg_core.additive.learned import Learned, ScoredRows, learn
from coreg_core.additive.missing_features import Completion
from coreg_core.additive.refined import Refinement, refined
from coreg_core.arrays import Arr
from coreg_core.evaluation import paired
from coreg_core.objectives.additive import KernelName

Choice: TypeAlias = Literal["local", "joined", "score"]
PULL = 200.0  # the blend is pulled to the joined model by PULL/n labels
SLOPE_ERRORS = 2.0
SLOPE_LEAST = 0.2
SLOPE_LABELS = 20
SPREAD = 20.0  # labels' worth of the prior of the deviations' factor
# times the standard error of the delta method: two of three true changes are then within it
# (benchmarks/forecasts.py)
WIDER = 1.5


def left_out_score(
    fit: Fit, y: Float64[Arr, " n"], score: Float64[Arr, " n"]
) -> Float64[Arr, " n"]:
    """(y − score)/(1 − h) at own common labels; the mean leverage stands for a row's, which needs
    all sites' features.
    """
    return (y - score) / (1.0 - fit.leverage())


def own_leverage(
    fit: Fit,
    own: Completion,
    W: Float64[Arr, "n k"],
    weight: Float64[Arr, " n"] | float = 1.0,
    part: int = 0,
) -> Float64[Arr, " n"]:
    """w h of rows with features W, completed by the own columns: what a label moves the joined
    model at its row.

    With a left-out residual s of the score the left-out residual of the joined model is
    y − model + w h s; without one (private rows) it is (y − model)/(1 − w h).
    """
    x = own.design(W)
    return np.asarray(weight * np.einsum("ij,jk,ik->i", x, fit.S, x) / fit.sigma[part])


def left_out_completion(
    fit: Fit, own: Completion, W: Float64[Arr, "n k"], score: Float64[Arr, " n"]
) -> Float64[Arr, " n"]:
    """(score − joined) h/(1 − h): the joined model is nearer to the score of a common row by this,
    because the row is in C.
    """
    h = np.minimum(np.einsum("ij,jk,ik->i", W, own.H, W), 0.95)
    return np.asarray((score - own.predict(fit, W)) * h / (1.0 - h))


def slope(y: Float64[Arr, " n"], left_out: Float64[Arr, " n"]) -> float:
    """The slope of labels on left-out predictions where it clearly is not 1; at least 0 (below, the
    labels are opposed).
    """
    predicted = y - left_out
    n = len(y)
    x = predicted - predicted.mean()
    t = y - y.mean()
    if n < SLOPE_LABELS or not x @ x > 0.0:
        return 1.0
    estimate = float(x @ t / (x @ x))
    standard_error = float(np.sqrt(np.sum((t - estimate * x) ** 2) / (n - 2) / (x @ x)))
    if abs(estimate - 1.0) <= max(SLOPE_ERRORS * standard_error, SLOPE_LEAST):
        return 1.0
    return max(estimate, 0.0)


@dataclass(frozen=True)
class Correction:
    """predictions ↦ (1 − w) local + w (level + slope · (prediction − centre)): the slope first,
    then the refinement of a score, then the blend.
    """

    slope: float = 1.0
    level: float = 0.0
    centre: float = 0.0
    weight: float = 1.0
    refinement: Refinement | None = None

    def rescaled(self, predicted: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """With the slope alone."""
        if self.slope == 1.0:
            return predicted
        return self.level + self.slope * (predicted - self.centre)

    def __call__(
        self,
        predicted: Float64[Arr, " n"],
        local: Float64[Arr, " n"] | None,
        X: Float64[Arr, "n p"] | None = None,
    ) -> Float64[Arr, " n"]:
        """Corrected predictions; ``local``: those of the local model, None without one, NaN where a
        row has none. ``X``: own columns, for a refinement.
        """
        joined = self.rescaled(predicted)
        if self.refinement is not None and X is not None:
            joined = joined + self.refinement(X, joined)
        if local is None:
            return joined
        return np.where(np.isnan(local), joined, (1.0 - self.weight) * local + self.weight * joined)


def rescaling(
    c: float, y: Float64[Arr, " n"], left_out: Float64[Arr, " n"]
) -> tuple[Correction, Float64[Arr, " n"]]:
    """A correction by slope c, and the left-out residuals under it.

    Level and slope were fitted to the same labels, so each residual is divided by 1 − h, with the
    leverage h of this regression.
    """
    if c == 1.0:
        return Correction(), left_out
    predicted = y - left_out
    centre = float(predicted.mean())
    level = float(y.mean())
    x = predicted - centre
    h = np.full(len(y), 1.0 / len(y))
    if c > 0.0:
        h = h + x * x / (x @ x)
    return Correction(c, level, centre), (y - level - c * x) / (1.0 - h)


def blend(
    local: Float64[Arr, " n"], joined: Float64[Arr, " n"], *, sloped: bool = False
) -> tuple[float, Float64[Arr, " n"]]:
    """(w, left-out residuals) of w joined + (1 − w) local; pulled towards joined, beside a slope
    towards local.
    """
    n = len(local)
    gain = local - joined
    pull = PULL / n * float(local @ local) / n + 1e-300
    towards = 0.0 if sloped else 1.0  # the weight without labels
    w = float(np.clip((local @ gain + pull * towards) / (gain @ gain + pull), 0.0, 1.0))
    return w, local - w * gain


def spread(left_out: Float64[Arr, " n"], deviations: Float64[Arr, " n"]) -> float:
    """Factor of the stated deviations, from own left-out residuals of the joined model before slope
    and blend.
    """
    squares = np.sum((left_out / deviations) ** 2)
    return float(np.sqrt((squares + SPREAD) / (len(left_out) + SPREAD)))


@dataclass(frozen=True, eq=False)
class Gain:
    """The forecast relative change of the root mean squared error against the local model, and its
    standard error.
    """

    change: float
    standard_error: float


def gain(local: Float64[Arr, " n"], other: Float64[Arr, " n"]) -> Gain:
    """From paired left-out residuals; the standard error by the delta method, widened by what the
    benefit study shows.
    """
    beside = paired(other, local)
    return Gain(beside.change, WIDER * beside.change_se)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a site should use, from its left-out residuals; ``None`` where it has none."""

    recommended: Choice
    joined: Correction
    score: Correction
    # not 1: the labels may have another unit or sign than the others' (1 of 20 honest sites is
    # named too)
    slope: float
    left_out: dict[str, Float64[Arr, " n"]] = field(repr=False)
    gains: dict[str, Gain]
    spread: float = 1.0  # factor of the stated deviations
    uncorrected: Float64[Arr, " c"] | None = field(default=None, repr=False)  # of the score


Refine: TypeAlias = Callable[[Arr, Arr], tuple[Refinement | None, Arr]]


def _corrected(
    c: float,
    y: Float64[Arr, " n"],
    local: Float64[Arr, " n"],
    left_out: Float64[Arr, " n"],
    refine: Refine | None = None,
) -> tuple[Correction, Float64[Arr, " n"]]:
    """The correction by slope c, by ``refine`` and by the blend, and the left-out residuals under
    it.
    """
    predicted = y - left_out
    correction, left_out = rescaling(c, y, left_out)
    refinement = None
    if refine is not None:
        # Not of y − residual: beside a slope that is a function of the label itself.
        refinement, left_out = refine(correction.rescaled(predicted), left_out)
    w, left_out = blend(local, left_out, sloped=c != 1.0)
    return replace(correction, weight=w, refinement=refinement), left_out


def verdict(
    y: Float64[Arr, " n"],
    local: Float64[Arr, " n"] | None,
    joined: Float64[Arr, " n"],
    score: Float64[Arr, " c"] | None,
    nearer: Float64[Arr, " n"] | float = 0.0,
    refine: Refine | None = None,
) -> Verdict:
    """From own labels, those of common rows first, and left-out residuals; ``score``: of the common
    rows. ``refine``: makes the refined score of own labels and residuals.

    ``nearer`` is `left_out_completion`. It counts in the errors of the joined model, not in the
    choice of slope and blend.
    """
    if local is None or len(y) < 3:
        together: Choice = "joined" if score is None else "score"
        return Verdict(together, Correction(), Correction(), 1.0, {}, {})
    n_scored = 0 if score is None else len(score)
    # The slope is that of the score, if it has a residual of each label.
    own_slope = slope(y, joined if score is None or n_scored < len(y) else score)
    correct_joined, left_joined = _corrected(own_slope, y, local, joined)
    left_joined = left_joined + correct_joined.weight * own_slope * nearer
    left_out = {"local": local, "joined": left_joined}
    gains = {"joined": gain(local, left_joined)}
    correct_score = Correction()
    recommended: Choice = "joined" if _square(left_joined) < _square(local) else "local"
    if score is not None and n_scored >= 3:
        local_there = local[:n_scored]
        correct_score, left_score = _corrected(own_slope, y[:n_scored], local_there, score, refine)
        left_out["score"] = left_score
        gains["score"] = gain(local_there, left_score)
        if _square(left_score) < min(_square(local_there), _square(left_joined[:n_scored])):
            recommended = "score"
    elif score is not None:
        correct_score, _ = rescaling(own_slope, y, joined)
    return Verdict(
        recommended, correct_joined, correct_score, own_slope, left_out, gains, uncorrected=score
    )


def _square(residuals: Float64[Arr, " n"]) -> float:
    return float(np.mean(residuals**2))


@dataclass(frozen=True, eq=False)
class OwnLabels:
    """A site's labels for its verdict, the ``n_common`` that enter sums over common rows first."""

    X: Float64[Arr, "n p"]
    W: Float64[Arr, "n k"]  # features of these rows
    y: Float64[Arr, " n"]
    error: Float64[Arr, " n"]  # noise on the labels that the site sent
    weight: Float64[Arr, " n"]  # in the fit; 0 of a label that is not in it
    n_common: int
    score: Float64[Arr, " c"] | None  # joint scores of the common ones; None: the site has none
    local: Float64[Arr, " n"] | None  # left-out residuals of the local model
    private_noise: float | None  # 1/precision, where all labels in the fit are of private rows


@dataclass(frozen=True, eq=False)
class Conclusion:
    """The verdict of a site, and its joined model if it learned from scores."""

    verdict: Verdict
    learned: LocalModel | None


def concluded(
    fit: Fit,
    own: Completion,
    labels: OwnLabels,
    scored: ScoredRows | None,
    *,
    seed: int,
    kernel: KernelName,
) -> Conclusion:
    """What a site concludes by its labels, and from joint scores of individuals without a label
    (None: it has none).
    """
    sent_labels = labels.y + labels.error
    c = labels.n_common
    score = labels.score
    # (1) left-out residuals of the score, and a joined model that learns from scores
    residuals = None
    targets = np.zeros(0)
    if score is not None and c:
        residuals = left_out_score(fit, sent_labels[:c], score)
        targets = sent_labels[:c] - residuals
    learned = None
    if scored is not None:
        X = labels.X[: len(targets)]
        learned = learn(scored, X, targets, seed=seed, kernel=kernel)
    # (2) those of the joined model
    joined = _left_out_joined(fit, own, labels, residuals, learned)
    nearer = np.zeros(len(sent_labels))
    if residuals is not None and score is not None:
        residuals = residuals - labels.error[:c]
        if learned is None:
            nearer[:c] = left_out_completion(fit, own, labels.W[:c], score)
    # (3) the verdict
    refine = None
    if kernel != "linear":
        refine = partial(refined, labels.X[:c], seed=seed)
    by_labels = verdict(labels.y, labels.local, joined, residuals, nearer, refine)
    if len(sent_labels):
        deviations = own.deviations(fit, labels.W, labels.private_noise)[1]
        by_labels = replace(by_labels, spread=spread(joined + nearer, deviations))
    return Conclusion(by_labels, None if learned is None else learned.model)


def _left_out_joined(
    fit: Fit,
    own: Completion,
    labels: OwnLabels,
    score: Float64[Arr, " c"] | None,
    learned: Learned | None,
) -> Float64[Arr, " n"]:
    """Left-out residuals of the joined model at the true labels; ``score``: those of the score."""
    c = labels.n_common
    sent_labels = labels.y + labels.error
    if learned is None:
        predicted = own.predict(fit, labels.W)
    else:
        predicted = learned.model.predict(labels.X)
        predicted[: len(learned.left_out)] = learned.left_out
    residuals = sent_labels - predicted
    of_private_rows = len(fit.moments.parts) - 1
    common = own_leverage(fit, own, labels.W[:c], labels.weight[:c])
    private = own_leverage(fit, own, labels.W[c:], labels.weight[c:], of_private_rows)
    residuals[c:] /= np.maximum(1.0 - private, 0.05)
    if score is None:
        residuals[:c] /= np.maximum(1.0 - common, 0.05)
    else:
        residuals[:c] += common * score
    return np.asarray(residuals - labels.error)
