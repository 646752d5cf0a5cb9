"""What a site writes down of a run, and how a run ended for it: shared by the kinds of job that a site has. Values alone."""

from dataclasses import dataclass

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.additive.model.expansion import SiteModel
from coreg_core.additive.model.grouping import Group
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.site_state import SiteMemory
from coreg_core.agreement.views import KernelExpansion, Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.computation.rounds import Round
from coreg_core.evaluation.losses import Estimate
from coreg_core.evaluation.recommendation import Verdict
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class Remembered:
    """What a site's ledger knows of a plan's answers, over all runs of it on these instances.

    ``answered`` counts them. ``groups`` are all groups of labels whose means went out, whatever the plan or the run, by the
    labels' keys: no label goes out in two.
    """

    answered: int = 0
    groups: frozenset[Group] = frozenset()


@dataclass(frozen=True)
class Told:
    """What an answer tells, for the ledger: the question, the sites whose sum it went into, and whether these may change.

    ``fresh`` are the groups of labels of which it was the first to tell the means.
    """

    asked: Round
    sites: tuple[str, ...]
    may_change: bool
    sealed: bool
    residuals: Residuals = "smoothed"
    fresh: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Judged:
    """Does joining pay? The verdict, the rows that folds left out (None without a forecast), how far the own model may be off.

    ``federation`` is the change of all sites' summed error, and ``r2`` how well own columns predicted the others' score before
    anything was trained, a forecast that needs no label.
    """

    verdict: Verdict
    left_out: LeftOut | None
    spread: Spread | None
    r2: float | None
    federation: float = float("nan")
    baseline: Estimate | None = None  # of the mean of the other labels of this site


@dataclass(frozen=True)
class SiteResult:
    """How the run ended for this site; ``solutions`` are its models in the run's units, one a column (λ).

    ``couplings`` are λ of the solutions, and ``choice`` which of them the site's own labels are for, where there is a path.
    ``judged`` is what an additive training found out of whether joining pays here.
    ``scores`` are those of a scoring together, where this site may have them.
    ``additive`` are its models under the additive objective, in its own units, and ``findings`` what the training found out about
    this site, in words; ``point`` is the federation's solution x, and ``kept`` what makes the site's side of it again.
    """

    outcome: Outcome
    reason: str
    plan: Plan | None
    solutions: tuple[Solution, ...]
    alone: Solution | None
    shift: float
    divisor: float
    additive: SiteModel | None = None
    findings: tuple[str, ...] = ()
    point: Arr | None = None
    kept: SiteMemory | None = None
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None
    scores: Arr | None = None
    judged: Judged | None = None

    @property
    def functions(self) -> tuple[KernelExpansion, ...]:
        """One for each coupling of the plan; empty where no round was verified."""
        return tuple(s.function for s in self.solutions)
