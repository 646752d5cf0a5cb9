"""Alignment: which ids all sites have, without disclosing the others. Nothing is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Le

from coreg_core.objectives.setting import RUNS, Kind, Setting, Statement
from coreg_core.shapes import Shape

IdRule: TypeAlias = Literal["exact", "folded", "numbers"]
MOST_IDS = 5_000_000
MOST_POINTS = 50_000_000  # on the way in one alignment: an hour
POINT = 32  # bytes of a point
BLOCK = 32_768  # points of a pass
SIZE_CLASSES = 64
TALLY_WORDS = 174_760  # of a block of the tally
DIGEST = 32  # bytes


@dataclass(frozen=True)
class Alignment(Statement):
    """Which ids all sites have, without disclosing the others. Nothing is trained."""

    max_ids: Annotated[int, Ge(1), Le(MOST_IDS)] = 100_000  # of a site
    ids: IdRule = "folded"  # how ids are normalised: docs/reference/federation-toml.md

    name = "alignment"
    called = "an alignment"
    needs = "ids"
    questions: ClassVar[Mapping[str, Kind]] = {
        "list sizes": Kind("preliminary", "the number of this site's ids as a class"),
        "pass": Kind(
            "lists",
            "a padded list of ids as points that no single site can compute, sealed for the next "
            "site",
        ),
        "canaries": Kind("tally", "a digest of this site's canaries: no id"),
        "tally": Kind(
            "tally", "fingerprints of this site's ids, as a part of the sum over all sites"
        ),
    }

    def fault(self, plan: Setting) -> str | None:
        M = len(plan.sites)
        least = plan.membership.min_sites
        fault = super().fault(plan)
        if fault is not None:
            return fault
        if least < M:
            return f"min_sites={least} of {M}: an alignment needs every site."
        if M * (M + 1) * self.max_ids > MOST_POINTS:
            most = MOST_POINTS // (M * (M + 1))
            return f"max_ids={self.max_ids} at {M} sites: at most {most} fit an alignment."
        return None

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape:  # noqa: ARG002
        match kind:
            case "list sizes":
                return Shape(summed=SIZE_CLASSES)
            case "pass":
                return Shape(to_each=dict.fromkeys(sites, POINT * BLOCK))
            case "canaries":
                return Shape(to_all=DIGEST)
            case _:
                return Shape(summed=TALLY_WORDS)

    def most_answers(self, plan: Setting) -> int:
        """Blocks of every padded list, and of the tally; above what a run needs."""
        M = len(plan.sites)
        size = 1.2 * self.max_ids + 200
        return RUNS * (4 + M * ceil(size / BLOCK) + ceil(6 * M * size / TALLY_WORDS))

    def method(self, plan: Setting) -> str:  # noqa: ARG002
        return (
            "alignment of ids: each site learns which of its own ids all sites have, and how many"
            f" sites have each. At most {self.max_ids} ids at each site, normalised by the rule"
            f" {self.ids!r}; nothing is trained"
        )

    def leaves(self, shared: int) -> str:  # noqa: ARG002
        return (
            "this site's ids as points that no single site can compute, and a part of an encrypted"
            " tally of all ids"
        )

    def computable(self, plan: Setting, both: int) -> str:  # noqa: ARG002
        return "how many sites have each id that they list themselves"
