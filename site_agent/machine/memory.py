"""A site's records of a run and its result, shared by all kinds of job. Values only."""

from dataclasses import dataclass

from coreg_core.additive.check import Verdict
from coreg_core.additive.site_model import SiteModel
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.agreement.views import Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.computation.question import Question
from coreg_core.evaluation.probability import Probability
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class Told:
    """The disclosure of an answer, for the ledger: the question, the sites of its sum, and whether these can change."""

    asked: Question
    sites: tuple[str, ...]
    may_change: bool
    sealed: bool


@dataclass(frozen=True, eq=False)
class Judged:
    """Does joining pay? The verdict of a site's own labels, each left out, and these labels, of common rows first."""

    verdict: Verdict
    labels: Arr


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
    """The result of a run at this site.

    Parameters
    ----------
    solutions, couplings, choice
        its models of an agreement in the run's units, one for each column (λ); their λ; of a path, the one with the least
        left-out error on this site's labels.
    additive, judged, probabilities
        its models of an additive training in the labels' units; whether joining pays here; for a yes/no target, the
        probabilities of the joined model, of the score and of the local model.
    scores, present, missing
        joint scores, NaN where too few sites have a record; the sites in each; the deviation that the other sites leave.
    findings
        sentences about the training at this site.
    progress
        the exact figures of the last round.
    name, sites
        of the opened sums, and of the sites in them; empty if the run ended before its computation did.
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
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None
    scores: Arr | None = None
    present: tuple[tuple[str, ...], ...] = ()
    missing: Arr | None = None
    judged: Judged | None = None
    aligned: Aligned | None = None
    probabilities: tuple[Probability, ...] = ()
    progress: Progress | None = None
    name: str = ""
    sites: tuple[str, ...] = ()
