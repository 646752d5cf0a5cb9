"""What a run leaves at this site: one type for each objective."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coreg_core.additive.check import Verdict
from coreg_core.additive.site_model import SiteModel
from coreg_core.additive.worth import Worth
from coreg_core.agreement.schedules import Progress
from coreg_core.agreement.views import PathChoice, Solution
from coreg_core.arrays import Arr, Ints
from coreg_core.evaluation import Probability
from coreg_core.outcomes import Outcome


@dataclass(frozen=True)
class Result:
    """How a run ended here. Without ``name`` it ended before its computation did."""

    outcome: Outcome
    reason: str
    findings: tuple[str, ...] = ()  # sentences for this site's operator
    progress: Progress | None = None
    name: str = ""  # of the opened sums: equal at all members, and at no one else
    sites: tuple[str, ...] = ()  # the members


@dataclass(frozen=True)
class AgreementResult(Result):
    """Models in the run's units: labels are numbers · ``divisor`` + ``shift``."""

    solutions: tuple[
        Solution, ...
    ] = ()  # one for each λ of ``couplings``; none if none is verified
    alone: Solution | None = None
    shift: float = 0.0
    divisor: float = 1.0
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None  # of the own labels among ``solutions``


LABELS_TO_JUDGE = 20  # with fewer, left-out errors are chance


@dataclass(frozen=True, eq=False)
class Judged:
    """Does joining pay? The verdict of a site's own labels, each left out, and these labels.

    Labels of common rows come first.
    """

    verdict: Verdict
    labels: Arr


@dataclass(frozen=True, eq=False)
class JointScores:
    """Scores of shared individuals, at places among them."""

    places: Ints
    values: Arr


@dataclass(frozen=True, kw_only=True)
class AdditiveResult(Result):
    """The site's models and its verdict."""

    model: SiteModel
    judged: Judged
    probabilities: tuple[Probability, ...] = ()  # yes/no: of the joined model, score, local model
    # Of other sites that can judge: the change of the score's error against their local models.
    gains: Mapping[str, float] = field(default_factory=dict)
    scores: JointScores | None = None  # of individuals without a label, if all sites allow it
    # What the columns of the others bring to the score, the largest first (None: the order alone).
    partners: Mapping[str, Worth | None] = field(default_factory=dict)


@dataclass(frozen=True)
class AlignmentResult(Result):
    """The shared ids of this site.

    ``known_to``: how many of its ids at least so many sites have: (2, 940), (3, 712).
    """

    ids: tuple[str, ...] = ()
    known_to: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ScoringResult(Result):
    """The scores, at a receiver."""

    scores: Arr | None = None  # NaN where too few sites have a record
    present: tuple[tuple[str, ...], ...] = ()  # the sites in each score
    missing: Arr | None = None  # the deviation that absent sites leave
    contributions: Mapping[str, Arr] = field(default_factory=dict)  # of each site to a score
