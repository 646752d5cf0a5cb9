"""What a run leaves at this site: one type for each objective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.check import Verdict
from coreg_core.additive.label_privacy import columns_of
from coreg_core.additive.site_model import ClassModel, SiteModel
from coreg_core.additive.worth import Worth
from coreg_core.agreement.left_out import PathChoice
from coreg_core.agreement.solver import Progress
from coreg_core.agreement.views import Solution
from coreg_core.arrays import Arr, Ints
from coreg_core.evaluation import AnyProbability
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
class JudgedModels:
    """Does joining pay? The verdict of a site's own labels, each left out, and these labels.

    Labels of common rows come first. Of several classes there is a verdict for each, and a label is
    the place of its class.
    """

    verdicts: tuple[Verdict, ...]
    labels: Arr

    @property
    def verdict(self) -> Verdict:
        """Of the one target."""
        [verdict] = self.verdicts
        return verdict

    def left_out_scores(self, classes: Sequence[str]) -> dict[str, Float64[Arr, "n t"]]:
        """Left-out predictions by model, a column for each target."""
        columns = columns_of(self.labels, classes)
        models = set.intersection(*(set(verdict.left_out) for verdict in self.verdicts))
        out = {}
        for name in sorted(models):
            residuals = np.stack([verdict.left_out[name] for verdict in self.verdicts], axis=1)
            out[name] = columns[: len(residuals)] - residuals
        return out


@dataclass(frozen=True, eq=False)
class JointScores:
    """Scores of shared individuals, at places among them."""

    places: Ints
    values: Arr  # a column for each of several classes


@dataclass(frozen=True, kw_only=True)
class AdditiveResult(Result):
    """The site's models and its verdict."""

    model: SiteModel | ClassModel
    judged: JudgedModels
    # Of a classification: of the joined model, the score and the local model.
    probabilities: tuple[AnyProbability, ...] = ()
    # Of other sites that can judge: the change of the score's error against their local models.
    gains: Mapping[str, float] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
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

    # NaN where too few sites have a record; a column for each of several classes.
    scores: Arr | None = None
    present: tuple[tuple[str, ...], ...] = ()  # the sites in each score
    missing: Arr | None = None  # the deviation that absent sites leave
    contributions: Mapping[str, Arr] = field(default_factory=dict)  # of each site to a score
