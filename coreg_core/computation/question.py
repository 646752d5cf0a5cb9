"""One step of a run: the question to every site, and the shape of the answers. All sites derive the same one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import Column
from coreg_core.agreement.views import Part
from coreg_core.arrays import Arr, norms
from coreg_core.objectives.setting import Kind
from coreg_core.plan import OBJECTIVES
from coreg_core.secure.sums import Layout

KINDS: Mapping[str, Kind] = {
    kind: told for objective in OBJECTIVES.values() for kind, told in objective.questions.items()
}
NOTHING: Arr = np.zeros((0, 0))
SLACK = 1e-6  # relative: far above the rounding of an honest answer
SOME_SITE = (
    "the sum of the answers {}: some site sends false answers, and a sum does not show which one."
)


@dataclass(frozen=True)
class Lengths:
    """What one site tells beside the sum: words for all, bytes for all members, bytes for each other site (by position)."""

    shown: int = 0
    to_all: int | None = None
    to_each: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Question:
    """A question of a kind in `KINDS`."""

    kind: str
    layout: Layout  # of the words that are added, and their exponents
    exponents: tuple[int, ...]
    answering: tuple[int, ...]  # positions, in site order
    lengths: tuple[Lengths, ...] = ()  # of each site, beyond the sum
    columns: tuple[Column, ...] = ()  # of the agreement, a coupling each: respond(targets, μ)
    targets: Float64[Arr, "m k"] = field(default_factory=lambda: NOTHING)
    norms: tuple[
        float, ...
    ] = ()  # of the targets: sites whose targets differ have masks that do not cancel
    place: tuple[int, ...] = ()  # of an alignment: what of which list

    @property
    def part(self) -> Part:
        """The part of respond: "affine", or "linear" without labels."""
        return "affine" if self.kind == "respond affine" else "linear"

    @property
    def phase(self) -> str:
        return KINDS[self.kind].phase

    @property
    def words(self) -> bytes:
        """Everything except long vectors, in canonical form."""
        about = [
            self.kind,
            [asdict(column) for column in self.columns],
            list(self.place),
            list(self.norms),
            [self.layout.rows, self.layout.columns, self.layout.scalars],
            list(self.exponents),
            list(self.answering),
            [[each.shown, each.to_all, sorted(each.to_each.items())] for each in self.lengths],
        ]
        return json.dumps(about, separators=(",", ":"), default=float.hex).encode()


def scalar_fault(scalars: Sequence[float]) -> str | None:
    """The reason why honest sites cannot give these sizes and counts; None if they can."""
    if not np.isfinite(scalars).all():
        return "has a scalar that is not finite"
    return None if all(x >= 0.0 for x in scalars) else "has a size below zero"


def norm_fault(targets: Float64[Arr, "m k"], total: Float64[Arr, "m k"], gain: float) -> str | None:
    """The reason why ``total`` is no sum of linear answers to these columns, of at most ``gain`` times their norms in all."""
    if (norms(total) <= gain * (1.0 + SLACK) * norms(targets)).all():  # a NaN is not
        return None
    return "is longer than the question allows"
