"""Scoring together: the sites' parts of one trained model, summed for the receivers.

Nothing is trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from coreg_core.objectives.additive import MOST_CLASSES
from coreg_core.objectives.setting import Kind, Setting, Statement
from coreg_core.shapes import Shape
from coreg_core.terms import RunName, SiteName

RECORD = 34  # bytes before the flags: the model's digest, and a power of two
STANDING_RUNS = 1_000_000  # of a standing plan; sites bound the individuals of a day instead


@dataclass(frozen=True)
class Scoring(Statement):
    """The sites' parts of a trained model, summed on instances with records at ``min_sites``."""

    of_run: RunName
    # Additive parts add up; agreeing models are averaged.
    trained: Literal["additive", "agreement"] = "additive"
    receivers: tuple[SiteName, ...] = ()  # empty: all sites
    contributions: bool = False  # receivers read each site's part, and not their sum alone
    # Receivers ask for single individuals at any time, and nothing else is scored.
    standing: bool = False
    # Scores of an individual: one, or one for each class that the run predicts.
    columns: Annotated[int, Ge(1), Le(MOST_CLASSES)] = 1

    name = "scoring"
    called = "a scoring"
    needs = "batch"
    one_set = False  # each individual has its set (`site_agent.machine.scoring`)
    usual = "2"
    questions: ClassVar[Mapping[str, Kind]] = {
        "asked": Kind("asked", "which individuals this site asks the scores of: the members"),
        "records": Kind(
            "records",
            "which of the individuals to score this site has a record of, and the name of its "
            "model",
        ),
        "scores": Kind(
            "scores",
            "this site's part of each score, for the receivers alone, who read the sum over the "
            "sites, or with contributions = true each part",
            "in the vectors",
        ),
    }

    def fault(self, plan: Setting) -> str | None:
        unknown = sorted(set(self.receivers) - set(plan.sites))
        if unknown:
            return f"receivers={unknown} are none of the sites {list(plan.sites)}."
        if self.contributions and self.trained == "agreement":
            return "contributions=true: parts add up only with the models of an additive training."
        if self.contributions and self.standing:
            return "contributions=true: a standing plan has sums only."
        if self.columns > 1 and (self.contributions or self.trained == "agreement"):
            return "columns: classes are of an additive training, and scored by sums only."
        return super().fault(plan)

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape:
        flags = (shared + 7) // 8
        if kind == "asked":
            return Shape(to_all=flags if self.standing else 0)
        if kind == "records":
            return Shape(to_all=RECORD + flags)
        return Shape(to_each=dict.fromkeys(self.receivers or sites, 8 * shared * self.columns))

    def most_answers(self, plan: Setting) -> int:
        if self.standing:
            return STANDING_RUNS
        return super().most_answers(plan)

    def method(self, plan: Setting) -> str:  # noqa: ARG002
        receivers = ", ".join(self.receivers) or "every site"
        when = ""
        if self.standing:
            when = " whenever one asks for individuals, without another approval"
        scores = "scores"
        if self.columns != 1:
            scores = f"scores of {self.columns} classes"
        return (
            f"scoring together with the models of run {self.of_run} ({self.trained}), "
            f"{scores} to {receivers}{when}"
        )

    def leaves(self, shared: int) -> str:
        read = ""
        if self.contributions:
            read = ", which receivers read"
        classes = ""
        if self.columns != 1:
            classes = f", for each of {self.columns} classes"
        if self.standing:
            return (
                f"which of {shared} instances this site asks for; of each that a member asks for,"
                f" whether this site has a record, and its part of the score{classes}"
            )
        membership = (
            f"which of {shared} instances this site has a record of, and the name of its model"
        )
        return f"{membership}; its part of each score{classes}{read}"

    def computable(self, plan: Setting, both: int) -> str:  # noqa: ARG002
        membership = "which instances this site has a record of"
        if self.contributions:
            membership += "; each part, which is a projection of this site's features"
        return f"{membership}; the sum of the parts, which is the score"
