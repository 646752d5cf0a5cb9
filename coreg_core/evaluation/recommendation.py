r"""Recommendations for a site: its own model, scoring together, and which forecast to show. Values without texts.

- Keep the joined model? Yes, unless its own nested loss exceeds one standard error of the paired difference. A rule on
  gain > 0 loses a seventh of the gain, and plain leave-one-out is useless as a rule.
- Score together? Where own folds of the joint score err less than the model alone. Folds have four fifths of the labels, so
  their estimate is pessimistic.
- Whose forecast? The site's own from 50 labels on; below, the federation's summed one. With ten labels neither
  predicts the gain of a joined model better than chance, and the label-free r² predicts it slightly.

docs/research/benefit.md has the figures, also for other limits. "Stay alone" is a possible recommendation, and the model
alone is saved in any case. Source: design, 7.4.
"""

from dataclasses import dataclass
from enum import Enum

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.evaluation.losses import Estimate, Paired, estimate, paired

# Below so many labels a site's own forecast is unreliable.
LEAST_LABELS = 50
# Standard errors of the paired difference that a nested loss must exceed to reject a joined model.
LOSS_LIMIT = 1.0


class Choice(Enum):
    """Which model a site uses."""

    ALONE = "alone"
    JOINED = "joined"
    TOGETHER = "together"


class Told(Enum):
    """The forecast to show: the site's own, the federation's sum, or none (no label, or no forecast run)."""

    OWN = "own"
    FEDERATION = "federation"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Verdict:
    """The recommendation of one site.

    Parameters
    ----------
    own
        ALONE or JOINED: which own model to keep, for predicting alone.
    score
        ALONE, JOINED or TOGETHER: the model for shared instances while all sites are connected.
    told
        the source of the shown forecast.
    forecast
        relative change of the error by joining, from that source; NaN if there is none.
    labels
        that the site has.
    alone, joined, together
        nested errors ± standard errors; None if unknown.
    """

    own: Choice
    score: Choice
    told: Told
    forecast: float
    labels: int
    alone: Estimate | None = None
    joined: Estimate | None = None
    together: Estimate | None = None


def keeps_joined(beside: Paired) -> bool:
    """Keep the joined model: its nested loss does not exceed one standard error. A single row is no evidence against it."""
    return not beside.difference > LOSS_LIMIT * beside.standard_error


def scores_together(beside: Paired) -> bool:
    """Score together: own folds of the joint score err less than the model alone."""
    return beside.rows > 1 and beside.difference < 0.0


def own_choice(beside: Paired | None) -> Choice:
    """The own model to keep; without evidence the joined one."""
    return Choice.JOINED if beside is None or keeps_joined(beside) else Choice.ALONE


def score_choice(own: Choice, beside: Paired | None) -> Choice:
    """The model for a shared instance while all sites are connected: the joint score, or the kept own model."""
    return Choice.TOGETHER if beside is not None and scores_together(beside) else own


def judge(found: LeftOut | None, labels: int, federation: float = float("nan")) -> Verdict:
    """The recommendation from the site's left-out rows and the federation's summed change.

    Parameters
    ----------
    found
        None, or without rows: no forecast was run, or the site has too few labels. The joined model is kept.
    labels
        of the site.
    federation
        relative change of all sites' error in the forecast; NaN where none was run.
    """
    told_by_all = Told.FEDERATION if federation == federation else Told.NOTHING  # NaN: no forecast
    if found is None or not len(found.rows):
        return Verdict(Choice.JOINED, Choice.JOINED, told_by_all, federation, labels)
    alone, joined = found.labels - found.alone, found.labels - found.own
    beside = paired(joined, alone)
    own = own_choice(beside)
    together, together_beside = None, None
    if found.scored_together:
        residuals = found.labels - found.together
        together, together_beside = estimate(residuals), paired(residuals, alone)
    enough = labels >= LEAST_LABELS
    return Verdict(
        own,
        score_choice(own, together_beside),
        Told.OWN if enough else told_by_all,
        beside.change if enough else federation,
        labels,
        estimate(alone),
        estimate(joined),
        together,
    )
