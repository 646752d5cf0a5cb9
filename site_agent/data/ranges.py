"""The range of each feature in training. The model file keeps it, and `predict` reports values outside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True)
class Ranges:
    """(least, greatest, cells) of each numeric column with a value, over labelled and shared rows."""

    columns: dict[str, tuple[float, float, int]]

    @classmethod
    def of(cls, values: Mapping[str, Sequence[Arr]]) -> "Ranges":
        """Ranges of the columns' values, where NaN is a missing value."""
        known = {name: np.concatenate([v[~np.isnan(v)] for v in parts]) for name, parts in values.items()}
        return cls({name: (float(v.min()), float(v.max()), len(v)) for name, v in known.items() if len(v)})

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Ranges":
        return cls(
            {name: (float(low), float(high), int(cells)) for name, (low, high, cells) in plain["columns"].items()}
        )
