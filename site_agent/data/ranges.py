"""Between which values a feature lay when the model was made, kept in its file, so that `predict` can say how far off
it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreg_core.numerics.arrays import Arr


@dataclass(frozen=True)
class Ranges:
    """(least, greatest, cells) of each numeric column, over labelled and shared rows; a column without a cell has none."""

    columns: dict[str, tuple[float, float, int]]

    @classmethod
    def of(cls, values: Mapping[str, Sequence[Arr]]) -> "Ranges":
        """From the columns' values, NaN where one is missing."""
        known = {name: np.concatenate([v[~np.isnan(v)] for v in parts]) for name, parts in values.items()}
        return cls({name: (float(v.min()), float(v.max()), len(v)) for name, v in known.items() if len(v)})

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Ranges":
        return cls(
            {name: (float(low), float(high), int(cells)) for name, (low, high, cells) in plain["columns"].items()}
        )
