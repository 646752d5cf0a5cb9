"""Alignment: which ids all sites have, without disclosing the others. Nothing is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal, TypeAlias

from annotated_types import Ge, Le

from coreg_core.objectives.setting import RUNS, Kind, Needs, Setting, Statement

IdRule: TypeAlias = Literal["exact", "folded", "numbers"]
MOST_IDS = 5_000_000
MOST_POINTS = 50_000_000  # on the way in one alignment: an hour


@dataclass(frozen=True)
class Alignment(Statement):
    """Which ids all sites have, without disclosing the others. Nothing is trained."""

    max_ids: Annotated[int, Ge(1), Le(MOST_IDS)] = 100_000  # of a site
    ids: IdRule = "folded"  # how ids are normalised: docs/reference/federation-toml.md

    name: ClassVar[str] = "alignment"
    called: ClassVar[str] = "an alignment"
    needs: ClassVar[Needs] = "ids"
    questions: ClassVar[Mapping[str, Kind]] = {
        "publish": Kind(
            "preliminary",
            "a public key for this alignment, and the number of this site's ids as a class",
        ),
        "pass": Kind(
            "lists",
            "a padded list of ids as points that no single site can compute, sealed for the next site",
        ),
        "take": Kind("lists", "a confirmation that the site received its own list: no data"),
        "canaries": Kind("tally", "a digest of this site's canaries: no id"),
        "tally": Kind(
            "tally", "fingerprints of this site's ids, as a part of the sum over all sites"
        ),
    }

    def fault(self, plan: Setting) -> str | None:
        M, least = len(plan.sites), plan.membership.min_sites
        if (fault := super().fault(plan)) is not None:
            return fault
        if least < M:
            return f"min_sites={least} of {M}: an alignment needs every site."
        if M * (M + 1) * self.max_ids > MOST_POINTS:
            return f"max_ids={self.max_ids} at {M} sites: at most {MOST_POINTS // (M * (M + 1))} fit an alignment."
        return None

    def most_numbers(self, shared: int) -> int:  # noqa: ARG002
        """A block of a list, or of the tally."""
        return 175_000

    def most_answers(self, plan: Setting) -> int:
        """Above `coreg_core.computation.alignment`: blocks of a padded list at every site, and of the tally."""
        M, size = len(plan.sites), 1.2 * self.max_ids + 200
        return RUNS * (4 + ceil(size / 32_768) * (M + 1) + ceil(1.5 * M * size / 43_000))

    def method(self, plan: Setting) -> str:  # noqa: ARG002
        return (
            "alignment of ids: each site learns which of its own ids all sites have, and how many sites have each. At most "
            f"{self.max_ids} ids at each site, normalised by the rule {self.ids!r}; nothing is trained"
        )

    def leaves(self, shared: int) -> str:  # noqa: ARG002
        return "this site's ids as points that no single site can compute, and a part of an encrypted tally of all ids"

    def computable(self, plan: Setting, both: int) -> str:  # noqa: ARG002
        return "how many sites have each id that they list themselves"
