"""One step of a computation: the question to every site, and the layout of the answers. All sites derive the same one."""

import json
from collections.abc import Iterable
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
    "score",
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
]
NOTHING: Arr = np.zeros((0, 0))


@dataclass(frozen=True, eq=False)
class Ask:
    """A question to all sites; of an alignment ``place`` says what of which list.

    | stage | an answer sums to |
    |---|---|
    | sizes | b_v⁸, ‖y_v‖², n_v; 1/(1 + μ b_v) of each column; of scoring, the squared norm of the parts |
    | respond | respond(targets, μ), a column for each coupling |
    | score | the site's part of each instance |
    | publish | public keys of the sites for an alignment, and their numbers of ids as classes |
    | pass, take | a block of one site's list, sealed for the next site; nothing |
    | canaries, tally | a digest of each site's canaries; cells of a table of fingerprints |
    | summary, announce, sums, private, parts | the stages of `coreg_core.additive.exchange`; only words of sums are added |
    """

    stage: Stage
    columns: tuple[Column, ...] = ()
    targets: Float64[Arr, "m k"] = field(default_factory=lambda: NOTHING)
    part: Part = "linear"
    place: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Round:
    """``answering``: positions of the sites whose answers are added, in site order.

    ``verified``: heads are compared after it. ``private``: the sum is for the plan's receivers alone.
    """

    question: Ask
    layout: Layout
    exponents: tuple[int, ...]
    answering: tuple[int, ...]
    verified: bool = False
    private: bool = False
    phase: str = ""

    @property
    def words(self) -> bytes:
        """Everything except long vectors, in canonical form."""
        asked = self.question
        columns = [asdict(column) for column in asked.columns]
        shape = [self.layout.rows, self.layout.columns, self.layout.scalars]
        about = [
            asked.stage,
            asked.part,
            columns,
            list(asked.place),
            shape,
            list(self.exponents),
            list(self.answering),
            self.verified,
            self.private,
        ]
        return json.dumps(about, separators=(",", ":"), default=float.hex).encode()

    @property
    def vectors(self) -> Iterable[Arr]:
        """The long ones, in rows."""
        yield np.ascontiguousarray(self.question.targets)
