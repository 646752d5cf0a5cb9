"""One step of a run: the question to every site, and the shape of the answers. All sites derive the same one."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import Column
from coreg_core.agreement.views import Part
from coreg_core.masking.words import Layout
from coreg_core.numerics.arrays import Arr

Stage: TypeAlias = Literal[
    "sizes",
    "respond",
    "publish",
    "pass",
    "take",
    "canaries",
    "tally",
    "summary",
    "announce",
    "sums",
    "private",
    "parts",
    "records",
    "scores",
]
NOTHING: Arr = np.zeros((0, 0))


@dataclass(frozen=True, eq=False)
class Ask:
    """A question to all sites; of an alignment ``place`` says what of which list.

    | stage | an answer |
    |---|---|
    | sizes | b_v⁸, ‖y_v‖², n_v; 1/(1 + μ b_v) of each column |
    | respond | respond(targets, μ), a column for each coupling |
    | publish | public keys of the sites for an alignment, and their numbers of ids as classes |
    | pass, take | a block of one site's list, sealed for the next site; nothing |
    | canaries, tally | a digest of each site's canaries; cells of a table of fingerprints |
    | summary, announce, sums, private, parts | the stages of `coreg_core.additive.exchange` |
    | records, scores | which individuals a site has a record of; its parts of their scores |

    ``norms`` are those of the targets: sites whose targets differ have other norms, and masks that do not cancel.
    """

    stage: Stage
    columns: tuple[Column, ...] = ()
    targets: Float64[Arr, "m k"] = field(default_factory=lambda: NOTHING)
    part: Part = "linear"
    place: tuple[int, ...] = ()
    norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """What one site tells beside the sum: words for all, bytes for all members, bytes for each other site (by position)."""

    shown: int = 0
    to_all: int | None = None
    to_each: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Round:
    """``answering``: positions of the sites that answer, in site order. ``lengths``: of each site, beyond the sum."""

    question: Ask
    layout: Layout
    exponents: tuple[int, ...]
    answering: tuple[int, ...]
    lengths: tuple[Lengths, ...] = ()
    phase: str = ""

    @property
    def words(self) -> bytes:
        """Everything except long vectors, in canonical form."""
        asked = self.question
        about = [
            asked.stage,
            asked.part,
            [asdict(column) for column in asked.columns],
            list(asked.place),
            list(asked.norms),
            [self.layout.rows, self.layout.columns, self.layout.scalars],
            list(self.exponents),
            list(self.answering),
            [[each.shown, each.to_all, sorted(each.to_each.items())] for each in self.lengths],
        ]
        return json.dumps(about, separators=(",", ":"), default=float.hex).encode()
