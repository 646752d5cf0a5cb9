r"""The state of a training at a site: a few numbers that restore it in another process, with the same bits.

Everything else of a site (features, factors, its model alone) follows from its data and the terms. Q_E, the one vector of
`AdditiveSite.to_arrays`, is left out: TRACES carry it.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from coreg_core.additive.question_rules import Position
from coreg_core.additive.question_types import Ask
from coreg_core.additive.site import AdditiveSite

_SHAPES = {"units": (-1,), "smoother": (-1,), "hypers": (-1, 2), "traces": (-1, 4), "folds": (-1, 4)}


@dataclass(frozen=True)
class SiteMemory:
    """The position of the training, and the site's numbers from it: plain lists, by their names in `to_arrays`."""

    position: Position
    told: Mapping[str, Any]

    @classmethod
    def of(cls, site: AdditiveSite, position: Position) -> "SiteMemory":
        """The state of a site that has just answered the question of that position."""
        arrays = site.to_arrays()
        return cls(position, {name: arrays[name].tolist() for name in _SHAPES})

    def restore(self, site: AdditiveSite) -> None:
        """Restore this state in a new site of the same data and terms."""
        arrays = {name: np.array(self.told[name], dtype=np.float64).reshape(shape) for name, shape in _SHAPES.items()}
        site.restore({**arrays, "probe_sum": site.to_arrays()["probe_sum"]})

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON keeps every bit of a float."""
        return {"position": [self.position.ask.name, *astuple(self.position)[1:]], **self.told}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "SiteMemory":
        """The inverse of `to_json`."""
        ask, *rest = plain["position"]
        return cls(Position(Ask[ask], *rest), {name: plain.get(name, []) for name in _SHAPES})
