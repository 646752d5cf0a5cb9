r"""Results of nested folds at a site, row by row: labels and predictions of rows that were left out. They stay at the site.

The forecast (`coreg_core.additive.forecast`) sends the federation three sums of these. The site keeps the rows: its
recommendation needs their scatter, and prediction intervals are calibrated on them. In the units of its labels.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows that some fold left out at every site at once, with predictions by models that never saw their labels.

    Parameters
    ----------
    rows
        which of the site's labelled rows, each at most once.
    labels
        y there.
    alone
        predicted by the model alone, chosen again in the fold.
    own
        by the own model, blended, as the site would keep it.
    together
        by the joint score, read at the row; NaN with private rows, which no other site knows.
    deviation
        the own model's stated deviation (`coreg_core.additive.model.predictive_sd`), not calibrated.
    """

    rows: Int64[Ints, " k"]
    labels: Float64[Arr, " k"]
    alone: Float64[Arr, " k"]
    own: Float64[Arr, " k"]
    together: Float64[Arr, " k"]
    deviation: Float64[Arr, " k"]

    @property
    def scored_together(self) -> bool:
        """Whether the folds read the joint score at these rows."""
        return bool(len(self.rows)) and not bool(np.isnan(self.together).any())

    @classmethod
    def nothing(cls) -> "LeftOut":
        """Of a site without labels, or with too few for a fold."""
        none = np.zeros(0)
        return cls(np.zeros(0, np.int64), none, none, none, none, none)

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Two folds' rows, one behind the other."""
        return LeftOut(
            *(
                np.concatenate([getattr(self, name), getattr(other, name)])
                for name in ("rows", "labels", "alone", "own", "together", "deviation")
            )
        )

    def scaled(self, factor: float, shift: float) -> "LeftOut":
        """In other units: shift + factor · prediction."""
        labels, alone, own, together = (
            shift + factor * each for each in (self.labels, self.alone, self.own, self.together)
        )
        return LeftOut(self.rows, labels, alone, own, together, factor * self.deviation)
