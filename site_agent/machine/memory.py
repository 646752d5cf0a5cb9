"""What a site writes down of a run, and how a run ended for it: shared by the kinds of job that a site has. Values alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.additive.model.expansion import SiteModel
from coreg_core.additive.model.grouping import Group
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.additive.model.terms import Residuals
from coreg_core.additive.site_state import SiteMemory
from coreg_core.agreement.columns import Column
from coreg_core.agreement.views import KernelExpansion, Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.evaluation.recommendation import Verdict
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector

Number: TypeAlias = tuple[int, int]  # question and attempt


@dataclass(frozen=True)
class Verified:
    """A question whose targets may become the run's result: their digest, and the columns that they were asked with."""

    targets: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Remembered:
    """What a site wrote down of its answers, so that a restart forgets none of it.

    ``answered`` counts every answer to this plan on these instances, over all runs; the rest is of this run:
    ``asked`` the digest of each question by its number, ``verified`` the last two that could become the result, ``kept`` what a
    training of the additive objective has to know to go on. ``groups`` are all groups of labels whose means went out, whatever
    the plan or the run, by the labels' keys: no label goes out in two. Of them the newest answer was the first to tell ``fresh``.
    ``residuals`` is what this run's plan has go out, for the words of the ledger. ``participants`` are whom the last
    masked answer
    was summed with, and ``may_change`` whether its plan said that they may change.
    """

    answered: int = 0
    asked: Mapping[Number, str] = field(default_factory=dict)
    verified: tuple[Verified, ...] = ()
    kept: SiteMemory | None = None
    groups: frozenset[Group] = frozenset()
    residuals: Residuals = "smoothed"
    fresh: tuple[Group, ...] = field(default=(), compare=False)
    participants: tuple[str, ...] = ()
    may_change: bool = False

    def after(self, asked: Number, digest: str, verified: Verified | None, **changes: Any) -> "Remembered":
        """Once a question is answered; repeated, it is one question, and so it is under another attempt's number."""
        before, known = self.verified, {**self.asked, asked: digest}
        if verified is not None and asked not in self.asked and before[-1:] != (verified,):
            before = (*before, verified)[-2:]
        return replace(self, answered=self.answered + 1, asked=known, verified=before, **changes)


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
    point: Vector | None = None
    kept: SiteMemory | None = None
    couplings: tuple[float, ...] = ()
    choice: PathChoice | None = None
    scores: Arr | None = None
    judged: Judged | None = None

    @property
    def functions(self) -> tuple[KernelExpansion, ...]:
        """One for each coupling of the plan; empty where no round was verified."""
        return tuple(s.function for s in self.solutions)
