"""A site's records of a run and its result, shared by all kinds of job. Values only."""

from dataclasses import dataclass

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.additive.model.expansion import SiteModel
from coreg_core.additive.model.grouping import Group
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.site_state import SiteMemory
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.agreement.views import Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.computation.rounds import Round
from coreg_core.evaluation.losses import Estimate
from coreg_core.evaluation.probability import Probability
from coreg_core.evaluation.recommendation import Verdict
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class Remembered:
    """The ledger's record of a plan's answers, over all its runs on these instances.

    ``answered`` counts them. ``groups`` are all groups of labels (by their keys) whose means were disclosed, under any plan
    or run: a label is disclosed in one group only.
    """

    answered: int = 0
    groups: frozenset[Group] = frozenset()


@dataclass(frozen=True)
class Told:
    """The disclosure of an answer, for the ledger: the question, the sites of its sum, and whether these can change.

    ``fresh`` are the groups of labels whose means it disclosed first.
    """

    asked: Round
    sites: tuple[str, ...]
    may_change: bool
    sealed: bool
    residuals: Residuals = "smoothed"
    fresh: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Judged:
    """Does joining pay? The verdict, the left-out rows of the folds (None without a forecast), the own model's spread.

    ``federation`` is the change of all sites' summed error. ``r2`` measures how well the own columns predicted the others'
    score before training; this forecast needs no labels.
    """

    verdict: Verdict
    left_out: LeftOut | None
    spread: Spread | None
    r2: float | None
    federation: float = float("nan")
    baseline: Estimate | None = None  # of the mean of the other labels of this site


@dataclass(frozen=True)
class Aligned:
    """The shared ids of this site, how many of its ids at least so many sites have: (2, 940), (3, 712), and how many ids it
    has.
    """

    ids: tuple[str, ...]
    known_to: tuple[tuple[int, int], ...]
    own: int


@dataclass(frozen=True)
class SiteResult:
    """The result of a run at this site; ``solutions`` are its models in the run's units, one for each column (λ).

    ``couplings`` are λ of the solutions. ``choice`` is the one with the least left-out error on this site's labels, for a path.
    ``judged`` is the verdict of an additive training on whether joining pays here.
    ``probabilities`` are those of the own model and of the local one, for a yes/no target.
    ``scores`` are the joint scores, if this site is a receiver. ``progress`` has the exact figures of the last round.
    ``additive`` are its models under the additive objective, in its own units. ``findings`` are sentences about the training at
    this site. ``point`` is the federation's solution x, and ``kept`` the state from which the site's side of it is rebuilt.
    """

    outcome: Outcome
    reason: str
    plan: Plan | None
    solutions: tuple[Solution, ...] = ()
    alone: Solution | None = None
    shift: float = 0.0
    divisor: float = 1.0
    additive: SiteModel | None = None
    findings: tuple[str, ...] = ()
    point: Arr | None = None
    kept: SiteMemory | None = None
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None
    scores: Arr | None = None
    judged: Judged | None = None
    aligned: Aligned | None = None
    probabilities: tuple[Probability, ...] = ()
    progress: Progress | None = None
