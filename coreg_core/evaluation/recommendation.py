r"""What a site does with a joined model, and with scoring together, and whose forecast it is told. Values, no words.

- Keep the joined model? Yes, unless its own nested loss exceeds one standard error of the paired difference. A gate on gain > 0
  gives away a seventh of the gain, and plain leave-one-out is worthless as one.
- Score together? Where own folds of the joint score err less than the model alone. Folds have four fifths of the labels, and
  promise less than comes.
- Whose forecast? The site's own from 50 labels on; below, the federation's summed one. With ten labels neither says
  more than chance of a joined model, and the label-free r² says some (`coreg_core.evaluation.calibration`).

docs/research/benefit.md has the figures, and what other limits would have given. "Stay alone" is an answer, and the alone model
is written beside in any case. Source: design, 7.4.
"""

from dataclasses import dataclass
from enum import Enum

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.evaluation.losses import Estimate, Paired, estimate, paired

# Below so many labels a site's own figure says little of it.
LEAST_LABELS = 50
# Standard errors of the paired difference that a nested loss has to exceed before a joined model is left.
LOSS_LIMIT = 1.0


class Choice(Enum):
    """Which model a site uses."""

    ALONE = "alone"
    JOINED = "joined"
    TOGETHER = "together"


class Told(Enum):
    """Whose forecast the operator is told: the site's own, the federation's sum, or none (no label, or no forecast run)."""

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
        ALONE, JOINED or TOGETHER: what to use where everyone is up and the instance is shared.
    told
        whose forecast is told.
    forecast
        relative change of the error by joining, of whoever is told; NaN where nothing is.
    labels
        that the site has.
    alone, joined, together
        nested errors ± standard errors; None where there is no such figure.
    joined_beside, together_beside
        paired with the model alone.
    """

    own: Choice
    score: Choice
    told: Told
    forecast: float
    labels: int
    alone: Estimate | None = None
    joined: Estimate | None = None
    together: Estimate | None = None
    joined_beside: Paired | None = None
    together_beside: Paired | None = None


def keeps_joined(beside: Paired) -> bool:
    """Keep the joined model: its nested loss does not exceed one standard error. A single row is no evidence against it."""
    return not beside.difference > LOSS_LIMIT * beside.standard_error


def scores_together(beside: Paired) -> bool:
    """Score together: own folds of the joint score err less than the model alone."""
    return beside.rows > 1 and beside.difference < 0.0


def own_choice(beside: Paired | None) -> Choice:
    """Which own model to keep; without any evidence the joined one."""
    return Choice.JOINED if beside is None or keeps_joined(beside) else Choice.ALONE


def score_choice(own: Choice, beside: Paired | None) -> Choice:
    """What to use for a shared instance while everyone is up: the joint score, or the own model that was kept."""
    return Choice.TOGETHER if beside is not None and scores_together(beside) else own


def judge(found: LeftOut | None, labels: int, federation: float = float("nan")) -> Verdict:
    """From what folds left out at the site, and the federation's summed change.

    Parameters
    ----------
    found
        None, or without rows: no forecast was run, or the site has too few labels. The joined model is kept.
    labels
        of the site.
    federation
        relative change of all sites' error in the forecast; NaN where none was run.
    """
    told_by_all = Told.FEDERATION if federation == federation else Told.NOTHING  # NaN: nobody forecast
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
        beside,
        together_beside,
    )
